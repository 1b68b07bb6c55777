"""The reports of ingests and of attention records, in lines of 80 columns, and the CSV of unmatched records and
rows."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

import pandas as pd

from opatlas.capture.apply import DurationChange, TwoPopulations
from opatlas.capture.attention import Bundle, FillResult
from opatlas.capture.attention_records import JoinKey, Records
from opatlas.capture.ingest import IngestResult
from opatlas.capture.launches import LaunchCounts, SkipReason
from opatlas.capture.manifest import manifest_path
from opatlas.errors import OpAtlasError
from opatlas.model.quality import valid_duration
from opatlas.model.schema import PROFILING_AVERAGE, PROFILING_POPULATIONS, PROFILING_SAMPLES, RUNTIME_PREFIX
from opatlas.model.siblings import suggest_spelling
from opatlas.model.signature import column_cells
from opatlas.store.csv_files import write_rows
from opatlas.store.database import Database
from opatlas.text import count_lines, parse_whole, percent_text, pluralize, shorten, unknown_dtype_lines, wrap

_TYPES_SHOWN = 8
CHANGES_SHOWN = 10
FILES_SHOWN = 5
_LENGTHS = f"{RUNTIME_PREFIX}actual_seq_lengths_values and {RUNTIME_PREFIX}actual_seq_lengths_kv_values"


def ingest_summary(
    database: Database,
    done: IngestResult,
    not_read: Sequence[tuple[str, Sequence[Path]]],
    replayed_types: Collection[str] | None = None,
) -> str:
    """Returns the report of an ingest.

    Args:
        not_read: files named like captures that were skipped, by reason.
        replayed_types: kernel types with a replay; None if unknown.
    """
    lines = [
        *(f"completed {run_id}, which had been interrupted" for run_id in done.completed),
        *_already(done.already),
        *(line for why, files in not_read for line in _shortened_list(f"not read: {why}", files)),
        *_shortened_list("same bytes as another capture, not counted again", done.same_bytes),
    ]
    if done.files:
        lines += ["", *_counts(done)] if lines else _counts(done)
        lines += _left_out(done.account)
        lines += shapeless_lines(done.account)
        lines += unknown_dtype_lines(done.account.unknown_dtypes)
        lines += _attention(done.attention)
    lines += _population_lines(done.outcome.mixed)
    lines += _changes(done.outcome.changes)
    if done.report is not None:
        lines += [f"  all of them: {done.report}"]
    if done.manifest is not None:
        lines += ["", "manifest:", f"  {manifest_path(database, done.manifest.run_id)}"]
    if done.manifest is not None or done.already or done.completed:
        command = shlex.join(["opatlas", "bench", "--database-path", str(database.path), "--update-mode=unreplayed"])
        lines += ["", "database:", f"  {database.path}"]
        lines += [wrap(str(done.mapping), indent=2)] if done.mapping is not None else []
        lines += ["next, measure its rows:", f"  {command}"]
        lines += _replayable(database, replayed_types) if replayed_types is not None else []
    return "\n".join(lines)


def captures_as_json(done: IngestResult) -> dict[str, object]:
    """Returns what an ingest did, with all changed durations."""
    account, outcome = done.account, done.outcome
    return {
        "run_id": None if done.manifest is None else done.manifest.run_id,
        "files": done.files,
        "already": [{"file": path, "run_id": run_id} for path, run_id in done.already],
        "same_bytes": done.same_bytes,
        "rows": account.rows,
        "ingested": account.ingested,
        "left_out": {reason.value: count for reason, count in account.left_out.items()},
        "without_shapes": {
            name: {"launches": count, "duration_us": account.shapeless_us[name]}
            for name, count in account.shapeless.items()
        },
        "ingested_us": account.ingested_us,
        "unknown_dtypes": account.unknown_dtypes,
        "kernel_types": sorted(outcome.kernel_types),
        "new": outcome.new,
        "updated": outcome.updated,
        "unchanged": outcome.unchanged,
        "changes": outcome.changes,
        "two_populations": outcome.mixed,
        "problems": done.problems,
    }


def records_as_json(records: Records, outcome: FillResult) -> dict[str, object]:
    """Returns what attention records did."""
    return {
        "records": records.count,
        "malformed_lines": records.malformed_count,
        "unmatched": sum(at.count for at in records.unmatched.values()),
        "rows": outcome.rows,
        "filled": outcome.filled,
        "added": outcome.added,
        "unchanged": outcome.unchanged,
        "without_record": len(outcome.unfilled),
        "left_out": outcome.left_out,
        "pruned": outcome.pruned,
        "problems": outcome.problems,
    }


def _replayable(database: Database, replayed_types: Collection[str]) -> list[str]:
    """Returns lines with the number of rows that have a replay, and the kernel types without one."""
    rows: Counter[str] = Counter()
    time_us: dict[str, float | None] = {}
    for kernel_type in database.kernel_types():
        # The ingest has reported files that cannot be read.
        with suppress(OpAtlasError):
            frame = database.read(kernel_type).frame
            rows[kernel_type], time_us[kernel_type] = len(frame), captured_time_us(frame)
    without = {name: count for name, count in rows.items() if name not in replayed_types}
    return [
        f"  rows with a replay: {rows.total() - sum(without.values()):,} of {rows.total():,}",
        *missing_replay_lines(without, time_us, replayed_types, indent=2),
    ]


def _counts(done: IngestResult) -> list[str]:
    account, outcome = done.account, done.outcome
    signatures = outcome.new + outcome.updated + outcome.unchanged
    fates = f"{outcome.new:,} new, {outcome.updated:,} updated, {outcome.unchanged:,} unchanged"
    return count_lines(
        [
            ("captures", len(done.files), ""),
            ("rows", account.rows, f"{account.ingested:,} ingested, {account.left_out.total():,} left out"),
            ("kernel types", len(outcome.kernel_types), ""),
            ("signatures", signatures, fates),
        ]
    )


def _left_out(account: LaunchCounts) -> list[str]:
    if not account.left_out.total():
        return []
    lines = ["", "left out:"]
    for reason, count in account.left_out.most_common():
        if count:
            lines.append(f"{count:>10,}   {reason.value}")
            named = {
                SkipReason.INVALID_DURATION: account.invalid_durations,
                SkipReason.IMPOSSIBLE_DURATION: account.impossible_durations,
            }
            lines += [f"             the first: {first}" for first in named.get(reason, ())[:1]]
    return lines


def shapeless_lines(account: LaunchCounts) -> list[str]:
    """Returns a line about the kernel types without input shapes, the longest device time first."""
    if not account.shapeless:
        return []
    total = account.ingested_us + account.shapeless_us.total()

    def share(time_us: float) -> str:
        return percent_text(time_us / total) if total else "0 %"

    order = sorted(account.shapeless, key=lambda name: (-account.shapeless_us[name], name))
    named = [f"{name} {account.shapeless[name]:,} ({share(account.shapeless_us[name])})" for name in order]
    more = [f"{len(order) - _TYPES_SHOWN} more"] if len(order) > _TYPES_SHOWN else []
    launches = pluralize(account.shapeless.total(), "launch", "launches")
    count = f"{launches} of {pluralize(len(order), 'kernel type')}, {share(account.shapeless_us.total())}"
    listed = ", ".join([*named[:_TYPES_SHOWN], *more])
    return [wrap(f"without shapes: {count} of the captured device time: {listed}", indent=0)]


def _attention(attention: Sequence[Bundle]) -> list[str]:
    if not attention:
        return []
    details = sum(bundle.operator_details is not None for bundle in attention)
    traces = sum(bundle.trace_view is not None for bundle in attention)
    came = f"attention rows came from {pluralize(len(attention), 'capture')}, without the lengths of sequences"
    return [
        "",
        wrap(f"{came}: fill {_LENGTHS} with opatlas ingest --attention-records (docs/captures.md)", indent=0),
        f"beside them: {details:,} operator_details.csv, {traces:,} trace_view.json",
    ]


def _already(files: Sequence[tuple[Path, str]]) -> list[str]:
    by_run: dict[str, list[Path]] = {}
    for path, run_id in files:
        by_run.setdefault(run_id, []).append(path)
    return [
        line for run_id, paths in by_run.items() for line in _shortened_list(f"already ingested by {run_id}", paths)
    ]


def _shortened_list(what: str, paths: Sequence[Path]) -> list[str]:
    if not paths:
        return []
    shown = [f"  {path}" for path in paths[:FILES_SHOWN]]
    more = len(paths) - len(shown)
    return [f"{what}:", *shown, *([f"  and {more:,} more"] if more else [])]


def _population_lines(rows: Sequence[TwoPopulations]) -> list[str]:
    """Returns lines about rows with two typical durations, the largest difference first."""
    if not rows:
        return []
    widest = sorted(rows, key=lambda row: row.modes.low_us - row.modes.high_us)[:CHANGES_SHOWN]
    have = pluralize(len(rows), "row has", "rows have")
    lines = [
        "",
        wrap(f"two populations: {have} launches with two typical durations, so the mean describes neither", indent=0),
    ]
    for row in widest:
        lines.append(wrap(f"{row.kernel_type} {row.shapes}: {row.modes.text('launches')}", indent=2))
    more = len(rows) - len(widest)
    return [*lines, f"  and {more:,} more; see the column {PROFILING_POPULATIONS!r}"] if more else lines


def _changes(changes: Sequence[DurationChange]) -> list[str]:
    """Returns lines about changed durations, the largest change first."""
    if not changes:
        return []
    worst = sorted(changes, key=lambda change: change.distance, reverse=True)[:CHANGES_SHOWN]
    which = f"the {CHANGES_SHOWN} largest" if len(changes) > CHANGES_SHOWN else "the largest first"
    lines = ["", f"changed durations: {len(changes):,} ({which}; microseconds)"]
    for change in worst:
        percent = percent_text(change.after_us / change.before_us - 1, signed=True)
        lines.append(
            f"  {shorten(change.kernel_type, 20):20} {shorten(change.shapes, 25):25} "
            f"{change.before_us:>9.2f} ->{change.after_us:>9.2f} {percent:>9}"
        )
    return lines


SHOWN = 5


@dataclass(frozen=True)
class UnmatchedEntry:
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


_HEADER = ("What", "Count", "Place", "Key", "Reason")


def unmatched_entries(records: Records, outcome: FillResult) -> list[UnmatchedEntry]:
    """Returns unmatched records, the most frequent key first, then rows without values, in their order."""
    unmatched = sorted(records.unmatched.items(), key=lambda item: -item[1].count)
    found = [UnmatchedEntry("record", at.count, at.first, str(key), _why(key)) for key, at in unmatched]
    for row in outcome.unfilled:
        if row.key is None:
            found.append(
                UnmatchedEntry("row", 1, row.place, "", "its shapes are not lists of whole numbers: correct them")
            )
        else:
            found.append(UnmatchedEntry("row", 1, row.place, str(row.key), _why(row.key)))
    return found


def _why(key: JoinKey) -> str:
    absent = [name for name, shape in (("query", key.query), ("key", key.key), ("value", key.value)) if shape is None]
    return f"it has no shape of {', '.join(absent)}" if absent else ""


def fill_summary(
    database: Path, files: int, records: Records, outcome: FillResult, alone: Sequence[UnmatchedEntry], limit: int
) -> str:
    """Returns the report of attention records, except for the path of its CSV."""
    unmatched = sum(at.count for at in records.unmatched.values())
    counts = [
        ("files", files, ""),
        (
            "records",
            records.count,
            pluralize(records.malformed_count, "malformed line") if records.malformed_count else "",
        ),
        ("  unmatched", unmatched, f"{pluralize(len(records.unmatched), 'key')} without a row" if unmatched else ""),
        ("rows", outcome.rows, "attention rows of the database before"),
        ("  filled", outcome.filled, ""),
        ("  added", outcome.added, "for further records of the same shapes" if outcome.added else ""),
        ("  unchanged", outcome.unchanged, ""),
        ("  without", len(outcome.unfilled), "no record with their key" if outcome.unfilled else ""),
    ]
    lines = count_lines(counts)
    if outcome.pruned:
        pruned = pluralize(outcome.pruned, "measurement")
        lines.append(f"{pruned} with assumed lengths moved to pruned/: measure these rows again")
    if outcome.added:
        lines.append("profiling columns of added rows: the average over all calls with their shapes")
    if outcome.left_out:
        left_out = pluralize(outcome.left_out, "record")
        lines.append(f"{left_out} left out: a captured row becomes at most {limit} rows (--max-rows)")
    for what, title in (("record", "records without a matching row"), ("row", "rows without a matching record")):
        lines += _entry_lines([one for one in alone if one.what == what], title)
    return "\n".join([*lines, "", "database:", f"  {database}"])


def _entry_lines(alone: Sequence[UnmatchedEntry], title: str) -> Iterator[str]:
    if alone:
        yield f"\n{title}:"
    for one in alone[:SHOWN]:
        yield f"  {one.place}" + (f" (and {one.count - 1:,} more)" if one.count > 1 else "")
        yield wrap(one.key or "no key", indent=4)
        if one.reason:
            yield wrap(one.reason, indent=4)
    if len(alone) > SHOWN:
        yield f"  and {len(alone) - SHOWN:,} more"


def write_unmatched(database: Database, alone: Sequence[UnmatchedEntry], at: float) -> Path | None:
    """Writes unmatched records and rows to reports/; no file without such entries. Raises OpAtlasError."""
    if not alone:
        return None
    path = database.new_report_path("fill_runtime", at)
    write_rows(path, _HEADER, map(astuple, alone))
    return path


def captured_time_us(frame: pd.DataFrame) -> float | None:
    """Returns the device time of all captured launches of a table, in microseconds.

    Returns:
        None if a captured duration lacks the number of its launches, as in tables of other tools.
    """
    if PROFILING_AVERAGE not in frame.columns:
        return 0.0
    counts = column_cells(frame, PROFILING_SAMPLES)
    total = 0.0
    for cell, count in zip(frame[PROFILING_AVERAGE], counts, strict=True):
        average_us = valid_duration(cell)
        if average_us is not None:
            launches = parse_whole(count)
            if launches is None:
                return None
            total += average_us * launches
    return total


def missing_replay_lines(
    rows: Mapping[str, int], time_us: Mapping[str, float | None], replayed: Collection[str], indent: int = 0
) -> list[str]:
    """Returns lines about the kernel types without a replay, the longest device time first, and the remedy.

    Args:
        rows: number of rows without a replay, by kernel type.
        time_us: captured device time of all kernel types of the database; None if unknown.
        replayed: kernel types with a replay, which may be another name of a kernel without one.
        indent: columns before the lines.
    """
    if not rows:
        return []
    times = {name: time or 0.0 for name, time in time_us.items()}
    # If the number of launches of one kernel type is unknown, so are all shares.
    total = sum(times.values()) if None not in time_us.values() else 0.0

    def share(names: Collection[str]) -> str:
        part = sum(times.get(name, 0.0) for name in names) / total if total else 0.0
        return "" if not total else percent_text(part) if part >= 0.001 or not part else "below 0.1 %"

    order = sorted(rows, key=lambda name: (-times.get(name, 0.0) if total else 0.0, -rows[name], name))
    named = [
        f"{name} {rows[name]:,}{f' ({share([name])})' if total else ''}{suggest_spelling(name, replayed)}"
        for name in order[:_TYPES_SHOWN]
    ]
    more = [f"{len(order) - _TYPES_SHOWN} more"] if len(order) > _TYPES_SHOWN else []
    of_time = f", {share(order)} of the captured device time" if total else ""
    count = f"{pluralize(sum(rows.values()), 'row')} of {pluralize(len(rows), 'kernel type')}{of_time}"
    return [
        wrap(f"without a replay: {count}: {', '.join(named + more)}", indent=indent),
        " " * indent + "docs/contributing.md shows how to add a replay",
    ]
