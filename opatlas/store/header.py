"""The header of a CSV file: its columns, their older names, and those that may be misspelt."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from opatlas.errors import TableError
from opatlas.files import UnsafePath, open_own
from opatlas.model.communication import is_communication
from opatlas.model.schema import (
    AVERAGE,
    BANDWIDTH,
    BASE,
    BUS_BANDWIDTH,
    DURATION,
    EP_SIZE,
    LEGACY_COUNTER,
    LEGACY_MICROBENCH,
    LEGACY_PROFILING_MEDIAN,
    LEGACY_PROFILING_STD,
    MESSAGE,
    MESSAGE_BYTES,
    NUM_DEVICES,
    OWN,
    PROFILING_AVERAGE,
    PROFILING_DURATIONS,
    PROFILING_MEDIAN,
    PROFILING_STD,
    REQUIRED,
    RUNTIME,
    is_microbench_column,
    profiling_counter,
)
from opatlas.text import alike
from opatlas.text_format import (
    SAVE_AS_UTF8,
    SAVE_OR_RESTORE,
    SAVE_WITH_COMMAS,
    no_text,
    other_separator,
    undecodable_cell,
    wide_encoding,
)

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_BOM = b"\xef\xbb\xbf"
RESTORE = "Repair the line, or restore the file from version control"
_COLUMNS_SHOWN = 12
#: What has no end of a line is no CSV, and may have no end at all.
LONGEST_HEADER_BYTES = 1 << 20

#: By which a header is told from values.
_NAMES = frozenset({*BASE, AVERAGE, *PROFILING_DURATIONS, *MESSAGE, DURATION})
#: What a column may have been meant to be. MicroBench columns are of any counter, and so of any name.
_OF_KERNELS = (*BASE, AVERAGE, *PROFILING_DURATIONS, EP_SIZE, *RUNTIME, *(n for n in OWN if not n.startswith("Micro")))
_OF_MESSAGES = (*MESSAGE, DURATION, BANDWIDTH, BUS_BANDWIDTH)
_KNOWN = frozenset(
    {*_OF_KERNELS, *_OF_MESSAGES, *OWN, LEGACY_MICROBENCH, LEGACY_PROFILING_MEDIAN, LEGACY_PROFILING_STD}
)
_LINE_END = re.compile(b"\r\n|\n|\r")
#: `Out Formats` is like `Output Formats` (0.88); columns of other tools are not so like any of ours.
_ALIKE = 0.85


@dataclass(frozen=True)
class CsvHeader:
    """The header of a CSV file.

    Attributes:
        names: of the columns, as the file has them, but without blanks around names that OpAtlas knows.
        lines: how many lines the header takes, for names may span lines; a lone carriage return ends a line, too.
        alone: whether nothing stands behind the header.
    """

    names: list[str]
    lines: int
    alone: bool


def read_header(path: Path) -> CsvHeader:
    """Reads the header of a CSV file, without a BOM.

    Raises:
        TableError: no such file, a link out of its folder, or no header, as `parse_header` says.
    """
    try:
        with open_own(path) as file:
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
        TableError: a Git LFS pointer, a packed file, a workbook, an empty file, a blank line, text that is not UTF-8,
            other separators than commas, an open quote, a header without an end, a repeated column.
        OSError: the file cannot be read.
    """
    head = file.read(4096)
    if head.startswith(_LFS_POINTER):
        raise TableError(path, "a Git LFS pointer, not the data itself", "Run `git lfs pull`")
    if not head.removeprefix(_BOM).strip():
        raise TableError(path, "an empty file", "Remove it, or restore it")
    if packed := no_text(head):
        raise TableError(path, f"this is {packed[0]}, not CSV", packed[1])
    if encoding := wide_encoding(head, _NAMES):
        raise TableError(path, f"this is {encoding}, not UTF-8", SAVE_AS_UTF8)
    file.seek(len(_BOM) if head.startswith(_BOM) else 0)
    text: list[bytes] = []
    try:
        names = next(csv.reader(_lines(file, text, path), strict=True), [])
    except UnicodeDecodeError:
        problem = f"the header: {undecodable_cell(text[-1])}"
        raise TableError(path, problem, SAVE_OR_RESTORE, line=len(text)) from None
    except csv.Error as error:
        _expect_commas(text, path)
        raise TableError(path, f"the header is no CSV ({error})", RESTORE, line=1) from None
    if len(names) == 1:
        _expect_commas(text, path)
    if len(names) < 2 and not "".join(names).strip():
        raise TableError(path, "a blank line, no header", RESTORE, line=1)
    names = [_without_blanks(name) for name in names]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated and _NAMES.isdisjoint(names):
        raise _no_header(path)
    if repeated:
        raise TableError(path, f"column {repeated[0]!r} stands twice in the header", "Remove or rename one", line=1)
    lines = len(_LINE_END.findall(b"".join(text)))
    return CsvHeader(names, lines, alone=not file.read(1))


