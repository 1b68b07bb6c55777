"""What fill-runtime did, in lines that fit a terminal of 80 columns, and a CSV of what found no partner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from opatlas.capture.attention_lengths import Outcome
from opatlas.capture.attention_records import JoinKey, Nearest, Records
from opatlas.store.csv_files import write_rows
from opatlas.store.database import Database
from opatlas.text import count_lines, counted, folded

SHOWN = 5


@dataclass(frozen=True)
class Alone:
    """A record or row without a partner: the columns of the CSV.

    Attributes:
        what: "record" or "row".
        count: records of this key; 1 for a row.
        place: `file:line` of the first.
        key: what it is joined by.
        nearest: `file:line` of what agrees in the most components.
        reason: which components of that differ, or why there is nothing near.
    """

    what: str
    count: int
    place: str
    key: str
    nearest: str
    reason: str


_HEADER = ("What", "Count", "Place", "Key", "Nearest", "Reason")


def without_partner(records: Records, outcome: Outcome, keys_of_rows: Sequence[tuple[JoinKey, str]]) -> list[Alone]:
    """Unmatched records, those of the most frequent key first, then rows without values, in their order."""
    unmatched = sorted(records.unmatched.items(), key=lambda item: -item[1].count)
    rows = Nearest(keys_of_rows)
    places = [(key, at.first) for key, at in unmatched]
    calls = Nearest([*places, *((key, at.first) for key, at in records.matched.items())])
    found = [Alone("record", at.count, at.first, str(key), *_why(key, rows, "row")) for key, at in unmatched]
    for row in outcome.unfilled:
        if row.key is None:
            found.append(Alone("row", 1, row.place, "", "", "its shapes are not lists of whole numbers: correct them"))
        else:
            found.append(Alone("row", 1, row.place, str(row.key), *_why(row.key, calls, "record")))
    return found


def _why(key: JoinKey, others: Nearest[str], other: str) -> tuple[str, str]:
    absent = [name for name, shape in (("query", key.query), ("key", key.key), ("value", key.value)) if shape is None]
    if absent:
        return "", f"it has no shape of {', '.join(absent)}"
    nearest = others.to(key)
    return ("", f"no {other} has any of its shapes") if nearest is None else (nearest[1], key.unlike(nearest[0]))


def summary(database: Path, files: int, records: Records, outcome: Outcome, alone: Sequence[Alone], limit: int) -> str:
    """The text for the user, but for the path of the report."""
    unmatched = sum(at.count for at in records.unmatched.values())
    counts = [
        ("files", files, ""),
        (
            "records",
            records.count,
            counted(records.malformed_count, "malformed line") if records.malformed_count else "",
        ),
        ("  unmatched", unmatched, f"{counted(len(records.unmatched), 'key')} that no row has" if unmatched else ""),
        ("rows", outcome.rows, "attention rows of the database before"),
        ("  filled", outcome.filled, ""),
        ("  added", outcome.added, "for further records of the same shapes" if outcome.added else ""),
        ("  unchanged", outcome.unchanged, ""),
        ("  without", len(outcome.unfilled), "no record has their key" if outcome.unfilled else ""),
    ]
    lines = count_lines(counts)
    if outcome.pruned:
        lines.append(
            f"{counted(outcome.pruned, 'measurement')} of assumed lengths moved to pruned/: measure these rows again"
        )
    if outcome.added:
        lines.append("profiling columns of rows that were added: the average over all calls of their shapes")
    if outcome.left_out:
        lines.append(
            f"{counted(outcome.left_out, 'record')} left out: "
            f"a captured row becomes {limit} rows at most (--max-rows; 0: any)"
        )
    for what, title in (("record", "records that no row matches"), ("row", "rows that no record matches")):
        lines += _shown([one for one in alone if one.what == what], title)
    return "\n".join([*lines, "", "database:", f"  {database}"])


def _shown(alone: Sequence[Alone], title: str) -> Iterator[str]:
    if alone:
        yield f"\n{title}:"
    for one in alone[:SHOWN]:
        yield f"  {one.place}" + (f" (and {one.count - 1:,} more)" if one.count > 1 else "")
        yield folded(one.key or "no key", indent=4)
        yield folded(f"nearest {one.nearest}: {one.reason}" if one.nearest else one.reason, indent=4)
    if len(alone) > SHOWN:
        yield f"  and {len(alone) - SHOWN:,} more"


def write_alone(database: Database, alone: Sequence[Alone], at: float) -> Path | None:
    """Lists what has no partner in the database's reports/; no file where there is none. Raises OpAtlasError."""
    if not alone:
        return None
    path = database.free_report("fill_runtime", at)
    write_rows(path, _HEADER, map(astuple, alone))
    return path
