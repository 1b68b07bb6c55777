"""Writes the tables of columns in database/README.md.

`python -m tests.support.column_tables` does it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from opatlas.row.columns import COLUMNS, ColumnGroup, RowColumn

PAGE = Path(__file__).parents[2] / "database" / "README.md"

#: The groups of each table, by the heading above it.
_TABLES = {
    "What the row is": (ColumnGroup.SLOTS, ColumnGroup.EXPERTS, ColumnGroup.SUITE, ColumnGroup.TASK, ColumnGroup.STEP),
    "What a replay measured": (
        *(ColumnGroup.MEAN, ColumnGroup.REPLAYED, ColumnGroup.COUNTERS, ColumnGroup.CONDITIONS, ColumnGroup.QUALITY),
        *(ColumnGroup.EXECUTION, ColumnGroup.COMPARED, ColumnGroup.RUN),
    ),
    "All runs together": (ColumnGroup.POOLED,),
    "What a capture measured": (ColumnGroup.CAPTURED, ColumnGroup.LAUNCHES, ColumnGroup.CAPTURED_COUNTERS),
    "Status": (ColumnGroup.STATUS, ColumnGroup.JUDGED),
    "Runtime values of attention kernels": (ColumnGroup.RUNTIME,),
    "Columns of a collective's CSV": (ColumnGroup.MESSAGE, ColumnGroup.TRANSFER),
}


def page(text: str) -> str:
    """Returns database/README.md with the tables of the present columns. Raises ValueError."""
    for heading, groups in _TABLES.items():
        before, title, rest = text.partition(f"# {heading}\n")
        lead, first, table = rest.partition("| column |")
        if not title or not first or "\n#" in lead:
            raise ValueError(f"{PAGE.name}: there is no table of columns under the heading {heading!r}")
        columns = [column for group in groups for column in COLUMNS if column.group is group]
        after = table.partition("\n\n")[2]
        text = f"{before}{title}{lead}{_table(columns)}\n\n{after}"
    return text


def _unit(column: RowColumn) -> str:
    """Returns the unit, which is in the name: `us`, `s`, `%`; "" for a column without one."""
    found = re.search(r"\(([^()]+)\)$", column.name)
    return found[1] if found else ""


def _table(columns: Sequence[RowColumn]) -> str:
    rows = [("column", "unit", "content"), ("---", "---", "---")]
    rows += [(f"`{column.name}`", _unit(column), column.meaning) for column in columns]
    has_units = any(map(_unit, columns))
    return "\n".join(f"| {' | '.join(row if has_units else (row[0], row[2]))} |" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
