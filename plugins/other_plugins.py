"""Rows in other plugins: pytest's JUnit file and list of what failed last, pytest-benchmark's table and files."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any
from xml.etree.ElementTree import Element, SubElement

import pytest

from opatlas import formats
from opatlas.row.record import Record
from opatlas.row.signature import case_id_in
from opatlas.text import parse_real, pluralize

from .cases import CaseResult, Fate, of_fate, row_of
from .pytest_internals import LogXML, xml_key
from .records import note_of, outcome_of_report
from .session import Session

#: pytest's name of the suite if no ini option names it.
_DEFAULT_SUITE = "pytest"


class JUnit:
    """Completes the JUnit file that pytest writes in the main process.

    Jenkins and GitLab show class, name, time, failure and `system-out` of a case, but no properties. So rows are
    grouped by kernel type, have a line of numbers, and fail with their status as type.
    """

    def __init__(self, session: Session, xml: LogXML) -> None:
        self._session = session
        self._context = session.context
        self._records = session.records
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
        rows = {row.id: row for row in of_fate(self._session.cases, Fate.TO_RUN)}
        for reporter in self._xml.node_reporters_ordered:
            case = reporter.to_xml()
            row = rows.get(case_id_in(case.get("name", "")))
            if row is not None:
                case.set("classname", ".".join(filter(None, (self._xml.prefix, row.kernel_type))))
                self._complete(case, row.result)

    def _complete(self, case: Element, result: CaseResult | None) -> None:
        properties = {each.get("name"): each.get("value", "") for each in case.iter("property")}
        for failure in (*case.findall("failure"), *case.findall("error")):
            failure.set("type", properties.get("status", "error"))
        figures = result.figures if result is not None else None
        # The figures are of the last run of a row. A plugin that runs rows again may leave a case of an earlier run.
        if figures is None or "duration_us" not in properties:
            return
        # junit_logging makes a system-out too, and readers use only the first.
        out = case.find("system-out")
        if out is None:
            out = SubElement(case, "system-out")
        line, stored_us = figures.line(), parse_real(properties.get("stored_us", ""))
        if stored_us:
            factor = formats.ratio(float(properties["duration_us"]) / stored_us)
            line += f", stored {formats.duration(stored_us)} ({factor})"
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
