"""What other plugins of pytest are told of rows: JUnit, --lf and --ff, and pytest-benchmark."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, MutableMapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, SubElement

import pytest
from _pytest.junitxml import xml_key

from opatlas.errors import OpAtlasError
from opatlas.model.record import Record
from opatlas.model.signature import case_id_in
from opatlas.report.row_summary import microseconds_text
from opatlas.text import parse_real, pluralize

from .collector import row_of
from .report import SessionResults
from .row_note import note_of, outcome_of_report
from .session_context import SessionContext
from .xdist import has_replays

if TYPE_CHECKING:
    from _pytest.junitxml import LogXML

#: Options of pytest-benchmark that need the rows; without them its table would only repeat the summary.
_NEED_ROWS = ("benchmark_json", "benchmark_save", "benchmark_autosave", "benchmark_compare", "benchmark_histogram")


class BenchmarksOnly:
    """Makes --benchmark-only run rows too; pytest-benchmark would run only tests with its own fixture."""

    def __init__(self, benchmark_session: Any) -> None:
        self._session = benchmark_session

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skips tests that are neither rows nor have the fixture, before pytest-benchmark would skip all rows."""
        self._session.only = False
        for item in items:
            if row_of(item) is None and "benchmark" not in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason="no benchmark (--benchmark-only)"))


