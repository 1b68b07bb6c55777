"""What proves each replay's NPU call, as the tests found it with the real torch_npu.

The tests in tests/npu make every call on tensors that have shapes and no values, and keep what they
learned in npu_proofs.json, so that it can be told where torch_npu is not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.kernels import found_by_tests

PROOFS = Path(__file__).with_suffix(".json")

#: What takes a call's arguments, and what that says; from the strongest proof to the weakest.
KINDS = {
    "torch": "the call is torch's own, or made of such (bench.impl); torch computed the results' shapes and dtypes",
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
    return {name: KernelProof(**known) for name, known in found_by_tests.read(PROOFS).items()}


def write_proofs(proofs: Mapping[str, KernelProof]) -> None:
    """For `read_proofs`."""
    found_by_tests.write(PROOFS, {name: asdict(proof) for name, proof in proofs.items()})
