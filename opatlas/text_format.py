"""Recognises files that are not text in UTF-8 with commas."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence

from opatlas.text import shortened

SAVE_AS_UTF8 = "Unpack it if it is packed, and save it as CSV UTF-8, with commas between the fields"
SAVE_WITH_COMMAS = "Save it with commas between the fields"
SAVE_OR_RESTORE = "Save it as CSV UTF-8, or restore it from version control"
NOT_TEXT = "this is not text in UTF-8 (UTF-16, a workbook, or a packed file?)"

_SEPARATORS = {";": "';'", "\t": "tabs", "|": "'|'"}
#: Characters of a cell that is not UTF-8 in a message.
_SHOWN = 80
#: The number of known column names that prove another separator.
_ENOUGH_COLUMNS = 2


def is_text(line: bytes) -> bool:
    """Returns whether the first line of a file may be text in UTF-8: UTF-16 and packed formats have zero bytes."""
    return b"\0" not in line


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
            shown = shortened(raw.decode("cp1252", errors="replace"), _SHOWN)
            return f"{column}{shown!r} is not UTF-8 (Latin-1, Windows-1252 or GBK?)"
    return "the line is not UTF-8"


def _cells(line: str, separator: str) -> list[str]:
    """Returns the cells of a line; no cells if a quoted cell does not end in the line."""
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []
