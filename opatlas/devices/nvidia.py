"""What NVIDIA's management library says of a GPU: its driver, clocks, temperature, power, and whether it is throttled.

The library comes with the driver, its Python package (nvidia-ml-py) with the extra "cuda". Without the package a GPU
is measured all the same: its facts are fewer, and nobody sees that it is throttled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from opatlas.devices.device import DeviceSpec
from opatlas.devices.vendor_tools import run_tool
from opatlas.model.location import slug
from opatlas.text import whole

Facts = Mapping[str, str | int | float]

#: Reasons for which clocks are lower than what was asked for, by their bit (nvml.h, nvmlClocksEventReasons). That the
#: GPU is idle (0x1), and that somebody has set its clocks (0x2), are left out: these are no accidents of a sample.
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
        pid: as the driver numbers it, in a container perhaps by the host's number.
        memory_bytes: None where the driver does not tell.
    """

    pid: int
    memory_bytes: int | None


class Nvml(Protocol):
    """One GPU's view of the library."""

    def facts(self) -> Facts:
        """What stays: for the run manifest."""
        ...

    def state(self) -> Facts:
        """What changes by itself, as it is now."""
        ...

    def throttles(self) -> tuple[str, ...]:
        """Why the clocks are lower now than the GPU could run them; () where they are not, or nobody can tell."""
        ...

    def processes(self) -> tuple[GpuProcess, ...]:
        """Those that compute on the GPU; () where there are none, or nobody can tell."""
        ...


def open_nvml(name: str) -> Nvml:
    """The library on one GPU; one that knows nothing, and says why, where it is not there.

    Args:
        name: a UUID ("GPU-..."), or what CUDA_VISIBLE_DEVICES may have for it: its beginning, or a number.
    """
    try:
        import pynvml
    except ModuleNotFoundError:
        return _NotThere("the package nvidia-ml-py is not installed: pip install 'opatlas[cuda]'")
    try:
        pynvml.nvmlInit()
        return _Nvml(pynvml, _handle(pynvml, name))
    except pynvml.NVMLError as error:
        return _NotThere(str(error))


def _handle(library: Any, name: str) -> Any:
    """Raises the library's NVMLError where no GPU is called so."""
    index = whole(name)
    if index is not None:
        return library.nvmlDeviceGetHandleByIndex(index)
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        if library.nvmlDeviceGetUUID(handle).startswith(name):
            return handle
    return library.nvmlDeviceGetHandleByUUID(name)


@dataclass(frozen=True)
class _NotThere:
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
        return self._answered(
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
        return self._answered(
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
        except self.library.NVMLError:  # a GPU, or a driver, that does not say
            return ()
        return tuple(name for bit, name in _THROTTLES.items() if reasons & bit)

    def processes(self) -> tuple[GpuProcess, ...]:
        try:
            found = self.library.nvmlDeviceGetComputeRunningProcesses(self.handle)
        except self.library.NVMLError:  # a GPU, or a driver, that does not say
            return ()
        return tuple(GpuProcess(process.pid, process.usedGpuMemory) for process in found)

    def _answered(self, questions: Mapping[str, Callable[[], str | int | float]]) -> dict[str, str | int | float]:
        """Those that this GPU and its driver have an answer to."""
        answers = {}
        for name, ask in questions.items():
            try:
                answers[name] = ask()
            except self.library.NVMLError:  # not supported, or not permitted
                continue
        return answers


def _as_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


#: Without persistence mode it loads the driver first, which takes seconds a GPU.
_TIMEOUT_S = 60
_GPU = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[0-9a-fA-F-]+)\)$", re.MULTILINE)


@dataclass(frozen=True)
class Gpu:
    """
    Attributes:
        index: in the order of the PCI bus.
        name: slug of what it calls itself: "NVIDIA_H200".
        uuid: "GPU-..."; says which one it is in CUDA_VISIBLE_DEVICES, whatever the order of the others.
    """

    index: int
    name: str
    uuid: str


def list_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine or container; none where there is no nvidia-smi, or no answer."""
    return parse_gpus(run_tool("nvidia-smi", "-L", timeout_s=_TIMEOUT_S))


def driver_version() -> str:
    """The driver's version, such as "550.54.15"; "" where there is no nvidia-smi, or no answer."""
    told = run_tool("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", timeout_s=_TIMEOUT_S)
    return told.partition("\n")[0].strip()


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """What `nvidia-smi -L` prints: `GPU 0: NVIDIA H200 (UUID: GPU-...)`, and lines of MIG parts, which are left out."""
    return tuple(Gpu(int(index), slug(name), uuid) for index, name, uuid in _GPU.findall(text))


@dataclass(frozen=True)
class NvlinkIslands:
    """
    Attributes:
        size: GPUs that are joined to each other, where these are neighbours and as many everywhere; 1: none are.
            None where nobody can tell, or where they are not.
        why: what was found, in words.
    """

    size: int | None
    why: str


def find_nvlink_islands(devices: Sequence[DeviceSpec]) -> NvlinkIslands:
    """Of GPUs, by how their processes are shown them."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return NvlinkIslands(None, "a guess: nvidia-ml-py, which would tell of NVLink, is not installed")
    try:
        pynvml.nvmlInit()
        try:
            handles = [_nvlink_handle(pynvml, device) for device in devices]
            return group_islands(len(handles), lambda one, other: _joined(pynvml, handles[one], handles[other]))
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return NvlinkIslands(None, f"a guess: NVML does not tell of NVLink ({error})")


def group_islands(count: int, joined: Callable[[int, int], bool]) -> NvlinkIslands:
    """The islands of GPUs 0 ... count - 1, by whether two of them are joined."""
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


def _nvlink_handle(library: Any, device: DeviceSpec) -> Any:
    name = device.pinned[1] if device.pinned is not None else str(device.index)
    index = whole(name)
    if index is not None:
        return library.nvmlDeviceGetHandleByIndex(index)
    return library.nvmlDeviceGetHandleByUUID(name)


def _joined(library: Any, one: Any, other: Any) -> bool:
    status = library.nvmlDeviceGetP2PStatus(one, other, library.NVML_P2P_CAPS_INDEX_NVLINK)
    return bool(status == library.NVML_P2P_STATUS_OK)


_NAMED = 3


@dataclass(frozen=True)
class GpuState:
    """A GPU as it is now.

    Attributes:
        gpu: as CUDA_VISIBLE_DEVICES names it.
        readings: temperature, power, clocks, utilization, why it is throttled; in the units of their names.
        others: processes on it that are not the session's.
        throttles: why its clocks are lower than they could be; () where they are not.
    """

    gpu: str
    readings: Facts
    others: tuple[GpuProcess, ...]
    throttles: tuple[str, ...]

    def disturbances(self) -> list[str]:
        """Returns a phrase with numbers for each thing that is likely to disturb; [] on a quiet GPU."""
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
        own: ids of the session's processes.
        opened: whether one of them may be on a GPU. In a container the driver may number processes as the host does:
            from then on a process that is not in /proc may be the session's, and is not counted.
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
