"""What a command found: tables, fields and lines, which hold values; and their texts: terminal, Markdown, CSV, JSON.

Control characters are escaped here.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from textwrap import wrap
from typing import Any
from unicodedata import east_asian_width

import msgspec

from opatlas.formats import number
from opatlas.text import printable, printable_lines


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: its header; with the unit, where the values have one: `median(us)`.
        text: turns a value into the text of a cell, such as `opatlas.formats.percent`; None is an empty cell.
        wide: whether only CSV and JSON have the column.
    """

    name: str
    text: Callable[[Any], str] = str
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values.

    Attributes:
        columns: a name alone stands for a column of texts or whole numbers.
        rows: a value for each column; None and "" are empty cells. People are not shown a column of these alone.
        title: a line above the table; it names the table in JSON.
        left_out: the number of further rows that the table does not hold.
        weight: what is larger for a row that matters more, where not all are shown; None: the first rows matter most.
        detail: whether a screen does without the table.
    """

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    left_out: int = 0
    weight: Callable[[Sequence[Any]], Any] | None = None
    detail: bool = False

    def full_columns(self) -> list[Column]:
        """Returns the columns, with those that are given by a name alone."""
        return [Column(each) if isinstance(each, str) else each for each in self.columns]

    def shown_columns(self) -> list[tuple[int, Column]]:
        """Returns the columns for people, and their positions: those that are not wide, and in which a cell is."""
        return [
            (index, column)
            for index, column in enumerate(self.full_columns())
            if not column.wide and (not self.rows or any(row[index] not in (None, "") for row in self.rows))
        ]

    def most_important(self, most: int | None) -> Table:
        """Returns the table with its `most` most important rows, those first; unchanged if it has no more, or None."""
        if most is None or len(self.rows) <= most:
            return self
        rows = self.rows if self.weight is None else sorted(self.rows, key=self.weight, reverse=True)
        return replace(self, rows=rows[:most], left_out=self.left_out + len(rows) - most)


@dataclass(frozen=True, slots=True)
class Fields:
    """Names with a value each, such as the counts of an ingest.

    Attributes:
        values: by name; None and "" leave the field out. A tuple is a value with a detail: `(2463, "41 left out")`, and
            leaves the field out, too, if the value does.
        title: a line above the fields.
        detail: whether a screen does without them.
    """

    values: Mapping[str, Any]
    title: str = ""
    detail: bool = False


#: A part of a result. A text is a line. People are not shown a table without rows, and fields without values.
Part = Table | Fields | str


@dataclass(frozen=True, slots=True)
class Result:
    """What a command found.

    Attributes:
        parts: in the order in which they are shown.
        json: what `--json` prints; None: the tables and fields of `parts`.
        problems: lines for stderr: what could not be read or done.
        status: the exit status of the command; None: 1 with problems, else 0.
    """

    parts: Sequence[Part] = ()
    json: Any = None
    problems: Sequence[str] = field(default=())
    status: int | None = None

    @property
    def exit_status(self) -> int:
        return int(bool(self.problems)) if self.status is None else self.status


#: Wider than any line: where no terminal limits it, a row is one line, so that grep finds it.
UNLIMITED = 100_000
#: The lines of a screen, and its columns where no terminal tells them.
SCREEN_LINES, SCREEN_COLUMNS = 24, 120
#: The fewest columns of a terminal that a header and a text get in a table.
_LEAST_HEADER, _LEAST = 12, 16
#: What a text gets where these are too wide, too; columns are then one apart.
_TIGHT = 9
#: The most rows of a table that is first, whatever the others have, and the most lines of a field on a screen.
_FIRST_ROWS = 6
_MOST_LINES = 2
_NUMBERS = (int, float)


def markdown(parts: Iterable[Part]) -> str:
    """Returns GitHub's Markdown, without the end of the last line."""
    blocks = list[str]()
    for part in _not_empty(parts):
        if isinstance(part, str):
            blocks.append(printable_lines(part))
            continue
        table = _as_table(part)
        if table.title:
            blocks.append(f"**{_markdown_cell(printable(table.title))}**")
        columns = table.shown_columns()
        lines = [
            _markdown_row(printable(column.name) for _, column in columns),
            _markdown_row("--:" if _is_number(table, index) else "---" for index, _ in columns),
            *(_markdown_row(_cell_text(column, row[index]) for index, column in columns) for row in table.rows),
        ]
        blocks.append("\n".join(lines))
        if table.left_out:
            blocks.append(f"and {table.left_out:,} more")
    return "\n\n".join(blocks)


def csv_text(parts: Iterable[Part]) -> str:
    """Returns the tables as CSV, with all columns and unrounded values; an empty line between two tables.

    Fields are a table only where there is no other one: a file has one header.
    """
    shown = list(parts)
    tables = [part for part in shown if isinstance(part, Table)]
    texts = list[str]()
    for table in tables or [_as_table(part) for part in shown if isinstance(part, Fields)]:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(printable(column.name) for column in table.full_columns())
        writer.writerows(["" if value is None else printable(str(value)) for value in row] for row in table.rows)
        texts.append(out.getvalue())
    return "\n".join(texts).rstrip("\n")


