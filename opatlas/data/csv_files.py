"""Reads and writes CSV files. Every cell is text.

Cells keep their exact text, so unknown columns and untouched numbers survive a rewrite unchanged. A file is replaced in
one step: after a crash there is the old file or the new one.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import fcntl
import io
import itertools
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv

from opatlas.data.header import RESTORE, CsvHeader, current_names, expect_columns, parse_header, read_header
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import open_safely, safe_file
from opatlas.row.row_kind import row_kind
from opatlas.text import printable_lines
from opatlas.text_format import SAVE_OR_RESTORE, undecodable_cell

if TYPE_CHECKING:
    import pandas as pd

#: Arrow reads blocks of this size; a record must fit into a block.
_BLOCK_BYTES = 8 << 20
#: Arrow stores the size of a block in 32 bits.
_LARGEST_BLOCK_BYTES = (1 << 31) - 1
#: Byte order mark at the beginning of a file.
_BOM = "\ufeff"
#: Characters of a cell that an error shows.
_CELL_SHOWN = 80
_TEXT = pa.large_string()
#: Tables with fewer rows are written row by row, which is faster for few rows of many columns.
FEW_ROWS = 200
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


def read_frame(path: Path, kernel_type: str = "") -> pd.DataFrame:
    """Reads the CSV of a kernel type as a table of pandas. Args and errors are those of `read_table`."""
    frame: pd.DataFrame = read_table(path, kernel_type).to_pandas()
    return frame


def read_table(path: Path, kernel_type: str = "") -> pa.Table:
    """Reads the CSV of a kernel type as text cells, and translates older column names.

    Args:
        kernel_type: the kernel type; default: the name of the file.

    Raises:
        TableError: the file is missing, a Git LFS pointer or empty, has the header of another CSV, a repeated column, a
            line with another number of fields, or text that is not UTF-8.
    """
    table = _read_text(path)
    expect_columns(path, table.column_names, kernel_type)
    if not row_kind(kernel_type or path.stem).has_former_names:
        return table
    names = current_names(table.column_names)
    return table.rename_columns([names.get(name, name) for name in table.column_names]) if names else table


def text_table(columns: Iterable[str], rows: Sequence[Mapping[str, str]] = ()) -> pa.Table:
    """Returns a table of text cells; `rows` are cells by column, and a cell that a row lacks is empty."""
    if not rows:
        # To make arrays imports pandas.
        return pa.Table.from_batches([], pa.schema({name: pa.string() for name in columns}))
    return pa.table({name: pa.array([row.get(name, "") for row in rows], type=pa.string()) for name in columns})


def read_text_csv(path: Path) -> pd.DataFrame:
    """Reads any CSV file as text cells. Raises TableError with the line."""
    frame: pd.DataFrame = _read_text(path).to_pandas()
    return frame


def _read_text(path: Path) -> pa.Table:
    """Raises TableError."""
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


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """Writes text cells as CSV (UTF-8, `\\n`, no BOM) in one step; `read_text_csv` returns the same names and cells.

    Raises:
        TableError: a name or a cell would be read differently; the old file is intact.
        OpAtlasError: the folder cannot be written, or the disk is full; the old file is intact.
    """
    header = _header_line(frame, path)
    try:
        write_atomically(path, lambda temporary: _write_csv(frame, header, temporary))
    except UnicodeEncodeError as error:
        raise _not_encodable(frame, path, error) from None


def _header_line(frame: pd.DataFrame, path: Path) -> bytes:
    """Returns the header of a table as a line. Raises TableError if the names would be read differently."""
    names = [str(name) for name in frame.columns]
    remedy = "Rename the column; nothing was written"
    try:
        line = (",".join(_quote_cells(pa.array(names, type=_TEXT)).to_pylist()) + "\n").encode()
        again = parse_header(io.BytesIO(line), path).names
    except UnicodeEncodeError as error:
        raise TableError(path, f"a column name cannot be encoded as UTF-8 ({error})", remedy, line=1) from None
    except TableError as error:
        raise TableError(path, f"the header could not be read again: {error.problem}", remedy, line=1) from None
    for name, found in itertools.zip_longest(names, again):
        if name != found:
            raise TableError(path, f"column {name!r} would be read again as {found!r}", remedy, line=1)
    return line


def _not_encodable(frame: pd.DataFrame, path: Path, error: UnicodeEncodeError) -> TableError:
    for name in frame.columns:
        for row, cell in enumerate(frame[name], start=2):
            try:
                str(cell).encode()
            except UnicodeEncodeError:
                said = ascii(cell)[:_CELL_SHOWN]
                remedy = "Correct the cell; nothing was written"
                return TableError(path, f"column {name!r}: {said} cannot be encoded as UTF-8", remedy, line=row)
    return TableError(path, f"a cell cannot be encoded as UTF-8 ({error})", "Correct the cell; nothing was written")


def _write_csv(frame: pd.DataFrame, header: bytes, path: str) -> None:
    """Writes text cells as `frame.to_csv` does, but by columns, which is ten times faster for many rows."""
    if len(frame) <= FEW_ROWS:
        # itertuples takes a tenth of a millisecond for each column, however few rows there are.
        rows = frame.to_numpy(dtype=object).tolist()
        # Some versions of csv do not quote a single carriage return, which readers take for the end of a line.
        if not any("\r" in cell or cell.startswith(_BOM) for row in rows for cell in row):
            with open(path, "wb") as binary:
                binary.write(header)
            with open(path, "a", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)
            return
    # It takes 25 ms to import, which readers do without.
    import pyarrow.compute as pc

    columns = [pa.array(frame[name], type=_TEXT) for name in frame.columns]
    comma = pa.scalar(",", type=_TEXT)
    with open(path, "wb") as binary:
        binary.write(header)
        for start in range(0, len(frame), ROWS_PER_WRITE):
            rows = [column.slice(start, ROWS_PER_WRITE) for column in columns]
            cells = [_quote_cells(column, alone=len(columns) == 1) for column in rows]
            lines = pc.binary_join_element_wise(*cells, comma)
            binary.write(("\n".join(lines.to_pylist()) + "\n").encode())


def _quote_cells(cells: pa.Array, *, alone: bool = False) -> pa.Array:
    """Returns cells, quoted where necessary. `alone`: whether this is the only column; its empty cells need quotes."""
    import pyarrow.compute as pc

    special = pc.match_substring_regex(cells, f'[",\r\n]|^{_BOM}' + ("|^$" if alone else ""))
    if not pc.any(special).as_py():
        return cells
    quote, nothing = pa.scalar('"', type=_TEXT), pa.scalar("", type=_TEXT)
    doubled = pc.replace_substring(cells, '"', '""')
    return pc.if_else(special, pc.binary_join_element_wise(quote, doubled, quote, nothing), cells)


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes a small CSV file, such as a report, in one step. Raises OpAtlasError."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(_printable_cells, rows))
    write_text(path, text.getvalue())


def _printable_cells(row: Sequence[object]) -> Sequence[object]:
    """Escapes control characters, which a terminal would execute."""
    # Nearly all rows have none, which one look at a row shows.
    if "".join(map(str, row)).isprintable():
        return row
    return [printable_lines(cell) if isinstance(cell, str) else cell for cell in row]


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file in one step. Raises OpAtlasError."""
    write_atomically(path, lambda temporary: Path(temporary).write_bytes(content))


def write_text(path: Path, text: str) -> None:
    """Writes a text file in one step; lone surrogates are escaped (`\\udcff`). Raises OpAtlasError."""
    content = text.encode(errors="backslashreplace")
    write_atomically(path, lambda temporary: Path(temporary).write_bytes(content))


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