def _expect_commas(text: Sequence[bytes], path: Path) -> None:
    """Raises TableError where something else separates the columns of a header. `text` is its lines."""
    if separator := other_separator(text[0].decode(), _KNOWN):
        raise TableError(path, f"the fields are separated by {separator}", SAVE_WITH_COMMAS, line=1)


def _lines(file: BinaryIO, text: list[bytes], path: Path) -> Iterator[str]:
    """Lines of a file, as a reader of CSV asks for them; `text` gets the same lines.

    Raises TableError, UnicodeDecodeError.
    """
    while line := file.readline(LONGEST_HEADER_BYTES):
        text.append(line)
        size = sum(map(len, text))
        if size >= LONGEST_HEADER_BYTES:
            raise TableError(path, f"no end of the header within {size:,} bytes", RESTORE, line=1)
        yield line.decode("utf-8")


def _without_blanks(name: str) -> str:
    """A column's name, without blanks around it if OpAtlas knows the column: other names are the user's own."""
    stripped = name.strip()
    is_known = stripped in _KNOWN or is_microbench_column(stripped) or LEGACY_COUNTER.fullmatch(stripped)
    return stripped if is_known else name


def expect_columns(path: Path, names: Sequence[str], kernel_type: str = "") -> None:
    """Sees to it that a header is one of a CSV of kernels, or of a collective.

    Args:
        kernel_type: where the file is not named for it.

    Raises:
        TableError: it lacks columns without which there are no rows.
    """
    of_messages = is_communication(kernel_type or path.stem)
    missing = [name for name in ((MESSAGE_BYTES, NUM_DEVICES) if of_messages else REQUIRED) if name not in names]
    if missing:
        raise _without_columns(path, names, missing, "communication" if of_messages else "compute")


def _without_columns(path: Path, names: Sequence[str], missing: Sequence[str], kind: str) -> TableError:
    if _NAMES.isdisjoint(names) and any(name and not name.strip("0123456789.,;") for name in names):
        # A number or a shape names no column.
        return _no_header(path)
    meant = {name: like for name in missing if (like := _like(name, names))}
    said = ", ".join(f"{name!r}" + (f" (is {meant[name]!r} it?)" if name in meant else "") for name in missing)
    more = f", and {len(names) - _COLUMNS_SHOWN} more" if len(names) > _COLUMNS_SHOWN else ""
    # One that is like it says more than a list.
    there = "" if meant else f"; the columns are: {', '.join(names[:_COLUMNS_SHOWN])}{more}"
    remedy = f"Correct the header; where this is not a {kind} CSV, move it out of the database"
    return TableError(path, f"no column {said}{there}", remedy, line=1)


def misspelt_columns(path: Path, names: Sequence[str], kernel_type: str = "") -> list[str]:
    """Columns that we do not know and that are like one that a file lacks, as sentences.

    Args:
        path: of the file.
        names: its columns, by today's names.
        kernel_type: where the file is not named for it.
    """
    return [
        f"{path}:1: column {name!r} is not known (did you mean {like!r}?): it is kept as it is, and not used"
        for name, like in _unknown_and_like(tuple(names), is_communication(kernel_type or path.stem))
    ]


@lru_cache(maxsize=64)
def _unknown_and_like(names: tuple[str, ...], of_messages: bool) -> tuple[tuple[str, str], ...]:
    """Unknown columns, each with the one that it is like. The files of a database have few headers between them."""
    ours = _OF_MESSAGES if of_messages else _OF_KERNELS
    lacking = [name for name in ours if name not in names]
    return tuple(
        (name, like)
        for name in names
        if name not in ours and not is_microbench_column(name) and (like := _like(name, lacking))
    )


def _like(name: str, others: Sequence[str]) -> str:
    """The one of some names that is most like a name; "" where none is."""
    return next(iter(alike(name, others, most=1, least=_ALIKE)), "")


def _no_header(path: Path) -> TableError:
    return TableError(path, "holds values, no header", "Restore the line of the columns' names", line=1)


def current_names(columns: list[str]) -> dict[str, str]:
    """Today's names for the columns of files that older tools wrote."""
    names = {}
    if LEGACY_PROFILING_MEDIAN in columns and PROFILING_AVERAGE not in columns:
        # A profiling file from before the prefixes: its average is the profiling one.
        names[LEGACY_PROFILING_MEDIAN] = PROFILING_MEDIAN
        if LEGACY_PROFILING_STD in columns:
            names[LEGACY_PROFILING_STD] = PROFILING_STD
        if AVERAGE in columns:
            names[AVERAGE] = PROFILING_AVERAGE
        for column in columns:
            counter = LEGACY_COUNTER.fullmatch(column)
            if counter:
                names[column] = profiling_counter(counter["counter"])
    if LEGACY_MICROBENCH in columns and (AVERAGE not in columns or AVERAGE in names):
        names[LEGACY_MICROBENCH] = AVERAGE
    return names