def json_text(result: Result) -> str:
    """Returns the result as JSON, without the end of the last line. Paths and enumerations become texts."""
    content = _plain_parts(result.parts) if result.json is None else result.json
    return msgspec.json.format(msgspec.json.encode(content, enc_hook=str)).decode()


def _plain_parts(parts: Sequence[Part]) -> dict[str, Any]:
    found = dict[str, Any]()
    for part in parts:
        if isinstance(part, Table):
            names = [column.name for column in part.full_columns()]
            title = part.title or "rows"
            key = title if title not in found else f"{title} {len(found) + 1}"
            found[key] = [dict(zip(names, row, strict=True)) for row in part.rows]
        elif isinstance(part, Fields):
            values = {name: value for name, value, _ in _field_rows(part)}
            found |= {part.title: values} if part.title else values
    return found


def _field_rows(fields: Fields) -> Iterator[tuple[str, Any, str]]:
    for name, value in fields.values.items():
        main, detail = value if isinstance(value, tuple) else (value, "")
        if main not in (None, ""):
            yield printable(name), main, printable(detail)


def _not_empty(parts: Iterable[Part]) -> Iterator[Part]:
    return (part for part in parts if (part if isinstance(part, str) else _as_table(part).rows))


def _as_table(part: Table | Fields) -> Table:
    if isinstance(part, Table):
        return part
    rows = list(_field_rows(part))
    size = 3 if any(detail for _, _, detail in rows) else 2
    return Table(("name", "value", "detail")[:size], [row[:size] for row in rows], part.title)


def _is_number(table: Table, index: int) -> bool:
    values = [row[index] for row in table.rows if row[index] not in (None, "")]
    return bool(values) and all(isinstance(value, _NUMBERS) for value in values)


def _cell_text(column: Column, value: Any) -> str:
    if value in (None, ""):
        return ""
    return plain_text(value) if column.text is str else printable(column.text(value))


def plain_text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return number(value) if isinstance(value, float) else printable_lines(str(value))


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_markdown_cell, cells))} |"


def _markdown_cell(cell: str) -> str:
    """Returns text without a meaning in Markdown or HTML."""
    for character in "\\`*|[]":
        cell = cell.replace(character, f"\\{character}")
    return cell.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", " ")


def text(parts: Iterable[Part], width: int = UNLIMITED, *, styled: bool = False) -> str:
    """Returns lines for a terminal, or for a file, without the end of the last one.

    Args:
        width: the columns of the terminal; longer cells are wrapped.
        styled: whether titles and headers are bold, by the escape codes of a terminal.
    """
    return _text(parts, width, styled, cut=False)


def screen(parts: Iterable[Part], width: int = SCREEN_COLUMNS, *, styled: bool = False) -> str:
    """Returns all of it where that fits on a screen, else the most important rows of tables, and how to see all."""
    every = list(_not_empty(parts))
    is_whole = sum(_height(part, width) for part in every) + len(every) - 1 <= SCREEN_LINES
    if is_whole and (whole := _text(every, width, styled, cut=False)).count("\n") < SCREEN_LINES:
        return whole
    kept = [part for part in every if is_whole or isinstance(part, str) or not part.detail]
    tables = {at: part for at, part in enumerate(kept) if isinstance(part, Table)}
    # The last line, and an empty one above each part and above the last line.
    room = SCREEN_LINES - len(kept) - 1 - sum(_height(part, width) for part in kept if not isinstance(part, Table))
    # They get a further row in turn, while there is room; one that has the answer, since it is first, has some anyway.
    most = {at: 1 if at else _FIRST_ROWS for at in tables}
    waiting = list(tables)
    while waiting:
        at = waiting.pop(0)
        more = {**most, at: most[at] + 1}
        height = sum(_height(tables[each], width, rows) for each, rows in more.items())
        if most[at] < len(tables[at].rows) and height <= room:
            most = more
            waiting.append(at)
    shown = [part.most_important(most[at]) if isinstance(part, Table) else part for at, part in enumerate(kept)]
    lines = _text(shown, width, styled, cut=True)
    titles = [part.title or _first_name(part) for part in every if not isinstance(part, str) and part not in kept]
    also = f", also {', '.join(re.split('[:;]', printable(title))[0] for title in titles)}" if titles else ""
    (last,) = _shortened(f"--format text shows all{also}", width)
    return f"{lines}\n\n{last}"


def _first_name(part: Table | Fields) -> str:
    return part.full_columns()[0].name if isinstance(part, Table) else next(iter(part.values), "")


def _height(part: Part, width: int, most: int | None = None) -> int:
    """Returns the lines that a part takes, whose rows are a line each; of a table with at most so many rows."""
    if not isinstance(part, Table):
        return len(_lines(part, width, styled=False, cut=True))
    rows, title = len(part.rows[:most]), _wrapped(printable(part.title), width) if part.title else []
    return len(title) + 1 + rows + bool(part.left_out or rows < len(part.rows))


