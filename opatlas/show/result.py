"""What a command found: tables, fields and lines, which hold values; and their texts: terminal, Markdown, CSV, JSON.

Control characters are escaped here.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    """

    columns: Sequence[Column | str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    left_out: int = 0

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


@dataclass(frozen=True, slots=True)
class Fields:
    """Names with a value each, such as the counts of an ingest.

    Attributes:
        values: by name; None and "" leave the field out. A tuple is a value with a detail: `(2463, "41 left out")`.
        title: a line above the fields.
    """

    values: Mapping[str, Any]
    title: str = ""


#: A part of a result. A text is a line.
Part = Table | Fields | str


@dataclass(frozen=True, slots=True)
class Result:
    """What a command found.

    Attributes:
        parts: in the order in which they are shown.
        json: what `--json` prints; None: the tables and fields of `parts`.
        problems: lines for stderr: what could not be read or done.
        status: the exit status of the command.
    """

    parts: Sequence[Part] = ()
    json: Any = None
    problems: Sequence[str] = field(default=())
    status: int = 0


#: Wider than any line: where no terminal limits it, a row is one line, so that grep finds it.
UNLIMITED = 100_000
_NUMBERS = (int, float)


def markdown(parts: Iterable[Part]) -> str:
    """Returns GitHub's Markdown, without the end of the last line."""
    blocks = list[str]()
    for part in parts:
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
        if value not in (None, ""):
            main, detail = value if isinstance(value, tuple) else (value, "")
            yield printable(name), main, printable(detail)


def _as_table(part: Table | Fields) -> Table:
    if isinstance(part, Table):
        return part
    rows = list(_field_rows(part))
    detailed = any(detail for _, _, detail in rows)
    return Table(
        ("name", "value", "detail")[: 3 if detailed else 2], [row[: 3 if detailed else 2] for row in rows], part.title
    )


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
        styled: whether headers are bold, by the escape codes of a terminal.
    """
    shown = list[str]()
    before: Part | None = None
    for part in parts:
        if before is not None and not (isinstance(part, str) and isinstance(before, str)):
            shown.append("")
        # rich takes 40 ms to import, and seconds for thousands of rows.
        shown.append(_unwrapped(part) if width == UNLIMITED else _wrapped(part, width, styled))
        before = part
    return "\n".join(line.rstrip() for line in "\n".join(shown).split("\n")).rstrip("\n")


def _unwrapped(part: Part) -> str:
    """Returns a part whose rows are one line each."""
    if isinstance(part, str):
        return printable_lines(part)
    lines = [printable(part.title)] if part.title else []
    if isinstance(part, Fields):
        return "\n".join([*lines, *_lines(part)])
    columns = part.shown_columns()
    cells = [[_cell_text(column, row[index]).replace("\n", " ") for row in part.rows] for index, column in columns]
    padded = list[list[str]]()
    for (index, column), below in zip(columns, cells, strict=True):
        whole = [printable(column.name), *below]
        sizes = list(map(_columns_of, whole))
        blanks = [" " * (max(sizes) - size) for size in sizes]
        is_right = _is_number(part, index)
        padded.append([pad + cell if is_right else cell + pad for cell, pad in zip(whole, blanks, strict=True)])
    lines += ["  ".join(row) for row in zip(*padded, strict=True)]
    return "\n".join([*lines, *_left_out(part)])


def _columns_of(cell: str) -> int:
    """Returns how many columns of a terminal a text takes."""
    if cell.isascii():
        return len(cell)
    from rich.cells import cell_len

    return cell_len(cell)


def _left_out(table: Table) -> list[str]:
    return [f"and {table.left_out:,} more"] if table.left_out else []


def _wrapped(part: Part, width: int, styled: bool) -> str:
    """Returns a part whose longer cells and lines are wrapped."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=styled, color_system="standard" if styled else None, legacy_windows=False
    )
    if isinstance(part, str):
        console.print(Text(printable_lines(part)))
        return out.getvalue().rstrip("\n")
    if part.title:
        console.print(Text(printable(part.title), style="bold"))
    if isinstance(part, Fields):
        console.print(Text("\n".join(_lines(part))), soft_wrap=True)
        return out.getvalue().rstrip("\n")
    shown = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns = part.shown_columns()
    for index, column in columns:
        shown.add_column(Text(printable(column.name)), justify="right" if _is_number(part, index) else "left")
    for row in part.rows:
        shown.add_row(*(Text(_cell_text(column, row[index]), overflow="fold") for index, column in columns))
    console.print(shown)
    return "\n".join([out.getvalue().rstrip("\n"), *_left_out(part)])


def _lines(fields: Fields) -> list[str]:
    """Returns a line for each field. It is not wrapped: a path stays whole."""
    rows = list(_field_rows(fields))
    width = max((len(name) for name, _, _ in rows), default=0)
    return [
        f"{name:{width}}  {plain_text(value)}{f'  {detail}' if detail else ''}".replace("\n", f"\n{'':{width}}  ")
        for name, value, detail in rows
    ]
