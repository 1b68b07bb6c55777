"""A database: its folders, its locks, and a copy of it for a dry run."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from opatlas.data import csv_files
from opatlas.data.header import expect_columns, read_header
from opatlas.errors import OpAtlasError, noted
from opatlas.files import read_safely, safe_folder, safe_lock
from opatlas.row.columns import is_file_name
from opatlas.row.communication import COLLECTIVES, row_kind
from opatlas.row.location import IMPLEMENTATIONS, expect_database
from opatlas.row.record import SessionHolder
from opatlas.row.table import RowTable
from opatlas.typed_json import DecodeError, decode, json_line

#: The column of pruned rows with the reason.
PRUNED_REASON = "Pruned Reason"
#: Patterns for databases below a folder: version, software, device.
_BELOW = ("*", "*/*", "*/*/*")


def expect_tables(folder: Path) -> None:
    """Checks that a folder has CSVs of a database.

    Raises:
        OpAtlasError: the folder is missing, or has no such CSV; the message names a folder below it that has.
    """
    expect_database(folder)
    tables = sorted(folder.glob("*.csv"))
    if not tables:
        below = itertools.chain.from_iterable(sorted(folder.glob(f"{level}/*.csv")) for level in _BELOW)
        example = next(below, None)
        where = f"a folder that does, such as {example.parent}" if example else "a folder that does"
        raise OpAtlasError(f"{folder}: holds no CSV: name {where}")
    problems: list[str] = []
    for path in tables:
        with noted(problems):
            expect_columns(path, read_header(path).names)
            return
    raise OpAtlasError(f"{folder}: no database, none of its CSVs has kernels or collectives: {problems[0]}")


class Database:
    """A directory of `{KernelType}.csv` files, with its journal, runs, reports and pruned rows."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def journal_dir(self) -> Path:
        """Records that are not yet in the CSVs. Raises UnsafePath if the folder is a link, as all folders here do."""
        return safe_folder(self.path / "journal")

    @property
    def runs_dir(self) -> Path:
        """The manifest and the history of each run and ingest."""
        return safe_folder(self.path / "runs")

    @property
    def reports_dir(self) -> Path:
        """Reports of sessions and commands."""
        return safe_folder(self.path / "reports")

    @property
    def pruned_dir(self) -> Path:
        """Rows that were moved out of the CSVs."""
        return safe_folder(self.path / "pruned")

    @property
    def profiles_dir(self) -> Path:
        """Output of profilers for rows that are not yet in the CSVs."""
        return safe_folder(self.path / "profiles")

    @property
    def implementations_dir(self) -> Path:
        """The databases of implementations that were measured on the rows of this one: `{name}-{version}`."""
        return safe_folder(self.path / IMPLEMENTATIONS)

    def implementation_dir(self, name: str, version: str) -> Path:
        """Returns the database of an implementation, as `opatlas.row.location.implementation_of` reads its path."""
        return safe_folder(self.implementations_dir / f"{name}-{version}")

    def folders(self) -> tuple[Path, ...]:
        """Returns the five folders of sessions, whether or not they exist. Raises UnsafePath."""
        return self.journal_dir, self.runs_dir, self.reports_dir, self.pruned_dir, self.profiles_dir

    def kernel_types(self) -> list[str]:
        """Returns the kernel types that have a file, sorted, without collectives (`hcom_*`) and hidden files."""
        return sorted(path.stem for path in self.path.glob("*.csv") if not path.stem.startswith(("hcom_", ".")))

    def kernel_types_and_messages(self) -> list[str]:
        """Returns the kernel types that have a file, then the collectives that have one."""
        messages = [each.kernel_type for each in COLLECTIVES if self.csv_path(each.kernel_type).is_file()]
        return [*self.kernel_types(), *messages]

    def csv_path(self, kernel_type: str) -> Path:
        """Returns the path of a kernel type's CSV.

        Raises:
            OpAtlasError: the kernel type cannot name a file.
        """
        if not is_file_name(kernel_type):
            raise OpAtlasError(f"kernel type {kernel_type!r} cannot name a file of {self.path}: rename or leave it out")
        return self.path / f"{kernel_type}.csv"

    def read(self, kernel_type: str) -> RowTable:
        """Reads the rows of a kernel type. Raises TableError."""
        path = self.csv_path(kernel_type)
        return RowTable(kernel_type, path, csv_files.read_table(path, kernel_type))

    def read_or_empty(self, kernel_type: str, columns: Sequence[str] = ()) -> RowTable:
        """Reads the rows of a kernel type; without a file no rows, with some columns, or those of a row's identity.

        Raises:
            TableError: the file cannot be read.
        """
        path = self.csv_path(kernel_type)
        if path.exists():
            return self.read(kernel_type)
        return RowTable(kernel_type, path, csv_files.text_table(columns or row_kind(kernel_type).identity_columns))

    def write(self, table: RowTable) -> None:
        """Replaces the file of a table in one step. The caller holds the lock."""
        csv_files.write_table(table.arrow, table.path)

    def pruned_types(self) -> list[str]:
        """Returns the kernel types that have pruned rows, sorted."""
        return sorted(path.stem for path in self.pruned_dir.glob("[!.]*.csv"))

    def pruned(self, kernel_type: str) -> RowTable:
        """Reads the rows of a kernel type that were moved to `pruned/`; none without a file. Raises TableError."""
        path = self.pruned_dir / self.csv_path(kernel_type).name
        return RowTable(
            kernel_type, path, csv_files.read_table(path, kernel_type) if path.exists() else csv_files.text_table(())
        )

    def add_pruned(self, kernel_type: str, rows: Iterable[Mapping[str, str]]) -> int:
        """Adds rows to the pruned ones, each once, and returns their number. Raises OpAtlasError."""
        table = self.pruned(kernel_type)
        there = list(table.rows())
        known, new = (
            {frozenset((name, cell) for name, cell in row.items() if cell): row for row in each}
            for each in (there, rows)
        )
        added = [row for content, row in new.items() if content not in known]
        if added:
            columns = dict.fromkeys([*table.columns, *(name for row in added for name in row)])
            csv_files.write_table(csv_files.text_table(columns, [*there, *added]), table.path)
        return len(added)

    def new_report_path(self, name: str, at: float, *, suffix: str = ".csv") -> Path:
        """Returns a new path `reports/{name}_{time}.csv`; paths of the same second are numbered.

        Args:
            at: seconds since the epoch.
        """
        stem = f"{name}_{time.strftime('%Y%m%d_%H%M%S', time.localtime(at))}"
        stems = itertools.chain([stem], (f"{stem}_{number}" for number in itertools.count(2)))
        return next(path for path in (self.reports_dir / f"{stem}{suffix}" for stem in stems) if not path.exists())

    def _sweep(self) -> None:
        """Removes the temporary files of writers that were killed. The caller holds the lock."""
        for folder in (self.path, *self.folders()):
            for path in folder.glob(f".*{csv_files.TEMPORARY_SUFFIX}"):
                if csv_files.is_abandoned(path):
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, timeout_s: float = 60.0) -> Iterator[None]:
        """Locks the database against other writers, for a read, change and write.

        Also removes temporary files of writers that were killed.

        Raises:
            OpAtlasError: another process holds the lock for longer than `timeout_s`, the database cannot be written,
                or a folder of the database is a link.
        """
        from filelock import Timeout

        journal_dir, *_ = self.folders()
        lock = safe_lock(journal_dir / "database.lock")
        try:
            journal_dir.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=timeout_s, poll_interval=0.05)
            self._sweep()
        except Timeout:
            raise OpAtlasError(f"{self.path} is locked ({journal_dir / 'database.lock'}): wait, run again") from None
        except OSError as error:
            lock.release()
            raise OpAtlasError(csv_files.not_writable(self.path, error)) from None
        try:
            yield
        finally:
            lock.release()


