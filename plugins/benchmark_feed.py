"""Durations for pytest-benchmark: its JSON, saved runs, comparisons and histograms work on replays."""

from __future__ import annotations

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from opatlas.model.record import Record
from opatlas.model.signature import case_id_in
from opatlas.text import counted

from .collector import about_row, row_of
from .xdist import replays_are_asked_for

#: Any of these asks pytest-benchmark for something; without them its table would only repeat the summary.
_ASKING = ("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_compare", "benchmark_histogram")


class BenchmarksOnly:
    """Counts rows among the benchmarks of --benchmark-only, for which pytest-benchmark knows only its own fixture."""

    def __init__(self, benchmark_session: Any) -> None:
        self._session = benchmark_session

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Before pytest-benchmark, which would skip all rows, skips what is neither a row nor has its fixture."""
        self._session.only = False
        for item in items:
            if row_of(item) is None and "benchmark" not in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason="no benchmark (--benchmark-only)"))


class BenchmarkFeed:
    """Hands each measured row to pytest-benchmark's session as a benchmark of its samples."""

    def __init__(self, benchmark_session: Any) -> None:
        self._session = benchmark_session
        self._pytest_session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._pytest_session = session

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """pytest-benchmark tells of rows that have become slower, and then raises what nobody catches."""
        from pytest_benchmark.session import PerformanceRegression

        try:
            return (yield)
        except PerformanceRegression:
            assert self._pytest_session is not None
            self._pytest_session.exitstatus = pytest.ExitCode.TESTS_FAILED
            slower = counted(len(self._session.performance_regressions), "row")
            terminalreporter.write_line(f"{slower} slower than --benchmark-compare-fail allows", red=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        about = about_row(report)
        if about is None or "record" not in about:
            return
        record = Record.from_json(about["record"])
        if record.measurement is not None:
            self._session.benchmarks.append(self._benchmark(report.nodeid, record))

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


def benchmarks_only(config: pytest.Config) -> BenchmarksOnly | None:
    """What --benchmark-only needs; None where it is not given, or pytest-benchmark is not there."""
    benchmark_session = getattr(config, "_benchmarksession", None)
    return BenchmarksOnly(benchmark_session) if getattr(benchmark_session, "only", False) else None


class NoBenchmarkHeader:
    """Takes pytest-benchmark's line out of the header of a session of replays, which nothing in that line is about."""

    @pytest.hookimpl(wrapper=True)
    def pytest_report_header(
        self, config: pytest.Config
    ) -> Generator[None, list[str | list[str]], list[str | list[str]]]:
        headers = yield
        if not replays_are_asked_for(config):
            return headers
        return [header for header in headers if not (isinstance(header, str) and header.startswith("benchmark: "))]


def benchmark_feed(config: pytest.Config) -> BenchmarkFeed | None:
    """The feed, where pytest-benchmark is there and was asked for something."""
    benchmark_session = getattr(config, "_benchmarksession", None)
    asked = any(getattr(config.option, name, None) for name in _ASKING)
    return BenchmarkFeed(benchmark_session) if benchmark_session is not None and asked else None
