"""The journal: every record of a session in an append-only file, before any CSV is changed.

A journal is JSON Lines. The first line is a header with the version of the journal, the run, and how to write the
records back; each further line is a record. A line is written as its record arrives, and a thread syncs the file to
disk without delaying the session. Each process that runs rows has its own journal.

Each line is read on its own: a damaged line costs one record. A kernel can find the file, and write records of any row:
lines that the process of the journal did not write are taken out of it, told, and kept beside it.
"""

from __future__ import annotations

import io
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from filelock import FileLock, Timeout
from msgspec import Meta

from opatlas.data.csv_files import not_writable, write_bytes, write_text
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError, described
from opatlas.files import open_safely, read_safely, safe_lock
from opatlas.progress import gc_paused
from opatlas.row.record import Record
from opatlas.row.status import UpdateMode
from opatlas.text import pluralize, shortened
from opatlas.typed_json import DecodeError, decode, json_line

_SUFFIX = ".jsonl"
_LARGEST_BYTES = 1 << 30
#: Characters that may surround the text of a line: after a power failure a line may be padded with zeros.
_PADDING = b"\0\r\n\t "
#: Pause between two syncs: a power failure loses the records of this time, a killed process loses none.
_SYNC_PAUSE_S = 0.02
#: The number of problems of one kind that are told.
_TOLD = 5


@dataclass(frozen=True)
class JournalHeader:
    """How to write the records of a session back."""

    run_id: str
    update_mode: Annotated[str, Meta(pattern=f"^({'|'.join(UpdateMode)})$")]
    prune: bool
    version: Literal[3] = 3


@dataclass(frozen=True)
class JournalContents:
    """A journal as read.

    Attributes:
        header: the header; if it cannot be read, a header that neither adds nor prunes rows.
        records: the readable records, without duplicates.
        unreadable: number and problem of each line that could not be read completely.
        torn: whether the last line is cut off, because the process was killed during a write.
    """

    header: JournalHeader
    records: tuple[Record, ...]
    unreadable: tuple[tuple[int, str], ...]
    torn: bool


@dataclass
class OwnLines:
    """The lines that a process wrote into its journal.

    Attributes:
        header: the first line.
        digests: those of the further lines.
    """

    header: bytes
    digests: set[bytes] = field(default_factory=set)

    def add(self, line: bytes) -> None:
        """Adds a line that the process wrote."""
        self.digests.add(_digest(line))

    def restore(self, file: BinaryIO, path: Path) -> list[str]:
        """Takes the lines of others out of a journal, and keeps them beside it.

        Args:
            file: the journal, unbuffered, open to be read and written; it is left at its end.

        Returns:
            A sentence for each line of others, with the row that it claims, and one with the number of lines of the
            process that are missing. These are told once.

        Raises:
            OSError: the file cannot be read or written.
        """
        file.seek(0)
        content = file.read()
        own, others = [self.header], {}
        there = set()
        for number, each in enumerate(content.splitlines(keepends=True), start=1):
            if (digest := _digest(each)) in self.digests:
                own.append(each)
                there.add(digest)
            elif each != self.header:
                others[number] = each
        restored = b"".join(own)
        if restored != content:
            file.seek(0)
            write_whole(file, restored)
            os.ftruncate(file.fileno(), len(restored))
        problems = first_of(
            f"{path}:{n}: {_claim(each)}, which this session did not write" for n, each in others.items()
        )
        if others:
            kept = free_name(path, "refused")
            try:
                write_bytes(kept, b"".join(others.values()))
                problems.append(f"these lines do not count, and are kept in {kept}: find the kernel that wrote them")
            except OpAtlasError as error:
                problems.append(f"these lines do not count, and could not be kept: {error}")
        if lost := len(self.digests - there):
            self.digests = there
            records = pluralize(lost, "record")
            problems.append(f"{path}: another process changed or removed {records} of this session: run the rows again")
        return problems


def _digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=16).digest()


def _claim(line: bytes) -> str:
    try:
        record = Record.decode(line, "")
    except DecodeError:
        return "a line that is no record"
    return f"a record of {record.kernel_type} {shortened(record.signature)}"


def first_of(sentences: Iterable[str]) -> list[str]:
    """Returns the first of many sentences, and how many more there are."""
    sentences = list(sentences)
    more = len(sentences) - _TOLD
    return [*sentences[:_TOLD], f"and {more:,} more of this kind"] if more > 0 else sentences


