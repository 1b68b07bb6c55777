"""Pieces of what commands print, in lines that fit a terminal of 80 columns."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_COLUMNS = 80
_PROBLEMS_SHOWN = 20
#: Of further lines of a table's row.
_INDENT = 4


def printable(text: str, *, keeps: str = "") -> str:
    r"""Text whose control characters and lone surrogates are escaped (`\x1b`, `\udcff`), but for those in `keeps`.

    Text of a database or a capture may come from anybody, and a terminal obeys what it is shown. Characters that turn
    the direction of writing are escaped too.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in keeps else ascii(character)[1:-1] for character in text
    )


def printable_lines(text: str) -> str:
    """Returns printable text that keeps its lines, for the terminal and for reports."""
    return printable(text, keeps="\n\t")


def show(text: str) -> None:
    """Prints text on stdout, whoever it comes from."""
    print(printable_lines(text), flush=True)


def print_problems(texts: Sequence[str], *, word: str = "error", total: int | None = None, what: str = "") -> None:
    """Tells on stderr what the user should see to, a line each; the first ones of many.

    Args:
        word: what each line begins with.
        total: how many there are, where `texts` are only the first ones.
        what: they are: `malformed lines`.
    """
    for text in texts[:_PROBLEMS_SHOWN]:
        print(wrap_for_stderr(f"{word}: {text}"), file=sys.stderr)
    more = (len(texts) if total is None else total) - len(texts[:_PROBLEMS_SHOWN])
    if more:
        print(printable_lines(f"{word}: and {more:,} more {what}").rstrip(), file=sys.stderr)


def wrap_for_stderr(text: str) -> str:
    """Printable `text` for stderr: broken at blanks on a terminal, and one line, for a search, anywhere else."""
    text = printable_lines(text)
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    # What has lines of its own keeps them.
    return "\n".join(_broken(line, width, "", "  ") for line in text.split("\n"))


def count_lines(counts: Iterable[tuple[str, int, str]]) -> list[str]:
    """What was counted, how many, and more about it: `rows               2,463   2,422 ingested, 41 left out`."""
    return [f"{what:14}{count:>10,}   {more}".rstrip() for what, count, more in counts]


def unknown_dtype_lines(rows: Counter[str]) -> list[str]:
    """What is said of rows with dtypes that are none of ours, counted by dtype; nothing where there is none."""
    if not rows:
        return []
    words = ", ".join(f"{word} ({pluralize(count, 'row')})" for word, count in rows.most_common(3))
    return ["", wrap(f"kept, with a dtype that OpAtlas does not know: {words}", indent=0)]


def table_lines(rows: Sequence[Sequence[str]], width: int | None = None) -> list[str]:
    """Returns rows of cells in aligned columns, without blanks at the ends of lines.

    Args:
        rows: the header among them; all have the same columns.
        width: of a line. Columns beyond it follow in further lines of their row, indented. None: the terminal's
            width; one line a row where the output is no terminal, for a search.
    """
    width = _output_width() if width is None else width
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        for place, columns in enumerate(_columns_of_lines(widths, width)):
            text = "  ".join(row[column].ljust(widths[column]) for column in columns).rstrip()
            if not place:
                lines.append(text)
            elif len(text) + _INDENT <= width:
                lines += [" " * _INDENT + text] if text else []
            else:
                lines += textwrap.wrap(text, width, initial_indent=" " * _INDENT, subsequent_indent=" " * 2 * _INDENT)
    return lines


def _columns_of_lines(widths: Sequence[int], width: int) -> list[list[int]]:
    """Returns which columns each line of a row has, so that as many as possible fit into each."""
    lines: list[list[int]] = [[]]
    end = 0
    for column, wide in enumerate(widths):
        if lines[-1] and end + wide > width:
            lines.append([])
            end = _INDENT
        lines[-1].append(column)
        end += wide + 2
    return lines


