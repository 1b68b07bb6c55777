"""The journal: every record of a session, in an append-only file, before any CSV is touched.

A journal is JSON Lines. Its first line is a header with the journal's version, the run and how its
records are to be merged; each other line is a record. A line is written whole as its record
arrives, and a thread brings the file to disk without making the session wait. Each process that
runs rows has a journal of its own, so that what it measured does not depend on another process.

Reading takes each line by itself: one that is damaged costs that line and no other.
"""

from __future__ import annotations

import os
import shlex
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from opatlas.errors import OpAtlasError
from opatlas.files import open_own, own_lock, read_own
from opatlas.gc_pause import gc_paused
from opatlas.model.record import Record
from opatlas.store.csv_files import not_writable, write_text
from opatlas.store.database import Database
from opatlas.typed_json import DecodeError, decode, json_line

VERSION = 3
#: Version 1 had no crashes_in_a_row, version 2 no ran_as.
_READABLE_VERSIONS = (1, 2, VERSION)
_SUFFIX = ".jsonl"
#: What `JournalHeader.update_mode` may be (opatlas.store.write_back.UpdateMode).
UPDATE_MODES = ALL, MISSING_ONLY, UNREPLAYED, STALE = "all", "missing-only", "unreplayed", "stale"
_LARGEST_BYTES = 1 << 30
#: Between two syncs. What a record costs when the power fails; a killed process loses nothing.
_SYNC_PAUSE_S = 0.02


@dataclass(frozen=True)
class JournalHeader:
    """How the records of a session are to be merged."""

    run_id: str
    update_mode: str
    prune: bool
    version: int = VERSION


@dataclass(frozen=True)
class JournalContents:
    """A journal as read.

    Attributes:
        header: of a journal whose header cannot be read, the one that does least: rows are neither added nor pruned.
        records: those that could be read, each once.
        unreadable: lines that could not be read, or not wholly, with their numbers and why.
        torn: whether the last line is cut off, as it is when a process is killed while it writes.
    """

    header: JournalHeader
    records: tuple[Record, ...]
    unreadable: tuple[tuple[int, str], ...]
    torn: bool


class Journal:
    """The open journal of a process that runs rows. `append` is for one thread."""

    def __init__(self, database: Database, header: JournalHeader, *, part: str = "") -> None:
        """Creates the journal and holds its lock, which tells it from one left behind.

        Args:
            part: tells the journals of a session's processes apart; "" for the only one.

        Raises:
            OpAtlasError: the database cannot be written.
        """
        self.path = database.journal_dir / f"{header.run_id}{part and '-' + part}{_SUFFIX}"
        self._lock = _owner_lock(self.path)
        try:
            database.journal_dir.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            # In one step: under its name there is a header from the first moment, even if the power fails.
            write(self.path, header, ())
            self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115 - closed by close()
            self._size = self._file.seek(0, os.SEEK_END)
        except (OSError, OpAtlasError) as error:
            if self._lock.is_locked:
                _give_up(self._lock)
            if isinstance(error, OpAtlasError):
                raise
            raise OpAtlasError(not_writable(database.path, error)) from None
        self._dirty = threading.Event()
        self._sync_error: OSError | None = None
        self._closed = False
        self._syncer = threading.Thread(target=self._keep_synced, name="journal-sync", daemon=True)
        self._syncer.start()

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a record, as `Record.to_json` gives it.

        Raises:
            OSError: the disk is full or gone. The journal holds the records before this one, unless
                the disk has taken and then lost them.
        """
        if self._sync_error is not None:
            raise self._sync_error
        encoded = line(record)
        try:
            # Where only a part fits, writing the rest tells why.
            rest = memoryview(encoded)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            # What there is of the line would make the next one unreadable.
            os.ftruncate(self._file.fileno(), self._size)
            self._file.seek(self._size)
            raise
        self._size += len(encoded)
        self._dirty.set()

    def close(self) -> None:
        """Brings everything to disk and gives the file up, for a merge. It goes when its records are merged.

        A journal whose file was removed meanwhile (by a checkout, by a clean-up) is written anew: in its place, or,
        if that is gone, in the folder for temporary files.

        Raises:
            OSError: the disk is full or gone.
            OpAtlasError: the journal is not in its place; the message says where it is.
        """
        if self._closed:
            return
        self._closed = True
        self._dirty.set()
        self._syncer.join()
        try:
            with self._file as file:
                if not _is_in_place(file, self.path):
                    file.seek(0)
                    _put_back(file.read(), self.path)
                os.fsync(file.fileno())
            if self._sync_error is not None:
                raise self._sync_error
        finally:
            _give_up(self._lock)

    def _keep_synced(self) -> None:
        """Group commit: records that arrive while one fsync runs share the next one."""
        while not self._closed:
            self._dirty.wait()
            self._dirty.clear()
            if not self._closed:
                try:
                    os.fsync(self._file.fileno())
                except OSError as error:
                    # The system tells only once, and the session must hear of it.
                    self._sync_error = error
                    return
                time.sleep(_SYNC_PAUSE_S)


class EndedJournals:
    """Journals of a session's processes that have ended, held open until they are merged."""

    def __init__(self) -> None:
        self._files: dict[Path, BinaryIO] = {}

    def hold(self, paths: Iterable[Path]) -> None:
        """Raises OSError: one cannot be read."""
        for path in paths:
            if path not in self._files:
                self._files[path] = open_own(path)

    def give_up(self) -> list[str]:
        """Lets them go, for a merge. Writes anew what was removed meanwhile, as `Journal.close` does.

        Returns:
            What is not in its place, and where it is instead.
        """
        problems = []
        while self._files:
            path, file = self._files.popitem()
            try:
                with file:
                    if not _is_in_place(file, path):
                        _put_back(file.read(), path)
            except OSError as error:
                problems.append(f"{path}: {error.strerror}: what it holds cannot be read any more")
            except OpAtlasError as error:
                problems.append(str(error))
        return problems


