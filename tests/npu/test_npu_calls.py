"""The real torch_npu takes every replay's NPU call, and gives the results that the rows have."""

from __future__ import annotations

import pytest
from npu_verdicts import proofs

from bench.coverage import replays_of_bench
from bench.npu_proofs import PROOFS, read_proofs, write_proofs
from bench.registry import replay_spec


def described(verdicts):
    return "\n\n".join(
        f"{verdict.case}\n{replay_spec(replays_of_bench()[verdict.case.kernel_type]).npu}: "
        f"{verdict.refused or 'the replay refuses the row: ' + verdict.invalid}"
        for verdict in verdicts
    )


@pytest.mark.parametrize("kernel_type", replays_of_bench())
def test_call_is_accepted(verdicts_by_type, kernel_type):
    verdicts = verdicts_by_type[kernel_type]
    assert any(verdict.case.is_sample for verdict in verdicts), "no row in tests/bench/sample_rows*.py"
    # A captured row may contradict itself; a sample may not.
    wrong = [verdict for verdict in verdicts if verdict.refused or (verdict.invalid and verdict.case.is_sample)]
    assert not wrong, described(wrong)


def test_stored_proofs_are_up_to_date(request, verdicts_by_type):
    found = proofs(verdicts_by_type)
    if request.config.getoption("--write-npu-proofs", default=False):
        write_proofs(found)
    assert read_proofs() == found, f"out of date: run `pytest tests/npu --write-npu-proofs`, then commit {PROOFS}"
