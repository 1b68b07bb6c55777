"""Writes the findings of tests with torch_npu and with a GPU on kernel types, for opatlas/run/registry.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from opatlas.files import safe_lock
from opatlas.run.registry import CALLS, IMPLEMENTATION_PROOFS, PROOFS, read_facts, runs_on_cpu


def write_proofs(proofs: Mapping[str, str]) -> None:
    """Writes the proofs of NPU calls, except proofs that follow from the names of calls."""
    _write(PROOFS, {call: kind for call, kind in proofs.items() if kind != "torch" or not runs_on_cpu(call)})


def write_calls(calls: Mapping[str, Sequence[str]]) -> None:
    """Writes the operators of the GPU timings by kernel type."""
    _write(CALLS, calls)


def keep_implementation_proof(name: str, kernel_type: str, proof: str) -> None:
    """Writes the proof of an implementation, or removes it if it is ""; several processes may write."""
    with safe_lock(Path(gettempdir(), "opatlas-implementation-proofs.lock")):
        proofs = read_facts(IMPLEMENTATION_PROOFS)
        own = {each: known for each, known in proofs.get(name, {}).items() if each != kernel_type}
        if proof:
            own[kernel_type] = proof
        found = {each: known for each, known in {**proofs, name: own}.items() if known}
        IMPLEMENTATION_PROOFS.write_text(f"{json.dumps(found, indent=1, sort_keys=True)}\n", encoding="utf-8")


def _write(path: Path, facts: Mapping[str, Any]) -> None:
    """Writes a line for each name, in order, so that a changed fact is one line of a diff."""
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in sorted(facts.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
