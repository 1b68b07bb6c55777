"""What a command found: tables, fields and lines, which hold values; `render.py` turns them into text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


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
        rows: a value for each column; None is an empty cell.
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

    def without_empty_columns(self) -> Table:
        """Returns the table with columns in which all cells are None for CSV and JSON alone; the same without rows."""
        if not self.rows:
            return self
        columns = [
            replace(column, wide=column.wide or all(row[index] is None for row in self.rows))
            for index, column in enumerate(self.full_columns())
        ]
        return replace(self, columns=columns)


@dataclass(frozen=True, slots=True)
class Fields:
    """Names with a value each, such as the counts of an ingest.

    Attributes:
        values: by name; None leaves the field out. A tuple is a value with a detail: `(2463, "41 left out")`.
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