_LARGEST_BYTES = 1 << 20


class SessionLock:
    """The lock of a session, held from its plan to its write-back.

    The system releases a lock when its process ends. So a lock that can be taken is free, and if the file still names a
    holder, that holder was killed.

    Attributes:
        stale: the killed session whose lock was taken over; None if there was none.
    """

    def __init__(self, database: Database, *, run_id: str, command: str, remedy: str = "wait for it to end") -> None:
        """`remedy` is the end of the error message for other users of the database."""
        self._database = database
        self._remedy = remedy
        self._lock = safe_lock(database.journal_dir / "session.lock")
        self._holder_file = database.journal_dir / "session.json"
        self._holder = SessionHolder(run_id, command, os.getpid(), platform.node(), time.time())
        self.stale: SessionHolder | None = None

    def acquire(self) -> None:
        """Takes the lock. Raises OpAtlasError if another session holds it, or the database cannot be written."""
        from filelock import Timeout

        try:
            self._database.journal_dir.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            self.stale = _read(self._holder_file)
            csv_files.write_text(self._holder_file, json_line(asdict(self._holder)))
        except OpAtlasError as error:
            self._lock.release()
            if isinstance(error.__cause__, OSError):
                raise OpAtlasError(csv_files.not_writable(self._database.path, error.__cause__)) from None
            raise
        except Timeout:
            raise OpAtlasError(f"{self._database.path} is in use by {self._other()}: {self._remedy}") from None
        except OSError as error:
            raise OpAtlasError(csv_files.not_writable(self._database.path, error)) from None

    def release(self) -> None:
        """Releases the lock, if it was taken."""
        if self._lock.is_locked:
            # If the journals were removed meanwhile, another session may have written its name. An old file does no
            # harm: it names the holder of a free lock.
            with contextlib.suppress(OSError, OpAtlasError):
                if _read(self._holder_file) in (self._holder, None):
                    self._holder_file.unlink()
            self._lock.release()

    def _other(self) -> str:
        holder = _read(self._holder_file)
        return str(holder) if holder else "another session"


def _read(path: Path) -> SessionHolder | None:
    """Returns the holder that a file names; None if there is no file, or it is cut off. Raises UnsafePath."""
    try:
        return decode(read_safely(path, _LARGEST_BYTES), SessionHolder, str(path))
    except (OSError, DecodeError):
        return None
