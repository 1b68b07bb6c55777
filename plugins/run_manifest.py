"""What the machine does besides the session: told at its start, kept in the manifest at its start and at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from opatlas.devices.cgroups import available_cores, usable_cores
from opatlas.devices.cpu_flush import EXPENSIVE_READ_BYTES, plan_flush
from opatlas.devices.device import DeviceSpec
from opatlas.devices.machine_state import MachineState, MachineWatch, needed_cores
from opatlas.devices.nvidia import GpuState, gpu_states
from opatlas.installation import CHECKOUT, PACKAGE, code_folder
from opatlas.store.manifest import code_digest

from .settings import Settings


class Surroundings:
    """The machine and the GPUs of one session, read when asked."""

    def __init__(self, own_pid: int) -> None:
        """`own_pid` is the process that all others of the session are below."""
        self._watch = MachineWatch(own_pid=own_pid)
        self._start: tuple[MachineState, list[GpuState]] | None = None
        self._end: tuple[MachineState, list[GpuState]] | None = None

    def at_start(self, devices: Sequence[DeviceSpec]) -> tuple[MachineState, list[GpuState]]:
        """Returns the state between the start of the session and the first call."""
        if self._start is None:
            self._start = self._watch.state(), gpu_states(devices, self._watch.own_processes(), opened=False)
        return self._start

    def at_end(self, devices: Sequence[DeviceSpec]) -> tuple[MachineState, list[GpuState]]:
        """Returns the state from when the start was told to the first call; of GPUs, as it was at the first call."""
        if self._end is None:
            self._end = self._watch.state(), gpu_states(devices, self._watch.own_processes(), opened=True)
        return self._end

    def higher_load(self, devices: Sequence[DeviceSpec]) -> str:
        """Returns the higher load of start and end, in words; "" where the system tells none."""
        states = (self.at_start(devices)[0], self.at_end(devices)[0])
        return max(states, key=lambda state: state.load_1min or 0.0).load


def flush_notes(settings: Settings) -> list[str]:
    """Returns what a user should know of the flush before each sample: nothing where it is cheap."""
    measure = settings.measure
    if measure.cache != "cold" or settings.devices[0].kind != "cpu":
        return []
    plan = plan_flush(usable_cores(), measure.threads or available_cores())
    if plan.by_line or plan.read_bytes <= EXPENSIVE_READ_BYTES:
        return []
    return [f"the cache flush reads {plan.read_bytes >> 20} MiB before each sample: --cache warm leaves it out"]


def disturbances(devices: Sequence[DeviceSpec], machine: MachineState, gpus: Sequence[GpuState]) -> list[str]:
    """Returns what is likely to disturb measurements on these devices, in phrases with numbers."""
    of_gpus = (phrase for gpu in gpus for phrase in gpu.disturbances())
    return [*machine.disturbances(needed_cores(devices)), *of_gpus]


def facts_of(devices: Sequence[DeviceSpec], machine: MachineState, gpus: Sequence[GpuState]) -> Mapping[str, Any]:
    """Returns the readings as a manifest keeps them."""
    return {
        **asdict(machine),
        "gpus": [asdict(gpu) for gpu in gpus],
        "disturbances": disturbances(devices, machine, gpus),
    }


#: In a wheel the package holds bench/ and plugins/.
CODE = (PACKAGE, *map(code_folder, ("bench", "plugins") if CHECKOUT is not None else ()))


def present_code() -> str:
    """Digest of the code of this process."""
    return code_digest(CODE)
