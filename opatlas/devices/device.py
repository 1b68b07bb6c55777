"""The devices that replays run on, behind one Protocol."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from opatlas.devices.discovery import KINDS
from opatlas.engine.job import DeviceDescription, DeviceSpec, MeasureSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    import torch

    from opatlas.devices.device_lock import LockHolder
    from opatlas.instruments.instrument import Instrument


class Device(Protocol):
    """One device, owned by this process."""

    @property
    def torch_device(self) -> torch.device:
        """Where the tensors of a row are born."""
        ...

    def describe(self) -> DeviceDescription:
        """Facts for the run manifest."""
        ...

    def instrument(self) -> Instrument:
        """What takes the durations: the instrument of the settings, by default the best. Raises OpAtlasError."""
        ...

    def kernel(self, impl: Callable[..., Any], npu: str | None) -> Callable[..., Any]:
        """What is timed here: the replay's `impl`, or its NPU call by name. Raises Unsupported."""
        ...

    def available_bytes(self) -> int:
        """Memory that a row may take."""
        ...

    def release_memory(self) -> None:
        """Gives back what was allocated for rows that are done."""
        ...

    def probe(self) -> None:
        """Runs a known-good operation. Raises whatever it raises, DeviceSick where its result is wrong."""
        ...

    def synchronize(self) -> None:
        """Waits for everything that was launched."""
        ...

    def flush_cache(self, touched: Sequence[torch.Tensor] | None = None) -> None:
        """Leaves nothing of a row in any cache, by the time that what is launched next begins.

        Args:
            touched: all tensors that the row reads and writes; None where nobody knows them. A device may flush more.
        """
        ...

    def locked(
        self, when_waiting: Callable[[LockHolder], None], when_taken: Callable[[], None], limit_s: float | None = None
    ) -> AbstractContextManager[object]:
        """Held while a row runs; keeps out others whose work would disturb its samples.

        Args:
            when_waiting: called with the holder of the lock, if its row is to end first.
            when_taken: called when that wait is over.
            limit_s: how long to wait; None: as long as it takes.

        Raises:
            DeviceGone: the wait was longer.
        """
        ...


def open_device(spec: DeviceSpec, settings: MeasureSettings) -> Device:
    """Opens a device for this process. Imports torch.

    Raises:
        OpAtlasError: no such device here, with the remedy.
    """
    module, _, name = (spec.opener or KINDS[spec.kind].opener).partition(":")
    device: Device = getattr(import_module(module), name)(spec, settings)
    return device
