"""What an ingest did, in lines that fit a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from database.ingest.aggregate import Account
from database.ingest.apply import DurationChange, Outcome
from database.ingest.attention import Bundle
from database.terminal import count_lines, counted, shortened, unknown_dtype_lines

CHANGES_SHOWN = 10


def summary(database: Path, files: int, account: Account, outcome: Outcome, attention: Sequence[Bundle]) -> str:
    """The text for the user.

    Args:
        database: where the CSVs are.
        files: captures that were read.
        attention: the captures that have attention rows.
    """
    signatures = outcome.new + outcome.updated + outcome.unchanged
    fates = f"{outcome.new:,} new, {outcome.updated:,} updated, {outcome.unchanged:,} unchanged"
    lines = count_lines(
        [
            ("captures", files, ""),
            ("rows", account.rows, f"{account.ingested:,} ingested, {account.left_out.total():,} left out"),
            ("kernel types", len(outcome.kernel_types), ""),
            ("signatures", signatures, fates),
        ]
    )
    if account.left_out.total():
        lines += ["", "left out:"]
        lines += [f"{count:>10,}   {reason.value}" for reason, count in account.left_out.most_common() if count]
    lines += unknown_dtype_lines(account.unknown_dtypes)
    if attention:
        details = sum(bundle.operator_details is not None for bundle in attention)
        traces = sum(bundle.trace_view is not None for bundle in attention)
        lines += [
            "",
            f"attention rows came from {counted(len(attention), 'capture')} (shapes only; see fill-runtime)",
            f"beside them: {details:,} operator_details.csv, {traces:,} trace_view.json",
        ]
    lines += _changes(outcome.changes)
    lines += ["", "database:", f"  {database}"] if signatures else ["", "nothing was ingested"]
    return "\n".join(lines)


def _changes(changes: Sequence[DurationChange]) -> list[str]:
    """The durations that changed, the furthest first."""
    if not changes:
        return []
    worst = sorted(changes, key=lambda change: change.distance, reverse=True)[:CHANGES_SHOWN]
    which = f"the {CHANGES_SHOWN} furthest" if len(changes) > CHANGES_SHOWN else "the furthest first"
    lines = ["", f"changed durations: {len(changes):,} ({which}; microseconds)"]
    for change in worst:
        percent = (change.after_us / change.before_us - 1) * 100
        lines.append(
            f"  {shortened(change.kernel_type, 20):20} {shortened(change.shapes, 26):26} "
            f"{change.before_us:>9.2f} ->{change.after_us:>9.2f} {percent:>+7.1f}%"
        )
    return lines
