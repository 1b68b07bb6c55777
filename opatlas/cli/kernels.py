"""The list of kernel types that have a replay, with their NPU calls and the proofs of these calls.

A replay times torch's best form of a kernel on a CPU or a GPU, and the NPU call on an NPU. The tests make each NPU call
with the real torch_npu, on tensors without values, and store the proof.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opatlas.run.devices.device import device_kinds
from opatlas.run.kernel_facts import proof_of, read_calls, replays_of_bench
from opatlas.run.registry import replay_spec


@dataclass(frozen=True)
class Kernel:
    """A line of the table: the attributes are its columns."""

    kernel_type: str
    family: str
    npu_call: str
    proven_by: str
    devices: str
    on_gpu: str


HEADERS = ("kernel type", "family", "NPU call", "proven by", "devices", "timed on a GPU")
#: The largest number of operators that are named for a composite kernel.
_NAMED = 4
#: Operators that take most of the time; they come first.
_HEAVY = re.compile(r"scaled_dot_product|mm\b|convolution|sort|topk")


def kernels_with_replay() -> list[Kernel]:
    """Returns all kernel types with a replay, by family and name."""
    calls = read_calls()
    found = []
    for kernel_type, function in replays_of_bench().items():
        spec = replay_spec(function)
        assert spec is not None
        found.append(
            Kernel(
                kernel_type,
                function.__module__.rpartition("test_")[2],
                spec.npu or "",
                proof_of(spec.npu or "") or "not yet",
                ", ".join(name for name, kind in device_kinds().items() if spec.npu or not kind.is_native),
                _operator_names(calls.get(kernel_type, ())),
            )
        )
    return sorted(found, key=lambda kernel: (kernel.family, kernel.kernel_type))


def _operator_names(operators: Sequence[str]) -> str:
    more = len(operators) - _NAMED
    return ", ".join(sorted(operators, key=lambda name: not _HEAVY.search(name))[:_NAMED]) + (
        f" and {more} more" if more > 0 else ""
    )
