"""The records of a session: each goes to the journal of the process that ran the row, and at the end into the CSVs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
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

from .collector import about_row
from .run_manifest import facts_of, present_code
from .session_context import BenchSession
from .settings import Settings


class Journaling:
    """The journal of this process, opened for its first record."""

    def __init__(self, session: BenchSession) -> None:
        self._session = session
        self._journal: Journal | None = None

    def keep(self, record: Mapping[str, Any], device: DeviceDescription | None) -> str:
        """Writes a record, as `Record.to_json` gives it, to the journal; `device` is where it comes from.

        With --read-only it writes nothing. If writing fails, it asks the session to stop, and returns the reason: the
        record is still only in memory.
        """
        if not self._session.settings.writes:
            return ""
        try:
            if self._journal is None:
                self._journal = Journal(self._session.database, self._session.journal_header, part=self._session.worker)
                self._write_manifest(device)
            self._journal.append(record)
        except (OSError, OpAtlasError) as error:
            return self._stop(error)
        return ""

    def tell_device(self, device: DeviceDescription) -> None:
        """Writes the manifest, where samples of rows lie in a profile and their records are made later."""
        if not self._session.settings.writes:
            return
        try:
            self._write_manifest(device)
        except (OSError, OpAtlasError) as error:
            self._stop(error)

    def _write_manifest(self, device: DeviceDescription | None) -> None:
        """Before the first record, so that a run that is killed has one too."""
        if not Manifest.path(self._session.database, self._session.run_id).exists():
            manifest_of(self._session, [asdict(device)] if device else []).write(self._session.database)

    def _stop(self, error: OSError | OpAtlasError) -> str:
        """Asks the session to stop; returns the reason."""
        reason = not_writable(self._session.database.path, error) if isinstance(error, OSError) else str(error)
        self._session.stop(reason)
        return reason

    def close(self) -> None:
        """Gives the journal up to be merged. Raises what `Journal.close` does."""
        if self._journal is not None:
            self._journal.close()


def manifest_of(session: BenchSession, devices: Sequence[Mapping[str, Any]]) -> Manifest:
    """The manifest of a session that replays on some devices, each with its name and facts."""
    at_start = (
        {}
        if session.settings.prof_path
        else facts_of(session.settings.devices, *session.surroundings.at_start(session.settings.devices))
    )
    return Manifest(
        run_id=session.run_id,
        started_at=session.started_at,
        device=devices[0] if devices else {},
        other_devices=devices[1:],
        options=options_of(session.settings),
        code=present_code(),
        machine_at_start=at_start,
    )


def options_of(settings: Settings) -> Mapping[str, object]:
    """What a manifest says of settings: all that bears on which rows were run, how, and what became of them."""
    return {
        "update_mode": settings.mode.value,
        "prune": settings.prune,
        "ops": sorted(settings.ops),
        "shard": str(settings.shard) if settings.shard else None,
        "where": str(settings.where) if settings.where is not None else None,
        "retry_failed": settings.retry_failed,
        "mixed": settings.mixed,
        "versions": dict(settings.versions),
        **asdict(settings.measure),
        "msprof_rows": settings.msprof_rows,
        "case_timeout_s": settings.case_timeout_s,
        "in_process": settings.in_process,
        "prof_path": settings.prof_path.name if settings.prof_path else None,
        "communication": settings.messages.about if settings.messages is not None else None,
        **settings.group_options,
    }


#: What a worker of xdist leaves for the controller at its end: the records that its journal had no room for, and why
#: the journal is not in its place.
UNSAVED, LOST = "opatlas_unsaved", "opatlas_lost"


class WriteBack:
    """Lives in the only process of a session, or in xdist's controller.

    Attributes:
        reported_only: samples without a row that the update mode does not append, for the report.
        merged: what became of the rows, once the records are in the CSVs.
        manifest: that of the session, once there are records in the CSVs.
        problems: why records could not be kept or merged; they make the session fail.
    """

    def __init__(self, session: BenchSession, journaling: Journaling) -> None:
        self._session = session
        self._journaling = journaling
        self._devices: list[Mapping[str, Any]] = []
        self._unsaved: list[Mapping[str, Any]] = []
        self._of_workers = journal.EndedJournals()
        self.reported_only: list[RowName] = []
        self.merged: WriteBackResult | None = None
        self.manifest: Manifest | None = None
        #: By node id.
        self._status_of: dict[str, str] = {}
        self.problems: list[str] = []

    @property
    def devices(self) -> Sequence[Mapping[str, Any]]:
        """The devices that rows were run on, each with its name and facts."""
        return self._devices

    @property
    def device_name(self) -> str:
        """What the device calls itself; "" before a row was run."""
        return str(self._devices[0]["name"]) if self._devices else ""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After everybody else has seen the record: pytest keeps reports, and records need not stay in memory."""
        about = about_row(report)
        if about is None or "record" not in about:
            return
        about.pop("figures", None)
        record = about.pop("record")
        if about["not_saved"]:
            self._unsaved.append(record)
            # A worker that has no room to ask everybody to stop tells it here.
            self._session.stop(about["not_saved"])
        device = about.get("device")
        if device is not None and device not in self._devices:
            self._devices.append(device)
        self._status_of[report.nodeid] = record["status"]

    @property
    def statuses(self) -> Counter[str]:
        """Rows by the status of their last record."""
        return Counter(self._status_of.values())

    def pytest_opatlas_unsaved(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Keeps records that no report tells of, and that no journal had room for."""
        self._unsaved += records

    def add(self, record: Record, device: DeviceDescription) -> None:
        """Keeps a record that no report tells of."""
        values = record.to_json()
        if self._journaling.keep(values, device):
            self._unsaved.append(values)
        if asdict(device) not in self._devices:
            self._devices.append(asdict(device))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """xdist's hook: a worker has ended, and closed its journal."""
        # A worker that died has left no word.
        output = getattr(node, "workeroutput", {})
        self.pytest_opatlas_unsaved(output.get(UNSAVED, ()))
        self.problems += filter(None, [output.get(LOST)])
        try:
            self._of_workers.hold(journal.run_journals(self._session.database, self._session.run_id))
        except OSError as error:
            self.problems.append(f"the journal of a worker cannot be read: {error}")

    def finish(self) -> Sequence[Record]:
        """Merges the records of the session, all of which it gives, and completes the manifest.

        With --read-only there are none.
        """
        session = self._session
        if not session.settings.writes:
            return ()
        self.close_journal()
        removed = self._removed_meanwhile()
        done = write_back_run(session.database, session.journal_header, self._unsaved)
        self.merged = done.result
        self.problems += done.problems
        if done.result is not None:
            done.result.unmatched += [name for name in self.reported_only if name not in done.result.of_siblings]
            self.problems += [
                f"{path} was removed while rows ran: it was made anew from what was measured"
                for path in removed
                if path.exists()
            ]
        try:
            if done.records:
                self.manifest = manifest = manifest_of(session, self._devices)
                manifest.finished_at = time.time()
                manifest.statuses = dict(self.statuses)
                if session.settings.prof_path is None:
                    manifest.machine_at_end = facts_of(
                        session.settings.devices, *session.surroundings.at_end(session.settings.devices)
                    )
                manifest.write(session.database)
        except OpAtlasError as error:
            self.problems.append(str(error))
        return done.records

    def close_journal(self) -> None:
        """Gives the journal up, to be merged now or by the next session."""
        try:
            self._journaling.close()
        except OpAtlasError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"the journal may be incomplete: {error}")
        self.problems += self._of_workers.give_up()

    def _removed_meanwhile(self) -> list[Path]:
        plan = self._session.plan_if_made
        tables = plan.tables.values() if plan else ()
        return [table.path for table in tables if table.rows_in_file and not table.path.exists()]
