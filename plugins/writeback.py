"""Write-back: what a session measured goes from its journals into the CSVs, once, at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from opatlas.engine.job import DeviceDescription
from opatlas.errors import OpAtlasError
from opatlas.model.record import Record, RowName
from opatlas.store import journal
from opatlas.store.manifest import Manifest
from opatlas.store.write_back import MergeResult, merge_run

from .collector import about_row
from .journaling import Journaling, manifest_of
from .session import BenchSession
from .surroundings import facts_of

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
        self._of_workers = journal.Ended()
        self.reported_only: list[RowName] = []
        self.merged: MergeResult | None = None
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
            self._of_workers.hold(journal.of_run(self._session.database, self._session.run_id))
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
        done = merge_run(session.database, session.journal_header, self._unsaved)
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
