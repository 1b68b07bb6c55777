"""The records of a session: in the journal of their process, and at the end in the CSVs."""

from __future__ import annotations

import functools
import operator
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opatlas.data import journal
from opatlas.data.csv_files import not_writable
from opatlas.data.database import Database
from opatlas.data.journal import Journal, OwnLines
from opatlas.data.manifest import Manifest
from opatlas.data.write_back import WriteBackResult, write_back, write_back_run
from opatlas.errors import OpAtlasError
from opatlas.row.record import Record, RowName
from opatlas.row.status import UpdateMode
from opatlas.run.devices.device import DeviceDescription

from .cases import results_of
from .reports import RowNote
from .session_context import SessionContext, facts_of
from .target import TargetDatabase

#: Keys of a worker's output: the records that its journal lacks, what it wrote to its journals, and their problems.
_UNSAVED, _WRITTEN, _PROBLEMS = "opatlas_unsaved", "opatlas_written", "opatlas_problems"


class SessionJournal:
    """The journals of this process, one in the database of each target, opened with its first record."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        #: By number of the target.
        self._journals: dict[int, Journal] = {}
        #: The devices in the manifest that this process has written, by number of the target.
        self._devices: dict[int, list[DeviceDescription]] = {}

    def append(self, record: Mapping[str, Any], device: DeviceDescription | None, target: int) -> str:
        """Writes a record to the journal; writes nothing with --read-only.

        Args:
            record: the result of `Record.to_json`.
            device: where the row ran, for the manifest.
            target: number of the target of the row.

        Returns:
            Why the record is in no journal: then the session is asked to stop. "" where the record is written.
        """
        if not self._context.settings.writes:
            return ""
        try:
            if target not in self._journals:
                context = self._context
                database = context.databases[target].database
                self._journals[target] = Journal(database, context.journal_header, part=context.worker)
                self._write_manifest(device, target)
            elif device is not None and self._context.settings.ray is not None:
                # A session that is killed tells its hosts.
                self._write_manifest(device, target)
            self._journals[target].append(record)
        except (OSError, OpAtlasError) as error:
            return self._stop(error, target)
        return ""

    def write_manifest(self, device: DeviceDescription) -> None:
        """Writes the manifest before the first record: the session that reads a killed msprof session needs it.

        msprof's files lie in the database of the first target.
        """
        if not self._context.settings.writes:
            return
        try:
            self._write_manifest(device, 0)
        except (OSError, OpAtlasError) as error:
            self._stop(error, 0)

    def _write_manifest(self, device: DeviceDescription | None, target: int) -> None:
        """Writes the manifest, unless another process has; again with each further device of this process."""
        database, known = self._context.databases[target].database, self._devices.setdefault(target, [])
        if device is not None and device not in known:
            known.append(device)
        elif known:
            return
        if len(known) > 1 or not Manifest.path(database, self._context.run_id).exists():
            self._context.manifest(known, target).write(database)

    def _stop(self, error: OSError | OpAtlasError, target: int) -> str:
        """Asks the session to stop; returns the reason."""
        path = self._context.databases[target].database.path
        reason = not_writable(path, error) if isinstance(error, OSError) else str(error)
        self._context.stop(reason)
        return reason

    def close(self) -> list[str]:
        """Releases the journals to be merged. Returns their problems."""
        return [problem for each in self._journals.values() for problem in each.close()]

    def own_lines(self) -> dict[Path, OwnLines]:
        """Returns what this process wrote to each journal."""
        return {each.path: each.own_lines for each in self._journals.values()}


class SessionRecords:
    """Collects the records of a session, and merges them into the CSVs.

    Attributes:
        devices: each device that rows were run on, and each group, with the device of its first rank.
        reported_only: samples without a row that the update mode does not add, for the report.
        merged: what the merge did to the CSVs of all targets; None before the merge, and where one was not merged.
        pruned_in: the databases with rows that the merge pruned.
        manifest: the manifest of the first target with records in its CSVs; None before there is one.
        problems: why records could not be kept or merged; they make the session fail.
    """

    def __init__(self, context: SessionContext, own_journal: SessionJournal) -> None:
        self._context = context
        self._own_journal = own_journal
        #: What the workers that have ended wrote to their journals.
        self._own_lines: dict[Path, OwnLines] = {}
        #: Records that are in no journal, with the number of their target.
        self._unsaved: list[tuple[int, Mapping[str, Any]]] = []
        self.devices: list[DeviceDescription] = []
        self.reported_only: list[RowName] = []
        self.merged: WriteBackResult | None = None
        self.pruned_in: list[Database] = []
        self.manifest: Manifest | None = None
        self.problems: list[str] = []

    @property
    def device_name(self) -> str:
        """What the first device calls itself; "" before a row was run."""
        return self.devices[0].name if self.devices else ""

    def take(self, note: RowNote, target: int) -> None:
        """Takes the record of a target out of a report; pytest keeps reports, and a record need not stay in memory."""
        if "record" not in note:
            return
        note.pop("figures", None)
        record = note.pop("record")
        reason = note.get("not_saved")
        if reason or (reason is not None and self._context.settings.rehearses):
            self._unsaved.append((target, record))
        if reason:
            # A worker with a full disk may not be able to ask the other processes to stop.
            self._context.stop(reason)
        if "device" in note:
            self._add_device(DeviceDescription(**note["device"]))

    def add(self, record: Record, device: DeviceDescription | None, target: int = 0) -> None:
        """Adds a record of a target that no report brings."""
        values = record.to_json()
        if self._own_journal.append(values, device, target) or self._context.settings.rehearses:
            self._unsaved.append((target, values))
        if device is not None:
            self._add_device(device)

    def add_arrived(self, record: Record, not_saved: str, device: DeviceDescription, target: int) -> None:
        """Adds a record that no report brings, unless the journal has it (`not_saved` is "")."""
        if not_saved:
            self._unsaved.append((target, record.to_json()))
        self._add_device(device)

    def _add_device(self, device: DeviceDescription) -> None:
        # Descriptions compare without their state: a device that is opened again has another temperature.
        if device not in self.devices:
            self.devices.append(device)

    def take_worker(self, node: Any) -> None:
        """Takes the journal of a worker of xdist that has ended, and its records that are in no journal."""
        if self._context.plan is None:
            # The session has ordinary tests only: there may be no device, and so no database.
            return
        # A worker that was killed leaves no output.
        output = getattr(node, "workeroutput", {})
        self._unsaved += map(tuple, output.get(_UNSAVED, ()))
        self.problems += output.get(_PROBLEMS, ())
        if _WRITTEN in output:
            self._context.silent_workers.discard(node.workerinput["workerid"])
        for path, *values in output.get(_WRITTEN, ()):
            self._own_lines[Path(path)] = OwnLines(*values)

    def hand_over(self, output: dict[str, Any]) -> None:
        """In a worker: leaves the records to the controller, which receives `output`."""
        if self._unsaved:
            output[_UNSAVED] = list(map(list, self._unsaved))
        output[_PROBLEMS] = self._own_journal.close()
        own_lines = self._own_journal.own_lines()
        output[_WRITTEN] = [(str(path), each.header, each.numbers, each.count) for path, each in own_lines.items()]

    def merge(self) -> Iterable[tuple[str, Record]]:
        """Merges the records of the session into the CSVs and completes the manifests.

        Returns:
            The records, each with the end of the ids of its target; none where nothing is written.
        """
        if self._context.settings.rehearses:
            self._rehearse()
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

    def _rehearse(self) -> None:
        """Finds what a merge would do to the CSVs."""
        database, header = self._context.database, self._context.journal_header
        records = [Record.from_json(record) for _, record in self._unsaved]
        mode = UpdateMode(header.update_mode)
        self.merged = write_back(database, records, mode, prune=header.prune, rehearse=True)
        self._add_reported_only(self.merged)

    def _add_reported_only(self, result: WriteBackResult) -> None:
        result.unmatched += [name for name in self.reported_only if name not in result.of_siblings]

    def _merge_target(self, number: int, own: TargetDatabase) -> tuple[WriteBackResult | None, Sequence[Record]]:
        unsaved = [record for target, record in self._unsaved if target == number]
        run_id, workers = self._context.run_id, self._context.silent_workers
        known = {*self._own_lines, *(journal.path_of(own.database, run_id, part) for part in workers)}
        done = write_back_run(own.database, self._context.journal_header, unsaved, known, own.left_behind)
        self.problems += done.problems
        if done.result is not None and done.result.pruned:
            self.pruned_in.append(own.database)
        if done.result is not None and number == 0:
            self._add_reported_only(done.result)
        if done.records:
            try:
                self._write_manifest(number)
            except OpAtlasError as error:
                self.problems.append(str(error))
        return done.result, done.records

    def _write_manifest(self, number: int) -> None:
        context, devices = self._context, self._context.settings.devices
        manifest = context.manifest(self.devices, number)
        manifest.finished_at = time.time()
        cases = context.plan.cases if context.plan is not None else ()
        results = [found for case, found in results_of(cases) if case.target == number]
        manifest.statuses = dict(Counter(found.status.value for found in results))
        if context.settings.prof_path is None:
            manifest.machine_at_end = facts_of(devices, *context.surroundings.load(devices, at_end=True))
        manifest.write(context.databases[number].database)
        self.manifest = self.manifest or manifest

    def close_journals(self) -> None:
        """Releases the journals, to be merged now or by the next session."""
        self.problems += self._own_journal.close()
        self._own_lines |= self._own_journal.own_lines()
        self.problems += journal.check_ended(self._own_lines)
