"""Rows in the sessions of pytest-benchmark: its table, its files, and its options on which tests run."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from opatlas.row.record import Record
from opatlas.row.signature import case_id_in
from opatlas.text import pluralize

from .cases import row_of
from .row_note import note_of
from .settings import benchmarks_off
from .xdist import has_replays, has_theory_rows

#: Options of pytest-benchmark that need the rows; without them its table would only repeat the summary.
_NEED_ROWS = ("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_compare", "benchmark_histogram")


class BenchmarksOnly:
    """Makes --benchmark-only run rows too; pytest-benchmark would run only tests with its own fixture."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skips tests that are neither rows nor have the fixture, before pytest-benchmark would skip all rows."""
        _benchmark_session(self._config).only = False
        for item in items:
            if row_of(item) is None and "benchmark" not in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason="no benchmark (--benchmark-only)"))


class NoBenchmarks:
    """Deselects all rows, which are benchmarks (--benchmark-skip, --benchmark-disable)."""

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        rows = [item for item in items if row_of(item) is not None]
        if rows:
            config.hook.pytest_deselected(items=rows)
            items[:] = [item for item in items if row_of(item) is None]


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
        note = note_of(report)
        if note is None or "record" not in note:
            return
        record = Record.from_json(note["record"])
        if record.measurement is not None:
            _benchmark_session(self._config).benchmarks.append(self._benchmark(report.nodeid, record))

    def _benchmark(self, nodeid: str, record: Record) -> Any:
        from pytest_benchmark.stats import Metadata

        assert record.measurement is not None
        name = nodeid.partition("::")[2]
        case = case_id_in(nodeid)
        fixture = SimpleNamespace(
            name=name,
            fullname=nodeid,
            group=record.kernel_type,
            param=case,
            params={"row": case},
            extra_info={
                "kernel_type": record.kernel_type,
                "signature": record.signature,
                "instrument": record.measurement.instrument,
                "cache_state": record.measurement.cache_state,
                "run_id": record.run_id,
            },
            cprofile_stats=None,
            has_error=False,
        )
        options = {
            "disable_gc": True,
            "timer": record.measurement.instrument,
            "min_rounds": 1,
            "max_time": 0.0,
            "min_time": 0.0,
            "warmup": True,
        }
        benchmark: Any = Metadata(fixture, iterations=record.measurement.calls_per_sample, options=options)
        for sample_us in record.measurement.samples_us:
            benchmark.update(sample_us * 1e-6 * record.measurement.calls_per_sample)
        return benchmark


def benchmark_choice(config: pytest.Config) -> BenchmarksOnly | NoBenchmarks | None:
    """Returns the plugin for the option of pytest-benchmark that chooses tests; None without one."""
    if getattr(config.option, "benchmark_only", False):
        return BenchmarksOnly(config)
    return NoBenchmarks() if benchmarks_off(config) else None


class NoBenchmarkHeader:
    """Removes the line of pytest-benchmark from the header: its settings do not apply to rows."""

    @pytest.hookimpl(wrapper=True)
    def pytest_report_header(
        self, config: pytest.Config
    ) -> Generator[None, list[str | list[str]], list[str | list[str]]]:
        headers = yield
        if not (has_replays(config) or has_theory_rows(config)):
            return headers
        return [header for header in headers if not (isinstance(header, str) and header.startswith("benchmark: "))]


def benchmark_feed(config: pytest.Config) -> BenchmarkFeed | None:
    """Returns the feed if an option of pytest-benchmark needs it; None otherwise."""
    asked = any(getattr(config.option, name, None) for name in _NEED_ROWS)
    return BenchmarkFeed(config) if asked else None


def _benchmark_session(config: Any) -> Any:
    """Returns pytest-benchmark's session, which it may make after OpAtlas is configured."""
    return config._benchmarksession
