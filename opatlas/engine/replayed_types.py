"""Which kernel types have a replay, whatever a session collects."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

from opatlas.engine.registry import replay_spec
from opatlas.model.communication import is_communication


@cache
def replays_of_bench() -> dict[str, Callable[..., Any]]:
    """The functions of `bench/test_*.py` by the kernel types that they replay. Does not import torch.

    Collectives, whose rows are messages and lie in databases of their own, are not among them.
    """
    found: dict[str, Callable[..., Any]] = {}
    for module_info in pkgutil.iter_modules(importlib.import_module("opatlas.bench").__path__):
        if module_info.name.startswith("test_"):
            module = importlib.import_module(f"opatlas.bench.{module_info.name}")
            for function in vars(module).values():
                spec = replay_spec(function)
                if spec is not None and not any(map(is_communication, spec.kernel_types)):
                    found |= dict.fromkeys(spec.kernel_types, function)
    return found


_COLLECTIVE = "a collective of several devices, whose row records no shapes"
_RANDOM = "what it draws is random, so that no reference can tell whether it is right"
_OWN_KERNEL = "a user's own kernel, whose name and shapes do not tell what it computes"
_MLA = "what it fuses before latent attention depends on quantization modes that its row does not record"

#: Why, by kernel type: one sentence without its full stop, to follow the name.
WITHOUT_REPLAY: dict[str, str] = {
    "0": "the profiler did not resolve the kernel's type, and recorded no shapes",
    "DSAGenBitMask": _RANDOM,
    "DSARandomNormal": _RANDOM,
    "DSAStatelessGenBitMask": _RANDOM,
    "MemSet": "other kernels bring it along to clear their outputs, and its row records no shapes",
    "_narrow_copy_flat_kernel": _OWN_KERNEL,
    "hcom_allGather_": _COLLECTIVE,
    "hcom_allReduce_": _COLLECTIVE,
    "hcom_batchSendRecv_": _COLLECTIVE,
    "hcom_broadcast_": _COLLECTIVE,
    "hcom_reduceScatter_": _COLLECTIVE,
    "main_kernel": _OWN_KERNEL,
    "matmul_bias_activation_kernel": _OWN_KERNEL,
    "mla_preprocess_0_mix_aic": _MLA,
    "mla_preprocess": _MLA,
}
