"""Replays of steps of models: `pytest bench/test_steps.py --step MODEL,batch=N,context=N` (docs/steps.md).

A case is some layers of a model, built from the calls of a step in the device process.
"""

from __future__ import annotations

from opatlas.row.columns import STEP
from opatlas.run.registry import replays


def _bind(*arguments):
    from opatlas.run.step_replay import bind_step

    return bind_step(*arguments)


@replays(npu=None, column=STEP, binding=_bind)
def test_step(row, replay):
    """Measures the layers of a step: as a whole, each call in place, each call alone."""
    replay()
