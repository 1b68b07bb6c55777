"""Reads the state of NVIDIA GPUs from NVML and nvidia-smi: driver, clocks, power, throttling, processes, NVLink.

NVML comes with the driver, its Python package (nvidia-ml-py) with the extra "cuda". Without the package GPUs are
measured with fewer facts, and throttling is not detected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from opatlas.row.location import slug
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.devices.system import run_tool
from opatlas.text import parse_whole

Facts = Mapping[str, str | int | float]

#: Reasons for lowered clocks by their bit (nvml.h, nvmlClocksEventReasons). An idle GPU (0x1) and clocks set by a user
#: (0x2) are left out, because they do not disturb single samples.
_THROTTLES = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


@dataclass(frozen=True)
class GpuProcess:
    """A process that has memory on a GPU.

    Attributes:
        pid: process id for the driver; in a container this may be the host's id.
        memory_bytes: memory of the process; None if the driver does not report the memory.
    """

    pid: int
    memory_bytes: int | None


class Nvml(Protocol):
    """Queries one GPU through NVML."""

    def facts(self) -> Facts:
        """Returns constant facts for the run manifest."""
        ...

    def state(self) -> Facts:
        """Returns the current values of changing properties."""
        ...

    def throttles(self) -> tuple[str, ...]:
        """Returns why the clocks are lowered now; () for normal clocks, or if the driver reports no reasons."""
        ...

    def processes(self) -> tuple[GpuProcess, ...]:
        """Returns the processes that compute on the GPU; () for an idle GPU, or if the driver reports no processes."""
        ...


def open_nvml(name: str) -> Nvml:
    """Opens NVML for a GPU. Without NVML the returned object has no values, and its facts contain the reason.

    Args:
        name: the GPU's UUID ("GPU-..."), the beginning of the UUID, or the GPU's number, as in CUDA_VISIBLE_DEVICES.
    """
    try:
        import pynvml
    except ModuleNotFoundError:
        return _MissingNvml("the package nvidia-ml-py is not installed: pip install 'opatlas[cuda]'")
    try:
        pynvml.nvmlInit()
        return _Nvml(pynvml, _handle(pynvml, name))
    except pynvml.NVMLError as error:
        return _MissingNvml(str(error))


def _handle(library: Any, name: str) -> Any:
    """Returns NVML's handle of a GPU, named as in `open_nvml`. Raises the library's NVMLError for an unknown GPU."""
    index = parse_whole(name)
    if index is not None:
        return library.nvmlDeviceGetHandleByIndex(index)
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        if library.nvmlDeviceGetUUID(handle).startswith(name):
            return handle
    return library.nvmlDeviceGetHandleByUUID(name)


@dataclass(frozen=True)
class _MissingNvml:
    reason: str

    def facts(self) -> Facts:
        return {"nvml": self.reason}

    def state(self) -> Facts:
        return {}

    def throttles(self) -> tuple[str, ...]:
        return ()

    def processes(self) -> tuple[GpuProcess, ...]:
        return ()


@dataclass(frozen=True)
class _Nvml:
    library: Any
    handle: Any

    def facts(self) -> Facts:
        library, handle = self.library, self.handle
        return self._supported_values(
            {
                "driver": library.nvmlSystemGetDriverVersion,
                "nvml": library.nvmlSystemGetNVMLVersion,
                "driver_cuda": lambda: _as_version(library.nvmlSystemGetCudaDriverVersion()),
                "vbios": lambda: library.nvmlDeviceGetVbiosVersion(handle),
                "max_sm_clock_mhz": lambda: library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_SM),
                "max_memory_clock_mhz": lambda: library.nvmlDeviceGetMaxClockInfo(handle, library.NVML_CLOCK_MEM),
                "power_limit_w": lambda: library.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
                "ecc": lambda: "on" if library.nvmlDeviceGetEccMode(handle)[0] else "off",
                "persistence_mode": lambda: "on" if library.nvmlDeviceGetPersistenceMode(handle) else "off",
            }
        )

    def state(self) -> Facts:
        library, handle = self.library, self.handle
        return self._supported_values(
            {
                "temperature_c": lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU),
                "power_w": lambda: library.nvmlDeviceGetPowerUsage(handle) / 1000,
                "sm_clock_mhz": lambda: library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM),
                "memory_clock_mhz": lambda: library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_MEM),
                "utilization_percent": lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu,
                "throttled_by": lambda: ", ".join(self.throttles()) or "nothing",
            }
        )

    def throttles(self) -> tuple[str, ...]:
        try:
            reasons = self.library.nvmlDeviceGetCurrentClocksThrottleReasons(self.handle)
        except self.library.NVMLError:  # not supported by this GPU or driver
            return ()
        return tuple(name for bit, name in _THROTTLES.items() if reasons & bit)

    def processes(self) -> tuple[GpuProcess, ...]:
        try:
            found = self.library.nvmlDeviceGetComputeRunningProcesses(self.handle)
        except self.library.NVMLError:  # not supported by this GPU or driver
            return ()
        return tuple(GpuProcess(process.pid, process.usedGpuMemory) for process in found)

    def _supported_values(self, queries: Mapping[str, Callable[[], str | int | float]]) -> dict[str, str | int | float]:
        """Returns the results of the queries that this GPU and its driver support."""
        answers = {}
        for name, query in queries.items():
            try:
                answers[name] = query()
            except self.library.NVMLError:  # not supported, or not permitted
                continue
        return answers


def _as_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


#: Without persistence mode nvidia-smi loads the driver first, which takes seconds for each GPU.
_TIMEOUT_S = 60
_GPU = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[0-9a-fA-F-]+)\)$", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """A GPU that nvidia-smi shows.

    Attributes:
        index: position on the PCI bus.
        name: slug of its product name: "NVIDIA_H200".
        uuid: "GPU-..."; identifies the GPU in CUDA_VISIBLE_DEVICES independently of the order.
    """

    index: int
    name: str
    uuid: str


def list_gpus() -> tuple[Gpu, ...]:
    """Returns the GPUs of this machine or container; () if nvidia-smi is missing or fails."""
    return parse_gpus(run_tool("nvidia-smi", "-L", timeout_s=_TIMEOUT_S))


def driver_version() -> str:
    """Returns the driver's version, such as "550.54.15"; "" if nvidia-smi is missing or fails."""
    output = run_tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", timeout_s=_TIMEOUT_S)
    return output.partition("\n")[0].strip()


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Parses the lines `GPU 0: NVIDIA H200 (UUID: GPU-...)` of `nvidia-smi -L`; lines of MIG instances are left out."""
    return tuple(Gpu(int(index), slug(name), uuid) for index, name, uuid in _GPU.findall(text))


@dataclass(frozen=True)
class NvlinkIslands:
    """Groups of GPUs that NVLink connects.

    Attributes:
        size: number of neighbouring GPUs in each island, if all islands have the same size; 1: there is no NVLink;
            None: not known, or islands of different sizes.
        why: description of the found connections.
    """

    size: int | None
    why: str


def find_nvlink_islands(devices: Sequence[DeviceSpec]) -> NvlinkIslands:
    """Finds the NVLink islands of some GPUs."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return NvlinkIslands(None, "a guess: nvidia-ml-py, which reports NVLink, is not installed")
    try:
        pynvml.nvmlInit()
        try:
            handles = [_handle(pynvml, device.pinned[1] if device.pinned else str(device.index)) for device in devices]
            return group_islands(len(handles), lambda one, other: _connected(pynvml, handles[one], handles[other]))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return NvlinkIslands(None, f"a guess: NVML does not report NVLink ({error})")


