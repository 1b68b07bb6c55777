"""Devices: what a session asks of a kind of device without torch, and what an opened device does."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceUnhealthy, ReplayError
from opatlas.row.versions import Kind, kind_of, kinds

if TYPE_CHECKING:
    import torch

    from opatlas.run.devices.device_lock import DeviceLock, LockHolder
    from opatlas.run.devices.fatal_errors import FatalErrors
    from opatlas.run.instruments.instrument import Instrument, MeasureSettings


Facts: TypeAlias = Mapping[str, "str | int | float"]

#: Length of the sides of the matrices that `probe` multiplies.
_PROBE_SIZE = 64


@dataclass(frozen=True)
class DeviceSpec:
    """The device that a process is to open.

    Attributes:
        kind: the name of a kind of `kinds()`, or any name if `opener` is given.
        index: the device's number among the visible devices, from 0.
        pinned: the environment variable that makes this device alone visible to a process, and its value;
            None if there is no choice of devices.
        opener: "module:name" of a callable that takes the spec and the settings and returns the opened device;
            "" for that of the kind.
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
    facts: Facts
    kind: str = ""
    state: Facts = field(default_factory=dict, compare=False)
    no_custom_operators: str = ""


@dataclass(frozen=True)
class DeviceState:
    """The present state of a device that others may use too; manifests store it."""

    def disturbances(self) -> list[str]:
        """Returns a phrase with numbers for each likely disturbance; [] on a quiet device."""
        raise NotImplementedError


class InstrumentMissing(OpAtlasError):
    """An instrument cannot work on this machine; the message contains the remedy."""


