"""Custom operators: what registers them, and what to do where they are not there. Imports no torch by itself.

Some kernels are not in CANN but in a package of operators of their own (an OPP), which vllm-ascend brings. Two
variables must name it when a process starts; vllm-ascend registers the operators with torch. Which kernels
these are changes from version to version, so nothing is refused by a list: an operator that is registered is run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.errors import MissingPrecondition, ReplayError, Unsupported
from bench.npu_call import npu_call
from bench.one_line import in_a_line

PATH_VARIABLE = "ASCEND_CUSTOM_OPP_PATH"
LIBRARY_VARIABLE = "LD_LIBRARY_PATH"
_VENDOR = Path("_cann_ops_custom", "vendors", "vllm-ascend")
_LIBRARIES = Path("op_api", "lib")

#: Modules of vllm-ascend that register operators with torch, by the beginning of the operators' names
#: (vllm_ascend/utils.py: enable_custom_op; vllm_ascend/ops/: direct_register_custom_op).
_REGISTERED_BY = {
    "torch.ops._C_ascend.": "vllm_ascend.vllm_ascend_C",
    "torch.ops.vllm.qkv_rmsnorm_rope": "vllm_ascend.ops.triton.linearnorm.split_qkv_rmsnorm_rope",
    "torch.ops.vllm.npu_rotary_embedding": "vllm_ascend.ops.register_custom_ops",
}
#: What torch_npu says where an operator is registered, and no library of kernels has it.
_NO_KERNEL = re.compile(r"\baclnn(\w+?)(?: or \w+)? not in (lib\w+\.so)")


def call_of(name: str) -> Callable[..., Any]:
    """The NPU call of that name; what registers it is imported where it is not there yet.

    Raises:
        MissingPrecondition: a custom operator that is not registered, with what to do.
        Unsupported: torch_npu has no such call.
    """
    try:
        return npu_call(name)
    except Unsupported:
        module = next((module for prefix, module in _REGISTERED_BY.items() if name.startswith(prefix)), None)
        if module is None:
            raise
    failure = _import(module)
    try:
        return npu_call(name)
    except Unsupported as error:
        raise MissingPrecondition(f"{name} is not registered ({failure or error}): {remedy()}") from None


def missing_kernel(text: str) -> ReplayError | None:
    """What it means that a call failed with these words, where an operator has no kernel; None for other words."""
    found = _NO_KERNEL.search(text)
    if found is None:
        return None
    what = f"no kernel {found[1]} in CANN's {found[2]} nor in a custom OPP"
    return Unsupported(what) if is_set_up() else MissingPrecondition(f"{what}: {remedy()}")


def cannot_be_registered() -> str:
    """Why no custom operator can be registered in this process; "" where they can be, or are."""
    if find_spec("vllm_ascend") is not None or _is_registered("_C_ascend"):
        return ""
    return f"needs custom operators, and vllm-ascend, which brings them, is not installed: {remedy()}"


def is_set_up(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the two variables name an OPP that is there, and its libraries."""
    libraries = {Path(entry) for entry in environment.get(LIBRARY_VARIABLE, "").split(os.pathsep) if entry}
    return any(
        (opp := Path(entry)).is_dir() and opp / _LIBRARIES in libraries
        for entry in environment.get(PATH_VARIABLE, "").split(os.pathsep)
        if entry
    )


def remedy(environment: Mapping[str, str] = os.environ) -> str:
    """What to do, in one line: the two exports, with the real path where vllm-ascend is installed."""
    package = find_spec("vllm_ascend")
    places = list(package.submodule_search_locations or ()) if package else []
    opp = Path(places[0]) / _VENDOR if places else Path("<vllm_ascend>") / _VENDOR
    if is_set_up(environment):
        return f"{PATH_VARIABLE} and {LIBRARY_VARIABLE} are set; is this vllm-ascend built for this torch and CANN?"
    if places and not opp.is_dir():
        return f"the installed vllm-ascend was built without custom operators ({opp} is missing): install one with them"
    install = "" if places else "pip install vllm-ascend; "
    return (
        f"{install}export {PATH_VARIABLE}={opp}:${PATH_VARIABLE}; "
        f"export {LIBRARY_VARIABLE}={opp / _LIBRARIES}:${LIBRARY_VARIABLE}"
    )


@cache
def _import(module: str) -> str:
    """Imports a module for what it registers; gives what became of that, "" if it is there."""
    try:
        import_module(module)
    except Exception as error:  # whatever a package of many parts stumbles over at import
        return f"import {module}: {in_a_line(error)}"
    return ""


def _is_registered(namespace: str) -> bool:
    import torch

    return any(name.startswith(f"{namespace}::") for name in torch._C._dispatch_get_all_op_names())