def free_name(path: Path, ending: str) -> Path:
    """Returns the path of a file beside a journal that does not exist yet. Sessions ignore such files."""
    endings = itertools.chain([ending], (f"{ending}{number}" for number in itertools.count(2)))
    return next(free for each in endings if not (free := path.with_name(f"{path.name}.{each}")).exists())


def write_whole(file: BinaryIO, content: bytes) -> None:
    """Writes to an unbuffered file. Raises OSError: where only a part fits, the write of the rest names the reason."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


class Journal:
    """The open journal of a process that runs rows. Only one thread may call `append`."""

    def __init__(self, database: Database, header: JournalHeader, *, part: str = "") -> None:
        """Creates the journal and locks it; an unlocked journal is abandoned.

        Args:
            part: distinguishes the journals of several processes; "" for a single process.

        Raises:
            OpAtlasError: the database cannot be written.
        """
        self.path = path_of(database, header.run_id, part)
        self._lock = _owner_lock(self.path)
        try:
            database.journal_dir.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            # In one step, so that the file has a header even after a power failure.
            write(self.path, header, ())
            self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115 - closed by close()
            self._size = self._file.seek(0, os.SEEK_END)
        except (OSError, OpAtlasError) as error:
            if self._lock.is_locked:
                _give_up(self._lock)
            if isinstance(error, OpAtlasError):
                raise
            raise OpAtlasError(not_writable(database.path, error)) from None
        #: What this process wrote, for the process that merges it.
        self.own_lines = OwnLines(line(asdict(header)))
        self._problems: list[str] = []
        self._dirty = threading.Event()
        self._sync_error: OSError | None = None
        self._closed = False
        self._syncer = threading.Thread(target=self._keep_synced, name="journal-sync", daemon=True)
        self._syncer.start()

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a record in the form of `Record.to_json`.

        Raises:
            OSError: the disk is full or gone. Earlier records are in the journal, unless the disk lost them.
        """
        if self._sync_error is not None:
            raise self._sync_error
        encoded = line(record)
        if os.fstat(self._file.fileno()).st_size != self._size:
            self._restore()
        try:
            write_whole(self._file, encoded)
        except OSError:
            # A partial line would make the next line unreadable.
            self._file.seek(self._size)
            os.ftruncate(self._file.fileno(), self._size)
            raise
        self.own_lines.add(encoded)
        self._size += len(encoded)
        self._dirty.set()

    def _restore(self) -> None:
        """Takes lines of other processes out. Raises OSError."""
        self._problems += self.own_lines.restore(self._file, self.path)
        self._size = self._file.seek(0, os.SEEK_END)

    def close(self) -> list[str]:
        """Syncs the file to disk and releases it for write-back, without lines that other processes wrote.

        If the file was removed meanwhile (by a checkout, by a clean-up), it is written again.

        Returns:
            Each problem, as a sentence: records that may be lost, lines of others, another file at the path.
        """
        if self._closed:
            return []
        self._closed = True
        self._dirty.set()
        self._syncer.join()
        try:
            with self._file as file:
                self._restore()
                self._problems += _put_back(file, self.path)
                os.fsync(file.fileno())
            if self._sync_error is not None:
                raise self._sync_error
        except (OSError, OpAtlasError) as error:
            self._problems.append(f"the journal {self.path} may be incomplete: {error}")
        finally:
            _give_up(self._lock)
        return self._problems

    def _keep_synced(self) -> None:
        """Syncs in groups: records that arrive during one fsync share the next."""
        while not self._closed:
            self._dirty.wait()
            self._dirty.clear()
            if not self._closed:
                try:
                    os.fsync(self._file.fileno())
                except OSError as error:
                    # The system reports an error once, and `append` must raise it.
                    self._sync_error = error
                    return
                time.sleep(_SYNC_PAUSE_S)


def check_ended(own_lines: Mapping[Path, OwnLines]) -> list[str]:
    """Takes the lines of others out of the journals of ended processes, by what these wrote; returns each problem."""
    problems: list[str] = []
    for path, lines in own_lines.items():
        with described(problems, path, "its records cannot be read any more"), open_safely(path, writable=True) as file:
            problems += lines.restore(file, path)
    return problems


