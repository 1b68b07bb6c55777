"""The records of a session: in the journal of their process, and at the end in the CSVs."""

from __future__ import annotations

import functools
import operator
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from opatlas.data import journal
from opatlas.data.csv_files import not_writable
from opatlas.data.database import Database
from opatlas.data.journal import Journal, OwnLines
from opatlas.data.manifest import Manifest
from opatlas.data.write_back import WriteBackResult, write_back_run
from opatlas.errors import OpAtlasError, noted
from opatlas.row.record import Record, RowName
from opatlas.row.signature import digest, make_case_id
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription

from .cases import results_of
from .reports import RowNote

if TYPE_CHECKING:
    from .session import Session
    from .session_context import SessionContext
    from .target import TargetDatabase

#: Keys of a worker's output: what it wrote to its journals, and their problems.
_WRITTEN, _PROBLEMS = "opatlas_written", "opatlas_problems"


class SessionRecords:
    """Writes the records of this process into a journal in the database of their target, and at the end into the CSVs.

    Attributes:
        devices: each device that rows were run on, and each group, with the device of its first rank.
        reported_only: samples without a row that the update mode does not add, for the report.
        merged: what the merge did to the CSVs of all targets; None before the merge, and where one was not merged.
        pruned_in: the databases with rows that the merge pruned.
        manifest: the manifest of the first target with records in its CSVs; None before there is one.
        problems: why records could not be kept or merged; they make the session fail.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        #: By number of the target, opened with its first record.
        self._journals: dict[int, Journal] = {}
        #: The devices in the manifest that this process has written, by number of the target.
        self._written: dict[int, list[DeviceDescription]] = {}
        #: What the processes that have ended wrote to their journals.
        self._own_lines: dict[Path, OwnLines] = {}
        self.devices: list[DeviceDescription] = []
        self.reported_only: list[RowName] = []
        self.merged: WriteBackResult | None = None
        self.pruned_in: list[Database] = []
        self.manifest: Manifest | None = None
        self.problems: list[str] = []

    def append(self, record: Mapping[str, Any], device: DeviceDescription | None, target: int) -> bool:
        """Writes a record to the journal; writes nothing with --read-only.

        Args:
            record: the result of `Record.to_json`.
            device: where the row ran, for the manifest.
            target: number of the target of the row.

        Returns:
            Whether the row counts as run. If the record cannot be written, the session is asked to stop.
        """
        context = self._context
        if not context.settings.writes:
            return True
        try:
            is_first = target not in self._journals
            if is_first:
                database = context.databases[target].database
                self._journals[target] = Journal(database, context.journal_header, part=context.worker)
            if is_first or (device is not None and context.settings.ray is not None):
                # A session that is killed tells its hosts.
                self._begin_manifest(device, target)
            self._journals[target].append(record)
        except (OSError, OpAtlasError) as error:
            path = context.databases[target].database.path
            context.stop(not_writable(path, error) if isinstance(error, OSError) else str(error))
            return False
        return True

    def _begin_manifest(self, device: DeviceDescription | None, target: int) -> None:
        """Writes the manifest, unless another process has; again with each further device of this process."""
        database, known = self._context.databases[target].database, self._written.setdefault(target, [])
        if device is not None and device not in known:
            known.append(device)
        elif known:
            return
        if len(known) > 1 or not Manifest.path(database, self._context.run_id).exists():
            self._context.manifest(known, target).write(database)

    @property
    def device_name(self) -> str:
        """What the first device calls itself; "" before a row was run."""
        return self.devices[0].name if self.devices else ""

    def take(self, note: RowNote) -> None:
        """Takes the record out of a report; pytest keeps reports, and a record need not stay in memory."""
        if note.pop("record", None) is not None and "device" in note:
            self.add_device(DeviceDescription(**note["device"]))

    def add_device(self, device: DeviceDescription) -> None:
        """Adds the device of a row to the manifest."""
        # Descriptions compare without their state: a device that is opened again has another temperature.
        if device not in self.devices:
            self.devices.append(device)

    def take_worker(self, node: Any) -> None:
        """Takes the journal of a worker of xdist that has ended."""
        if self._context.plan is None:
            # The session has ordinary tests only: there may be no device, and so no database.
            return
        # A worker that was killed leaves no output.
        output = getattr(node, "workeroutput", {})
        self.problems += output.get(_PROBLEMS, ())
        if _WRITTEN in output:
            self._context.silent_workers.discard(node.workerinput["workerid"])
        for path, *values in output.get(_WRITTEN, ()):
            self._own_lines[Path(path)] = OwnLines(*values)

    def hand_over(self, output: dict[str, Any]) -> None:
        """In a worker: leaves the records to the controller, which receives `output`."""
        output[_PROBLEMS] = self._close_own()
        own_lines = self._own_lines.items()
        output[_WRITTEN] = [(str(path), each.header, each.digests) for path, each in own_lines]

    def _close_own(self) -> list[str]:
        """Releases the journals of this process. Returns their problems."""
        problems = [problem for each in self._journals.values() for problem in each.close()]
        self._own_lines |= {each.path: each.own_lines for each in self._journals.values()}
        return problems

    def merge(self) -> Iterable[tuple[str, Record]]:
        """Merges the records of the session into the CSVs and completes the manifests.

        Returns:
            The records, each with the end of the ids of its target; none where nothing is written.
        """
        if not self._context.settings.writes:
            return ()
        self.close_journals()
        merged: list[tuple[str, Record]] = []
        results: list[WriteBackResult | None] = []
        for number, each in enumerate(self._context.databases):
            result, records = self._merge_target(number, each)
            results.append(result)
            merged += ((each.target.implementation.suffix, record) for record in records)
        known = [result for result in results if result is not None]
        if len(known) == len(results):
            self.merged = functools.reduce(operator.add, known)
        return merged

    def _merge_target(self, number: int, own: TargetDatabase) -> tuple[WriteBackResult | None, Sequence[Record]]:
        run_id, workers = self._context.run_id, self._context.silent_workers
        known = {*self._own_lines, *(journal.path_of(own.database, run_id, part) for part in workers)}
        done = write_back_run(own.database, self._context.journal_header, known, own.left_behind)
        self.problems += done.problems
        if done.result is not None and done.result.pruned:
            self.pruned_in.append(own.database)
        if done.result is not None and number == 0:
            done.result.unmatched += [name for name in self.reported_only if name not in done.result.of_siblings]
        if done.records:
            with noted(self.problems):
                self._write_manifest(number)
        return done.result, done.records

    def _write_manifest(self, number: int) -> None:
        context = self._context
        manifest = context.manifest(self.devices, number)
        manifest.finished_at = time.time()
        cases = context.plan.cases if context.plan is not None else ()
        results = [found for case, found in results_of(cases) if case.target == number]
        manifest.statuses = dict(Counter(found.status.value for found in results))
        manifest.machine_at_end = context.load_facts(at_end=True)
        manifest.write(context.databases[number].database)
        self.manifest = self.manifest or manifest

    def close_journals(self) -> None:
        """Releases the journals, to be merged now or by the next session."""
        self.problems += self._close_own()
        self.problems += journal.check_ended(self._own_lines)


def add_unmatched(session: Session, tests: pytest.Session) -> None:
    """Adds the records of the requested samples of --prof-path that belong to no row."""
    context, settings, codes = session.context, session.context.settings, pytest.ExitCode
    ops = session.plan().ops
    is_whole = tests.exitstatus in (codes.OK, codes.TESTS_FAILED, codes.NO_TESTS_COLLECTED)
    if not is_whole or tests.shouldfail or tests.shouldstop:
        return
    for sample in session.runner.samples().unmatched():
        name, row_digest = sample.kernel_type, digest(sample.kernel_type, sample.signature)
        # Of a file that cannot be read the rows are unknown.
        is_unread = name not in session.plan().tables and context.database.csv_path(name).exists()
        is_elsewhere = settings.shard is not None and not settings.shard.holds(row_digest)
        case_id = make_case_id(name, sample.signature, row_digest)
        if (ops and name not in ops) or is_unread or is_elsewhere:
            continue
        if not session.is_requested(name, case_id):
            continue
        session.unmatched[name] += 1
        if settings.mode.adds_rows and settings.where is None and settings.writes:
            record = Record(
                kernel_type=name,
                signature=sample.signature,
                cells=sample.cells,
                status=Status.MEASURED,
                reason="",
                run_id=context.run_id,
                finished_at=time.time(),
                measurement=sample.measurement,
            )
            device = session.runner.describe()
            session.records.append(record.to_json(), device, 0)
            if device is not None:
                session.records.add_device(device)
        else:
            session.records.reported_only.append(RowName(name, sample.signature))
    if tests.exitstatus == codes.NO_TESTS_COLLECTED and session.unmatched:
        tests.exitstatus = codes.OK
