"""Turns a result into aligned text for a terminal, by rich."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from opatlas.show.render import UNLIMITED, cell_text, field_rows, is_number, plain_text, shown_columns
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
            if isinstance(part, Table):
                console.print(_rich_table(part))
                if part.left_out:
                    console.print(Text(f"and {part.left_out:,} more"))
            else:
                console.print(Text("\n".join(_lines(part))), soft_wrap=True)
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


def _lines(fields: Fields) -> list[str]:
    """Returns a line for each field. It is not wrapped: a path stays whole."""
    rows = list(field_rows(fields))
    width = max((len(name) for name, _, _ in rows), default=0)
    return [
        f"{name:{width}}  {plain_text(value)}{f'  {detail}' if detail else ''}".replace("\n", f"\n{'':{width}}  ")
        for name, value, detail in rows
    ]
