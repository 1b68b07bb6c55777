"""The replay of all tasks (examples/README.md, docs/candidates.md).

A case is a list of inputs of a task. Without --implementation the task's own Model is measured; else the candidate of
a folder is judged and measured. opatlas/outer/tasks/ has the steps.
"""

from __future__ import annotations

from opatlas.row.columns import TASK_DIGEST
from opatlas.run.registry import replays


def _bind(job, spec, device, instrument, settings, group):
    """Makes `row` and `replay` of a task, in the device process."""
    from opatlas.outer.tasks.task_replay import bind

    return bind(job, device, instrument, settings, group)


@replays(npu=None, column=TASK_DIGEST, binding=_bind, judge="opatlas.outer.judging.failures:run_candidate")
def test_task(row, replay):
    """Judges a candidate for a task, and measures it."""
    replay()
