"""Finds the call of an NPU operator by its name, and registers custom operators first. Imports torch on use only.

Some operators are not in CANN. vllm-ascend brings a package of custom operators (an OPP), which two environment
variables name when a process starts, and registers the operators with torch. Others are Triton kernels of vllm-ascend,
or belong to ATB, a library of the NNAL package. The set of these operators changes between versions, so no list of
names decides: a registered operator is run.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from opatlas.row.errors import MissingPrecondition, ReplayError, Unsupported
from opatlas.text import exception_line

#: Separates alternative names of a call; the first existing one is used.
OR = " or "


def resolve_npu_call(name: str) -> Callable[..., Any]:
    """Returns the function of a name such as "torch_npu.npu_rms_norm"; of several names the first that takes the call.

    Raises:
        Unsupported: no function has that name, for instance because a custom operator is not registered.
    """
    first, _, others = name.partition(OR)
    if not others:
        return _function(name)
    try:
        return _function(first, others)
    except Unsupported:
        return resolve_npu_call(others)


def _function(name: str, others: str = "") -> Callable[..., Any]:
    import torch

    package, *path = name.split(".")
    try:
        call: Callable[..., Any] = operator.attrgetter(".".join(path))(import_module(package))
    except (ModuleNotFoundError, AttributeError) as error:
        raise Unsupported(f"{name} does not exist: {error}") from None
    return _adapt_to_version(name, call, others) if isinstance(call, torch._ops.OpOverloadPacket) else call


#: Arguments that a second version of an operator calls by other names.
_RENAMED = {
    "actual_seq_lengths": "actual_seq_qlen",
    "actual_seq_lengths_kv": "actual_seq_kvlen",
    "num_heads": "num_query_heads",
    "scale": "softmax_scale",
    "softmax_lse_flag": "return_softmax_lse",
}


def _adapt_to_version(name: str, operator: Any, others: str) -> Callable[..., Any]:
    """Returns a function that calls a custom operator with the arguments that its installed version takes.

    Replays pass the arguments of later versions by name. An earlier version is called without its unknown arguments,
    which must be None or empty: else the others are called.
    """
    schemas = [getattr(operator, overload)._schema for overload in operator.overloads()]
    known = {argument.name for schema in schemas for argument in schema.arguments}

    def call(*arguments: Any, **named: Any) -> Any:
        keywords = {word if word in known else _RENAMED.get(word, word): value for word, value in named.items()}
        unknown = keywords.keys() - known
        wanted = sorted(word for word in unknown if keywords[word] is not None and not _is_empty_list(keywords[word]))
        if wanted and others:
            other = resolve_npu_call(others)
            call.__qualname__ = getattr(other, "__qualname__", others)
            return other(*arguments, **named)
        if wanted:
            raise Unsupported(f"the installed {name} takes no {' and no '.join(wanted)}")
        return operator(*arguments, **{word: value for word, value in keywords.items() if word in known})

    call.__qualname__ = name
    return call


def _is_empty_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not value


PATH_VARIABLE = "ASCEND_CUSTOM_OPP_PATH"
LIBRARY_VARIABLE = "LD_LIBRARY_PATH"
#: Folder of OPPs in vllm-ascend. The vendor folder is `vllm-ascend` before version 0.20, then `custom_transformer`.
_VENDORS = Path("_cann_ops_custom", "vendors")
_LIBRARIES = Path("op_api", "lib")

#: torch_npu's message for a registered operator that no kernel library contains.
_NO_KERNEL = re.compile(r"\baclnn(\w+?)(?: or \w+)? not in (lib\w+\.so)")
#: Messages of torch_npu and the loader if ATB is missing or has another version. The library's name alone is not
#: enough, because the C++ stack of every error of an ATB kernel contains the name.
_NO_ATB = re.compile(
    r"libatb\.so: cannot open|not in libatb\.so|libatb\.so ?not found"
    r"|Could not load this library: \S*libop_plugin_atb\.so|libop_plugin_atb\.so: undefined symbol|\bnnal package\b",
    re.IGNORECASE,
)
_ATB_ENVIRONMENT = "/usr/local/Ascend/nnal/atb/set_env.sh"


def load_npu_call(name: str) -> Callable[..., Any]:
    """Returns the NPU call of a name, after registering custom operators; of several names the first existing call.

    Raises:
        MissingPrecondition: a custom operator is not registered; with the remedy.
        Unsupported: torch_npu does not have this call.
    """
    names = name.split(OR)
    register = next((each for prefix, each in _REGISTERED_BY.items() if any(n.startswith(prefix) for n in names)), None)
    if register is None:
        return resolve_npu_call(name)
    failure, remedy = register()
    try:
        call = resolve_npu_call(name)
    except Unsupported as error:
        raise MissingPrecondition(f"{name} is not registered ({failure or error}): {remedy}") from None
    return call


def missing_kernel(text: str) -> ReplayError | None:
    """Returns the error for a message about a missing kernel of an operator; None for other messages."""
    found = _NO_KERNEL.search(text)
    if found is not None:
        missing = f"no kernel {found[1]} in CANN's {found[2]} nor in a custom OPP"
        return Unsupported(missing) if is_environment_set() else MissingPrecondition(f"{missing}: {remedy()}")
    if _NO_ATB.search(text):
        if "undefined symbol" in text:
            return MissingPrecondition("ATB does not fit torch_npu (undefined symbol): install the NNAL of this CANN")
        return MissingPrecondition(f"libatb.so is not found: install NNAL, and source {_ATB_ENVIRONMENT}")
    return None


def registration_obstacle() -> str:
    """Returns why this process cannot register custom operators; "" if the operators can be or are registered."""
    if find_spec("vllm_ascend") is not None or _is_registered("_C_ascend"):
        return ""
    return f"needs custom operators, and vllm-ascend, which brings them, is not installed: {remedy()}"


def operator_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the two variables for a new process: the present values, extended by the OPPs of vllm-ascend.

    The loader reads LD_LIBRARY_PATH only at the start of a process. OPPs of the user precede the OPPs of vllm-ascend.
    Without any OPP the result is empty.
    """
    named = _entries(environment, PATH_VARIABLE)
    packages = list(dict.fromkeys([*(path for path in named if path.is_dir()), *_operator_packages()]))
    if not packages:
        return {}
    libraries = [path / _LIBRARIES for path in packages if (path / _LIBRARIES).is_dir()]
    return {
        name: os.pathsep.join(dict.fromkeys(map(str, (*first, *_entries(environment, name)))))
        for name, first in ((PATH_VARIABLE, packages), (LIBRARY_VARIABLE, libraries))
    }


