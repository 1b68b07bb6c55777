"""The state of NVIDIA GPUs, from NVML: driver, clocks, power, throttling, processes.

NVML comes with the driver, its Python package (nvidia-ml-py) with the extra "cuda". Without the package GPUs are
measured with fewer facts, and throttling is not detected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from opatlas.run.devices.device import DeviceState, Facts
from opatlas.text import parse_whole

_Answer = TypeVar("_Answer")

#: Reasons for lowered clocks by their bit (nvml.h, nvmlClocksEventReasons). An idle GPU (0x1) and clocks set by a user
#: (0x2) are left out, because they do not disturb single samples.
_THROTTLES = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
#: Maximum number of process ids in a message.
_NAMED = 3


@dataclass(frozen=True)
class GpuProcess:
    """A process that has memory on a GPU.

    Attributes:
        pid: process id for the driver; in a container this may be the host's id.
        memory_bytes: memory of the process; None if the driver does not report the memory.
    """

    pid: int
    memory_bytes: int | None


class Nvml:
    """Queries one GPU. What the GPU, the driver or the user's rights do not give is left out."""

    def __init__(self, name: str) -> None:
        """
        Args:
            name: the GPU's UUID ("GPU-..."), its beginning, or the GPU's number, as in CUDA_VISIBLE_DEVICES.
        """
        self._missing, self._library, self._gpu = "", _library(), None
        if self._library is None:
            self._missing = "the package nvidia-ml-py is not installed: pip install 'opatlas[cuda]'"
            return
        try:
            self._library.nvmlInit()
            self._gpu = _handle(self._library, name)
        except self._library.NVMLError as error:
            self._missing = str(error)

    def facts(self) -> Facts:
        """Returns constant facts for the run manifest; without NVML the reason."""
        if self._missing:
            return {"nvml": self._missing}
        nvml, gpu = self._library, self._gpu
        return self._answers(
            {
                "driver": nvml.nvmlSystemGetDriverVersion,
                "nvml": nvml.nvmlSystemGetNVMLVersion,
                "driver_cuda": lambda: "{}.{}".format(*divmod(nvml.nvmlSystemGetCudaDriverVersion() // 10, 100)),
                "vbios": lambda: nvml.nvmlDeviceGetVbiosVersion(gpu),
                "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
                "max_memory_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_MEM),
                "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
                "ecc": lambda: "on" if nvml.nvmlDeviceGetEccMode(gpu)[0] else "off",
                "persistence_mode": lambda: "on" if nvml.nvmlDeviceGetPersistenceMode(gpu) else "off",
            }
        )

    def state(self) -> Facts:
        """Returns the current values of changing properties."""
        nvml, gpu = self._library, self._gpu
        return self._answers(
            {
                "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
                "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
                "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
                "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
                "utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
                "throttled_by": lambda: ", ".join(self.throttles()) or "nothing",
            }
        )

    def throttles(self) -> tuple[str, ...]:
        """Returns why the clocks are lowered now; () for normal clocks, or if the driver reports no reasons."""
        asked = self._answers({"": lambda: self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._gpu)})
        return tuple(reason for bit, reason in _THROTTLES.items() if asked.get("", 0) & bit)

    def processes(self) -> tuple[GpuProcess, ...]:
        """Returns the processes that compute on the GPU; () for an idle GPU, or if the driver reports no processes."""
        asked = self._answers({"": lambda: self._library.nvmlDeviceGetComputeRunningProcesses(self._gpu)})
        return tuple(GpuProcess(process.pid, process.usedGpuMemory) for process in asked.get("", ()))

    def _answers(self, queries: Mapping[str, Callable[[], _Answer]]) -> dict[str, _Answer]:
        """Returns the results of the queries that this GPU and its driver support and permit."""
        answers: dict[str, _Answer] = {}
        for name, query in queries.items() if not self._missing else ():
            try:
                answers[name] = query()
            except self._library.NVMLError:
                continue
        return answers


def _library() -> Any:
    """Returns the package nvidia-ml-py; None if it is not installed."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    return pynvml


def _handle(library: Any, name: str) -> Any:
    """Returns NVML's handle of a GPU, named as in `Nvml`. Raises the library's NVMLError for an unknown GPU."""
    index = parse_whole(name)
    if index is not None:
        return library.nvmlDeviceGetHandleByIndex(index)
    for index in range(library.nvmlDeviceGetCount()):
        handle = library.nvmlDeviceGetHandleByIndex(index)
        if library.nvmlDeviceGetUUID(handle).startswith(name):
            return handle
    return library.nvmlDeviceGetHandleByUUID(name)


@dataclass(frozen=True)
class GpuState(DeviceState):
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


def gpu_state(name: str, own: Collection[int], opened: bool) -> GpuState:
    """Returns the state of a GPU.

    Args:
        name: as in `Nvml`.
        own: ids of the session's processes.
        opened: whether a process of the session may use a GPU. In a container the driver may report the host's process
            ids; then a process that is not in /proc may belong to the session, and is not counted.
    """
    nvml = Nvml(name)
    others = [
        process
        for process in nvml.processes()
        if process.pid not in own and (not opened or Path("/proc", str(process.pid)).exists())
    ]
    return GpuState(name, nvml.state(), tuple(others), nvml.throttles())
