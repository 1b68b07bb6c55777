"""Attention records without a row, and attention rows without a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from opatlas.capture.attention import FillResult
from opatlas.capture.attention_records import JoinKey, Records
from opatlas.data.csv_files import write_rows
from opatlas.data.database import Database

_HEADER = ("What", "Count", "Place", "Key", "Reason")


@dataclass(frozen=True)
class Unmatched:
    """A record without a row, or a row without a record; the columns of the CSV.

    Attributes:
        what: "record" or "row".
        count: number of records of this key; 1 for a row.
        place: `file:line` of the first one.
        key: the key that records and rows are joined by.
        reason: why the key can match nothing; "" where nothing has it.
    """

    what: str
    count: int
    place: str
    key: str
    reason: str


def find_unmatched(records: Records, outcome: FillResult) -> list[Unmatched]:
    """Returns unmatched records, the most frequent key first, then rows without values, in their order."""
    unmatched = sorted(records.unmatched.items(), key=lambda item: -item[1].count)
    return [
        *(Unmatched("record", at.count, at.first, str(key), _why(key)) for key, at in unmatched),
        *(Unmatched("row", 1, row.place, str(row.key or ""), _why(row.key)) for row in outcome.unfilled),
    ]


def _why(key: JoinKey | None) -> str:
    if key is None:
        return "shapes are not lists of whole numbers"
    absent = [name for name, shape in (("query", key.query), ("key", key.key), ("value", key.value)) if shape is None]
    return f"no shape of {', '.join(absent)}" if absent else ""


def write_unmatched(database: Database, found: Sequence[Unmatched], at: float) -> Path | None:
    """Writes unmatched records and rows to reports/; no file without such entries. Raises OpAtlasError."""
    if not found:
        return None
    path = database.new_report_path("fill_runtime", at)
    write_rows(path, _HEADER, map(astuple, found))
    return path