def is_environment_set(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the two variables name an existing OPP and its libraries."""
    libraries = _entries(environment, LIBRARY_VARIABLE)
    return any(path.is_dir() and path / _LIBRARIES in libraries for path in _entries(environment, PATH_VARIABLE))


def libraries() -> list[Path]:
    """Returns the libraries of the OPPs in the environment. torch_npu loads them, and only logs failures."""
    folders = [path / _LIBRARIES for path in _entries(os.environ, PATH_VARIABLE)]
    return [folder / "libcust_opapi.so" for folder in folders if folder.is_dir()]


def remedy() -> str:
    """Returns the remedy for a missing operator of an OPP, in one line."""
    if is_environment_set():
        return f"{PATH_VARIABLE} and {LIBRARY_VARIABLE} are set; is this vllm-ascend built for this torch and CANN?"
    folder = _folder_of_vllm_ascend()
    if folder is None:
        return (
            "pip install vllm-ascend, whose operators replays find by themselves, or name another operator package: "
            + _exports(Path("<package>", "vendors", "<name>"))
        )
    packages = _operator_packages()
    if not packages:
        return (
            f"the installed vllm-ascend has no operator package ({folder / _VENDORS} is missing or empty): install "
            f"0.12 or later, built with its kernels (COMPILE_CUSTOM_KERNELS=1)"
        )
    return f"start the process with {_exports(*packages)}"


def _exports(*packages: Path) -> str:
    libraries = [package / _LIBRARIES for package in packages]
    return "; ".join(
        f"export {name}={os.pathsep.join(map(str, paths))}:${name}"
        for name, paths in ((PATH_VARIABLE, packages), (LIBRARY_VARIABLE, libraries))
    )


def _operator_packages() -> list[Path]:
    """Returns the OPPs of the installed vllm-ascend."""
    folder = _folder_of_vllm_ascend()
    return [path for path in sorted((folder / _VENDORS).glob("*")) if path.is_dir()] if folder is not None else []


def _folder_of_vllm_ascend() -> Path | None:
    package = find_spec("vllm_ascend")
    folders: Sequence[str] = list(package.submodule_search_locations or ()) if package is not None else []
    return Path(folders[0]) if folders else None


def _entries(environment: Mapping[str, str], variable: str) -> list[Path]:
    return [Path(entry) for entry in environment.get(variable, "").split(os.pathsep) if entry]


@cache
def _register_extension() -> tuple[str, str]:
    """Registers the operators of vllm-ascend's extension; returns the failure ("" for success) and the remedy."""
    if _folder_of_vllm_ascend() is None:
        return "vllm-ascend is not installed", remedy()
    enabling = _call_error("vllm_ascend.utils", "enable_custom_op")
    # enable_custom_op ignores errors of this import, and cannot be called without vLLM.
    importing = _import_error("vllm_ascend.vllm_ascend_C")
    return importing and "; ".join(filter(None, (enabling, importing))), remedy()


@cache
def _register_triton(module: str) -> tuple[str, str]:
    """Registers the Triton operators of a module of vllm-ascend; returns the failure ("" for success) and the remedy.

    Raises:
        MissingPrecondition: the kernels cannot be launched, because Triton does not know the device's number of cores.
    """
    remedy = "install vllm-ascend 0.13 or later, with vLLM and the triton-ascend of this CANN"
    if failure := _import_error(module):
        return failure, remedy
    # Sets the numbers of cores, which the kernels need.
    if failure := _call_error("vllm_ascend.ops.triton.triton_utils", "init_device_properties_triton"):
        raise MissingPrecondition(f"{failure}: {remedy}")
    return "", remedy


#: Functions that register operators with torch, by prefix of the operators' names.
_REGISTERED_BY: Mapping[str, Callable[[], tuple[str, str]]] = {
    "torch.ops._C_ascend.": _register_extension,
    "torch.ops.vllm.qkv_rmsnorm_rope": partial(
        _register_triton, "vllm_ascend.ops.triton.linearnorm.split_qkv_rmsnorm_rope"
    ),
    "vllm_ascend.ops.triton.rope.": partial(_register_triton, "vllm_ascend.ops.triton.rope"),
    "vllm_ascend.ops.triton.reject_sample.": partial(_register_triton, "vllm_ascend.ops.triton.reject_sample"),
    "fla_npu.": lambda: (_import_error("fla_npu.ops.ascendc"), "install flash-linear-attention-npu for this CANN"),
    **dict.fromkeys(
        ("npu_ops_transformer.", "torch.ops.npu_ops_transformer."),
        lambda: (_import_error("npu_ops_transformer.ops"), "install the torch extension of CANN's ops-transformer"),
    ),
    "torch.ops.vllm.npu_rotary_embedding": partial(_register_triton, "vllm_ascend.ops.register_custom_ops"),
}


def _import_error(module: str) -> str:
    """Imports a module that registers operators; returns the error, "" for success."""
    try:
        import_module(module)
    except Exception as error:  # a package with many dependencies may raise anything
        return f"import {module}: {exception_line(error)}"
    return ""


def _call_error(module: str, function: str) -> str:
    """Calls a function of a module, if the function exists; returns the error, "" for success."""
    if failure := _import_error(module):
        return failure
    try:
        getattr(import_module(module), function, lambda: None)()
    except Exception as error:  # vllm-ascend may raise anything
        return f"{module}.{function}(): {exception_line(error)}"
    return ""


def _is_registered(namespace: str) -> bool:
    import torch

    return any(name.startswith(f"{namespace}::") for name in torch._C._dispatch_get_all_op_names())
