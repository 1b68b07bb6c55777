"""Runs rows on the devices of a session: chooses what runs them, and makes their jobs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from opatlas.capture.profile_samples import ProfileMatcher
from opatlas.errors import OpAtlasError
from opatlas.options import Scope
from opatlas.row.columns import FUNCTIONAL
from opatlas.row.errors import DeviceGone, ReplayError, Unsupported
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.group_spec import GroupSpec
from opatlas.run.groups.nodes import GroupNodes
from opatlas.run.groups.pool import ExclusiveExecutor, GroupPool
from opatlas.run.groups.process import GroupProcess
from opatlas.run.implementations.contract import KernelSource
from opatlas.run.implementations.implementation import Implementation
from opatlas.run.instruments.instrument import MSPROF, MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.msprof import executor as msprof
from opatlas.run.msprof.command import accepts_profiles
from opatlas.run.process.device_pool import DevicePool, ExcludedDevices
from opatlas.run.process.device_process import DeviceProcess
from opatlas.run.process.executor import BatchExecutor, Executor, run_job
from opatlas.run.process.in_process import InProcessExecutor
from opatlas.run.process.profile_executor import ProfileExecutor
from opatlas.run.registry import replay_spec
from opatlas.text import exception_line

from .cases import SessionCase, needs_group, row_of, will_run
from .cluster_rows import Arrived, ClusterRows
from .item_rows import ItemRows, RowsInBatches, RowsInTurn
from .session_context import SessionContext

if TYPE_CHECKING:
    from opatlas.outer.generation.session_models import ModelRuns


class RowRunner:
    """Sends rows to the devices of the session."""

    def __init__(self, context: SessionContext, on_launched: Callable[[], None], on_arrived: Arrived) -> None:
        """
        Args:
            on_launched: called when a row of a batch has run.
            on_arrived: gets each outcome that a cluster has sent ahead of pytest.
        """
        self._context = context
        self._on_launched = on_launched
        self._on_arrived = on_arrived
        self._items: Sequence[pytest.Item] = ()
        self._rows: ItemRows | None = None
        self._executor: Executor | None = None
        self._samples: ProfileMatcher | None = None
        self._models: ModelRuns | None = None

    def rows(self) -> ItemRows:
        """Returns what runs the rows, made at the first request. Raises DeviceGone as `_own_executor` does."""
        if self._rows is None:
            context = self._context
            if context.settings.ray is not None:
                self._rows = ClusterRows(context, self._job, self._items, self._on_arrived)
                return self._rows
            executor, size = self._own_executor(), context.settings.rows_at_once
            if size > 1 and isinstance(executor, BatchExecutor):
                self._rows = RowsInBatches(
                    executor, self._job, self._items, size, self._on_launched, lambda: bool(context.stop_reason)
                )
            else:
                self._rows = RowsInTurn(executor, self._job)
        return self._rows

    def _own_executor(self) -> Executor:
        """Returns the executor of this machine's devices. Raises DeviceGone if --in-process cannot open the device."""
        if self._executor is None:
            settings, shared = self._context.settings, self._context.shared_if_made
            left_out = ExcludedDevices(shared.path if shared is not None else None)
            if settings.prof_path is not None:
                self._executor = ProfileExecutor(self.samples(), settings.devices[0].name)
            elif settings.in_process:
                self._executor = InProcessExecutor(settings.devices[0], settings.measure, self._context.waits)
            else:
                first = self._context.place % len(settings.devices)
                single = DevicePool(settings.devices[first:] + settings.devices[:first], self._device, left_out)
                self._executor = (
                    self._groups(left_out)
                    if settings.source.scope is Scope.COLLECTIVES
                    else ExclusiveExecutor(single, self._groups(left_out))
                )
        return self._executor

    def samples(self) -> ProfileMatcher:
        """Returns the samples that the profiles of --prof-path have for the rows of the plan."""
        if self._samples is None:
            plan, profile = self._context.plan, self._context.profile
            assert plan is not None
            assert profile is not None
            rows = {cases.kernel_type: cases.table for cases in plan.tables.values()}
            self._samples = ProfileMatcher(profile, rows, self._context.settings.ep_size)
        return self._samples

    def prepare(self, item: pytest.Item) -> None:
        """Opens the device for the next row, if the row runs on one device. The time of opening belongs to no row."""
        self._items = item.session.items
        if not will_run(item) or needs_group(item):
            return
        capture = item.config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:
            # A device process writes where pytest's output goes when the process starts.
            capture.resume_global_capture()
        try:
            # If there is no device, the fixture or the row reports that.
            with contextlib.suppress(DeviceGone):
                self.rows().prepare()
        finally:
            if capture is not None:
                capture.suspend_global_capture()

    def run(self, item: pytest.Function) -> RowOutcome:
        """Runs a row, or returns the outcome of a row that ran ahead. Ends the session where there is no device."""
        context, rows = self._context, self.rows()
        models = self._model_runs()
        if models is not None and models.writes(item):
            return self._run_model(item, models)
        try:
            return rows.outcome(item)
        except pytest.fail.Exception as error:
            # Another plugin, such as pytest-timeout, ended the wait. Of rows that run ahead the late one is unknown,
            # and a row that still waits for its device is not late. Groups of a cluster do not run ahead.
            is_ahead = rows.runs_ahead and not (context.settings.ray is not None and needs_group(item))
            if context.settings.in_process or is_ahead or context.waits.interrupted:
                raise
            return RowOutcome(
                Status.TIMEOUT, f"the wait for it was interrupted, and its process ended: {exception_line(error)}"
            )
        except ReplayError as error:
            # A body in this process refused its row, or a cell does not say which group the row needs. A debugger stops
            # where the error was raised; otherwise the message is enough.
            if item.config.option.usepdb:
                raise
            return RowOutcome(error.status, str(error))
        except DeviceGone as error:
            context.end_without_device(str(error))

    def _model_runs(self) -> ModelRuns | None:
        """Returns what runs the rows of models; None without --models."""
        if self._models is None and self._context.settings.models is not None:
            self._models = self._context.settings.models.runs(self._context, row_of)
        return self._models

    def _run_model(self, item: pytest.Function, models: ModelRuns) -> RowOutcome:
        """Lets a model write the candidate of a row, with repairs. Ends the session if the endpoint gives no answer."""
        executor = self._own_executor()
        try:
            return models.run(item, lambda each, source: run_job(executor, self._job(each, source), models.rules))
        except ReplayError as error:
            return RowOutcome(error.status, str(error))
        except DeviceGone as error:
            self._context.end_without_device(str(error))
        except OpAtlasError as error:
            if models.stops_session(error):
                self._context.stop(str(error))
            raise pytest.fail.Exception(str(error), pytrace=False) from None

    def unreached(self, items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, RowOutcome]]:
        """Yields the outcomes of rows that ran ahead and that pytest did not reach."""
        outcomes = self._rows.unreached() if self._rows is not None else {}
        return ((item, outcomes[item.nodeid]) for item in items if item.nodeid in outcomes)

    def close(self) -> None:
        """Releases the device."""
        if self._rows is not None:
            self._rows.close()
            self._rows = self._executor = None

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
            module_path=str(Path(function.__code__.co_filename)),
            function=function.__qualname__,
            kernel_type=row.kernel_type,
            cells=row.cells,
            timeout_s=settings.timeout_s(first_run=row.row.status is None),
            group=spec.group(row.cells, settings.source.options) if spec is not None and spec.group else None,
            source=source,
            instrument="" if settings.mixed or settings.read_only else _instrument(row),
            database=str(settings.targets[row.target].path) if row.target else "",
            subject=settings.source.subjects.get(row.kernel_type),
            judge=spec.judge if spec is not None and source is not None and not source.module else "",
        )
        if not job.judge:
            return job
        # Workers of xdist share the folder.
        return replace(job, log=str(self._context.shared.path / f"candidate{self._context.worker}-{job.id}"))

    def _device(self, spec: DeviceSpec) -> Executor:
        settings, waits = self._context.settings, self._context.waits
        if settings.msprof_rows is None:
            return DeviceProcess(spec, settings.measure, waits=waits)
        return msprof.msprof_on_device(spec, settings.measure, self._profiles_dir(), waits)

    def _groups(self, left_out: ExcludedDevices) -> GroupPool:
        settings = self._context.settings
        return GroupPool(GroupNodes(settings.devices), settings.measure, left_out, self._group)

    def _group(self, spec: GroupSpec, devices: Sequence[DeviceSpec], measure: MeasureSettings) -> Executor:
        if measure.instrument != MSPROF:
            return GroupProcess(spec, devices, measure, self._context.waits)
        return msprof.msprof_on_group(spec, devices, measure, self._profiles_dir(), self._context.waits)

    def _profiles_dir(self) -> Path:
        """Returns the folder for msprof's files: in the database, if the session writes and msprof takes the path."""
        context = self._context
        profiles = context.database.profiles_dir if context.settings.writes else context.shared.path / "profiles"
        if accepts_profiles(profiles):
            return profiles / context.run_id / context.worker
        # A profile that lacks the samples of some rows is kept after the session.
        return Path(tempfile.mkdtemp(prefix="opatlas-profiles-"), "profiles", context.run_id)


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
