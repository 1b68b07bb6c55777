"""Text for people: printable, short, counted in words, with suggestions for misspelt names; numbers in a text; files
that are not text in UTF-8 with commas.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import TypeVar

#: Innermost template arguments.
_BRACKETS = re.compile(r"<[^<>]*>")


W = TypeVar("W", bound="Word")


class Word(str, Enum):
    """An enumeration of words, whose text is the word itself (enum.StrEnum of Python 3.11)."""

    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def from_cell(cls: type[W], cell: str) -> W | None:
        """Returns the word in a cell, in any case; None for an empty cell or an unknown word."""
        try:
            return cls(cell.strip().lower())
        except ValueError:
            return None


def printable(text: str, *, keeps: str = "") -> str:
    r"""Returns `text` with control characters and lone surrogates escaped (`\x1b`, `\udcff`), except those in `keeps`.

    Text of a database or a capture may come from a stranger, and a terminal executes control characters. Characters
    that change the direction of writing are escaped, too.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keeps else ascii(character)[1:-1] for character in text
    )


def printable_lines(text: str) -> str:
    """Returns printable text that keeps its line breaks and tabs."""
    return printable(text, keeps="\n\t")


def pluralize(number: int, one: str, more: str = "") -> str:
    """Returns `1 row` or `2,410 rows`. `more` is the plural, if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def close_matches(name: str, known: Iterable[str], most: int, least: float) -> list[str]:
    """Returns the known names that are similar to a name, in upper or lower case, the most similar first.

    Args:
        most: the largest number of names.
        least: the smallest similarity, from 0 to 1 (equal).
    """
    by_lower = {other.lower(): other for other in known}
    return [by_lower[found] for found in difflib.get_close_matches(name.lower(), by_lower, most, least)]


def suggest(name: str, known: Iterable[str], *, least: float = 0.5) -> str:
    """Returns ` (did you mean ...?)` for a misspelt name; "" if no known name is similar.

    Args:
        least: the smallest similarity, from 0 to 1.
    """
    found = close_matches(name, known, most=3, least=least)
    return f" (did you mean {', '.join(found)}?)" if found else ""


#: Characters for the line that says how much was left out.
_ROOM_FOR_NOTE = 60


def first_line(text: str) -> str:
    """Returns the first line that is not empty; "no message" for an empty text."""
    return _lines(text)[0]


def last_line(text: str) -> str:
    """Returns the last line, where a failed program names the reason; "no message" for an empty text."""
    return _lines(text)[-1]


#: torch.utils.cpp_extension quotes the compiler's command, of hundreds of characters, before the compiler's errors.
_BUILD_COMMAND = re.compile(r"(Error building extension '[^']*': ).*?^(?=[^\n]*\berror: )", re.MULTILINE | re.DOTALL)


def without_build_command(message: str) -> str:
    """Returns the message of a failed build of an extension from the compiler's first error on; others unchanged."""
    return _BUILD_COMMAND.sub(r"\1", message, count=1)


def exception_line(error: BaseException) -> str:
    """Returns the type of an exception and the first line of its message."""
    return f"{type(error).__name__}: {first_line(without_build_command(exception_message(error)))}"


def exception_message(error: BaseException) -> str:
    """Returns the message of an exception, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as unreadable:
        return f"its message cannot be read: __str__ raised {type(unreadable).__name__}"


def shortened(text: str, most: int = 120) -> str:
    """Returns printable text of one line, cut to about `most` characters, for what a user named."""
    text = printable(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def cut_middle(text: str, most: int) -> str:
    """Returns `text`, or the beginning and the end of a text that is longer than `most` characters.

    Args:
        most: at least 200.
    """
    if len(text) <= most:
        return text
    kept = most - _ROOM_FOR_NOTE
    end = kept // 2
    return f"{text[: kept - end]}\n[... {len(text) - kept} characters left out ...]\n{text[len(text) - end :]}"


def _lines(text: str) -> list[str]:
    return text.strip().splitlines() or ["no message"]


#: A whole number with this many digits is less than 2**63.
MOST_DIGITS = 18


def parse_whole(text: str) -> int | None:
    """Returns the whole number (0 or more) that a text holds; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def parse_real(text: str) -> float | None:
    """Returns the number that a text holds, infinities and NaN included; None for any other text."""
    if not text.isascii() or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


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


def kernel_name(name: str) -> str:
    """Returns the name of a kernel without return type, template arguments and parameters: `at::native::gemm`.

    Those of copies and fills stay.
    """
    if name.startswith(("Memcpy", "Memset")):
        return name
    plain = name
    while plain != (inner := _BRACKETS.sub("", plain)):
        plain = inner
    words = plain.replace("(anonymous namespace)::", "").partition("(")[0].split()
    return words[-1] if words else name
