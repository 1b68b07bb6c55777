"""What disturbs a measurement on a GPU: other processes on it, and clocks that are throttled. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.devices.nvml import Facts, GpuProcess, open_nvml
from bench.job import DeviceSpec

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
