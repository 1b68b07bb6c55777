"""Recognises files that are not CSV in UTF-8 with commas: packed files, workbooks, other encodings and separators."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence

SAVE_AS_UTF8 = "Save it as CSV UTF-8, with commas between the fields"
SAVE_WITH_COMMAS = "Save it with commas between the fields"
SAVE_OR_RESTORE = "Save it as CSV UTF-8, or restore it from version control"

_SEPARATORS = {";": "';'", "\t": "tabs", "|": "'|'"}
_UNPACK = "Unpack it, and name the unpacked file"
_EXPORT_SHEET = "Save its sheet as CSV UTF-8, with commas between the fields"
_EXPORT_CSV = "Export it as CSV: `msprof --export=on` does so for a profile"
#: The first bytes of formats, with their names and a remedy. Workbooks are zip archives with a folder named xl.
_NO_TEXT = {
    b"\x1f\x8b": ("packed by gzip", "Unpack it: `gunzip`"),
    b"PK\x03\x04": ("a zip archive, or a workbook of a spreadsheet", f"{_UNPACK}; or save the sheet as CSV UTF-8"),
    b"\xd0\xcf\x11\xe0": ("a workbook of a spreadsheet (.xls)", _EXPORT_SHEET),
    b"\x28\xb5\x2f\xfd": ("packed by zstd", "Unpack it: `unzstd`"),
    b"\xfd7zXZ": ("packed by xz", "Unpack it: `unxz`"),
    b"BZh": ("packed by bzip2", "Unpack it: `bunzip2`"),
    b"SQLite format 3": ("an SQLite database", _EXPORT_CSV),
}
_WORKBOOK = ("a workbook of a spreadsheet (.xlsx)", _EXPORT_SHEET)
#: Byte order marks. UTF-32 comes first: its mark begins with the mark of UTF-16.
_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
#: The number of known column names that prove another separator.
_ENOUGH_COLUMNS = 2


def binary_format(head: bytes) -> tuple[str, str] | None:
    """Returns the name of a binary format and a remedy; None for a file that may hold text.

    Args:
        head: the first bytes of the file.
    """
    for mark, (what, remedy) in _NO_TEXT.items():
        if head.startswith(mark):
            return (
                _WORKBOOK
                if mark == b"PK\x03\x04" and (b"xl/" in head or b"[Content_Types]" in head)
                else (what, remedy)
            )
    return None


def wide_encoding(head: bytes, known: Collection[str]) -> str:
    """Returns "UTF-16" or "UTF-32" if a file begins with text in that encoding; "" otherwise.

    Args:
        head: the first bytes of the file.
        known: names of columns, which reveal UTF-16 without a byte order mark.
    """
    for mark, encoding in _MARKS.items():
        if head.startswith(mark):
            return encoding
    has_name = any(name.encode(codec) in head for name in known for codec in ("utf-16-le", "utf-16-be"))
    return "UTF-16" if has_name else ""


def other_separator(line: str, known: Collection[str]) -> str:
    """Returns the name of the separator of a header without commas; "" if no other separator fits.

    Args:
        line: the header.
        known: names of columns; a separator fits if it separates two of them.
    """
    for separator, name in _SEPARATORS.items():
        cells = _cells(line, separator)
        if len({cell.strip() for cell in cells}.intersection(known)) >= _ENOUGH_COLUMNS:
            return name
    return ""


def undecodable_cell(line: bytes, names: Sequence[str] = ()) -> str:
    """Describes the first cell of a line that is not UTF-8, with the text that Windows-1252 would give.

    Args:
        line: a line that cannot be decoded as UTF-8.
        names: the names of the columns; empty for the header itself.
    """
    cells = _cells(line.decode(errors="surrogateescape"), ",")
    for number, cell in enumerate(cells):
        raw = cell.encode(errors="surrogateescape")
        try:
            raw.decode()
        except UnicodeDecodeError:
            column = f"column {names[number]!r}: " if len(names) == len(cells) else ""
            return f"{column}{raw.decode('cp1252', errors='replace')!r} is not UTF-8 (Latin-1 or Windows-1252?)"
    return "the line is not UTF-8"


def _cells(line: str, separator: str) -> list[str]:
    """Returns the cells of a line; no cells if a quoted cell does not end in the line."""
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []
