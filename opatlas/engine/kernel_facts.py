"""What tests found out of each kernel type, kept as JSON beside the code: it is told where they cannot run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

#: The files lie with the kernels.
FACTS = Path(import_module("opatlas.bench").__path__[0], "facts")


def read(path: Path) -> dict[str, Any]:
    """By kernel type; nothing where there is no file yet."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(path: Path, found: Mapping[str, Any]) -> None:
    """One kernel type a line, in order, so that a change is a line of a diff."""
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in sorted(found.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


CALLS = FACTS / "gpu_calls.json"


def read_calls() -> dict[str, list[str]]:
    """By kernel type: operators in the order of their first call."""
    return read(CALLS)


def write_calls(calls: Mapping[str, Sequence[str]]) -> None:
    """For `read_calls`."""
    write(CALLS, calls)


PROOFS = FACTS / "npu_proofs.json"

#: What takes a call's arguments, and what that says; from the strongest proof to the weakest.
KINDS = {
    "torch": "the call is torch's own, or made of such; torch computed the results' shapes and dtypes",
    "meta kernel": "torch_npu took the arguments and computed the results' shapes and dtypes",
    "schema": "the operator's schema took the names and types of the arguments, and has as many results",
    "custom schema": "as schema, with the one that the operator's own package publishes: torch_npu does not have it",
    "none": "there is no call on an NPU",
}


@dataclass(frozen=True)
class KernelProof:
    """What is known of the NPU call of a kernel type.

    Attributes:
        call: dotted name; None where there is none.
        proof: one of KINDS.
        references: names of the formulas that the results are checked with.
    """

    call: str | None
    proof: str
    references: list[str]


def read_proofs() -> dict[str, KernelProof]:
    """By kernel type; none where nothing has been proven yet."""
    return {name: KernelProof(**known) for name, known in read(PROOFS).items()}


def write_proofs(proofs: Mapping[str, KernelProof]) -> None:
    """For `read_proofs`."""
    write(PROOFS, {name: asdict(proof) for name, proof in proofs.items()})
