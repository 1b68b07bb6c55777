"""Puts the plugins of a session together: which objects there are, and who knows whom."""

from __future__ import annotations

import pytest

from opatlas.isolation.executor import SESSION

from .benchmark_feed import NoBenchmarkHeader, benchmark_feed, benchmarks_only
from .collector import Collector
from .ending import Ending, WorkerEnding
from .interrupt import Interrupts, ignore_interrupts
from .journaling import Journaling
from .junit import JUnit, junit_of
from .last_failed import LastFailed
from .prof_path import ProfPath
from .progress import ReplayProgress
from .replacing import Replacing
from .report import Ledger, Report, ReportTally
from .row_lines import Comparison, RowLines
from .session import BenchSession
from .summary import SessionSummary
from .supervisor import Supervisor
from .writeback import WriteBack
from .xdist import Controller, ExclusiveLast


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
