"""Write-back: records go to the journal as they arrive, and from there into the CSVs at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from database import journal
from database.errors import OpAtlasError
from database.journal import Header, Journal
from database.manifest import Manifest, code_digest
from database.merge import MergeResult, merge
from plugins.session import BenchSession
from plugins.supervisor import about_row

_CODE = tuple(Path(__file__).parent.parent / name for name in ("bench", "database", "plugins"))


class WriteBack:
    """Keeps what was measured. Lives in the only process of a session, or in xdist's controller.

    Attributes:
        merged: what became of the rows, once the records are in the CSVs.
        statuses: records by status.
        problem: why records could not be kept or merged; it makes the session fail.
    """

    def __init__(self, session: BenchSession) -> None:
        self._session = session
        self._journal: Journal | None = None
        self._manifest: Manifest | None = None
        self.merged: MergeResult | None = None
        self.statuses: Counter[str] = Counter()
        self.problem = ""

    @property
    def device_name(self) -> str:
        """What the device calls itself; "" before a row was run."""
        return str(self._manifest.device.get("name", "")) if self._manifest else ""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After everybody else has seen the record: pytest keeps reports, and records need not stay in memory."""
        about = about_row(report)
        if about is None or "record" not in about:
            return
        try:
            self._open().append(about["record"])
            self._note_device(about.get("device"))
        except (OSError, OpAtlasError) as error:
            pytest.exit(
                f"{self._session.database.path} cannot be written ({error}): make room, then run again; "
                f"what was measured before is merged now",
                returncode=pytest.ExitCode.INTERRUPTED,
            )
        self.statuses[about.pop("record")["status"]] += 1

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Outermost, so that no other plugin's failure at the end keeps records out of the CSVs."""
        if self._journal is not None:
            self._merge(session, self._journal)
        yield

    def _merge(self, session: pytest.Session, kept: Journal) -> None:
        settings = self._session.settings
        try:
            kept.close()
            contents = journal.read(kept.path)
            self.merged = merge(self._session.database, contents.records, settings.mode, prune=settings.prune)
            problems = self.merged.problems
            self._finish_manifest()
        except (OpAtlasError, OSError) as error:
            problems = [str(error)]
        if not problems:
            kept.discard()
            return
        kept.release()
        self.problem = f"{'; '.join(problems)}; the records are kept in {kept.path} and are merged by the next session"
        # Not INTERNAL_ERROR, after which pytest shows no summary, and nobody would learn of this.
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _open(self) -> Journal:
        """The journal, opened for the first record. Ends the session where it cannot be."""
        if self._journal is None:
            settings = self._session.settings
            try:
                self._journal = Journal(
                    self._session.database, Header(self._session.run_id, settings.mode.value, settings.prune)
                )
            except OpAtlasError as error:
                pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
        return self._journal

    def _note_device(self, device: dict[str, Any] | None) -> None:
        """Writes the manifest as soon as the device is known, so that a killed run has one too."""
        if device is None or self._manifest is not None:
            return
        settings = self._session.settings
        self._manifest = Manifest(
            run_id=self._session.run_id,
            started_at=self._session.started_at,
            device=device,
            options={
                "update_mode": settings.mode.value,
                "prune": settings.prune,
                "ops": sorted(settings.ops),
                "repeat_count": settings.measure.repeat_count,
                "cache": settings.measure.cache,
                "time_limit_s": settings.measure.time_limit_s,
                "threads": settings.measure.threads,
                "case_timeout_s": settings.case_timeout_s,
                "in_process": settings.in_process,
            },
            code=code_digest(_CODE),
        )
        self._manifest.write(self._session.database)

    def _finish_manifest(self) -> None:
        if self._manifest is not None:
            self._manifest.finished_at = time.time()
            self._manifest.statuses = dict(self.statuses)
            self._manifest.write(self._session.database)