def _output_width() -> int:
    """Returns the columns of the terminal that stdout is, or that COLUMNS says; else more than any line needs."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else 1 << 20


def terminal_columns() -> int:
    """The columns that pytest's reporter has: those of the terminal or of COLUMNS; 80 where there is none."""
    found = shutil.get_terminal_size(fallback=(_COLUMNS, 24)).columns
    # As pytest: a narrower terminal is taken for one that does not tell.
    return found if found >= 40 else _COLUMNS


def pluralize(number: int, one: str, more: str = "") -> str:
    """`1 row`, `2,410 rows`; `more` is what several are called, where that is not `one` and an s."""
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def shorten(text: str, width: int) -> str:
    """`text`, or its beginning and `..`, in `width` columns."""
    return text if len(text) <= width else text[: width - 2] + ".."


def wrap(text: str, indent: int) -> str:
    """`text` in indented lines, broken at blanks; further lines are indented twice as far."""
    return _broken(text, _COLUMNS, " " * indent, " " * (2 * indent))


def _broken(text: str, width: int, first: str, further: str) -> str:
    """`first` and `further` are the beginnings of lines. A path stays whole."""
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
    )


Counts = TypeVar("Counts", bound="DataclassInstance")


def add_counts(total: Counts, part: Counts) -> None:
    """Adds the fields of a part, which are numbers, lists and Counters, to those of the whole."""
    for field in fields(total):
        setattr(total, field.name, getattr(total, field.name) + getattr(part, field.name))


def close_matches(name: str, known: Iterable[str], most: int, least: float) -> list[str]:
    """Those names that a name is like, upper or lower case, the likest first.

    Args:
        most: so many.
        least: how like they are at least, from 0 to 1 (the same).
    """
    by_lower = {other.lower(): other for other in known}
    return [by_lower[found] for found in difflib.get_close_matches(name.lower(), by_lower, most, least)]


def suggest(name: str, known: Iterable[str], *, least: float = 0.5) -> str:
    """` (did you mean ...?)` for a misspelt name; "" where nothing is like it.

    Args:
        least: how like it must be at least, from 0 to 1.
    """
    found = close_matches(name, known, most=3, least=least)
    return f" (did you mean {', '.join(found)}?)" if found else ""


#: Of a reason, which becomes a cell of a CSV and a line on the terminal.
MOST_CHARACTERS = 1_000
#: Of the detail of a failure, such as a traceback with a message of megabytes.
MOST_CHARACTERS_OF_DETAIL = 100_000
#: For the line that says how much was left out.
_ROOM_FOR_NOTE = 60


def first_line(text: str) -> str:
    """The first line that is not empty; "no message" if there is none."""
    return _lines(text)[0]


def last_line(text: str) -> str:
    """The last line, in which a program that fails says why; "no message" if there is none."""
    return _lines(text)[-1]


def exception_line(error: BaseException) -> str:
    """The type of an exception, and the first line of its message."""
    return f"{type(error).__name__}: {first_line(exception_message(error))}"


def exception_message(error: BaseException) -> str:
    """The message of an exception, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as unreadable:
        return f"its message cannot be read: __str__ raised {type(unreadable).__name__}"


def reason_text(text: str) -> str:
    """Printable text of one line and at most MOST_CHARACTERS, the last of which is an ellipsis if text is missing."""
    # The beginning alone first: a text of megabytes takes seconds to escape.
    text = printable(" ".join(text[: MOST_CHARACTERS + 1].splitlines()))
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def detail_text(text: str) -> str:
    """Printable text of several lines and at most MOST_CHARACTERS_OF_DETAIL; a longer text loses its middle."""
    text = cut_middle(text, MOST_CHARACTERS_OF_DETAIL)
    return cut_middle(printable_lines(text), MOST_CHARACTERS_OF_DETAIL)


def cut_middle(text: str, most: int) -> str:
    """A text of at most `most` characters; of a longer one the beginning, the end, and how much was between them.

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


#: A whole number of so many digits is less than 2**63.
MOST_DIGITS = 18


def parse_whole(text: str) -> int | None:
    """The whole number, 0 or more, that a text is; None if it is something else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def parse_real(text: str) -> float | None:
    """The number that a text is, which may be infinite or NaN; None if it is something else."""
    if not text.isascii() or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None
