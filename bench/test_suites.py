"""Replays the rows of suites: `pytest bench/ --suite opinfo` (docs/candidates.md).

A case is a call of an operator of torch: a sample of torch's OpInfo, or a line of a trace. `row` is a SuiteRow, and
`replay` a SuiteCandidate, which makes the call in the device process.
"""

from __future__ import annotations

from opatlas.row.columns import SAMPLE
from opatlas.run.registry import replays


def _bind(*arguments):
    from opatlas.outer.suites.replay import bind_case

    return bind_case(*arguments)


@replays(npu=None, column=SAMPLE, binding=_bind, judge="opatlas.outer.judging.failures:run_candidate")
def test_operator(row, replay):
    """Calls an operator of torch, or the kernel of an implementation, with the arguments of the row."""
    replay()
