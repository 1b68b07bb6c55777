"""Replays of the rows that options list in place of those of a database: tasks, operators of suites, steps of models.

`pytest bench/test_listed.py --tasks PATH` (docs/candidates.md): a case is a list of inputs of a task. Without
--implementation the task's own Model is measured; else the candidate of a folder is judged and measured.

`--suite NAME` (docs/candidates.md): a case is a call of an operator of torch, a sample of torch's OpInfo or a line of a
trace.

`--step MODEL,batch=N,context=N` (docs/steps.md): a case is some layers of a model, built from the calls of a step, on
one device or, with the collectives of the library, on several.
"""

from __future__ import annotations

from opatlas.row.columns import SAMPLE, TASK_DIGEST
from opatlas.run.group import group_of_step
from opatlas.run.registry import replays

_STEP = "opatlas.run.step_replay:bind_step"
_JUDGE = "opatlas.outer.judging.failures:run_candidate"


@replays(npu=None, column=TASK_DIGEST, binding="opatlas.outer.tasks.task_replay:bind_task", judge=_JUDGE)
def test_task(row, replay):
    """Judges a candidate for a task, and measures it."""
    replay()


@replays(npu=None, column=SAMPLE, binding="opatlas.outer.suites.replay:bind_case", judge=_JUDGE)
def test_operator(row, replay):
    """Calls an operator of torch, or the kernel of an implementation, with the arguments of the row."""
    replay()


@replays("Step", npu=None, binding=_STEP)
def test_step(row, replay):
    """Measures the layers of a step: as a whole, each call in place, each call alone."""
    replay()


@replays("ParallelStep", npu=None, binding=_STEP, group=group_of_step)
def test_parallel_step(row, replay):
    """Measures the layers of a step on several devices, with their all_reduces."""
    replay()
