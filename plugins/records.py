"""The records of a session: each goes into the journal of its process, and at the end into the CSVs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from opatlas.devices.device import DeviceDescription
from opatlas.errors import OpAtlasError
from opatlas.model.record import Record, RowName
from opatlas.store import journal
from opatlas.store.csv_files import not_writable
from opatlas.store.journal import Journal
from opatlas.store.manifest import Manifest
from opatlas.store.write_back import WriteBackResult, write_back_run

from .row_note import RowNote
from .run_manifest import facts_of
from .session_context import SessionContext

#: Keys of a worker's output: the records that its journal lacks, and why the journal could not be closed.
_UNSAVED, _LOST = "opatlas_unsaved", "opatlas_lost"


class SessionJournal:
    """The journal of this process, opened with its first record."""

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._journal: Journal | None = None

    def append(self, record: Mapping[str, Any], device: DeviceDescription | None) -> str:
        """Writes a record to the journal; writes nothing with --read-only.

        Args:
            record: the result of `Record.to_json`.
            device: where the row ran, for the manifest.

        Returns:
            Why the record is in no journal: then the session is asked to stop. "" where the record is written.
        """
        if not self._context.settings.writes:
            return ""
        try:
            if self._journal is None:
                self._journal = Journal(self._context.database, self._context.journal_header, part=self._context.worker)
                self._write_manifest(device)
            self._journal.append(record)
        except (OSError, OpAtlasError) as error:
            return self._stop(error)
        return ""

    def write_manifest(self, device: DeviceDescription) -> None:
        """Writes the manifest before the first record: the session that reads a killed msprof session needs it."""
        if not self._context.settings.writes:
            return
        try:
            self._write_manifest(device)
        except (OSError, OpAtlasError) as error:
            self._stop(error)

    def _write_manifest(self, device: DeviceDescription | None) -> None:
        if not Manifest.path(self._context.database, self._context.run_id).exists():
            self._context.manifest([asdict(device)] if device else []).write(self._context.database)

    def _stop(self, error: OSError | OpAtlasError) -> str:
        """Asks the session to stop; returns the reason."""
        reason = not_writable(self._context.database.path, error) if isinstance(error, OSError) else str(error)
        self._context.stop(reason)
        return reason

    def close(self) -> None:
        """Releases the journal to be merged. Raises what `Journal.close` does."""
        if self._journal is not None:
            self._journal.close()


class SessionRecords:
    """Collects the records of a session, and merges them into the CSVs.

    Attributes:
        devices: name and facts of each device that rows were run on.
        reported_only: samples without a row that the update mode does not add, for the report.
        merged: what the merge did to the CSVs; None before the merge, and where nothing was merged.
        manifest: the manifest of the session; None before there are records in the CSVs.
        problems: why records could not be kept or merged; they make the session fail.
    """

    def __init__(self, context: SessionContext, own_journal: SessionJournal) -> None:
        self._context = context
        self._own_journal = own_journal
        self._worker_journals = journal.EndedJournals()
        #: Records that are in no journal.
        self._unsaved: list[Mapping[str, Any]] = []
        #: By node id.
        self._status_of: dict[str, str] = {}
        self.devices: list[Mapping[str, Any]] = []
        self.reported_only: list[RowName] = []
        self.merged: WriteBackResult | None = None
        self.manifest: Manifest | None = None
        self.problems: list[str] = []

    @property
    def device_name(self) -> str:
        """What the first device calls itself; "" before a row was run."""
        return str(self.devices[0]["name"]) if self.devices else ""

    @property
    def statuses(self) -> Counter[str]:
        """Rows by the status of their last record."""
        return Counter(self._status_of.values())

    def take(self, report: pytest.TestReport, note: RowNote) -> None:
        """Takes the record out of a report; pytest keeps reports, and a record need not stay in memory."""
        if "record" not in note:
            return
        note.pop("figures", None)
        record = note.pop("record")
        if reason := note.get("not_saved"):
            self._unsaved.append(record)
            # A worker with a full disk may not be able to ask the other processes to stop.
            self._context.stop(reason)
        device = note.get("device")
        if device is not None and device not in self.devices:
            self.devices.append(device)
        self._status_of[report.nodeid] = record["status"]

    def add(self, record: Record, device: DeviceDescription | None) -> None:
        """Adds a record that no report brings."""
        values = record.to_json()
        if self._own_journal.append(values, device):
            self._unsaved.append(values)
        if device is not None and asdict(device) not in self.devices:
            self.devices.append(asdict(device))

    def take_worker(self, node: Any) -> None:
        """Takes the journal of a worker of xdist that has ended, and its records that are in no journal."""
        # A worker that was killed leaves no output.
        output = getattr(node, "workeroutput", {})
        self._unsaved += output.get(_UNSAVED, ())
        self.problems += filter(None, [output.get(_LOST)])
        try:
            self._worker_journals.hold(journal.run_journals(self._context.database, self._context.run_id))
        except OSError as error:
            self.problems.append(f"the journal of a worker cannot be read: {error}")

    def hand_over(self, output: dict[str, Any]) -> None:
        """In a worker: leaves the records to the controller, which receives `output`."""
        if self._unsaved:
            output[_UNSAVED] = self._unsaved
        try:
            self._own_journal.close()
        except (OpAtlasError, OSError) as error:
            output[_LOST] = str(error)

    def merge(self) -> Iterable[Record]:
        """Merges the records of the session into the CSVs and completes the manifest.

        Returns:
            The records; none with --read-only.
        """
        context = self._context
        if not context.settings.writes:
            return ()
        self.close_journals()
        removed = self._removed_tables()
        done = write_back_run(context.database, context.journal_header, self._unsaved)
        self.merged = done.result
        self.problems += done.problems
        if done.result is not None:
            done.result.unmatched += [name for name in self.reported_only if name not in done.result.of_siblings]
            self.problems += [
                f"{path} was removed while rows ran: it was made anew from what was measured"
                for path in removed
                if path.exists()
            ]
        if done.records:
            try:
                self._write_manifest()
            except OpAtlasError as error:
                self.problems.append(str(error))
        return done.records

    def _write_manifest(self) -> None:
        context, devices = self._context, self._context.settings.devices
        self.manifest = manifest = context.manifest(self.devices)
        manifest.finished_at = time.time()
        manifest.statuses = dict(self.statuses)
        if context.settings.prof_path is None:
            manifest.machine_at_end = facts_of(devices, *context.surroundings.at_end(devices))
        manifest.write(context.database)

    def close_journals(self) -> None:
        """Releases the journals, to be merged now or by the next session."""
        try:
            self._own_journal.close()
        except OpAtlasError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"the journal may be incomplete: {error}")
        self.problems += self._worker_journals.give_up()

    def _removed_tables(self) -> list[Path]:
        plan = self._context.plan
        tables = plan.tables.values() if plan else ()
        return [table.path for table in tables if table.rows_in_file and not table.path.exists()]
