"""The probes in their order: from Python up to a measured row and a database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opatlas.outer.doctor import ascend, implementations, machine, replays, surroundings
from opatlas.outer.doctor.probe import PRINTS_S, Probe, Target, Verdict, passed
from opatlas.run.devices import cuda, npu
from opatlas.run.devices.device import available_devices, device_environment
from opatlas.run.msprof.pending import PARSE_TIMEOUT_S

#: Deadline of an import of torch, perhaps from a cold remote disk.
_IMPORTS_S = 180.0
#: Deadline of a device process and an export of msprof, whose own deadlines pass before and tell more.
_MEASURES_S = 2 * PARSE_TIMEOUT_S


def device(target: Target) -> Verdict:
    """Finds the devices that `pytest bench/` would replay on."""
    found = available_devices(target.device or None)
    names = ", ".join(sorted({spec.name or spec.kind for spec in found}))
    detail = f"{len(found)} x {found[0].kind} ({names})"
    return passed(detail, kind=found[0].kind, environment=device_environment(found[0]))


_LIBRARIES = ("flag_gems", "flashinfer", "liger", "sgl_kernel", "torch_compile", "vllm")
_NPU, _CUDA = (npu.KIND.name,), (cuda.KIND.name,)
_ON_TORCH_NPU: Mapping[str, Any] = {
    "of_ascend": True,
    "of_device": True,
    "requires": "torch_npu",
    "as_device_process": True,
}

#: By name, in the order in which they run.
PROBES = {
    probe.name: probe
    for probe in (
        Probe(device, 2 * PRINTS_S),
        Probe(machine.python),
        Probe(machine.packages),
        Probe(machine.torch, _IMPORTS_S),
        Probe(machine.cpu, _IMPORTS_S),
        Probe(machine.cuda, _IMPORTS_S, _CUDA),
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
        Probe(replays.replay, _MEASURES_S, of_device=True),
        Probe(replays.npu_profiler, _IMPORTS_S, (), **_ON_TORCH_NPU),
        Probe(ascend.vllm_ascend, needed_by=(), of_ascend=True),
        Probe(ascend.npu_calls, _IMPORTS_S, (), **_ON_TORCH_NPU),
        Probe(ascend.custom_ops, _IMPORTS_S, (), **_ON_TORCH_NPU),
        Probe(ascend.triton, _IMPORTS_S, (), **_ON_TORCH_NPU),
        Probe(ascend.atb, _IMPORTS_S, (), **_ON_TORCH_NPU),
        *(Probe(implementations.library, _IMPORTS_S, (), argument=name) for name in _LIBRARIES),
        Probe(replays.group, _MEASURES_S, of_device=True),
        Probe(surroundings.database, of_database=True),
        Probe(surroundings.disk, of_database=True),
        Probe(surroundings.temporary),
    )
}
