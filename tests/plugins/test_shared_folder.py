"""The plan that a session hands to its workers."""

from __future__ import annotations

import pickle
from pathlib import Path

from opatlas.plugins.cases import Plan
from opatlas.plugins.session_context import SharedFolder


class _Forged:
    """Runs code when it is unpickled, as a file that a kernel wrote may."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


def test_a_worker_reads_the_plan_and_unpickles_no_other_file(tmp_path: Path) -> None:
    controller = SharedFolder(tmp_path)
    assert controller.load_plan() is None
    controller.publish_plan(Plan(error="as published"))
    worker = SharedFolder(tmp_path, controller.plan_digest)
    plan = worker.load_plan()
    assert plan is not None
    assert plan.error == "as published"
    (plan_file,) = tmp_path.iterdir()
    plan_file.write_bytes(pickle.dumps(_Forged(tmp_path / "ran")))
    refused = worker.load_plan()
    assert refused is not None
    assert str(plan_file) in refused.error
    assert not (tmp_path / "ran").exists()