class DeviceKind(Kind):
    """What a session asks of a kind of device without torch. The kind's file sets what differs from a CPU.

    Attributes:
        opener: "module:class" of the class that opens a device of this kind.
        backend: the backend of torch.distributed that transfers tensors between ranks.
        ranks_share: whether all ranks of a node share one device; otherwise each rank has a device of its own.
        visible: the variable that lists the visible devices; a process numbers the listed devices from 0. "": none.
        tool: the command of the vendor that shows the devices.
        remedy: what to do where there is no such device.
        instruments: "module:function" of each instrument by name, the best one first; it takes the settings.
        events: the instrument that needs no profiler; None: there is none.
        default_device: the device whose grid one without a name has.
        grids: by product the grid of its devices, and the sizes of the groups that are measured by default; () for all.
        resource: the resource of a cluster of Ray that counts these devices; "" for none.
        kernel_language: what a model writes kernels in.
        dispatch_key: the key of torch's dispatcher for operators on these devices.
        has_float64: whether formulas can be computed in float64 there.
        has_bytes: whether torch reads the bytes of a tensor there.
        has_graphs: whether launches are recorded in a graph there, and replayed.
    """

    opener = ""
    backend = ""
    ranks_share = False
    visible = ""
    tool = ""
    instruments: ClassVar[Mapping[str, str]] = {}
    events: str | None = None
    default_device = ""
    grids: ClassVar[Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    resource = ""
    kernel_language = "torch"
    dispatch_key = ""
    has_float64 = False
    has_bytes = False
    has_graphs = False

    @cached_property
    def fatal_errors(self) -> FatalErrors | None:
        """The errors after which a process cannot use the device; None: there are none."""
        return None

    def preferred_instrument(self, name: str | None) -> str:
        """Returns the instrument of a name; by default the best one, which may not work on this machine.

        Raises:
            OpAtlasError: devices of this kind do not have the instrument.
        """
        if name is not None and name not in self.instruments:
            raise OpAtlasError(f"--instrument {name}: devices of kind {self.name} offer {', '.join(self.instruments)}")
        return name or next(iter(self.instruments))

    def group_instrument(self, name: str | None) -> str:
        """Returns the name of the instrument for a group of devices, as `preferred_instrument` does."""
        return self.preferred_instrument(name)

    def open_instrument(self, settings: MeasureSettings) -> Instrument:
        """Opens the instrument of the settings, by default the best working one, for the device of this process.

        Imports torch.

        Raises:
            OpAtlasError: devices of this kind do not have the instrument.
            InstrumentMissing: the instrument does not work on this machine.
        """
        if not settings.measures:
            # Imported here as the instruments are, which only a device's process needs.
            from opatlas.run.instruments.instrument import NoInstrument

            return NoInstrument()
        missing: list[str] = []
        named = settings.instrument
        for name in self.instruments if named is None else [self.preferred_instrument(named)]:
            module, _, maker = self.instruments[name].partition(":")
            try:
                instrument: Instrument = getattr(import_module(module), maker)(self.name, settings)
            except InstrumentMissing as error:
                missing.append(f"{name}: {error}")
            else:
                return instrument
        raise InstrumentMissing("; ".join(missing))

    def is_present(self) -> bool:
        """Returns whether a session takes these devices without --device: they are there, usable and not hidden."""
        return False

    def find(self, name: str | None) -> list[DeviceSpec]:
        """Returns a spec for each visible device, or for each of a name. Raises OpAtlasError if there is none."""
        raise NotImplementedError(self.name)

    def name_remedy(self) -> str:
        """Returns why the name of the database's folder is not known, and what to do."""
        return (
            f"the database of devices of kind {self.name} is not known: give its folder with --database-path, or set "
            "the name of the DeviceSpec (pytest_opatlas_devices)"
        )

    def environment(self) -> Mapping[str, str]:
        """Returns the variables that a process needs before it imports torch and opens a device."""
        return {}

    def driver_version(self) -> str | None:
        """Returns the driver's version for the manifest; "" if it is not known, None if there is no driver."""
        return None

    def state(self, spec: DeviceSpec, own: Collection[int], opened: bool) -> DeviceState | None:
        """Returns the state of a device; None where nobody tells it.

        Args:
            own: ids of the session's processes.
            opened: whether a process of the session may use the device.
        """
        return None

    def communicator_name(self, rank: int) -> str:
        """Returns the name of a communicator of all ranks for kernels that communicate (torch.distributed is up)."""
        from torch import distributed

        world = distributed.group.WORLD
        assert world is not None
        return str(world.group_name)

    def error_of(self, message: str) -> ReplayError | None:
        """Returns the error of a row for a message about missing software of the device; None for others."""
        return None


def device_kinds() -> Mapping[str, DeviceKind]:
    """Returns the kinds of devices by name, those that a session prefers first."""
    return cast("Mapping[str, DeviceKind]", kinds())


def kind_named(name: str) -> DeviceKind:
    """Returns the kind of a name; for the kind of a user's own devices one that offers nothing."""
    return device_kinds().get(name) or DeviceKind(name)


class Device:
    """An opened device, which this process owns. Its methods are those of a CPU, but for what has no default.

    Attributes:
        torch_device: the device on which the tensors of rows are created.
        spec, settings: what it was opened with.
        lock: the lock of the device; rows of concurrent sessions run one at a time.
    """

    torch_device: torch.device
    spec: DeviceSpec
    settings: MeasureSettings
    lock: DeviceLock

    def describe(self) -> DeviceDescription:
        """Returns facts for the run manifest."""
        raise NotImplementedError

    def available_bytes(self) -> int:
        """Returns the memory that a row may use, in bytes."""
        raise NotImplementedError

    def flush_cache(self) -> None:
        """Removes the row's data from all caches before the next launch begins."""
        raise NotImplementedError

    def instrument(self) -> Instrument:
        """Returns the instrument that the settings name, by default the best available one. Raises OpAtlasError."""
        return kind_named(self.torch_device.type).open_instrument(self.settings)

    def kernel(self, impl: Callable[..., Any], npu: str | None) -> Callable[..., Any]:
        """Returns the function to time: the replay's `impl`, or on an NPU the call named `npu`. Raises Unsupported."""
        return impl

    def release_memory(self) -> None:
        """Frees the cached memory of earlier rows."""
        gc.collect()

    def probe(self) -> None:
        """Runs an operation with a known result.

        Raises:
            DeviceUnhealthy: the result is wrong. Errors of the device are raised unchanged.
        """
        probe(self.torch_device)

    def synchronize(self) -> None:
        """Waits until all launched work has ended. Calls on a CPU return when they have ended."""

    def readings(self) -> Mapping[str, float]:
        """Returns clocks, power and the like as they are now, with their units in the names."""
        return {}

    def bounded_memory(self) -> AbstractContextManager[None]:
        """Returns a context in which an allocation beyond the available memory fails before the system kills."""
        return nullcontext()

    def locked(
        self, when_waiting: Callable[[LockHolder], object], when_taken: Callable[[], None], limit_s: float | None = None
    ) -> AbstractContextManager[object]:
        """Returns a context that holds the device's lock while a row runs.

        Args:
            when_waiting: called with the holder of the lock, if another row holds it.
            when_taken: called at the end of that wait.
            limit_s: longest wait in seconds; None: no limit.

        Raises:
            DeviceGone: the wait exceeded the limit.
        """
        return self.lock.held(when_waiting, when_taken, limit_s)


class Accelerator(Device):
    """A device with memory of its own, of which torch has a module (torch.cuda, torch.npu)."""

    #: torch's module.
    module: Any
    #: Bytes that a flush reads.
    flush_bytes: int
    _flush: tuple[torch.Tensor, torch.Tensor] | None = None

    def flush_cache(self) -> None:
        import torch

        if self._flush is None:
            rows = -(-self.flush_bytes // (4 * _FLUSH_WIDTH))
            buffer = torch.ones(rows, _FLUSH_WIDTH, device=self.torch_device)
            self._flush = buffer, torch.empty(rows, device=self.torch_device)
        # The buffer is read, because written lines would be written back during the next sample.
        torch.sum(self._flush[0], dim=1, out=self._flush[1])

    def available_bytes(self) -> int:
        """Returns the device's free memory plus the unused memory of torch's allocator, in bytes."""
        free, _ = self.module.mem_get_info(self.torch_device)
        # One call, because memory_reserved and memory_allocated each sort about a hundred statistics (0.2 ms a row).
        bytes_of = self.module.memory_stats_as_nested_dict(self.torch_device)
        held = bytes_of["reserved_bytes"]["all"]["current"] - bytes_of["allocated_bytes"]["all"]["current"]
        return int(free + held)

    def release_memory(self) -> None:
        gc.collect()
        self.module.empty_cache()

    def synchronize(self) -> None:
        self.module.synchronize(self.torch_device)


#: Row length of the flush buffer. Row sums are one launch; a sum of all elements also launches a fill.
_FLUSH_WIDTH = 4096


def open_device(spec: DeviceSpec, settings: MeasureSettings) -> Device:
    """Opens a device in this process. Imports torch.

    Raises:
        OpAtlasError: the device does not exist here; the message names a remedy.
    """
    module, _, name = (spec.opener or kind_named(spec.kind).opener).partition(":")
    return getattr(import_module(module), name)(spec, settings)


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


def visible_ids(variable: str, present: int, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Returns the visible devices as the variable lists them: indices, or names such as `GPU-5f1c...`.

    As in the drivers, the list ends before the first entry that names no device (`0,1,-1,2` has two).

    Args:
        variable: `DeviceKind.visible`; if it is not set, all devices are visible.
        present: number of devices of the machine.
    """
    value = environment.get(variable)
    if value is None:
        return [str(index) for index in range(present)]
    ids: list[str] = []
    for entry in value.split(","):
        name = entry.strip()
        if not name or name in ids or (re.fullmatch(r"-?\d+", name) and not 0 <= int(name) < present):
            break
        ids.append(name)
    return ids


def is_hidden(variable: str) -> bool:
    """Returns whether the variable is set and lists no device, so that the user hides all devices of a kind."""
    return os.environ.get(variable, "0").strip() in ("", "-1")


def pin_devices(device: DeviceSpec, variable: str, ids: Iterable[str]) -> list[DeviceSpec]:
    """Returns a spec for each visible device; the process of a spec sees this device only."""
    return [replace(device, index=index, pinned=(variable, name)) for index, name in enumerate(ids)]


def device_environment(device: DeviceSpec) -> dict[str, str]:
    """Returns the environment variables that a process needs before it imports torch and opens the device."""
    # Otherwise torch itself imports backends such as torch_npu, and fails if their libraries are missing. A device
    # imports its own backend, and its error names the remedy.
    shown = [device.pinned] if device.pinned and device.sees_no_other else []
    return {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **kind_named(device.kind).environment(), **dict(shown)}


def available_devices(name: str | None) -> list[DeviceSpec]:
    """Returns the devices to replay on: NPUs if there are any, else GPUs, else the CPU as one device.

    Args:
        name: name of a database folder, or a kind ("npu", "cuda", "cpu"). None: the best available kind, without hidden
            devices, and without GPUs if torch was built without CUDA.

    Raises:
        OpAtlasError: the named device is not available, or cannot replay.
    """
    kinds = device_kinds()
    if name is not None and name in kinds:
        return kinds[name].find(None)
    kind = kinds[kind_of(name).name] if name else next(kind for kind in kinds.values() if kind.is_present())
    return kind.find(name)


def database_name(devices: Sequence[DeviceSpec]) -> str:
    """Returns the name of the devices' database folder. Raises OpAtlasError if it is not known."""
    if not devices[0].name:
        raise OpAtlasError(kind_named(devices[0].kind).name_remedy())
    return devices[0].name


def device_states(devices: Iterable[DeviceSpec], own: Collection[int], opened: bool) -> list[DeviceState]:
    """Returns the states of the devices that tell theirs; the arguments are those of `DeviceKind.state`."""
    states = (kind_named(device.kind).state(device, own, opened) for device in devices)
    return [state for state in states if state is not None]
