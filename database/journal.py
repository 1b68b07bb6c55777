"""The journal: every record of a session, in an append-only file, before any CSV is touched.

A journal is JSON Lines. Its first line is a header with the journal's version, the run and how its
records are to be merged; each other line is a record. A line is written whole as its record
arrives, and a thread brings the file to disk without making the session wait.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from database.bulk import without_cycle_collection
from database.errors import OpAtlasError
from database.record import Record
from database.store import Database, not_writable

VERSION = 1
_SUFFIX = ".jsonl"
#: Between two syncs. What a record costs when the power fails; a killed process loses nothing.
_SYNC_PAUSE_S = 0.02


@dataclass(frozen=True)
class Header:
    """How the records of a session are to be merged."""

    run_id: str
    update_mode: str
    prune: bool
    version: int = VERSION


@dataclass(frozen=True)
class Contents:
    """A journal as read: its records, and the lines that could not be read (number and why)."""

    header: Header
    records: tuple[Record, ...]
    unreadable: tuple[tuple[int, str], ...]


class Journal:
    """The open journal of a running session. `append` is for one thread."""

    def __init__(self, database: Database, header: Header) -> None:
        """Creates the journal and holds its lock, which tells it from one left behind.

        Raises:
            OpAtlasError: the database cannot be written.
        """
        self.path = database.journal_dir / f"{header.run_id}{_SUFFIX}"
        try:
            database.journal_dir.mkdir(parents=True, exist_ok=True)
            self._lock = _owner_lock(self.path)
            self._lock.acquire(timeout=0)
            self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise OpAtlasError(not_writable(database.path, error)) from None
        self._dirty = threading.Event()
        self._closed = False
        self._syncer = threading.Thread(target=self._keep_synced, name="journal-sync", daemon=True)
        self._syncer.start()
        self._write(asdict(header))

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a record, as `Record.to_json` gives it. Raises OSError when the disk is full or gone."""
        self._write(record)

    def close(self) -> None:
        """Brings everything to disk. The file stays: it goes when its records are merged."""
        if not self._closed:
            self._closed = True
            self._dirty.set()
            self._syncer.join()
            os.fsync(self._file.fileno())
            self._file.close()

    def discard(self) -> None:
        """Removes the journal, once its records are in the CSVs."""
        self.close()
        self.path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Gives up a closed journal that stays, for the next session to merge."""
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)

    def _write(self, values: Mapping[str, Any]) -> None:
        line = json.dumps(values, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        written = self._file.write(line)
        if written != len(line):
            raise OSError(28, f"only {written} of {len(line)} bytes were written to {self.path}")
        self._dirty.set()

    def _keep_synced(self) -> None:
        """Group commit: records that arrive while one fsync runs share the next one."""
        while not self._closed:
            self._dirty.wait()
            self._dirty.clear()
            if not self._closed:
                os.fsync(self._file.fileno())
                time.sleep(_SYNC_PAUSE_S)


def all_of(database: Database) -> list[Path]:
    """Every journal of a database, oldest first: of sessions that run, and of those that ended without merging."""
    return sorted(database.journal_dir.glob(f"*{_SUFFIX}"))


@contextmanager
def left_behind(path: Path) -> Iterator[bool]:
    """Whether a journal's session has ended without merging it; if so, holds it against other sessions.

    Raises:
        OSError: its folder cannot be written.
    """
    lock = _owner_lock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        # Another session that found it first may have merged it since.
        yield path.exists()
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def read(path: Path) -> Contents:
    """The records of a journal. A torn last line is normal after a kill and is left out.

    Raises:
        OpAtlasError: no header of a version that is known.
        OSError: the file cannot be read.
    """
    lines = path.read_bytes().split(b"\n")
    torn = lines.pop()
    try:
        header = Header(**json.loads(lines[0]))
    except (IndexError, ValueError, TypeError) as error:
        raise OpAtlasError(f"{path}:1: not a journal of OpAtlas ({error}): move it away") from None
    if header.version != VERSION:
        raise OpAtlasError(
            f"{path}:1: journal version {header.version}, this OpAtlas reads {VERSION}: "
            f"merge it with the OpAtlas that wrote it"
        )
    records, unreadable = [], []
    with without_cycle_collection():
        for number, line in enumerate(lines[1:], start=2):
            try:
                records.append(Record.from_json(json.loads(line)))
            except (ValueError, OpAtlasError) as error:
                unreadable.append((number, str(error)))
    if torn:
        unreadable.append((len(lines) + 1, "cut off in the middle: the session was killed while it was written"))
    return Contents(header, tuple(records), tuple(unreadable))


def _owner_lock(path: Path) -> FileLock:
    return FileLock(path.with_suffix(".lock"))
