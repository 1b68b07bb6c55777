"""Rows in other plugins: pytest-benchmark's table and files, and pytest's list of what failed last (--lf)."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from opatlas.row.record import Record
from opatlas.row.signature import case_id_in
from opatlas.text import pluralize

from .cases import row_of
from .row_note import note_of, outcome_of_report

#: Options of pytest-benchmark that need the rows; without them its table would only repeat the summary.
_NEED_ROWS = ("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_compare", "benchmark_histogram")


class LastFailed:
    """Makes --lf and --ff count rows that are xfail as failed."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a row that is xfail, after pytest removed it from its list."""
        plugin = self._config.pluginmanager.get_plugin("lfplugin")
        if plugin is not None and "record" in (note_of(report) or {}) and outcome_of_report(report) == "xfailed":
            # Since pytest 9.2 the keys are not text.
            plugin.lastfailed[getattr(report, "id", report.nodeid)] = True


class RowsAreBenchmarks:
    """Makes --benchmark-only and --benchmark-skip take rows for tests with pytest-benchmark's fixture."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> Generator[None, None, None]:
        """Gives rows the fixture while pytest-benchmark looks at the items, and not when they run."""
        own = [(item, item.fixturenames) for item in items if row_of(item) is not None and hasattr(item, "callspec")]
        for item, fixtures in own:
            item.fixturenames = [*fixtures, "benchmark"]
        yield
        for item, fixtures in own:
            item.fixturenames = fixtures


class BenchmarkFeed:
    """Adds each measured row to the session of pytest-benchmark, as a benchmark with the samples of the row."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._pytest_session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._pytest_session = session

    @pytest.hookimpl(wrapper=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """Fails the session if rows are slower than allowed; the error of pytest-benchmark would end pytest."""
        from pytest_benchmark.session import PerformanceRegression

        try:
            return (yield)
        except PerformanceRegression:
            assert self._pytest_session is not None
            self._pytest_session.exitstatus = pytest.ExitCode.TESTS_FAILED
            slower = pluralize(len(_benchmark_session(self._config).performance_regressions), "row")
            terminalreporter.write_line(f"{slower} slower than --benchmark-compare-fail allows", red=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        note = note_of(report) or {}
        if "record" in note:
            record = Record.from_json(note["record"])
            if record.measurement is not None:
                _benchmark_session(self._config).benchmarks.append(_benchmark(report.nodeid, record))


def _benchmark(nodeid: str, record: Record) -> Any:
    """Returns the benchmark of a measured row."""
    from pytest_benchmark.stats import Metadata

    measurement = record.measurement
    assert measurement is not None
    case_id = case_id_in(nodeid)
    fixture = SimpleNamespace(
        name=nodeid.partition("::")[2],
        fullname=nodeid,
        group=record.kernel_type,
        param=case_id,
        params={"row": case_id},
        extra_info={
            "kernel_type": record.kernel_type,
            "signature": record.signature,
            "instrument": measurement.instrument,
            "cache_state": measurement.cache_state,
            "run_id": record.run_id,
        },
        cprofile_stats=None,
        has_error=False,
    )
    options = {"disable_gc": True, "timer": measurement.instrument, "min_rounds": 1, "warmup": True}
    options |= {"max_time": 0.0, "min_time": 0.0}
    benchmark: Any = Metadata(fixture, iterations=measurement.calls_per_sample, options=options)
    for sample_us in measurement.samples_us:
        benchmark.update(sample_us * 1e-6 * measurement.calls_per_sample)
    return benchmark


def benchmark_plugins(config: pytest.Config, *, is_worker: bool) -> list[object]:
    """Returns the plugins that options of pytest and pytest-benchmark need."""
    found: list[object] = [LastFailed(config)]
    if any(getattr(config.option, name, False) for name in ("benchmark_only", "benchmark_skip")):
        found.append(RowsAreBenchmarks())
    if not is_worker and any(getattr(config.option, name, None) for name in _NEED_ROWS):
        found.append(BenchmarkFeed(config))
    return found


def _benchmark_session(config: Any) -> Any:
    """Returns pytest-benchmark's session, which it may make after OpAtlas is configured."""
    return config._benchmarksession
