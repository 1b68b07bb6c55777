"""Turns a result into aligned text for a terminal, by rich."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from opatlas.show.output import UNLIMITED
from opatlas.show.render import cell_text, field_rows, is_number, plain_text, shown_columns
from opatlas.show.result import Fields, Part, Table
from opatlas.text import printable, printable_lines


def text(parts: Iterable[Part], width: int = UNLIMITED, *, styled: bool = False) -> str:
    """Returns lines for a terminal, without the end of the last one.

    Args:
        width: the columns of the terminal; longer cells are wrapped.
        styled: whether headers are bold, by the escape codes of a terminal.
    """
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=styled, color_system="standard" if styled else None, legacy_windows=False
    )
    before: Part | None = None
    for part in parts:
        if before is not None and not (isinstance(part, str) and isinstance(before, str)):
            console.print()
        if isinstance(part, str):
            console.print(Text(printable_lines(part)), soft_wrap=width == UNLIMITED)
        else:
            if part.title:
                console.print(Text(printable(part.title), style="bold"), soft_wrap=width == UNLIMITED)
            console.print(_rich_fields(part) if isinstance(part, Fields) else _rich_table(part))
            if isinstance(part, Table) and part.left_out:
                console.print(Text(f"and {part.left_out:,} more"))
        before = part
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n")).rstrip("\n")


def _rich_table(table: Table) -> RichTable:
    shown = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns = shown_columns(table)
    for index, column in columns:
        shown.add_column(Text(printable(column.name)), justify="right" if is_number(table, index) else "left")
    for row in table.rows:
        shown.add_row(*(Text(cell_text(column, row[index]), overflow="fold") for index, column in columns))
    return shown


def _rich_fields(fields: Fields) -> RichTable:
    shown = RichTable(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    shown.add_column()
    shown.add_column(justify="right" if any(map(_is_counted, fields.values.values())) else "left")
    shown.add_column()
    for name, value, detail in field_rows(fields):
        shown.add_row(*(Text(each, overflow="fold") for each in (name, plain_text(value), detail)))
    return shown


def _is_counted(value: Any) -> bool:
    return isinstance(value[0] if isinstance(value, tuple) else value, int | float)
