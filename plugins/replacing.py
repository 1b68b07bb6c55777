"""Before rows run: whether the durations that they are to replace may be replaced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from opatlas.engine.registry import replay_spec
from opatlas.model.signature import case_id_in

from .collector import Collector, row_of
from .mixing import replaced
from .session import BenchSession


class Replacing:
    """Ends a session that is about to replace durations which its own do not compare with.

    Lives in the only process of a session, or in xdist's controller. Registered after those who tell of the plan,
    so that it comes before them.
    """

    def __init__(self, session: BenchSession, collector: Collector) -> None:
        self._session = session
        self._collector = collector
        self._is_judged = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._judge(case_id_in(item.nodeid) for item in session.items if row_of(item) is not None)

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """In xdist's controller, for each worker; the first one's collection is everybody's."""
        self._judge(map(case_id_in, ids))

    def _judge(self, selected: Iterable[str]) -> None:
        session = self._session
        plan, provenance = session.plan_if_made, session.provenance
        if self._is_judged or plan is None or provenance is None or not session.settings.writes:
            return
        self._is_judged = True
        specs = {name: replay_spec(function) for name, function in self._collector.known_replays().items()}
        in_groups = {name for name, spec in specs.items() if spec is not None and spec.group is not None}
        judged = replaced(provenance, session.settings, plan, set(selected), in_groups)
        if judged.refusal:
            # Nobody is to tell of rows that were not run.
            plan.error = judged.refusal
            raise pytest.UsageError(judged.refusal)
        plan.notes += judged.notes
