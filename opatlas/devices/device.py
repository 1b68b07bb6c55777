"""What a device is: its kind, its specification, what a process that owns it can do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from opatlas.instruments.instrument import MeasureSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    import torch

    from opatlas.devices.device_lock import LockHolder
    from opatlas.instruments.instrument import Instrument


@dataclass(frozen=True)
class Kind:
    """
    Attributes:
        opener: "module:class" of what opens a device of it, as in a spec.
        backend: what carries its tensors from rank to rank, as torch.distributed calls it.
        ranks_share: the ranks of a node share its one device, instead of having one each.
    """

    opener: str
    backend: str
    ranks_share: bool = False


#: By name, which is what torch calls that type of device, too.
KINDS: Mapping[str, Kind] = {
    "npu": Kind("opatlas.devices.npu:NpuDevice", backend="hccl"),
    "cuda": Kind("opatlas.devices.cuda:CudaDevice", backend="nccl"),
    "cpu": Kind("opatlas.devices.cpu:CpuDevice", backend="gloo", ranks_share=True),
}


@dataclass(frozen=True)
class DeviceSpec:
    """Which device a process is to own.

    Attributes:
        kind: "cpu", or what `opener` opens.
        index: its place among those that the user made visible, from 0.
        pinned: the environment variable that shows the process this device alone, and its value there;
            None where there is nothing to choose from.
        opener: "module:name" of what opens it, called with the spec and the settings; "" for the kinds
            that OpAtlas knows.
        name: of the device's database folder; "" where it is not known.
        alone: whether the process is to see this device alone; if not, it sees all, and takes the one at `index`.
    """

    kind: str
    index: int = 0
    pinned: tuple[str, str] | None = None
    opener: str = ""
    name: str = ""
    alone: bool = True

    def __str__(self) -> str:
        return f"{self.kind} {self.index}"


@dataclass(frozen=True)
class DeviceDescription:
    """What a device says of itself, for the run manifest.

    Attributes:
        name: what the device calls itself.
        facts: memory, cache sizes, threads, versions: whatever bears on a duration.
        kind: as in its spec, which need not be repeated: where it is empty, whoever opened the device puts that in.
        state: what changes by itself (temperature, power, use), as it was when the device was opened.
        no_custom_operators: why the operators that vllm-ascend brings cannot be there; "" where they can.
    """

    name: str
    facts: Mapping[str, str | int | float]
    kind: str = ""
    state: Mapping[str, str | int | float] = field(default_factory=dict, compare=False)
    no_custom_operators: str = ""


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
        """Runs a known-good operation. Raises whatever it raises, DeviceUnhealthy where its result is wrong."""
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
