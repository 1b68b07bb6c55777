"""Probes of the operators that replays call on an NPU, in a process with the environment and the device of a replay.

The process of a replay looks an operator up when the first row needs it. These probes look up all of them, so
that the kernel types whose rows would be left out are known before.
"""

from __future__ import annotations

import ctypes
import os
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from opatlas.devices import npu_operators
from opatlas.devices.device import open_device
from opatlas.devices.discovery import available_devices
from opatlas.devices.npu_operators import OR
from opatlas.devices.torch_npu import import_torch_npu
from opatlas.doctor.verdict import (
    Target,
    Verdict,
    failed,
    passed,
    skipped,
)
from opatlas.engine.kernel_facts import replays_of_bench
from opatlas.engine.registry import replay_spec
from opatlas.instruments.instrument import MeasureSettings
from opatlas.model.errors import ReplayError
from opatlas.text import in_a_line

#: How the names of NPU calls begin whose kernels are not CANN's.
_CUSTOM, _TRITON, _ATB = ("torch.ops._C_ascend.",), ("torch.ops.vllm.",), ("torch_npu.atb.", "torch_npu._npu_")
_ANY = ("torch",)
_NAMED = 8


def npu_calls(target: Target) -> Verdict:
    """Whether this torch_npu has the calls that replays make of CANN's kernels."""
    others = _names(_ANY).keys() - _names((*_CUSTOM, *_TRITON, *_ATB)).keys()
    import_torch_npu()
    missing = _missing(others)
    if not missing:
        return passed(f"torch_npu has all {len(others)} calls", calls=sorted(others))
    return failed(
        f"torch_npu has {len(others) - len(missing)} of {len(others)} calls; {_told(missing, 'end as unsupported')}",
        "a later torch_npu may have them",
        missing=missing,
    )


def custom_ops(target: Target) -> Verdict:
    """Whether vllm-ascend's custom operators are registered, and the package of their kernels is found."""
    calls = _names(_CUSTOM)
    rows = _rows(_types(calls))
    named = os.environ.get(npu_operators.PATH_VARIABLE)
    if find_spec("vllm_ascend") is None and not named:
        return skipped(f"vllm-ascend is not installed: {rows} are skipped", npu_operators.remedy())
    if not npu_operators.is_environment_set():
        libraries = npu_operators.LIBRARY_VARIABLE
        found = f"{npu_operators.PATH_VARIABLE}={named} is no folder, or {libraries} lacks its libraries"
        why = found if named else "vllm-ascend has no package of kernels"
        return failed(f"{why}: {rows} are skipped", npu_operators.remedy())
    _open(target)
    if missing := _missing(calls):
        return failed(_told(missing, "are skipped"), npu_operators.remedy(), missing=missing)
    if failures := list(filter(None, map(_not_loaded, npu_operators.libraries()))):
        return failed(f"{rows} end as unsupported: {'; '.join(failures)}", npu_operators.remedy())
    return passed(f"{len(calls)} are registered, and the package of their kernels is loaded", calls=sorted(calls))


def triton(target: Target) -> Verdict:
    """Whether vllm-ascend's Triton kernels are registered, and Triton knows the device's cores."""
    calls = _names(_TRITON)
    if find_spec("vllm_ascend") is None:
        return skipped(f"vllm-ascend is not installed: {_rows(_types(calls))} are skipped")
    _open(target)
    if missing := _missing(calls):
        return failed(_told(missing, "are skipped"), "install the triton-ascend of this CANN and vLLM", missing=missing)
    return passed(
        f"{len(calls)} kernels of vllm-ascend are registered, and Triton knows the cores", calls=sorted(calls)
    )


def atb(target: Target) -> Verdict:
    """Whether torch_npu's calls of ATB find libatb.so."""
    import torch

    calls = _names(_ATB)
    library = Path(str(import_torch_npu().__file__)).parent / "lib" / "libop_plugin_atb.so"
    try:
        # torch_npu does so at its import, or at the first call, and keeps the error back until then.
        torch.ops.load_library(str(library))
    except OSError as error:
        loader = f"{error} {error.__cause__ or ''}"
        # The explanation ends with the remedy.
        why = npu_operators.missing_kernel(loader) or in_a_line(error)
        return failed(f"{_rows(_types(calls))} are skipped: {why}", loader=loader)
    missing = _missing(calls)
    return failed(_told(missing, "end as unsupported")) if missing else passed(f"{library.name} and ATB are loaded")


def _not_loaded(library: Path) -> str:
    """Returns why a library cannot be loaded; "" where it can be."""
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return in_a_line(error)
    return ""


def _open(target: Target) -> None:
    """Opens the device, as a replay's process does before it looks for an operator. Raises OpAtlasError."""
    spec = available_devices(target.device or None)[0]
    open_device(spec, MeasureSettings())


def _names(prefixes: tuple[str, ...]) -> dict[str, list[str]]:
    """Returns the kernel types by their NPU call, of calls that have no other name than those that begin so."""
    names: dict[str, list[str]] = defaultdict(list)
    for kernel_type, function in replays_of_bench().items():
        spec = replay_spec(function)
        if spec is not None and spec.npu is not None and all(n.startswith(prefixes) for n in spec.npu.split(OR)):
            names[spec.npu].append(kernel_type)
    return dict(names)


def _types(calls: Container[str]) -> list[str]:
    """Returns the kernel types of some calls."""
    return [kernel_type for call, types in _names(_ANY).items() if call in calls for kernel_type in types]


def _missing(calls: Iterable[str]) -> dict[str, str]:
    """Returns why calls are not there, by name."""
    missing = {}
    for call in sorted(calls):
        try:
            npu_operators.load_npu_call(call)
        except ReplayError as error:
            missing[call] = str(error)
    return missing


def _told(missing: Mapping[str, str], fate: str) -> str:
    """Returns the rows that lack a call, what becomes of the rows, and why."""
    return f"{_rows(_types(missing))} {fate}: {'; '.join(dict.fromkeys(missing.values()))}"


def _rows(types: Iterable[str]) -> str:
    """Returns `rows of Add, Mul`, or `rows of Add, Mul (and 3 more types)`."""
    names = sorted(types)
    more = f" (and {len(names) - _NAMED} more types)" if len(names) > _NAMED else ""
    return f"rows of {', '.join(names[:_NAMED])}{more}"
