"""Each record goes to the journal of the process that ran the row, before anybody else hears of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from opatlas.engine.job import DeviceDescription
from opatlas.errors import OpAtlasError
from opatlas.store.csv_files import not_writable
from opatlas.store.journal import Journal
from opatlas.store.manifest import Manifest

from .own_code import present_code
from .session import BenchSession
from .settings import Settings
from .surroundings import facts_of


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
        "status": sorted(settings.status),
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
        **settings.of_operators,
    }