def _text(parts: Iterable[Part], width: int, styled: bool, *, cut: bool) -> str:
    shown = list[str]()
    before: Part | None = None
    for part in _not_empty(parts):
        if before is not None and not (isinstance(part, str) and isinstance(before, str)):
            shown.append("")
        shown += _lines(part, width, styled=styled, cut=cut)
        before = part
    return "\n".join(line.rstrip() for line in shown).rstrip("\n")


def _lines(part: Part, width: int, *, styled: bool, cut: bool) -> list[str]:
    """Returns the lines of a part.

    Args:
        cut: whether a row is one line, with what fits of its longest cells; else these are wrapped.
    """
    if isinstance(part, str):
        every = printable_lines(part).split("\n")
        # A command that people copy stays whole.
        return [each for line in every for each in ([line] if line.startswith("next: ") else _wrapped(line, width))]
    lines = [_bold(line, styled) for line in _wrapped(printable(part.title), width) if line]
    if isinstance(part, Fields):
        return [*lines, *_field_lines(part, width, cut)]
    columns = part.shown_columns()
    cells = [
        [printable(column.name), *(_cell_text(column, row[index]).replace("\n", " ") for row in part.rows)]
        for index, column in columns
    ]
    rights = [_is_number(part, index) for index, _ in columns]
    sizes, gap = _sizes(cells, rights, width, cut)
    for line_number, row in enumerate(zip(*cells, strict=True)):
        for line in zip_longest(*map(_shortened if cut else _folded, row, sizes), fillvalue=""):
            told = gap.join(
                f"{_blank(cell, size)}{cell}" if right else f"{cell}{_blank(cell, size)}"
                for cell, size, right in zip(line, sizes, rights, strict=True)
            )
            lines.append(_bold(told.rstrip(), styled) if line_number == 0 else told)
    return [*lines, *([f"and {part.left_out:,} more"] if part.left_out else [])]


def _sizes(cells: Sequence[Sequence[str]], rights: Sequence[bool], width: int, cut: bool) -> tuple[list[int], str]:
    """Returns the sizes of columns that fit into a width, and what parts them: headers are cut first, then cells."""
    sizes = [max(map(_columns_of, column)) for column in cells]
    headers = [max(map(_columns_of, [*column[1:], column[0][:_LEAST_HEADER]])) for column in cells]
    least = [size if right else min(size, _LEAST) for size, right in zip(headers, rights, strict=True)]
    words = [
        max(map(_columns_of, [*column[0].split(), *(column[1:] if right else " ".join(column[1:]).split()), ""]))
        for column, right in zip(cells, rights, strict=True)
    ]
    is_tight = sum(least if cut else map(min, words, least)) + 2 * (len(sizes) - 1) > width
    gap = " " if is_tight else "  "
    tight = [size if right or not is_tight else min(size, _TIGHT) for size, right in zip(least, rights, strict=True)]
    excess = sum(sizes) + len(gap) * (len(sizes) - 1) - width
    for floors in (headers if cut else words, least, tight):
        while excess > 0 and (wide := [at for at, size in enumerate(sizes) if size > floors[at]]):
            sizes[max(wide, key=sizes.__getitem__)] -= 1
            excess -= 1
    return sizes, gap


def _shortened(cell: str, size: int) -> list[str]:
    """Returns what fits of a cell: the beginning of a sentence, of a name the beginning and its last part."""
    if _columns_of(cell) <= size:
        return [cell]
    last_part = len(cell) - max(map(cell.rfind, "/-"))
    end = 0 if " " in cell else min(last_part, size // 2)
    return [f"{cell[: size - 1 - end]}…{cell[len(cell) - end :]}"]


def _folded(cell: str, size: int) -> list[str]:
    return [cell] if _columns_of(cell) <= size else wrap(cell, size, break_on_hyphens=False)


def _wrapped(line: str, width: int, indent: str = "") -> list[str]:
    """Returns lines of whole words: a path stays whole."""
    if len(line) <= width or " " not in line[len(indent) :].strip():
        return [line]
    return wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]


def _blank(cell: str, size: int) -> str:
    return " " * (size - _columns_of(cell))


def _bold(line: str, styled: bool) -> str:
    return f"\x1b[1m{line}\x1b[0m" if styled else line


def _columns_of(cell: str) -> int:
    """Returns how many columns of a terminal a text takes."""
    return len(cell) if cell.isascii() else sum(1 + (east_asian_width(each) in "WF") for each in cell)


def _field_lines(fields: Fields, width: int, cut: bool) -> list[str]:
    rows = list(_field_rows(fields))
    size = max((len(name) for name, _, _ in rows), default=0) + 2
    lines = list[str]()
    for name, value, detail in rows:
        first, *others = f"{plain_text(value)}{f'  {detail}' if detail else ''}".split("\n")
        for line in (f"{name:{size}}{first}", *(f"{'':{size}}{each}" for each in others)):
            told = _wrapped(line, width, " " * size)
            if cut and len(told) > _MOST_LINES:
                told[_MOST_LINES - 1 :] = _shortened(
                    " ".join([told[_MOST_LINES - 1], told[_MOST_LINES].strip()]), width
                )
            lines += told
    return lines
