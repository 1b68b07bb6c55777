"""Defines devices: the kinds, the specification, the description, and the operations of an opened device.

torch is imported only when a device is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from opatlas.row.errors import DeviceUnhealthy
from opatlas.run.instruments.instrument import Instrument, MeasureSettings

if TYPE_CHECKING:
    import torch

    from opatlas.run.devices.device_lock import LockHolder

#: Length of the sides of the matrices that `probe` multiplies.
_PROBE_SIZE = 64


@dataclass(frozen=True)
class Kind:
    """A kind of device.

    Attributes:
        opener: "module:class" of the class that opens a device of this kind.
        backend: name of the torch.distributed backend that transfers tensors between its ranks.
        ranks_share: whether all ranks of a node share one device; otherwise each rank has a device of its own.
    """

    opener: str
    backend: str
    ranks_share: bool = False


#: The kinds of devices, by the name of torch's device type.
KINDS: Mapping[str, Kind] = {
    "npu": Kind("opatlas.run.devices.npu:NpuDevice", backend="hccl"),
    "cuda": Kind("opatlas.run.devices.cuda:CudaDevice", backend="nccl"),
    "cpu": Kind("opatlas.run.devices.cpu:CpuDevice", backend="gloo", ranks_share=True),
}


@dataclass(frozen=True)
class DeviceSpec:
    """The device that a process is to open.

    Attributes:
        kind: a name in `KINDS`, or any name if `opener` is given.
        index: the device's number among the visible devices, from 0.
        pinned: the environment variable that makes this device alone visible to a process, and its value;
            None if there is no choice of devices.
        opener: "module:name" of a callable that takes the spec and the settings and returns the opened device;
            "" for the kinds in `KINDS`.
        name: name of the device's database folder; "" if it is not known.
        sees_no_other: whether the process sees only this device. Otherwise it sees all devices and opens `index`.
    """

    kind: str
    index: int = 0
    pinned: tuple[str, str] | None = None
    opener: str = ""
    name: str = ""
    sees_no_other: bool = True

    def __str__(self) -> str:
        return f"{self.kind} {self.index}"


@dataclass(frozen=True)
class DeviceDescription:
    """Facts about an opened device, for the run manifest.

    Attributes:
        name: the device's own name.
        facts: everything constant that may affect a duration: memory, cache sizes, threads, versions.
        kind: kind of the device's spec; the code that opens the device replaces "".
        state: values that change (temperature, power, use), read when the device was opened.
        no_custom_operators: why vllm-ascend's operators cannot be registered; "" if they can.
    """

    name: str
    facts: Mapping[str, str | int | float]
    kind: str = ""
    state: Mapping[str, str | int | float] = field(default_factory=dict, compare=False)
    no_custom_operators: str = ""


class Device(Protocol):
    """An opened device, which this process owns."""

    @property
    def torch_device(self) -> torch.device:
        """Returns the device on which the tensors of rows are created."""
        ...

    def describe(self) -> DeviceDescription:
        """Returns facts for the run manifest."""
        ...

    def instrument(self) -> Instrument:
        """Returns the instrument that the settings name, by default the best available one. Raises OpAtlasError."""
        ...

    def kernel(self, impl: Callable[..., Any], npu: str | None) -> Callable[..., Any]:
        """Returns the function to time: the replay's `impl`, or on an NPU the call named `npu`. Raises Unsupported."""
        ...

    def available_bytes(self) -> int:
        """Returns the memory that a row may use, in bytes."""
        ...

    def release_memory(self) -> None:
        """Frees the cached memory of earlier rows."""
        ...

    def probe(self) -> None:
        """Runs an operation with a known result.

        Raises:
            DeviceUnhealthy: the result is wrong. Errors of the device are raised unchanged.
        """
        ...

    def synchronize(self) -> None:
        """Waits until all launched work has ended."""
        ...

    def flush_cache(self, touched: Sequence[torch.Tensor] | None = None) -> None:
        """Removes the row's data from all caches before the next launch begins.

        Args:
            touched: all tensors that the row reads and writes; None if the tensors are not known. A device may flush
                other data, too.
        """
        ...

    def locked(
        self, when_waiting: Callable[[LockHolder], None], when_taken: Callable[[], None], limit_s: float | None = None
    ) -> AbstractContextManager[object]:
        """Returns a context that holds the device's lock while a row runs.

        Args:
            when_waiting: called with the holder of the lock, if another row holds it.
            when_taken: called at the end of that wait.
            limit_s: longest wait in seconds; None: no limit.

        Raises:
            DeviceGone: the wait exceeded the limit.
        """
        ...


def open_device(spec: DeviceSpec, settings: MeasureSettings) -> Device:
    """Opens a device in this process. Imports torch.

    Raises:
        OpAtlasError: the device does not exist here; the message names a remedy.
    """
    module, _, name = (spec.opener or KINDS[spec.kind].opener).partition(":")
    device: Device = getattr(import_module(module), name)(spec, settings)
    return device


def probe(device: torch.device) -> None:
    """Multiplies two matrices of small integers on a device and compares the product.

    The product is exact in every floating-point type.

    Raises:
        DeviceUnhealthy: the product is wrong. Errors of the device are raised unchanged.
    """
    import torch

    left = torch.arange(_PROBE_SIZE, device=device).remainder(7).float().expand(_PROBE_SIZE, _PROBE_SIZE)
    product = (left @ left.t()).cpu()
    expected = float(sum((i % 7) ** 2 for i in range(_PROBE_SIZE)))
    wrong = int((product != expected).sum())
    if wrong:
        raise DeviceUnhealthy(f"{wrong} of {_PROBE_SIZE**2} elements of a matrix product on {device} are wrong")
