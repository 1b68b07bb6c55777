"""The header of a CSV file: its columns, and their older names."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from opatlas.errors import TableError
from opatlas.files import UnsafePath, open_safely
from opatlas.row import columns as col
from opatlas.row.communication import row_kind
from opatlas.text import (
    NOT_TEXT,
    SAVE_AS_UTF8,
    SAVE_OR_RESTORE,
    SAVE_WITH_COMMAS,
    close_matches,
    is_text,
    other_separator,
    undecodable_cell,
)

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_BOM = b"\xef\xbb\xbf"
RESTORE = "Repair the line, or restore the file from version control"
_COLUMNS_SHOWN = 12
#: A longer header is refused.
LONGEST_HEADER_BYTES = 1 << 20

_KNOWN = frozenset({*col.COLUMNS} | {col.LEGACY_MICROBENCH, col.LEGACY_PROFILING_MEDIAN, col.LEGACY_PROFILING_STD})
_LINE_END = re.compile(b"\r\n|\n|\r")
#: Least similarity of a misspelt name: `Out Formats` and `Output Formats` have 0.88.
_ALIKE = 0.85


@dataclass(frozen=True)
class CsvHeader:
    """The header of a CSV file.

    Attributes:
        names: the columns, as in the file, but without blanks around names that OpAtlas knows.
        lines: the number of lines of the header; names may span lines, and a carriage return ends a line.
        alone: whether nothing follows the header.
    """

    names: list[str]
    lines: int
    alone: bool


def read_header(path: Path) -> CsvHeader:
    """Reads the header of a CSV file, without a BOM.

    Raises:
        TableError: the file is missing, links out of its folder, or has no header (see `parse_header`).
    """
    try:
        with open_safely(path) as file:
            return parse_header(file, path)
    except UnsafePath as error:
        raise TableError(path, error.problem, error.remedy.capitalize()) from None
    except OSError as error:
        raise TableError(path, f"cannot be read ({error.strerror})", "Check the path and its permissions") from None


def parse_header(file: BinaryIO, path: Path) -> CsvHeader:
    """Reads the header at the beginning of a file.

    Args:
        path: names the file in errors.

    Raises:
        TableError: the file is a Git LFS pointer, no text or empty, or the header is blank, not UTF-8, not separated by
            commas, has an open quote, no end, or a repeated column.
        OSError: the file cannot be read.
    """
    head = file.read(4096)
    if head.startswith(_LFS_POINTER):
        raise TableError(path, "a Git LFS pointer, not the data itself", "Run `git lfs pull`")
    if not head.removeprefix(_BOM).strip():
        raise TableError(path, "an empty file", "Remove it, or restore it")
    file.seek(len(_BOM) if head.startswith(_BOM) else 0)
    text: list[bytes] = []
    try:
        names = next(csv.reader(_lines(file, text, path), strict=True), [])
    except UnicodeDecodeError:
        problem = f"the header: {undecodable_cell(text[-1])}"
        raise TableError(path, problem, SAVE_OR_RESTORE, line=len(text)) from None
    except csv.Error as error:
        _expect_commas(text, path)
        raise TableError(path, f"the header is not CSV ({error})", RESTORE, line=1) from None
    if len(names) == 1:
        _expect_commas(text, path)
    if len(names) < 2 and not "".join(names).strip():
        raise TableError(path, "a blank line, no header", RESTORE, line=1)
    names = [_without_blanks(name) for name in names]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise TableError(path, f"column {repeated[0]!r} is repeated in the header", "Remove or rename one", line=1)
    lines = len(_LINE_END.findall(b"".join(text)))
    return CsvHeader(names, lines, alone=not file.read(1))


def _expect_commas(text: Sequence[bytes], path: Path) -> None:
    """Raises TableError if the columns of a header are not separated by commas. `text` has its lines."""
    if separator := other_separator(text[0].decode(), _KNOWN):
        raise TableError(path, f"the fields are separated by {separator}", SAVE_WITH_COMMAS, line=1)


def _lines(file: BinaryIO, text: list[bytes], path: Path) -> Iterator[str]:
    """Yields the lines of a file, and appends them to `text`. Raises TableError, UnicodeDecodeError."""
    while line := file.readline(LONGEST_HEADER_BYTES):
        if not is_text(line):
            raise TableError(path, NOT_TEXT, SAVE_AS_UTF8)
        text.append(line)
        size = sum(map(len, text))
        if size >= LONGEST_HEADER_BYTES:
            raise TableError(path, f"no end of the header within {size:,} bytes", RESTORE, line=1)
        yield line.decode("utf-8")


def _without_blanks(name: str) -> str:
    """Returns the name of a column, stripped if OpAtlas knows the column."""
    stripped = name.strip()
    is_known = stripped in _KNOWN or col.is_microbench_column(stripped) or col.LEGACY_COUNTER.fullmatch(stripped)
    return stripped if is_known else name


def expect_columns(path: Path, names: Sequence[str], kernel_type: str = "") -> None:
    """Checks that a header has the required columns of a compute CSV, or of a collective.

    Args:
        kernel_type: the kernel type; default: the name of the file.

    Raises:
        TableError: a required column is missing.
    """
    kind = row_kind(kernel_type or path.stem)
    missing = [name for name in kind.required_columns if name not in names]
    if not missing:
        return
    meant = {name: like[0] for name in missing if (like := close_matches(name, names, most=1, least=_ALIKE))}
    said = ", ".join(f"{name!r}" + (f" (is {meant[name]!r} it?)" if name in meant else "") for name in missing)
    more = f", and {len(names) - _COLUMNS_SHOWN} more" if len(names) > _COLUMNS_SHOWN else ""
    # With a suggestion the list of columns is not needed.
    there = "" if meant else f"; the columns are: {', '.join(names[:_COLUMNS_SHOWN])}{more}"
    table = "communication" if kind.is_message else "compute"
    remedy = f"Correct the header; if this is not a {table} CSV, move it out of the database"
    raise TableError(path, f"no column {said}{there}", remedy, line=1)


def current_names(columns: list[str]) -> dict[str, str]:
    """Returns the current names of columns that older tools wrote."""
    names = {}
    if col.LEGACY_PROFILING_MEDIAN in columns and col.PROFILING_AVERAGE not in columns:
        # In a file without the prefix "Profiling", the average is the captured one.
        names[col.LEGACY_PROFILING_MEDIAN] = col.PROFILING_MEDIAN
        if col.LEGACY_PROFILING_STD in columns:
            names[col.LEGACY_PROFILING_STD] = col.PROFILING_STD
        if col.AVERAGE in columns:
            names[col.AVERAGE] = col.PROFILING_AVERAGE
        for column in columns:
            counter = col.LEGACY_COUNTER.fullmatch(column)
            if counter:
                names[column] = col.profiling_counter(counter["counter"])
    if col.LEGACY_MICROBENCH in columns and (col.AVERAGE not in columns or col.AVERAGE in names):
        names[col.LEGACY_MICROBENCH] = col.AVERAGE
    return names