def write(path: Path, header: JournalHeader, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes a whole journal in one step, for records to be merged later. Raises OpAtlasError."""
    write_text(path, journal_text(header, records))


def journal_text(header: JournalHeader, records: Iterable[Mapping[str, Any]]) -> str:
    """The text of a journal."""
    return b"".join(map(line, (asdict(header), *records))).decode()


def save_in_temporary_folder(text: str, path: Path) -> str:
    """Keeps a journal that cannot be written to `path`, in the folder for temporary files.

    Returns:
        Where the journal is kept, and how to bring it in; the text itself if there is no room for it anywhere.
    """
    with suppress(OSError, OpAtlasError):
        elsewhere = Path(tempfile.gettempdir()) / path.name
        write_text(elsewhere, text)
        return f"kept in {elsewhere}: bring them in with `{combine_command(path.parent.parent, elsewhere)}`"
    return f"kept nowhere else; here is all there is:\n{text}"


def combine_command(database: Path, path: Path) -> str:
    """The command that brings a journal into a database."""
    return shlex.join(["opatlas", "combine", str(database), str(path)])


def journals(database: Database) -> list[Path]:
    """Every journal of a database, oldest first: of sessions that run, and of those that ended without merging."""
    return sorted(database.journal_dir.glob(f"*{_SUFFIX}"))


def run_journals(database: Database, run_id: str) -> list[Path]:
    """The journals of a session's processes."""
    return [path for path in journals(database) if path.stem == run_id or path.stem.startswith(f"{run_id}-")]


def count_run_records(database: Database, run_id: str) -> int:
    """How many whole records the journals of a session hold. Raises OSError."""
    return sum(max(read_own(path, _LARGEST_BYTES).count(b"\n") - 1, 0) for path in run_journals(database, run_id))


@contextmanager
def hold_if_abandoned(path: Path) -> Iterator[bool]:
    """Whether a journal's process has ended or closed it; if so, holds it against other sessions.

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
        _give_up(lock)


class NotAJournal(OpAtlasError):
    """A file of which neither a header nor any record can be read."""


def read(path: Path) -> JournalContents:
    """Reads what can be read of a journal, each line by itself. A line that stands twice counts once.

    Raises:
        NotAJournal: there is neither a header nor any record.
        OSError: the file cannot be read.
    """
    return parse(read_own(path, _LARGEST_BYTES), path)


def parse(content: bytes, path: Path) -> JournalContents:
    """Reads what can be read of a journal's content; `path` names it in errors. Raises NotAJournal as `read` does."""
    # A line that the power cut off may lie between zeros.
    lines = [text.strip(b"\0\r\t ") for text in content.split(b"\n")]
    header, why_not = _header(lines[0])
    records: list[Record] = []
    unreadable = [(1, why_not)] if why_not else []
    torn = content.endswith(b"\0")
    seen = {b"", lines[0]} if header else {b""}
    with gc_paused():
        for number, text in enumerate(lines, start=1):
            if text in seen:
                continue
            seen.add(text)
            try:
                records.append(Record.decode(text, ""))
            except DecodeError as error:
                if number == len(lines):
                    torn = True
                elif number > 1:
                    unreadable.append((number, f"not a record of this version ({error.problem})"))
    if header is None and not records:
        raise NotAJournal(f"{path}:1: {why_not}, and no record behind it")
    if header is None:
        unreadable[0] = (1, f"{why_not}: its records add and prune no rows")
        header = JournalHeader(records[0].run_id, MISSING_ONLY, prune=False)
    return JournalContents(header, tuple(records), tuple(unreadable), torn)


def line(values: Mapping[str, Any]) -> bytes:
    """A header or a record, given as plain values, as a line. Raises ValueError if a number is not finite."""
    return f"{json_line(values)}\n".encode()


def _header(text: bytes) -> tuple[JournalHeader | None, str]:
    """The header in a line, and why it is none, or not one of this version."""
    try:
        header = decode(text, JournalHeader, "")
    except DecodeError as error:
        return None, f"no header of a journal: {error.problem}"
    if header.update_mode not in UPDATE_MODES:
        return None, f"no header of a journal: update_mode {header.update_mode!r}"
    if header.version in _READABLE_VERSIONS:
        return header, ""
    known = ", ".join(map(str, _READABLE_VERSIONS))
    why_not = f"journal version {header.version}, this OpAtlas reads {known}: of its records, those that it knows"
    return replace(header, prune=False), why_not


def _is_in_place(file: BinaryIO, path: Path) -> bool:
    """Whether an open file still is the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _put_back(content: bytes, path: Path) -> None:
    """Raises OpAtlasError: that cannot be done; the message says where the content is instead."""
    text = content.decode(errors="replace")
    try:
        write_text(path, text)
    except OpAtlasError as error:
        raise OpAtlasError(f"{error}; its records are {save_in_temporary_folder(text, path)}") from None


def _owner_lock(path: Path) -> FileLock:
    return own_lock(path.with_suffix(".lock"))


def _give_up(lock: FileLock) -> None:
    """Removes the file first: whoever took the lock in between would lose it."""
    # Where its folder is gone, or cannot be written any more, there is nothing that another session would find.
    with suppress(OSError):
        Path(lock.lock_file).unlink()
    lock.release()
