"""Rows in pytest: what their reports carry, and what becomes of it in files and lists of pytest and pytest-benchmark.

The private parts of pytest that sessions use are here, and pyproject.toml bounds pytest's version because of these:

| part | why pytest's public parts do not do |
| --- | --- |
| `LogXML`, `xml_key` | JUnit names rows by their signature, and has their numbers as properties of the suite |
| `ReprFileLocation` | with `CI`, the short summary repeats one line of a failure |
| `read_global_capture`, `_report_sections` | what a row printed goes to this row, and pytest does not hold all of it |
| `_file` of the terminal writer | tables are wrapped on a terminal only |
| `_fixtureinfo` | fixtures of a session are made once, and not looked up for each of thousands of rows |
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypedDict
from xml.etree.ElementTree import Element, SubElement

import pytest
from _pytest._code.code import ReprFileLocation
from _pytest.junitxml import LogXML, xml_key

from opatlas import formats
from opatlas.data.cells import helpers_cell, stored_us
from opatlas.row.record import Record
from opatlas.row.signature import case_id_in
from opatlas.show.result import UNLIMITED, Part
from opatlas.text import cut_middle, parse_real, pluralize

from .cases import CaseResult, row_of

if TYPE_CHECKING:
    from .session import Session

__all__ = ["LogXML", "xml_key"]

_ATTRIBUTE = "opatlas"
#: The most characters that are kept of a row's output. Its start has the first error, its end the crash.
_MOST_PRINTED = 40_000


class RowNote(TypedDict, total=False):
    """A note on a row. xdist sends the reports of workers, and so the values, as plain values.

    Attributes:
        record: the record, from workers the result of `Record.to_json`; absent where the row was not run.
        on: the name of the device; absent in setup and teardown.
        device: name and facts of the device; absent if the previous row ran on the same device.
        given_up: present if the row fails without being run (--strict).
        not_kept: present if the record cannot be written.
    """

    record: Record | Mapping[str, Any]
    on: str
    device: Mapping[str, Any]
    given_up: bool
    not_kept: bool


def attach_note(report: pytest.TestReport, note: RowNote) -> None:
    """Attaches the note to the report of a row, which fails without a record: nobody hears of what is not on disk."""
    setattr(report, _ATTRIBUTE, note)
    if "not_kept" in note and report.outcome == "passed":
        report.outcome, report.longrepr = "failed", "not run: its record cannot be written"


def note_of(report: pytest.TestReport) -> RowNote | None:
    """Returns the note of a row's report; None for the reports of other tests."""
    return getattr(report, _ATTRIBUTE, None)


def record_of(report: pytest.TestReport) -> Record | None:
    """Returns the record of a row's report; None for a row that was not run, and after `SessionRecords.take`."""
    note = note_of(report) or {}
    record = note.get("record")
    if isinstance(record, Mapping):
        note["record"] = record = Record.from_json(record)
    return record


def outcome_of_report(report: pytest.TestReport) -> str:
    """Returns pytest's word for a report: "passed", "failed", "error", "skipped", "xfailed" or "xpassed"."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return "error" if report.failed and report.when != "call" else report.outcome


def set_properties(item: pytest.Item, properties: list[tuple[str, object]]) -> None:
    """Sets the user properties of a row; replaces the properties of an earlier run of the row."""
    names = {name for name, _ in properties}
    item.user_properties[:] = [each for each in item.user_properties if each[0] not in names]
    item.user_properties += properties


def properties_of(record: Record, captured_us: float | None) -> list[tuple[str, object]]:
    """Returns what JUnit shows of a row; `captured_us` is the duration that a capture has of the row."""
    found: dict[str, object] = {"status": record.status.value, "run_id": record.run_id, "host": record.host or None}
    found |= {name.lower().replace(" ", "_"): cell or None for name, cell in record.judged.items()}
    measurement = record.measurement
    if measurement is None:
        found["reason"] = record.reason
    else:
        summary = measurement.summary
        # Rounded as in the CSV.
        stored, mean = round(stored_us(record), 4), round(summary.mean_us, 4)
        found |= {
            "duration_us": stored,
            "duration_mean_us": mean if mean != stored else None,
            "duration_median_us": round(summary.median_us, 4),
            "duration_min_us": round(summary.min_us, 4),
            "duration_std_us": round(summary.std_us, 4),
            "samples": summary.count,
            "instrument": measurement.instrument,
            "cache_state": measurement.cache_state,
            "quality": measurement.verdict.quality.value,
            "assumptions": "; ".join(measurement.assumptions) or None,
            "helper_kernels": helpers_cell(measurement.helper_kernels) or None,
        }
        if captured_us is not None:
            found |= {"captured_us": captured_us, "ratio_to_captured": round(summary.median_us / captured_us, 4)}
    return [(name, value) for name, value in found.items() if value is not None]


def cut_printed(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Shortens the captured output of a row, which pytest keeps until the session ends.

    Removes the output of a row that passed, unless an option shows such output.
    """
    option, sections = item.config.option, item._report_sections
    is_shown = bool({"P", "A"}.intersection(getattr(option, "reportchars", "")))
    is_shown |= bool(getattr(option, "xmlpath", None)) and item.config.getini("junit_logging") != "no"
    is_kept = call.when != "call" or call.excinfo is not None or is_shown
    sections[:] = [(when, name, cut_middle(text, _MOST_PRINTED)) for when, name, text in sections] if is_kept else []


def write_parts(terminal: pytest.TerminalReporter, parts: Iterable[Part]) -> None:
    """Writes parts of a result as wide as the terminal that pytest writes to; unbroken lines where it is none."""
    from opatlas.show.result import text

    writer = terminal.config.get_terminal_writer()
    is_limited = writer._file.isatty() or bool(os.environ.get("COLUMNS"))
    shown = text(parts, writer.fullwidth if is_limited else UNLIMITED, styled=bool(writer.hasmarkup))
    if shown:
        terminal.write_line(shown)


def shorten_message(report: pytest.TestReport) -> None:
    """Leaves of a failure's message the first line, without the name of pytest's exception; its text stays.

    JUnit shows the message above the text. Where `CI` is set, so does pytest's short summary.
    """
    crash: ReprFileLocation | None = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        crash.message = crash.message.partition("\n")[0].removeprefix("Failed: ")


def take_output(item: pytest.Item) -> None:
    """Moves the output that pytest has captured since it last looked to the call of a test."""
    capture = item.config.pluginmanager.get_plugin("capturemanager")
    # After Ctrl-C pytest has stopped to capture, and says so by an assertion.
    with suppress(AssertionError):
        for name, text in zip(("stdout", "stderr"), capture.read_global_capture() if capture else (), strict=False):
            item.add_report_section("call", name, text)


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
        if self._xml.suite_name == _DEFAULT_SUITE:
            # A session that has nothing to do opens no device.
            stored = self._context.databases[0].provenance
            device = self._records.device_name or (stored.device if stored is not None else "")
            self._xml.suite_name = f"opatlas {device}".strip()
        for reporter in self._xml.node_reporters_ordered:
            case = reporter.to_xml()
            row = self._session.case_of(case.get("name", ""))
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
        record = record_of(report)
        if record is not None and record.measurement is not None:
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
