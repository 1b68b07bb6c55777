"""What NVIDIA's management library says of a GPU: its driver, clocks, temperature, power, and whether it is throttled.

The library comes with the driver, its Python package (nvidia-ml-py) with the extra "cuda". Without the package a GPU
is measured all the same: its facts are fewer, and nobody sees that it is throttled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from database.numbers import whole

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
