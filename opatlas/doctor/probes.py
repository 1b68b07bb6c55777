"""The probes in their order: each stands on those before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from opatlas.devices.discovery import available_devices, device_environment
from opatlas.doctor import (
    ascend,
    group,
    machine,
    operators,
    replaying,
    storage,
)
from opatlas.doctor import (
    storage as surroundings,
)
from opatlas.doctor.verdict import Target, Verdict, passed
from opatlas.isolation.msprof.command import PARSE_TIMEOUT_S

#: An import of torch from a disk that is cold and far away.
_IMPORTS_S = 180.0
_PRINTS_S = 60.0
#: A device process starts, and msprof exports; each has deadlines of its own, and tells more at their end.
_MEASURES_S = 2 * PARSE_TIMEOUT_S


def device(target: Target) -> Verdict:
    """What `pytest bench/` would replay on."""
    found = available_devices(target.device or None)
    names = ", ".join(sorted({spec.name or spec.kind for spec in found}))
    return passed(
        f"{len(found)} x {found[0].kind} ({names})", kind=found[0].kind, environment=device_environment(found[0])
    )


@dataclass(frozen=True)
class Probe:
    """
    Attributes:
        function: looks; what it raises is a failure.
        deadline_s: after which its process is ended.
        needed_by: kinds of devices that do not work without; (): none.
        of_ascend: whether it has something to say only where something points to an NPU.
        of_device: whether it has something to say only where the device is there.
        stands_on: the probe that has to pass before; "" for none.
        as_device_process: whether its process has the environment of the process that owns the device in a replay.
    """

    function: Callable[[Target], Verdict]
    deadline_s: float = _PRINTS_S
    needed_by: tuple[str, ...] = ("cpu", "cuda", "npu")
    of_ascend: bool = False
    of_device: bool = False
    stands_on: str = ""
    as_device_process: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__


_NPU = ("npu",)
_ON_TORCH_NPU: Mapping[str, Any] = {
    "of_ascend": True,
    "of_device": True,
    "stands_on": "torch_npu",
    "as_device_process": True,
}

PROBES = {
    probe.name: probe
    for probe in (
        Probe(device, 2 * _PRINTS_S),
        Probe(machine.python),
        Probe(machine.packages),
        Probe(machine.torch, _IMPORTS_S),
        Probe(machine.cpu, _IMPORTS_S),
        Probe(machine.cuda, _IMPORTS_S, ("cuda",)),
        Probe(surroundings.limits),
        Probe(surroundings.flush, _IMPORTS_S, needed_by=(), of_device=True),
        Probe(surroundings.disturbances, needed_by=(), of_device=True),
        Probe(ascend.npu_devices, needed_by=_NPU, of_ascend=True),
        Probe(ascend.npu_smi, needed_by=(), of_ascend=True),
        Probe(ascend.npu_driver, needed_by=(), of_ascend=True),
        Probe(ascend.cann, needed_by=_NPU, of_ascend=True),
        Probe(ascend.torch_npu, _IMPORTS_S, _NPU, of_ascend=True),
        Probe(ascend.npu, 2 * _IMPORTS_S, _NPU, of_ascend=True, of_device=True, as_device_process=True),
        Probe(ascend.msprof, needed_by=_NPU, of_ascend=True),
        Probe(replaying.replay, _MEASURES_S, of_device=True),
        Probe(replaying.npu_profiler, _IMPORTS_S, (), **_ON_TORCH_NPU),
        Probe(ascend.vllm_ascend, needed_by=(), of_ascend=True),
        Probe(operators.npu_calls, _IMPORTS_S, (), **_ON_TORCH_NPU),
        Probe(operators.custom_ops, _IMPORTS_S, (), **_ON_TORCH_NPU),
        Probe(operators.triton, _IMPORTS_S, (), **_ON_TORCH_NPU),
        Probe(operators.atb, _IMPORTS_S, (), **_ON_TORCH_NPU),
        Probe(group.group, _MEASURES_S, of_device=True),
        Probe(storage.database, of_device=True),
        Probe(storage.disk, of_device=True),
        Probe(storage.temporary),
    )
}