def group_islands(count: int, joined: Callable[[int, int], bool]) -> NvlinkIslands:
    """Returns the islands of GPUs 0 ... count - 1.

    Args:
        count: number of GPUs.
        joined: whether NVLink connects two GPUs.
    """
    if count < 2:
        return NvlinkIslands(None, "one GPU")
    pairs = {(one, other): joined(one, other) for one in range(count) for other in range(one + 1, count)}
    if not any(pairs.values()):
        return NvlinkIslands(1, "no NVLink: PCIe")
    if all(pairs.values()):
        return NvlinkIslands(count, "NVLink between all GPUs")
    size = 1 + sum(are_joined for (one, _), are_joined in pairs.items() if one == 0)
    even = count % size == 0 and all(
        are_joined == (one // size == other // size) for (one, other), are_joined in pairs.items()
    )
    return (
        NvlinkIslands(size, "islands of NVLink")
        if even
        else NvlinkIslands(None, "a guess: NVLink joins some GPUs, unevenly")
    )


def _connected(library: Any, one: Any, other: Any) -> bool:
    status = library.nvmlDeviceGetP2PStatus(one, other, library.NVML_P2P_CAPS_INDEX_NVLINK)
    return bool(status == library.NVML_P2P_STATUS_OK)


#: Maximum number of process ids in a message.
_NAMED = 3


@dataclass(frozen=True)
class GpuState:
    """The current state of a GPU.

    Attributes:
        gpu: the GPU's entry in CUDA_VISIBLE_DEVICES.
        readings: temperature, power, clocks, utilization, throttling; units are in the names.
        others: processes on the GPU that do not belong to the session.
        throttles: why the clocks are lowered; () for normal clocks.
    """

    gpu: str
    readings: Facts
    others: tuple[GpuProcess, ...]
    throttles: tuple[str, ...]

    def disturbances(self) -> list[str]:
        """Returns a phrase with numbers for each likely disturbance; [] on a quiet GPU."""
        found = []
        if self.others:
            memory = sum(other.memory_bytes or 0 for other in self.others) / 2**30
            pids = ", ".join(str(other.pid) for other in self.others[:_NAMED])
            more = ", ..." if len(self.others) > _NAMED else ""
            processes = "1 other process" if len(self.others) == 1 else f"{len(self.others)} other processes"
            found.append(f"GPU {self.gpu} has {processes} (pid {pids}{more}) with {memory:.1f} GiB")
        if self.throttles:
            found.append(f"GPU {self.gpu} is throttled ({', '.join(self.throttles)})")
        return found


def gpu_states(devices: Sequence[DeviceSpec], own: Collection[int], opened: bool) -> list[GpuState]:
    """Returns the state of each GPU among some devices.

    Args:
        devices: devices of any kind.
        own: ids of the session's processes.
        opened: whether a process of the session may use a GPU. In a container the driver may report the host's process
            ids; then a process that is not in /proc may belong to the session, and is not counted.
    """
    states = []
    for device in devices:
        if device.kind != "cuda" or device.pinned is None:
            continue
        name = device.pinned[1]
        nvml = open_nvml(name)
        others = [
            process
            for process in nvml.processes()
            if process.pid not in own and (not opened or Path("/proc", str(process.pid)).exists())
        ]
        states.append(GpuState(name, nvml.state(), tuple(others), nvml.throttles()))
    return states
