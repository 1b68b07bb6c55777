"""Runs the body of each replay on the device, and puts what became of it on the report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pytest

from opatlas.devices.device import DeviceDescription
from opatlas.engine.job import Job, RowOutcome
from opatlas.engine.registry import replay_spec
from opatlas.isolation.executor import BatchExecutor
from opatlas.model.errors import DeviceGone, ReplayError
from opatlas.model.record import Record
from opatlas.model.roofline import device_peak
from opatlas.model.schema import Status
from opatlas.report.row_summary import summarize_row
from opatlas.store.cells import helpers_cell, stored_us
from opatlas.text import in_a_line, without_middle

from .collector import REPORT_ATTRIBUTE, needs_group, row_of
from .plan import CaseRow
from .progress import WAITED, waited_s
from .records import Journaling
from .row_lines import stored_properties
from .session_context import BenchSession


class LookAhead:
    """Outcomes of rows whose turn has not come yet."""

    def __init__(self, size: int) -> None:
        """`size` is the most rows of a batch."""
        self._size = size
        #: By node id.
        self._ready: dict[str, RowOutcome] = {}
        #: The rows that got their outcomes. A plugin that runs one of these again does not want its batch again.
        self._given: set[str] = set()
        self._places: dict[str, int] = {}

    def outcome(
        self,
        item: pytest.Function,
        executor: BatchExecutor,
        job_of: Callable[[pytest.Function], Job],
        stops: Callable[[], bool],
    ) -> RowOutcome:
        """What became of a row, run now or before. Raises DeviceGone, and what `job_of` raises of the row.

        Args:
            job_of: the job of an item. Raises ReplayError where its row does not tell the group that it needs.
            stops: whether no further row is to be begun.
        """
        if item.nodeid not in self._ready:
            items = [item] if item.nodeid in self._given else self._batch(item)
            self._run(items, executor, job_of, stops)
        self._given.add(item.nodeid)
        return self._ready.pop(item.nodeid)

    def left_over(self) -> dict[str, RowOutcome]:
        """Outcomes of rows whose turn never came, by node id."""
        return self._ready

    def _run(
        self,
        items: Sequence[pytest.Function],
        executor: BatchExecutor,
        job_of: Callable[[pytest.Function], Job],
        stops: Callable[[], bool],
    ) -> None:
        config = items[0].config
        jobs = [(items[0], job_of(items[0]))]
        for item in items[1:]:
            # A row that does not tell its group is refused at its own turn.
            with suppress(ReplayError):
                jobs.append((item, job_of(item)))
        launched = 0

        def enough(outcome: RowOutcome) -> bool:
            nonlocal launched
            launched += 1
            config.hook.pytest_opatlas_launched(launched=launched, of=len(items))
            # Where pytest stops after some failures, rows after the next failure may never be wanted.
            return stops() or (bool(config.option.maxfail) and outcome.pending is None)

        nodeids = {job.id: item.nodeid for item, job in jobs}
        outcomes = executor.run_all([job for _, job in jobs], enough)
        self._ready.update((nodeids[job_id], outcome) for job_id, outcome in outcomes.items())

    def _batch(self, item: pytest.Function) -> Sequence[pytest.Function]:
        """The rows from `item` to the end of its batch that are to be run."""
        items = item.session.items
        if not self._places:
            self._places = batches([other.nodeid for other in items], self._size)
        batch = self._places[item.nodeid]
        following = islice(items, items.index(item), None)
        return [
            other
            for other in takewhile(lambda other: self._places.get(other.nodeid) == batch, following)
            if isinstance(other, pytest.Function) and (other is item or will_run(other))
        ]


def batches(nodeids: Iterable[str], size: int) -> dict[str, int]:
    """Number of each item's batch, by node id: `size` items in a row."""
    return {nodeid: place // size for place, nodeid in enumerate(nodeids)}


def is_to_be_run(item: pytest.Item) -> bool:
    """Whether an item is a row of one device that its turn will run, unless one of its fixtures refuses."""
    return will_run(item) and not needs_group(item)


def will_run(item: pytest.Item) -> bool:
    """The same of a row of one device, or of a group."""
    row = row_of(item)
    if row is None or row.given_up or item.get_closest_marker("skip"):
        return False
    return all(mark.kwargs.get("run", True) for mark in item.iter_markers("xfail"))


_OUTCOME = pytest.StashKey[RowOutcome | None]()
#: Seconds that the call of a row waited for its device.
_WAITED = pytest.StashKey[dict[str, float]]()
#: What is kept of what a row printed: a crash says why at the end, and the first of many errors is the cause.
_MOST_PRINTED = 40_000


class Supervisor:
    """Takes the place of pytest's call of a replay function."""

    def __init__(self, session: BenchSession, journaling: Journaling) -> None:
        self._session = session
        self._journaling = journaling
        self._device_told: DeviceDescription | None = None
        self._look_ahead: LookAhead | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        """Between two rows a session stops, and the device is opened.

        Around what limits the time of a row, such as pytest-timeout: importing torch takes longer than many rows.
        """
        if is_to_be_run(item):
            self._prepare_device(item.config)
        done = yield
        if self._session.stop_reason:
            item.session.shouldstop = self._session.stop_reason
        return done

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        if replay_spec(pyfuncitem.function) is None:
            return None
        row = pyfuncitem.funcargs["row"]
        assert isinstance(row, CaseRow)
        # A plugin may run a row again: what became of it before counts no more, even if there is no device now.
        pyfuncitem.stash[_OUTCOME] = None
        if row.given_up:
            pytest.fail(f"{row.place}: {row.given_up}", pytrace=False)
        before = waited_s(self._session.waits)
        try:
            outcome = pyfuncitem.stash[_OUTCOME] = self._run(pyfuncitem)
        finally:
            after = waited_s(self._session.waits)
            pyfuncitem.stash[_WAITED] = {who: after[who] - before[who] for who in after if after[who] > before[who]}
        _give_verdict(outcome, row.place)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        row = row_of(item)
        record: Record | None = None
        if row is not None and call.when == "call":
            outcome = item.stash.get(_OUTCOME, None)
            if outcome is None and self._session.settings.in_process and not row.given_up:
                outcome = _outcome_of_exception(call)
                if outcome.status is Status.DEVICE_ERROR:
                    self._session.stop("the device reported an error, and --in-process cannot replace its process")
            if outcome is not None:
                record = self._record(row, outcome)
                properties = _properties(record, row.captured_us)
                if self._session.settings.read_only:
                    properties += stored_properties(row)
                ours = dict(properties)
                # A row that is run again has those of its last run.
                item.user_properties[:] = [each for each in item.user_properties if each[0] not in ours]
                item.user_properties += properties
        elif row is not None and call.excinfo is not None and call.excinfo.errisinstance(pytest.skip.Exception):
            record = self._record(row, RowOutcome(Status.SKIPPED, str(call.excinfo.value)))
        if row is not None:
            _cut_printed(item, keep=call.when != "call" or call.excinfo is not None or _shows_passed(item.config))
        report = yield
        if row is not None:
            about: dict[str, Any] = {"given_up": True} if row.given_up and call.when == "call" else {}
            if record is not None:
                about["record"] = record.to_json()
                device = self._session.executor().describe() if call.when == "call" else None
                if device is not None and record.measurement is not None:
                    peak = device_peak(device.name)
                    about["figures"] = summarize_row(record, peak, row.captured_us).to_json()
                about["not_saved"] = self._journaling.keep(about["record"], device)
                if device is not None and device != self._device_told:
                    self._device_told = device
                    about["device"] = asdict(device)
            if call.when == "call" and (waited := item.stash.get(_WAITED, {})):
                about[WAITED] = waited
                _leave_out(report, sum(waited.values()))
            setattr(report, REPORT_ATTRIBUTE, about)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """What was measured of rows whose turn never came is kept all the same, before journals are closed."""
        left_over = self._look_ahead.left_over() if self._look_ahead is not None else {}
        unsaved: list[dict[str, Any]] = []
        for item in session.items if left_over else ():
            row = row_of(item)
            if row is not None and item.nodeid in left_over:
                record = self._record(row, left_over[item.nodeid]).to_json()
                if self._journaling.keep(record, self._device_told):
                    unsaved.append(record)
        if unsaved:
            session.config.hook.pytest_opatlas_unsaved(records=unsaved)
        return (yield)

    def pytest_opatlas_launched(self) -> None:
        """A later session may have to read the profile that holds the samples: it is told of which device they are."""
        self._journaling.tell_device(self._session.executor().describe())

    def _prepare_device(self, config: pytest.Config) -> None:
        capture = config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:
            # A device process writes where pytest's output goes at its start.
            capture.resume_global_capture()
        try:
            # Where there is no device, the fixture or the row says so.
            with contextlib.suppress(DeviceGone):
                self._session.executor().prepare()
        finally:
            if capture is not None:
                capture.suspend_global_capture()

    def _run(self, item: pytest.Function) -> RowOutcome:
        executor, at_once = self._session.executor(), self._session.settings.rows_at_once
        batches = executor if at_once > 1 and isinstance(executor, BatchExecutor) else None
        try:
            if batches is None:
                return executor.run(self._job(item))
            if self._look_ahead is None:
                self._look_ahead = LookAhead(at_once)
            return self._look_ahead.outcome(item, batches, self._job, lambda: bool(self._session.stop_reason))
        except pytest.fail.Exception as error:
            # A plugin, such as pytest-timeout, did not want to wait any more. Of a batch nobody knows here which of its
            # rows was late; and a row that has not got its device yet is not late.
            if self._session.settings.in_process or batches is not None or self._session.waits.interrupted:
                raise
            return RowOutcome(
                Status.TIMEOUT, f"the wait for it was interrupted, and its process ended: {in_a_line(error)}"
            )
        except ReplayError as error:
            # A body that ran right here refused its row or its result, or a cell does not tell the group. The message
            # says it all, but for a debugger, which stops where the error was raised.
            if item.config.option.usepdb:
                raise
            return RowOutcome(error.status, str(error))
        except DeviceGone as error:
            self._session.end_without_device(str(error), pytest.ExitCode.TESTS_FAILED)

    def _job(self, item: pytest.Function) -> Job:
        row = row_of(item)
        assert row is not None
        function = item.function
        spec, settings = replay_spec(function), self._session.settings
        assert spec is not None
        options = item.config.option if settings.messages is None else settings.messages.options
        return Job(
            module=function.__module__,
            module_path=str(Path(function.__code__.co_filename)),
            function=function.__qualname__,
            kernel_type=row.kernel_type,
            cells=row.cells,
            timeout_s=settings.timeout_s(first_run=row.first_run),
            group=spec.group(row.cells, options) if spec.group else None,
            instrument="" if settings.mixed or settings.read_only else row.stored_instrument,
        )

    def _record(self, row: CaseRow, outcome: RowOutcome) -> Record:
        return Record(
            kernel_type=row.kernel_type,
            signature=row.signature,
            cells=row.cells,
            status=outcome.status,
            reason=outcome.explanation,
            run_id=self._session.run_id,
            finished_at=time.time(),
            measurement=outcome.measurement,
            crashes_in_a_row=row.crashes_before + 1 if outcome.status.crash else 0,
        )


def _give_verdict(outcome: RowOutcome, place: str) -> None:
    """Passes, skips or fails the case of an outcome, whose row stands at `place` in its file."""
    __tracebackhide__ = True
    if outcome.status is Status.MEASURED:
        return
    message = f"{outcome.status}: {place}: {outcome.explanation}"
    if outcome.status in (Status.UNSUPPORTED, Status.SKIPPED):
        pytest.skip(message)
    pytest.fail(f"{message}\n{outcome.detail}".rstrip(), pytrace=False)


def _leave_out(report: pytest.TestReport, waited: float) -> None:
    """Leaves the seconds that a row waited for its device out of what pytest says that the row took."""
    report.duration = max(report.duration - waited, 0.0)
    report.start = report.stop - report.duration


def _cut_printed(item: pytest.Item, *, keep: bool) -> None:
    """Cuts what pytest has captured of an item, which it and its reports hold until the session ends."""
    sections = item._report_sections
    sections[:] = [(when, name, without_middle(text, _MOST_PRINTED)) for when, name, text in sections] if keep else []


def _shows_passed(config: pytest.Config) -> bool:
    """Whether the user wants to see what rows printed that passed."""
    return bool({"P", "A"}.intersection(getattr(config.option, "reportchars", ""))) or (
        bool(getattr(config.option, "xmlpath", None)) and config.getini("junit_logging") != "no"
    )


def _outcome_of_exception(call: pytest.CallInfo[None]) -> RowOutcome:
    """The outcome of a body that ran in this process and raised."""
    assert call.excinfo is not None
    from opatlas.engine.device_errors import outcome_from_error

    return outcome_from_error(call.excinfo.value)


def _properties(record: Record, captured_us: float | None) -> list[tuple[str, object]]:
    """What JUnit shows of a row, and of the duration that a capture has of it."""
    properties: list[tuple[str, object]] = [("status", record.status.value), ("run_id", record.run_id)]
    if record.measurement is not None:
        summary = record.measurement.summary
        # As in the CSV.
        stored, mean = round(stored_us(record.kernel_type, summary), 4), round(summary.mean_us, 4)
        properties.append(("duration_us", stored))
        if mean != stored:
            properties.append(("duration_mean_us", mean))
        properties += [
            ("duration_median_us", round(summary.median_us, 4)),
            ("duration_min_us", round(summary.min_us, 4)),
            ("duration_std_us", round(summary.std_us, 4)),
            ("samples", summary.count),
            ("instrument", record.measurement.instrument),
            ("cache_state", record.measurement.cache_state),
            ("quality", record.measurement.verdict.quality.value),
        ]
        if record.measurement.assumptions:
            properties.append(("assumptions", "; ".join(record.measurement.assumptions)))
        if record.measurement.helper_kernels:
            properties.append(("helper_kernels", helpers_cell(record.measurement.helper_kernels)))
        if captured_us is not None:
            ratio = summary.median_us / captured_us
            properties += [("captured_us", captured_us), ("ratio_to_captured", round(ratio, 4))]
    else:
        properties.append(("reason", record.reason))
    return properties
