"""Runs rows by their tests: makes their jobs, gives them to the scheduler of the session, and takes the outcomes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING

import pytest

from opatlas.capture.profile_samples import ProfileMatcher
from opatlas.errors import OpAtlasError
from opatlas.options import Scope
from opatlas.row.columns import FUNCTIONAL
from opatlas.row.errors import DeviceGone, ReplayError, Unsupported
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec
from opatlas.run.group import GroupSpec
from opatlas.run.group_pool import GroupNodes, GroupPool
from opatlas.run.implementation import Implementation, KernelSource
from opatlas.run.instruments.instrument import MSPROF, MeasureSettings
from opatlas.run.job import Against, Job, RanTooLong, RowOutcome, outcome_of
from opatlas.run.msprof_sessions import MsprofBatches
from opatlas.run.process.device_process import DeviceProcess, GroupProcess
from opatlas.run.registry import replay_spec
from opatlas.run.scheduler import Done, ExcludedDevices, InProcess, OnDevices, Profiles, Scheduler, SingleOrGroup
from opatlas.text import exception_line

from .cases import SessionCase, needs_group, row_of, will_run
from .reports import take_output
from .target import cluster_of

if TYPE_CHECKING:
    from opatlas.outer.generation.session_models import ModelRuns

    from .session_context import SessionContext

#: The rows of a process with a control: the first ones, and of the others one in so many.
_FIRST_CONTROLS, _CONTROL_EACH = 5, 8

#: Called with each outcome of a row that pytest has not reached, and the device that it is from.
Arrived = Callable[[pytest.Function, RowOutcome, DeviceDescription], None]


def batches(nodeids: Iterable[str], size: int) -> dict[str, int]:
    """Returns the number of each item's batch, by node id: `size` consecutive items make a batch."""
    return {nodeid: place // size for place, nodeid in enumerate(nodeids)}


class RowRunner:
    """Runs the rows of a session: in turn, or, where the scheduler takes many at once, ahead of pytest."""

    def __init__(self, context: SessionContext, on_arrived: Arrived) -> None:
        """
        Args:
            on_arrived: gets each outcome of a row that may run ahead of pytest, before anybody else hears of it.
        """
        self._context = context
        self._on_arrived = on_arrived
        self._items: Sequence[pytest.Item] = ()
        self._scheduler: Scheduler | None = None
        self._samples: ProfileMatcher | None = None
        self._models: ModelRuns | None = None
        #: The item of each job without an outcome, and the node ids of these items.
        self._item_of: dict[int, pytest.Function] = {}
        self._job_of: dict[str, int] = {}
        #: Jobs that have run, and whose samples are pending.
        self._launched: set[int] = set()
        #: Outcomes that pytest has not asked for, by node id, and those of them that are failures.
        self._ready: dict[str, Done] = {}
        self._failed: set[str] = set()
        #: Node ids of the items that pytest has reached: a plugin may run them again.
        self._reached: set[str] = set()
        self._device: DeviceDescription | None = None
        self._batches: dict[str, int] = {}
        #: What became of the baseline of each row here, and how many rows were compared with theirs.
        self._baselines: dict[str, Status] = {}
        self._compared = 0

    def describe(self) -> DeviceDescription:
        """Returns the device of the row that pytest asked for last; opens one if necessary. Raises DeviceGone."""
        return self._device or self.scheduler().describe()

    def scheduler(self) -> Scheduler:
        """Returns what runs the rows, made at the first request. Raises DeviceGone if --in-process has no device."""
        if self._scheduler is None:
            self._scheduler = self._make_scheduler()
        return self._scheduler

    def _make_scheduler(self) -> Scheduler:
        context, settings = self._context, self._context.settings
        if settings.ray is not None:
            return cluster_of(context.config, ()).scheduler(settings.measure, context.tell_once)
        if settings.prof_path is not None:
            return Profiles(self.samples(), settings.devices[0].name)
        if settings.in_process:
            return InProcess(settings.devices[0], settings.measure, context.waits)
        excluded = ExcludedDevices(context.shared.path)
        first, size = context.place % len(settings.devices), settings.msprof_rows or 1
        single = OnDevices(settings.devices[first:] + settings.devices[:first], self._of_device, excluded, size)
        groups = GroupPool(GroupNodes(settings.devices), settings.measure, excluded, self._of_group, size)
        return groups if settings.source.scope is Scope.COLLECTIVES else SingleOrGroup(single, groups)

    def samples(self) -> ProfileMatcher:
        """Returns the samples that the profiles of --prof-path have for the rows of the plan."""
        if self._samples is None:
            plan, profile = self._context.plan, self._context.profile
            assert plan is not None
            assert profile is not None
            rows = {cases.kernel_type: cases.table for cases in plan.tables.values()}
            self._samples = ProfileMatcher(profile, rows, self._context.settings.ep_size)
        return self._samples

    def begin(self) -> None:
        """Lets the processes of devices import torch while pytest collects; they inherit the present output."""
        settings = self._context.settings
        if not settings.in_process and settings.prof_path is None:
            with contextlib.suppress(DeviceGone):
                self.scheduler().begin()

    def prepare(self, item: pytest.Item) -> None:
        """Opens the device for the next row, if the row runs on one device. The time of opening belongs to no row."""
        self._items = item.session.items
        if not will_run(item):
            return
        if needs_group(item):
            self._context.await_other_workers()
            return
        capture = item.config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:
            # A device process writes where pytest's output goes when the process starts.
            capture.resume_global_capture()
        try:
            # If there is no device, the fixture or the row reports that.
            with contextlib.suppress(DeviceGone):
                self.scheduler().prepare()
                self._take(self.scheduler().completed())
        finally:
            if capture is not None:
                capture.suspend_global_capture()

    def run(self, item: pytest.Function) -> RowOutcome:
        """Runs a row, or returns the outcome of a row that ran ahead. Ends the session where there is no device."""
        context = self._context
        models = self._model_runs()
        if models is not None and models.writes(item):
            return self._run_model(item, models)
        try:
            return self._outcome(item)
        except pytest.fail.Exception as error:
            # Another plugin, such as pytest-timeout, ended the wait. Of rows that run ahead the late one is unknown,
            # and a row that still waits for its device is not late.
            if context.settings.in_process or self.scheduler().at_once > 1 or context.waits.interrupted:
                raise
            return outcome_of(RanTooLong(f"the wait was interrupted, and its process ended: {exception_line(error)}"))
        except ReplayError as error:
            # A body in this process refused its row, or a cell does not say which group the row needs. A debugger stops
            # where the error was raised; otherwise the message is enough.
            if item.config.option.usepdb:
                raise
            return outcome_of(error)
        except DeviceGone as error:
            context.end_without_device(str(error))

    def _outcome(self, item: pytest.Function) -> RowOutcome:
        """Returns the outcome of a row; one that pytest runs again runs anew."""
        scheduler, nodeid = self.scheduler(), item.nodeid
        while nodeid not in self._ready:
            if nodeid not in self._job_of:
                self._submit(item)
                # What may run ahead is submitted with the first of it that pytest reaches.
                for other in self._others(item) if nodeid not in self._reached else ():
                    # A row that is refused here is refused again, with its reason, when pytest reaches it.
                    with contextlib.suppress(ReplayError):
                        self._submit(other)
            try:
                self._take(scheduler.completed(self._job_of[nodeid]))
            except BaseException:
                # What runs is lost, and what waits runs when pytest reaches it.
                scheduler.cancel()
                self._item_of.clear()
                self._job_of.clear()
                raise
        done = self._ready.pop(nodeid)
        self._device = done.device
        self._failed.discard(nodeid)
        self._reached.add(nodeid)
        row = row_of(item)
        if row is not None and row.target == self._context.settings.baseline:
            self._baselines[row.row_id] = done.outcome.status
        return self._asked_again(done)

    def _against(self, row: SessionCase) -> Against | None:
        """Returns the baseline that a row is compared with in turn; None for the baseline, and where there is none."""
        settings = self._context.settings
        baseline = settings.baseline
        if baseline is None or row.target == baseline or self.scheduler().at_once > 1 or settings.prof_path is not None:
            return None
        # A baseline that fails here would take the row of the kernel along.
        if self._baselines.get(row.row_id, Status.MEASURED) is not Status.MEASURED:
            return None
        number, self._compared = self._compared, self._compared + 1
        is_control = number < _FIRST_CONTROLS or number % _CONTROL_EACH == 0
        return Against(_source(row, settings.targets[baseline].implementation), is_control)

    def _asked_again(self, done: Done) -> RowOutcome:
        """Returns the outcome of a row; a kernel that is faster or slower is compared in another process, too.

        A row that failed beside its baseline is measured without it: the baseline may be the cause.
        """
        job, outcome, settings = done.job, done.outcome, self._context.settings
        if job.against is not None and outcome.status.expected_to_fail and not settings.in_process:
            alone = self.scheduler().run(job.without_baseline())
            why = f"not compared: beside the baseline {outcome.status}: {outcome.explanation}"
            return _with_reason(alone, why) if alone.status is Status.MEASURED else alone
        measurement = outcome.measurement
        ratios = measurement.ratios if measurement is not None else None
        if measurement is None or ratios is None or settings.in_process or not ratios.verdict().is_definite:
            return outcome
        second = self.scheduler().run(job.again_elsewhere())
        if second.measurement is not None:
            rounds = (*measurement.rounds, *second.measurement.rounds)
            return replace(outcome, measurement=replace(measurement, rounds=rounds))
        return _with_reason(outcome, f"not compared in another process: {second.status}: {second.explanation}")

    def _submit(self, item: pytest.Function) -> None:
        job = self._job(item)
        self._item_of[job.id] = item
        self._job_of[item.nodeid] = job.id
        self.scheduler().submit(job)

    def _others(self, item: pytest.Function) -> Iterator[pytest.Function]:
        """Yields the rows that may run together with a row, and have not been submitted."""
        size = self.scheduler().at_once
        if size == 1 or self._may_be_last():
            return
        if not self._batches:
            self._batches = batches([each.nodeid for each in self._items], size)
        batch, following = self._batches.get(item.nodeid), islice(self._items, self._items.index(item) + 1, None)
        for other in takewhile(lambda each: self._batches.get(each.nodeid) == batch, following):
            if needs_group(other) is not needs_group(item):
                # Another worker of xdist may have it.
                break
            is_new = other.nodeid not in self._ready and other.nodeid not in self._job_of
            if isinstance(other, pytest.Function) and is_new and will_run(other):
                yield other

    def _may_be_last(self) -> bool:
        """Returns whether no further row may begin: the session stops, or a failure may be the last for --maxfail."""
        return bool(self._context.stop_reason) or (bool(self._context.config.option.maxfail) and bool(self._failed))

    def _take(self, completed: Iterator[Done]) -> None:
        """Takes outcomes as they arrive, and lets no other row begin where one may be the last."""
        scheduler = self.scheduler()
        for job, outcome, device in completed:
            item = self._item_of[job.id]
            if scheduler.at_once > 1 and job.id not in self._launched:
                # Otherwise the row for which pytest waits had the output of the whole batch.
                take_output(item)
            if outcome.pending is not None:
                self._launched.add(job.id)
                self._device = device
            else:
                del self._item_of[job.id], self._job_of[item.nodeid]
                self._ready[item.nodeid] = Done(job, outcome, device)
                if outcome.status not in (Status.MEASURED, Status.UNSUPPORTED):
                    self._failed.add(item.nodeid)
                if scheduler.at_once > 1:
                    self._on_arrived(item, outcome, device)
            if self._may_be_last():
                for left in scheduler.cancel():
                    del self._job_of[self._item_of.pop(left.id).nodeid]

    def _model_runs(self) -> ModelRuns | None:
        """Returns what runs the rows of models; None without --models."""
        if self._models is None and self._context.settings.models is not None:
            self._models = self._context.settings.models.runs(self._context, row_of)
        return self._models

    def _run_model(self, item: pytest.Function, models: ModelRuns) -> RowOutcome:
        """Lets a model write the candidate of a row, with repairs. Ends the session if the endpoint gives no answer."""
        scheduler = self.scheduler()
        try:
            return models.run(
                item, lambda each, source: scheduler.run(replace(self._job(each, source), language=models.rules))
            )
        except ReplayError as error:
            return outcome_of(error)
        except DeviceGone as error:
            self._context.end_without_device(str(error))
        except OpAtlasError as error:
            if models.stops_session(error):
                self._context.stop(str(error))
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    def unreached(self, items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, RowOutcome]]:
        """Ends what runs ahead, and yields the outcomes of rows that pytest did not reach."""
        self.release()
        return ((item, self._ready[item.nodeid].outcome) for item in items if item.nodeid in self._ready)

    def release(self) -> None:
        """Waits for the rows that run. The process of a device ends while the records are merged."""
        if self._scheduler is not None and self._scheduler.at_once == 1:
            self._scheduler.release()
        else:
            self.close()

    def close(self) -> None:
        """Waits for the rows that run, and releases the device."""
        scheduler = self._scheduler
        if scheduler is not None:
            scheduler.cancel()
            scheduler.close()
            self._take(scheduler.completed())
            self._scheduler = None

    def _job(self, item: pytest.Function, source: KernelSource | None = None) -> Job:
        """Returns the job of a row.

        Args:
            source: the kernel that is timed; None: that of the row's implementation.

        Raises:
            ReplayError: a cell of the row does not say which group the row needs, or there is no kernel.
        """
        row = row_of(item)
        assert row is not None
        function = item.function
        # Rows without a replay are looked up in profiles, and never run.
        spec, settings = replay_spec(function), self._context.settings
        source = source or _source(row, settings.targets[row.target].implementation)
        job = Job(
            module=function.__module__,
            module_path=function.__code__.co_filename,
            function=function.__qualname__,
            kernel_type=row.kernel_type,
            cells=row.cells,
            timeout_s=settings.timeout_s(first_run=row.row.status is None),
            group=spec.group(row.cells, settings.source.options) if spec is not None and spec.group else None,
            source=source,
            instrument="" if settings.mixed or settings.read_only else _instrument(row),
            subject=settings.source.subjects.get(row.kernel_type),
            judge=spec.judge if spec is not None and source is not None and not source.module else "",
            together=row.row_id if len(settings.targets) > 1 else "",
        )
        if not job.judge:
            against = self._against(row) if source is not None else None
            return job if against is None else replace(job, against=against, timeout_s=job.timeout_s * against.calls)
        # Workers of xdist share the folder.
        return replace(job, log=str(self._context.shared.path / f"candidate{self._context.worker}-{job.id}"))

    def _of_device(self, spec: DeviceSpec) -> Scheduler:
        measure, waits, msprof = self._context.settings.measure, self._context.waits, self._context.msprof
        if msprof is None:
            return DeviceProcess(spec, measure, waits=waits)
        return MsprofBatches(lambda launcher: DeviceProcess(spec, measure, launcher, waits), measure, msprof)

    def _of_group(self, spec: GroupSpec, devices: Sequence[DeviceSpec], measure: MeasureSettings) -> Scheduler:
        waits, msprof = self._context.waits, self._context.msprof
        if msprof is None or measure.instrument != MSPROF:
            return GroupProcess(spec, devices, measure, waits)
        return MsprofBatches(
            lambda launcher: GroupProcess(spec, devices, measure, waits, launcher), measure, msprof, spec
        )


def _with_reason(outcome: RowOutcome, why: str) -> RowOutcome:
    return replace(outcome, reason="; ".join(filter(None, (outcome.reason, why))))


def _instrument(row: SessionCase) -> str:
    """Returns the instrument of the replayed duration of a row; "" if the row has none."""
    replayed = row.row.replayed
    return replayed.instrument.strip() if replayed is not None else ""


def _source(row: SessionCase, implementation: Implementation) -> KernelSource | None:
    """Returns the function of a row; that of its functional operator if the row's operator is a variant without one.

    Raises:
        Unsupported: there is no function, in a session in which missing ones count.
    """
    functional = row.cells.get(FUNCTIONAL, "")
    source = implementation.source(row.kernel_type)
    if source is None and functional and (of_functional := implementation.source(functional)):
        return replace(of_functional, is_functional=True)
    if source is None and implementation.counts_missing and not implementation.is_default:
        raise Unsupported(f"{implementation.name} has no kernel for {row.kernel_type}")
    return source
