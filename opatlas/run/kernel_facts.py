"""Collects facts about each kernel type: its replay or why there is none, the proof of its NPU call, GPU operators.

Tests with torch_npu and with a GPU write the JSON files in bench/facts (tests/support/written_facts.py).
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from opatlas.run.devices.npu_operators import OR

_COLLECTIVE = "a collective of several devices: its row records no shapes"
_RANDOM = "its results are random, so no formula can check them"
_OWN_KERNEL = "a user's own kernel: its name and shapes do not define its result"
_MLA = "it depends on quantization modes that its row does not record"

#: Reasons without a replay, by kernel type: clauses that follow the name of the type.
WITHOUT_REPLAY: dict[str, str] = {
    "0": "the profiler did not resolve the kernel's type, and recorded no shapes",
    "DSAGenBitMask": _RANDOM,
    "DSARandomNormal": _RANDOM,
    "DSAStatelessGenBitMask": _RANDOM,
    "MemSet": "it clears the outputs of other kernels, and its row records no shapes",
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

_FACTS = Path(import_module("opatlas.bench").__path__[0], "facts")
CALLS = _FACTS / "gpu_calls.json"
PROOFS = _FACTS / "npu_proofs.json"
IMPLEMENTATION_PROOFS = _FACTS / "implementation_proofs.json"

#: Proofs that an NPU call takes the arguments of its replay, from the strongest to the weakest.
KINDS = {
    "torch": "the call consists of torch's own operators; torch computed the results' shapes and dtypes",
    "meta kernel": "torch_npu took the arguments and computed the results' shapes and dtypes",
    "schema": "the operator's schema took the names and types of the arguments, and has as many results",
    "custom schema": "as schema, with the schema of the operator's own package: torch_npu does not have the operator",
    "none": "there is no call on an NPU",
}
_TORCH = "torch"
#: Prefixes of the names of calls that sample rows run on a CPU, where the results are checked.
_RUNS_ON_CPU = ("torch.", "opatlas.bench.implementations.")


def runs_on_cpu(call: str) -> bool:
    """Returns whether an NPU call is torch's own or the project's: neither torch_npu's nor a custom operator."""
    return all(
        name.startswith(_RUNS_ON_CPU) and (not name.startswith("torch.ops.") or name.startswith("torch.ops.aten."))
        for name in call.split(OR)
    )


def read_proofs() -> dict[str, str]:
    """Returns the keys of KINDS by NPU call, as `@replays` names it, for the calls that tests with torch_npu proved."""
    return _read(PROOFS)


def proof_of(call: str) -> str:
    """Returns the proof of an NPU call, a key of KINDS; "" for a call without a proof."""
    return read_proofs().get(call) or (_TORCH if runs_on_cpu(call) else "")


def read_calls() -> dict[str, list[str]]:
    """Returns the operators of the GPU timings by kernel type, in the order of their first call."""
    return _read(CALLS)


def read_implementation_proofs() -> dict[str, dict[str, str]]:
    """Returns the devices that sample rows were checked on, by implementation and kernel type, if they ran."""
    return _read(IMPLEMENTATION_PROOFS)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