def write(path: Path, header: JournalHeader, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes a whole journal in one step, for a later write-back. Raises OpAtlasError."""
    write_text(path, b"".join(map(line, (asdict(header), *records))).decode())


def path_of(database: Database, run_id: str, part: str = "") -> Path:
    """Returns the path of the journal of a process; `part` is as for `Journal`."""
    return database.journal_dir / f"{run_id}{part and '-' + part}{_SUFFIX}"


def journals(database: Database) -> list[Path]:
    """Returns all journals of a database, oldest first: of running sessions, and of sessions that were killed."""
    return sorted(database.journal_dir.glob(f"*{_SUFFIX}"))


def run_journals(database: Database, run_id: str) -> list[Path]:
    """Returns the journals of a session's processes."""
    return [path for path in journals(database) if path.stem == run_id or path.stem.startswith(f"{run_id}-")]


def count_run_records(database: Database, run_id: str) -> int:
    """Returns the number of complete records in the journals of a session. Raises OSError."""
    return sum(max(read_safely(path, _LARGEST_BYTES).count(b"\n") - 1, 0) for path in run_journals(database, run_id))


@contextmanager
def hold_if_abandoned(path: Path) -> Iterator[bool]:
    """Locks a journal if no process writes it; yields whether it was locked.

    Raises:
        OSError: the folder cannot be written.
    """
    lock = _owner_lock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        # Another session may have written it back and removed it before it was locked.
        yield path.exists()
    finally:
        _give_up(lock)


class NotAJournal(OpAtlasError):
    """A file without a readable header or record."""


def read(path: Path) -> JournalContents:
    """Reads the readable lines of a journal. Repeated lines count once.

    Raises:
        NotAJournal: the file has neither a header nor a record.
        OSError: the file cannot be read.
    """
    return parse(io.BytesIO(read_safely(path, _LARGEST_BYTES)), path)


def parse(lines: Iterable[bytes], path: Path) -> JournalContents:
    """Parses the lines of a journal, with their ends, as `read` does; `path` is for errors. Raises NotAJournal."""
    lines = iter(lines)
    first = next(lines, b"")
    header, why_not = None, ""
    try:
        header = decode(first.strip(_PADDING), JournalHeader, "")
    except DecodeError as error:
        why_not = f"not the header of a journal: {error.problem}"
    records: list[Record] = []
    unreadable = [(1, why_not)] if why_not else []
    torn, each = False, first
    seen = {b"", first.strip(_PADDING)} if header else {b""}
    with gc_paused():
        for number, each in enumerate(itertools.chain([first], lines), start=1):
            text = each.strip(_PADDING)
            if text in seen:
                continue
            seen.add(text)
            try:
                records.append(Record.decode(text, ""))
            except DecodeError as error:
                if not each.endswith(b"\n"):
                    torn = True
                elif number > 1:
                    unreadable.append((number, f"not a record of this version ({error.problem})"))
    if header is None and not records:
        raise NotAJournal(f"{path}:1: {why_not}, and no record follows")
    if header is None:
        unreadable[0] = (1, f"{why_not}: its records neither add nor prune rows")
        header = JournalHeader(records[0].run_id, UpdateMode.MISSING_ONLY.value, prune=False)
    return JournalContents(header, tuple(records), tuple(unreadable), torn or each.endswith(b"\0"))


def line(values: Mapping[str, Any]) -> bytes:
    """Returns the plain values of a header or a record as a line. Raises ValueError if a number is not finite."""
    return f"{json_line(values)}\n".encode()


def _put_back(file: BinaryIO, path: Path) -> list[str]:
    """Writes an open journal again if its path does not name it any more.

    Returns:
        Each problem, as a sentence: another file at the path, or the folder for temporary files, which has it else.

    Raises:
        OSError: the file cannot be read.
        OpAtlasError: it cannot be written in either place.
    """
    with suppress(OSError):
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return []
    file.seek(0)
    text, problems = file.read().decode(errors="replace"), []
    if path.is_file():
        kept = path.rename(free_name(path, "refused"))
        problems.append(f"{path}: another process replaced this journal while rows ran: its file is kept in {kept}")
    try:
        write_text(path, text)
    except OpAtlasError as error:
        kept = Path(tempfile.gettempdir()) / path.name
        write_text(kept, text)
        problems.append(f"{error}; the journal is kept: move {kept} to {path}, and the next session merges it")
    return problems


def _owner_lock(path: Path) -> FileLock:
    return safe_lock(path.with_suffix(".lock"))


def _give_up(lock: FileLock) -> None:
    """Removes and releases a lock, in this order, so that no other process loses its lock."""
    # If the folder is gone, no other session can find the lock.
    with suppress(OSError):
        Path(lock.lock_file).unlink()
    lock.release()