class BenchmarkFeed:
    """Adds each measured row to the session of pytest-benchmark, as a benchmark with the samples of the row."""

    def __init__(self, benchmark_session: Any) -> None:
        self._session = benchmark_session
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
            slower = pluralize(len(self._session.performance_regressions), "row")
            terminalreporter.write_line(f"{slower} slower than --benchmark-compare-fail allows", red=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        note = note_of(report)
        if note is None or "record" not in note:
            return
        record = Record.from_json(note["record"])
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
    """Returns the plugin for --benchmark-only; None without the option or pytest-benchmark."""
    benchmark_session = getattr(config, "_benchmarksession", None)
    return BenchmarksOnly(benchmark_session) if getattr(benchmark_session, "only", False) else None


class NoBenchmarkHeader:
    """Removes the line of pytest-benchmark from the header: its settings do not apply to rows."""

    @pytest.hookimpl(wrapper=True)
    def pytest_report_header(
        self, config: pytest.Config
    ) -> Generator[None, list[str | list[str]], list[str | list[str]]]:
        headers = yield
        if not has_replays(config):
            return headers
        return [header for header in headers if not (isinstance(header, str) and header.startswith("benchmark: "))]


def benchmark_feed(config: pytest.Config) -> BenchmarkFeed | None:
    """Returns the feed if an option of pytest-benchmark needs it; None otherwise."""
    benchmark_session = getattr(config, "_benchmarksession", None)
    asked = any(getattr(config.option, name, None) for name in _NEED_ROWS)
    return BenchmarkFeed(benchmark_session) if benchmark_session is not None and asked else None


#: pytest's name of the suite if no ini option names it.
_DEFAULT_SUITE = "pytest"


class JUnit:
    """Completes the JUnit file that pytest writes in the main process.

    Jenkins and GitLab show class, name, time, failure and `system-out` of a case, but no properties. So rows are
    grouped by kernel type, have a line of numbers, and fail with their status as type.
    """

    def __init__(self, results: SessionResults, xml: LogXML) -> None:
        self._context = results.context
        self._records = results.records
        self._tally = results.tally
        self._xml = xml

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Completes the cases after the last report, before pytest writes the file."""
        plan = self._context.plan
        if plan is None or plan.error:
            return
        for name, value in self._run_properties():
            self._xml.add_global_property(name, value)
        if self._xml.suite_name == _DEFAULT_SUITE and self._records.device_name:
            self._xml.suite_name = f"opatlas {self._records.device_name}"
        kernel_types = {
            case_id: table.kernel_type for table in plan.tables.values() for case_id in table.cases.values()
        }
        for reporter in self._xml.node_reporters_ordered:
            case = reporter.to_xml()
            case_id = case_id_in(case.get("name", ""))
            if case_id in kernel_types:
                case.set("classname", ".".join(filter(None, (self._xml.prefix, kernel_types[case_id]))))
                self._complete(case, case_id)

    def _complete(self, case: Element, case_id: str) -> None:
        properties = {each.get("name"): each.get("value", "") for each in case.iter("property")}
        for failure in (*case.findall("failure"), *case.findall("error")):
            failure.set("type", properties.get("status", "error"))
        figures = self._tally.figures.get(case_id)
        # The figures are of the last run of a row. A plugin that runs rows again may leave a case of an earlier run.
        if figures is None or "duration_us" not in properties:
            return
        # junit_logging makes a system-out too, and readers use only the first.
        out = case.find("system-out")
        if out is None:
            out = SubElement(case, "system-out")
        line, stored_us = figures.line(), parse_real(properties.get("stored_us", ""))
        if stored_us:
            ratio = float(properties["duration_us"]) / stored_us
            line += f", stored {microseconds_text(stored_us)} ({ratio:.2f} x)"
        out.text = "\n".join(filter(None, (line, out.text)))

    def _run_properties(self) -> Iterator[tuple[str, str]]:
        manifest = self._context.manifest(self._records.devices)
        yield "run_id", manifest.run_id
        yield "database", str(self._context.settings.database)
        yield "host", manifest.host
        yield "python", manifest.python
        yield from manifest.packages.items()
        for number, device in enumerate((manifest.device, *manifest.other_devices), start=1):
            of_device = "device" if number == 1 else f"device_{number}"
            if device:
                yield of_device, str(device["name"])
                yield from ((f"{of_device}.{name}", str(value)) for name, value in device["facts"].items())
        for name, value in manifest.options.items():
            yield f"option.{name}", value if isinstance(value, str) else json.dumps(value, default=str)


def junit_writer(config: pytest.Config) -> LogXML | None:
    """Returns pytest's writer of JUnit files; None without --junit-xml."""
    return config.stash.get(xml_key, None)


_KEY = "opatlas/lastfailed"


class LastFailed:
    """Makes --lf and --ff count failures for each database, and count rows that are xfail as failed.

    pytest's cache has one list of node ids for all sessions of a root folder. The ids of rows that failed in other
    databases are removed from the list while a session runs, and put back at its end.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._config = context.config
        self._database = ""
        #: Node ids of rows that failed in each database, by its path.
        self._by_database: dict[str, list[str]] = {}
        #: The keys of pytest's list, by their text.
        self._keys: dict[str, Any] = {}
        self._reported: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, None, object]:
        failed = self._failed()
        if failed is not None and has_replays(session.config):
            try:
                self._database = str(self._context.settings.database)
            except (OpAtlasError, pytest.UsageError):  # making the plan fails too, and says why
                return (yield)
            self._by_database = dict(self._cache.get(_KEY, {}))
            self._keys = {str(key): key for key in failed}
            for nodeid in self._failed_elsewhere().difference(self._by_database.get(self._database, ())):
                failed.pop(self._keys.get(nodeid), None)
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a row that is xfail, after pytest removed it from its list."""
        note, failed = note_of(report), self._failed()
        if note is None or failed is None:
            return
        self._reported.add(report.nodeid)
        if outcome_of_report(report) == "xfailed" and "record" in note:
            # Since pytest 9.2 the keys are not text.
            failed[getattr(report, "id", report.nodeid)] = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Puts back the ids of other databases, before pytest writes its list."""
        failed = self._failed()
        if failed is None or not self._database or self._context.is_worker:
            return
        rows = self._reported.union(self._by_database.get(self._database, ()))
        now = {**self._by_database, self._database: sorted(rows.intersection(map(str, failed)))}
        if now[self._database] != self._by_database.get(self._database, []):
            self._cache.set(_KEY, now)
        failed.update((self._keys[nodeid], True) for nodeid in self._failed_elsewhere().intersection(self._keys))

    def _failed_elsewhere(self) -> set[str]:
        """Returns the ids of rows that failed in other databases."""
        return {nodeid for path, nodeids in self._by_database.items() if path != self._database for nodeid in nodeids}

    def _failed(self) -> MutableMapping[Any, bool] | None:
        """Returns pytest's list; None where its cache is switched off."""
        plugin = self._config.pluginmanager.get_plugin("lfplugin")
        return None if plugin is None else plugin.lastfailed

    @property
    def _cache(self) -> pytest.Cache:
        assert self._config.cache is not None
        return self._config.cache
