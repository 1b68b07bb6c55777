"""Turns a result into Markdown, CSV and JSON, and values into cells. Control characters are escaped here."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from opatlas.formats import number
from opatlas.show.result import Column, Fields, Part, Result, Table
from opatlas.text import printable, printable_lines

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
        columns = shown_columns(table)
        lines = [
            _markdown_row(printable(column.name) for _, column in columns),
            _markdown_row("--:" if is_number(table, index) else "---" for index, _ in columns),
            *(_markdown_row(cell_text(column, row[index]) for index, column in columns) for row in table.rows),
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
            values = {name: value for name, value, _ in field_rows(part)}
            found |= {part.title: values} if part.title else values
    return found


def field_rows(fields: Fields) -> Iterator[tuple[str, Any, str]]:
    for name, value in fields.values.items():
        if value is not None:
            main, detail = value if isinstance(value, tuple) else (value, "")
            yield printable(name), main, printable(detail)


def _as_table(part: Table | Fields) -> Table:
    if isinstance(part, Table):
        return part
    rows = list(field_rows(part))
    detailed = any(detail for _, _, detail in rows)
    return Table(
        ("name", "value", "detail")[: 3 if detailed else 2], [row[: 3 if detailed else 2] for row in rows], part.title
    )


def shown_columns(table: Table) -> list[tuple[int, Column]]:
    return [(index, column) for index, column in enumerate(table.full_columns()) if not column.wide]


def is_number(table: Table, index: int) -> bool:
    values = [row[index] for row in table.rows if row[index] is not None]
    return bool(values) and all(isinstance(value, _NUMBERS) for value in values)


def cell_text(column: Column, value: Any) -> str:
    if value is None:
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
