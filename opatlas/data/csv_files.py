"""Reads, edits and writes CSV files. Every cell is text.

Cells keep their exact text, so unknown columns and untouched numbers survive a rewrite unchanged. A file is replaced in
one step: after a crash there is the old file or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import itertools
import os
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from opatlas.data.header import RESTORE, CsvHeader, current_names, expect_columns, parse_header, read_header
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import open_safely, safe_file
from opatlas.row.columns import insert_columns
from opatlas.row.communication import row_kind
from opatlas.row.table import RowTable
from opatlas.text import SAVE_OR_RESTORE, undecodable_cell

#: Arrow reads blocks of this size; a record must fit into a block.
_BLOCK_BYTES = 8 << 20
#: Arrow stores the size of a block in 32 bits.
_LARGEST_BLOCK_BYTES = (1 << 31) - 1
#: Byte order mark at the beginning of a file.
_BOM = "\ufeff"
#: Characters of a cell that an error shows.
_CELL_SHOWN = 80
_TEXT = pa.large_string()
#: What needs quotes in a cell.
_SPECIAL = re.compile(f'[",\r\n{_BOM}]')
#: Lines that are joined at a time; bounds the memory of a write.
ROWS_PER_WRITE = 16384
TEMPORARY_SUFFIX = ".opatlas-tmp"
_TEMPORARY_NAME = re.compile(rf"\..+\.\w+{re.escape(TEMPORARY_SUFFIX)}", re.DOTALL)
_ABANDONED_AFTER_S = 60.0
#: Larger CSVs are refused.
_LARGEST_CSV_BYTES = 4 << 30
#: Remedies for errors other than missing permissions.
_REMEDIES = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "a file has the name of a needed folder: name another place",
    errno.EEXIST: "a file has the name of a needed folder: name another place",
}


def not_writable(path: Path, error: OSError) -> str:
    """Returns the message for a database that cannot be written, with a remedy."""
    remedy = _REMEDIES.get(error.errno or 0, "make it writable, or name a copy of it instead")
    return f"{path} cannot be written ({error.strerror or error}): {remedy}"


def read_table(path: Path, kernel_type: str = "") -> pa.Table:
    """Reads the CSV of a kernel type as text cells, and translates older column names.

    Args:
        kernel_type: the kernel type; default: the name of the file.

    Raises:
        TableError: the file is missing, a Git LFS pointer or empty, has the header of another CSV, a repeated column, a
            line with another number of fields, or text that is not UTF-8.
    """
    table = read_text_csv(path)
    expect_columns(path, table.column_names, kernel_type)
    if row_kind(kernel_type or path.stem).is_message:
        return table
    names = current_names(table.column_names)
    return table.rename_columns([names.get(name, name) for name in table.column_names]) if names else table


def text_table(columns: Iterable[str], rows: Sequence[Mapping[str, str]] = ()) -> pa.Table:
    """Returns a table of text cells; `rows` are cells by column, and a cell that a row lacks is empty."""
    return pa.table({name: text_column(name, [row.get(name, "") for row in rows], Path()) for name in columns})


def text_column(name: str, cells: Sequence[str], path: Path) -> pa.Array:
    """Returns cells as a column of Arrow. Raises TableError, which names the line of a cell that is not Unicode."""
    text = "".join(cells)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        ends = list(itertools.accumulate(map(len, cells)))
        number = next(number for number, end in enumerate(ends) if end > error.start)
        problem = f"column {name!r}: {ascii(cells[number])[:_CELL_SHOWN]} cannot be encoded as UTF-8"
        raise TableError(path, problem, "Correct the cell; nothing was written", line=number + 2) from None
    # `pa.array` would import pandas, which takes as long as to read a large CSV.
    lengths = map(len, cells) if len(data) == len(text) else (len(cell.encode()) for cell in cells)
    offsets = np.zeros(len(cells) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, len(cells)), out=offsets[1:])
    return pa.Array.from_buffers(_TEXT, len(cells), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def read_text_csv(path: Path) -> pa.Table:
    """Reads any CSV file as text cells. Raises TableError with the line."""
    header = read_header(path)
    if header.alone:
        return text_table(header.names)
    size = path.stat().st_size
    if size > _LARGEST_CSV_BYTES:
        raise TableError(path, f"larger than {_LARGEST_CSV_BYTES >> 30} GiB", "Split it, or restore it")
    # A block must hold a whole line. If a line is longer, the file is read again with larger blocks.
    block_bytes = _BLOCK_BYTES
    while True:
        try:
            return _arrow_table(path, header, block_bytes)
        except pa.ArrowInvalid as error:
            if block_bytes > size or block_bytes == _LARGEST_BLOCK_BYTES:
                raise _read_error(path, header, block_bytes, error) from None
            block_bytes = min(8 * block_bytes, size + 1, _LARGEST_BLOCK_BYTES)
        except OSError as error:
            raise TableError(path, f"cannot be read ({error.strerror or error})", "Check the disk") from None


def _arrow_table(
    path: Path, header: CsvHeader, block_bytes: int, reject: Callable[[pa.csv.InvalidRow], str] | None = None
) -> pa.Table:
    """Reads a file with Arrow. Raises ArrowInvalid, OSError."""
    return pa.csv.read_csv(
        # Arrow encodes a path as UTF-8, whatever the locale's encoding of file names.
        pa.OSFile(os.fsencode(path)),
        # With one thread a rejected row has its line number.
        read_options=pa.csv.ReadOptions(
            use_threads=False, block_size=block_bytes, column_names=header.names, skip_rows=header.lines
        ),
        # No handler for normal reads: Arrow would skip a line that is not UTF-8 without calling it.
        parse_options=pa.csv.ParseOptions(newlines_in_values=True, invalid_row_handler=reject),
        convert_options=pa.csv.ConvertOptions(
            column_types={name: pa.string() for name in header.names}, strings_can_be_null=False
        ),
    )


def _read_error(path: Path, header: CsvHeader, block_bytes: int, error: pa.ArrowInvalid) -> TableError:
    """Returns the error of the first line that cannot be read."""
    with open_safely(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return TableError(path, undecodable_cell(line, header.names), SAVE_OR_RESTORE, line=number)
    rejected: list[pa.csv.InvalidRow] = []

    def reject(row: pa.csv.InvalidRow) -> str:
        rejected.append(row)
        return "skip"

    with contextlib.suppress(pa.ArrowInvalid):
        _arrow_table(path, header, block_bytes, reject)
    if not rejected:
        return TableError(path, f"not readable as UTF-8 CSV ({error})", RESTORE)
    first = rejected[0]
    return TableError(
        path,
        f"{first.actual_columns} fields where the header has {first.expected_columns} columns"
        + (f" (and {len(rejected) - 1} more of these lines)" if len(rejected) > 1 else ""),
        RESTORE,
        line=first.number,
    )


def release_memory() -> None:
    """Returns the unused memory of Arrow to the system."""
    pa.default_memory_pool().release_unused()


def write_table(table: pa.Table, path: Path) -> None:
    """Writes text cells as CSV (UTF-8, `\\n`, no BOM) in one step; `read_text_csv` returns the same names and cells.

    Raises:
        TableError: a name would be read differently; the old file is intact.
        OpAtlasError: the folder cannot be written, or the disk is full; the old file is intact.
    """
    header = _header_line(table.column_names, path)

    def write(temporary: str) -> None:
        with open(temporary, "wb") as file:
            file.write(header)
            for start in range(0, table.num_rows, ROWS_PER_WRITE):
                columns = [_quoted(column.to_pylist()) for column in table.slice(start, ROWS_PER_WRITE).columns]
                # A line with an empty cell alone would be blank.
                lines = [",".join(row) or '""' for row in zip(*columns, strict=True)]
                file.write(("\n".join(lines) + "\n").encode())

    write_atomically(path, write)


def _header_line(names: Sequence[str], path: Path) -> bytes:
    """Returns the header of a table as a line. Raises TableError if the names would be read differently."""
    remedy = "Rename the column; nothing was written"
    try:
        line = (",".join(_quoted(names)) + "\n").encode()
        again = parse_header(io.BytesIO(line), path).names
    except (TableError, UnicodeEncodeError) as error:
        problem = error.problem if isinstance(error, TableError) else str(error)
        raise TableError(path, f"the header could not be read again: {problem}", remedy, line=1) from None
    for name, found in itertools.zip_longest(names, again):
        if name != found:
            raise TableError(path, f"column {name!r} would be read again as {found!r}", remedy, line=1)
    return line


def _quoted(cells: Sequence[str]) -> Sequence[str]:
    """Returns cells as text of CSV. Most columns need no quotes, which one look at all of their cells shows."""
    if not _SPECIAL.search("".join(cells)):
        return cells
    return ['"' + cell.replace('"', '""') + '"' if _SPECIAL.search(cell) else cell for cell in cells]


class TableEdit:
    """A table whose cells are edited by column. Only columns that are accessed become lists."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._taken: dict[str, list[str]] = {}
        self._changed: set[str] = set()
        self._appended: list[Mapping[str, str]] = []
        self._names = dict.fromkeys(table.columns)

    @property
    def columns(self) -> Collection[str]:
        """The columns of the table, and those that were read or changed since."""
        return self._names.keys()

    def __len__(self) -> int:
        return len(self._table) + len(self._appended)

    def __getitem__(self, name: str) -> list[str]:
        """Returns the cells of a column, which `set_cells` alone changes; empty cells if the column is missing."""
        cells = self._taken.get(name)
        if cells is None:
            cells = [*self._table.cells(name), *(row.get(name, "") for row in self._appended)]
            self._taken[name] = cells
            self._names[name] = None
        return cells

    def set_cells(self, position: int, cells: Mapping[str, str]) -> bool:
        """Changes cells of a row, by column. Returns whether a cell differed."""
        changed = False
        for name, cell in cells.items():
            column = self._taken.get(name) or self[name]
            if column[position] != cell:
                column[position] = cell
                self._changed.add(name)
                changed = True
        return changed

    def empty(self, positions: Sequence[int], columns: Iterable[str]) -> None:
        """Empties the cells of some rows in some columns."""
        for name in columns:
            cells = self[name]
            self._changed.add(name)
            for position in positions:
                cells[position] = ""

    def changed(self) -> list[int]:
        """Returns the positions of the rows of which a cell differs from what it was, without appended rows."""
        found: set[int] = set()
        for name in self._changed:
            pairs = zip(self._table.cells(name), self._taken[name], strict=False)
            found.update(position for position, (before, after) in enumerate(pairs) if before != after)
        return sorted(found)

    def append(self, row: Mapping[str, str]) -> int:
        """Adds a row at the end; returns its position."""
        for name, cells in self._taken.items():
            cells.append(row.get(name, ""))
        self._appended.append(row)
        self._names.update(dict.fromkeys(row))
        return len(self) - 1

    def table(self) -> RowTable:
        """Returns the changed table: columns keep their order, new non-empty columns are inserted at their group.

        Raises:
            TableError: a cell is not Unicode text.
        """
        table, path = self._table, self._table.path
        held = [name for name, cells in self._taken.items() if any(cells)]
        appended_names = dict.fromkeys(name for row in self._appended for name in row)
        columns = {}
        for name in insert_columns(table.columns, [*held, *appended_names]):
            if name in self._changed or name not in table.columns:
                columns[name] = pa.chunked_array([text_column(name, self[name], path)])
            else:
                added = [text_column(name, [row.get(name, "") for row in self._appended], path)]
                column = table.arrow.column(name)
                chunks = [*column.chunks, *(each.cast(column.type) for each in added if self._appended)]
                columns[name] = pa.chunked_array(chunks, column.type)
        return RowTable(table.kernel_type, path, pa.table(columns))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file in one step. Raises OpAtlasError."""
    write_atomically(path, lambda temporary: Path(temporary).write_bytes(content))


def write_text(path: Path, text: str) -> None:
    """Writes a text file in one step; lone surrogates are escaped (`\\udcff`). Raises OpAtlasError."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_atomically(path: Path, write: Callable[[str], object]) -> None:
    """Calls `write` with the path of a temporary file next to `path`, then renames the file to `path`.

    Raises:
        OpAtlasError: the folder cannot be written, or the disk is full; the old file is intact.
    """
    # A link within the folder is followed, and its target is replaced.
    path = safe_file(path)
    handle, temporary = -1, None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else None
        handle, temporary = _temporary_beside(path, 0o666 if mode is None else mode)
        write(temporary)
        if mode is not None:
            os.chmod(temporary, mode)
        _sync(temporary)
        os.replace(temporary, path)
        temporary = None
        _sync(path.parent)
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, f"make {path.parent} writable, or name another folder")
        raise OpAtlasError(f"{path} was not written ({error.strerror}): {remedy}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if handle >= 0:
            os.close(handle)


def _temporary_beside(path: Path, mode: int) -> tuple[int, str]:
    """Creates an empty, locked file next to `path`; returns its handle and name. The lock marks a living writer."""
    while True:
        temporary = f"{path.parent / f'.{path.name}.{secrets.token_hex(8)}'}{TEMPORARY_SUFFIX}"
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        # Not every file system has locks.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have removed the file as abandoned before it was locked.
        if os.path.exists(temporary):
            return handle, temporary
        os.close(handle)


def is_abandoned(temporary: Path) -> bool:
    """Returns whether a file is a temporary file of `write_atomically` whose process has ended."""
    if not _TEMPORARY_NAME.fullmatch(temporary.name) or temporary.is_symlink() or not temporary.is_file():
        return False
    try:
        handle = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks: a write takes seconds.
        return time.time() - os.fstat(handle).st_mtime > _ABANDONED_AFTER_S
    finally:
        os.close(handle)
    return True


def _sync(path: Path | str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
