"""The manifest of a run: which code ran with which options, and what else the machine did at start and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from opatlas.data.manifest import Manifest, code_digest
from opatlas.installation import measuring_code
from opatlas.options import Scope
from opatlas.run.devices.cpu import EXPENSIVE_READ_BYTES, plan_flush
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, DeviceState, device_states
from opatlas.run.devices.system import MachineState, MachineWatch, available_cores, needed_cores, usable_cores

from .settings import Settings


class Surroundings:
    """The load of the machine and of its GPUs at the start and at the end of a session, each read once."""

    def __init__(self, own_pid: int) -> None:
        """`own_pid` is the ancestor of all processes of the session, whose load does not count."""
        self._watch = MachineWatch(own_pid=own_pid)
        self._start: tuple[MachineState, list[DeviceState]] | None = None
        self._end: tuple[MachineState, list[DeviceState]] | None = None

    def at_start(self, devices: Sequence[DeviceSpec]) -> tuple[MachineState, list[DeviceState]]:
        """Returns the state between the start of the session and the first call."""
        if self._start is None:
            self._start = self._watch.state(), device_states(devices, self._watch.own_processes(), opened=False)
        return self._start

    def at_end(self, devices: Sequence[DeviceSpec]) -> tuple[MachineState, list[DeviceState]]:
        """Returns the state since `at_start`, read at the first call."""
        if self._end is None:
            self._end = self._watch.state(), device_states(devices, self._watch.own_processes(), opened=True)
        return self._end

    def higher_load(self, devices: Sequence[DeviceSpec]) -> str:
        """Returns the higher load of start and end, in words; "" where the system has none."""
        states = (self.at_start(devices)[0], self.at_end(devices)[0])
        return max(states, key=lambda state: state.load_1min or 0.0).load


def flush_notes(settings: Settings) -> list[str]:
    """Returns a note where the cache flush before each sample takes long."""
    measure = settings.measure
    if measure.cache != "cold" or settings.devices[0].kind != "cpu":
        return []
    plan = plan_flush(usable_cores(), measure.threads or available_cores())
    if plan.by_line or plan.read_bytes <= EXPENSIVE_READ_BYTES:
        return []
    return [f"the cache flush reads {plan.read_bytes >> 20} MiB before each sample: --cache warm leaves it out"]


def disturbances(devices: Sequence[DeviceSpec], machine: MachineState, gpus: Sequence[DeviceState]) -> list[str]:
    """Returns what is likely to disturb measurements on these devices, in phrases with numbers."""
    of_gpus = (phrase for gpu in gpus for phrase in gpu.disturbances())
    return [*machine.disturbances(needed_cores(devices)), *of_gpus]


def facts_of(devices: Sequence[DeviceSpec], machine: MachineState, gpus: Sequence[DeviceState]) -> Mapping[str, Any]:
    """Returns the state of machine and GPUs as the manifest stores it."""
    return {
        **asdict(machine),
        "gpus": [asdict(gpu) for gpu in gpus],
        "disturbances": disturbances(devices, machine, gpus),
    }


def present_code() -> str:
    """Returns the digest of the code that this process runs."""
    return code_digest(measuring_code())


def new_manifest(
    run_id: str,
    started_at: float,
    settings: Settings,
    surroundings: Surroundings,
    devices: Sequence[DeviceDescription],
    target: int = 0,
) -> Manifest:
    """Returns the manifest of a run that begins.

    Args:
        started_at: seconds since the epoch.
        devices: each device and each group that rows were run on so far.
        target: number of the target whose database holds the manifest.
    """
    at_start = {} if settings.prof_path else facts_of(settings.devices, *surroundings.at_start(settings.devices))
    return Manifest(
        run_id=run_id,
        started_at=started_at,
        device=asdict(devices[0]) if devices else {},
        other_devices=[asdict(device) for device in devices[1:]],
        options=options_of(settings, target),
        code=present_code(),
        machine_at_start=at_start,
    )


def options_of(settings: Settings, target: int = 0) -> Mapping[str, object]:
    """Returns the options that a manifest records: all that decide which rows run, how they run, or what is written."""
    implementation, rows_from = settings.targets[target].implementation, settings.targets[target].rows_from
    return {
        "implementation": None if implementation.is_default else implementation.label,
        "rows_from": str(rows_from) if rows_from else None,
        "update_mode": settings.mode.value,
        "prune": settings.prune,
        "ops": sorted(settings.ops),
        "shard": str(settings.shard) if settings.shard else None,
        "where": str(settings.where) if settings.where is not None else None,
        "retry_failed": settings.retry_failed,
        "mixed": settings.mixed,
        "versions": dict(settings.versions),
        **asdict(settings.measure),
        "msprof_rows": settings.msprof_rows,
        "case_timeout_s": settings.case_timeout_s,
        "in_process": settings.in_process,
        "ray": settings.ray,
        "prof_path": settings.prof_path.name if settings.prof_path else None,
        "communication": list(settings.source.notes) if settings.source.scope is Scope.COLLECTIVES else None,
        "models": None if settings.models is None else settings.models.told(),
        **settings.group_options,
    }
