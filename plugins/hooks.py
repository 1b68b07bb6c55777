"""Puts the plugins of a session together: which objects there are, and who knows whom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from opatlas.engine.registry import replay_spec
from opatlas.isolation.executor import SESSION
from opatlas.model.signature import case_id_in

from .collector import Collector, row_of
from .ending import Ending, WorkerEnding
from .interrupt import Interrupts, ignore_interrupts
from .mixing import replaced
from .other_plugins import JUnit, LastFailed, NoBenchmarkHeader, benchmark_feed, benchmarks_only, junit_of
from .prof_path import ProfPath
from .progress import ReplayProgress
from .records import Journaling, WriteBack
from .report import Ledger, Report, ReportTally
from .row_lines import Comparison, RowLines
from .row_runner import Supervisor
from .session_context import BenchSession
from .summary import SessionSummary
from .xdist import Controller, ExclusiveLast


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


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Trylast: the terminal and pytest-benchmark must be there."""
    session = BenchSession(config)
    collector = Collector(session)
    register = config.pluginmanager.register
    register(session, SESSION)
    register(collector, "opatlas-collector")
    register(ExclusiveLast(session), "opatlas-exclusive")
    register(LastFailed(session, config), "opatlas-last-failed")
    only = benchmarks_only(config)
    if only is not None:
        register(only, "opatlas-benchmarks-only")
    journaling = Journaling(session)
    register(Supervisor(session, journaling), "opatlas-supervisor")
    if session.is_worker:
        # Its reports travel to the controller, which merges and tells.
        ignore_interrupts()
        register(WorkerEnding(journaling, vars(config)["workeroutput"]), "opatlas-worker-ending")
        return
    if session.is_controller:
        register(Controller(session), "opatlas-controller")
    interrupts, write_back, ledger = Interrupts(session), WriteBack(session, journaling), Ledger(session)
    if config.option.prof_path is not None:
        register(ProfPath(session, collector, write_back), "opatlas-prof-path")
    if config.option.read_only:
        register(Comparison(session, getattr(config.option, "verbose", 0)), "opatlas-comparison")
    tally = ReportTally()
    report = Report(session, collector, write_back, ledger, tally)
    keyword = config.option.keyword
    summary = SessionSummary(session, collector, interrupts, write_back, ledger, tally, report, keyword)
    register(interrupts, "opatlas-interrupts")
    register(write_back, "opatlas-write-back")
    register(ledger, "opatlas-ledger")
    register(tally, "opatlas-tally")
    register(summary, "opatlas-summary")
    register(Ending(session, interrupts, write_back, ledger, report), "opatlas-ending")
    register(Replacing(session, collector), "opatlas-replacing")
    xml = junit_of(config)
    if xml is not None:
        register(JUnit(session, write_back, tally, xml), "opatlas-junit")
    feed = benchmark_feed(config)
    if feed is not None:
        register(feed, "opatlas-benchmark-feed")
    else:
        register(NoBenchmarkHeader(), "opatlas-no-benchmark-header")
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        register(ReplayProgress(session, terminal, config.option, tally.running_time), "opatlas-progress")
        if config.option.verbose > 0:
            register(RowLines(session, terminal, config.option.verbose), "opatlas-row-lines")


def pytest_unconfigure(config: pytest.Config) -> None:
    session = config.pluginmanager.get_plugin(SESSION)
    if isinstance(session, BenchSession):
        session.close()
