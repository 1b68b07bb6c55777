"""The two files that a session writes next to the CSVs: its report, and the gaps between replay and capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opatlas.data.csv_files import write_rows
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest
from opatlas.data.write_back import WriteBackResult
from opatlas.errors import OpAtlasError
from opatlas.formats import microseconds, ratio
from opatlas.row.columns import (
    AVERAGE,
    INPUT_DTYPES,
    INPUT_SHAPES,
    INSTRUMENT,
    MICROBENCH_HELPER_KERNELS,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    OUTPUT_SHAPES,
    PROFILING_AVERAGE,
    PROFILING_POPULATIONS,
    PROFILING_RUN_ID,
    PROFILING_SAMPLES,
    PROFILING_STD,
    QUALITY,
    RUN_ID,
)
from opatlas.show.result import Column, Fields, Part, Table, markdown
from opatlas.show.row_summary import RowSummary, duration_tables

#: A replay within 20 % of the capture agrees with it.
LOWEST_RATIO, HIGHEST_RATIO = 0.8, 1.2
_HOT_SPOTS = 10
#: Columns that say how the two durations of a gap were measured, and their quality.
_HOW_TAKEN = (
    *(INSTRUMENT, QUALITY, MICROBENCH_STD, MICROBENCH_SAMPLES, MICROBENCH_HELPER_KERNELS, RUN_ID),
    *(PROFILING_STD, PROFILING_SAMPLES, PROFILING_POPULATIONS, PROFILING_RUN_ID),
)
_GAP_HEADER = (
    *("Kernel Type", INPUT_SHAPES, INPUT_DTYPES, OUTPUT_SHAPES),
    *(AVERAGE, PROFILING_AVERAGE, "Ratio (microbench/profiling)"),
    *(*_HOW_TAKEN, "Signature"),
)


@dataclass(frozen=True)
class Gap:
    """A row with a replayed and a captured duration; `ratio` is microbench / profiling.

    Attributes:
        how_taken: the cells of the columns `_HOW_TAKEN`; "" for a missing column.
    """

    kernel_type: str
    signature: str
    input_shapes: str
    input_dtypes: str
    output_shapes: str
    microbench_us: float
    profiling_us: float
    how_taken: tuple[str, ...]

    @property
    def ratio(self) -> float:
        return self.microbench_us / self.profiling_us

    @property
    def populations(self) -> str:
        """The two modes of captured launches; "" for one mode."""
        return self.how_taken[_HOW_TAKEN.index(PROFILING_POPULATIONS)]

    @property
    def outside(self) -> bool:
        return not LOWEST_RATIO <= self.ratio <= HIGHEST_RATIO

    @property
    def distance(self) -> float:
        """The ratio, at least 1: 2 for twice or half the duration."""
        return max(self.ratio, 1 / self.ratio)


@dataclass(frozen=True)
class Cause:
    """A reason why rows were not measured, or an assumption about measured rows.

    Attributes:
        reason: status and reason, or the assumption, of the first row.
        rows: the number of rows.
        case_id: the id of the first row.
    """

    kernel_type: str
    reason: str
    rows: int
    case_id: str


@dataclass(frozen=True)
class SessionFacts:
    """The content of a session's report.

    Attributes:
        run_id, database, device, mode: the session.
        outcomes: the number of cases by pytest's outcome ("passed", "failed", "xfailed", "skipped", ...).
        ledger: the collected rows by result, as a sum.
        not_run: the ids of collected rows that did not run.
        unresolved: the number of rows without a measurement that did not run again, by status.
        statuses: the number of cases by status of their row.
        errors: reasons why rows were not measured, the most frequent first.
        assumptions: assumptions about measured rows, the most frequent first.
        left_out: the number of rows that the mode excludes, by kernel type.
        duplicates: the number of rows with the signature of an earlier row, by kernel type.
        not_replayable: the number of rows without a replay, by kernel type.
        merged: the result of the write-back; None if it failed.
        seconds: how long rows ran.
        figures: the summaries of measured rows.
        quality: the numbers of rows that are not quiet, by quality, with its meaning.
        manifest: the manifest of the run; None if nothing was written.
        not_comparable: why captured durations are not comparable with the session's; "" if they are.
    """

    run_id: str
    database: Path
    device: str
    mode: str
    outcomes: Mapping[str, int]
    ledger: str
    not_run: Sequence[str]
    unresolved: Mapping[str, int]
    statuses: Mapping[str, int]
    errors: Sequence[Cause]
    assumptions: Sequence[Cause]
    left_out: Mapping[str, int]
    duplicates: Mapping[str, int]
    not_replayable: Mapping[str, int]
    merged: WriteBackResult | None
    seconds: float
    figures: Collection[RowSummary]
    quality: Mapping[str, tuple[int, str]]
    manifest: Manifest | None
    not_comparable: str


def find_gaps(
    database: Database, kernel_types: Iterable[str], captures: Database | None = None
) -> tuple[list[Gap], list[str]]:
    """Returns the rows of some kernel types with both durations, largest difference first, and unreadable files.

    Args:
        database: has the replayed durations.
        captures: the database with the captured durations; None: `database`.
    """
    gaps, problems = [], []
    for kernel_type in kernel_types:
        try:
            table = database.read(kernel_type)
            if captures is not None:
                table = table.with_captured(captures.read_or_empty(kernel_type))
        except OpAtlasError as error:
            problems.append(str(error))
            continue
        microbench, profiling = table.durations_us(AVERAGE), table.durations_us(PROFILING_AVERAGE)
        how_taken = [table.cells(name) for name in _HOW_TAKEN]
        gaps += [
            Gap(
                kernel_type,
                table.signatures[i],
                table.cells(INPUT_SHAPES)[i],
                table.cells(INPUT_DTYPES)[i],
                table.cells(OUTPUT_SHAPES)[i],
                float(microbench[i]),
                float(profiling[i]),
                tuple(cells[i] for cells in how_taken),
            )
            for i in np.flatnonzero(np.isfinite(microbench) & np.isfinite(profiling)).tolist()
        ]
    return sorted(gaps, key=lambda gap: -gap.distance), problems


def write_gap_csv(path: Path, gaps: Sequence[Gap]) -> None:
    """Writes the rows with a ratio outside 0.8 to 1.2, largest difference first. Raises OpAtlasError."""
    rows = [
        (
            *(gap.kernel_type, gap.input_shapes, gap.input_dtypes, gap.output_shapes),
            *(f"{value:.4f}" for value in (gap.microbench_us, gap.profiling_us, gap.ratio)),
            *(*gap.how_taken, gap.signature),
        )
        for gap in gaps
        if gap.outside
    ]
    write_rows(path, _GAP_HEADER, rows)


def replay_report(facts: SessionFacts, gaps: Sequence[Gap]) -> str:
    """Returns the report of a session as Markdown."""
    return f"# Replay report of run {facts.run_id}\n\n{markdown(list(_report_parts(facts, gaps)))}\n"


def _written_fields(merged: WriteBackResult) -> dict[str, object]:
    """Returns the numbers of rows that a session wrote, with what each means."""
    return {
        "updated": (merged.updated.total(), "new duration"),
        "added": (merged.added.total(), "measured, and had no row"),
        "marked": (merged.marked.total(), "status only; durations stay"),
        "pruned": (len(merged.pruned), "moved to pruned/; `opatlas history DB --restore pruned` restores them"),
        "unchanged": (merged.unchanged.total(), "merged before"),
        "without a row": (len(merged.unmatched) + len(merged.of_siblings), "--update-mode=all adds them"),
        "repeated rows": (merged.repeated, "of one signature; all got its duration"),
    }


def cause_table(title: str, causes: Sequence[Cause], most: int | None = None) -> Table:
    """Returns reasons or assumptions with their numbers of rows, of which the first `most` ones."""
    rows = [(each.rows, each.kernel_type, each.reason, each.case_id) for each in causes[:most]]
    return Table(("rows", "kernel type", title, "first row"), rows, title, left_out=len(causes) - len(rows))


def gap_table(gaps: Sequence[Gap], most: int) -> Table:
    """Returns the first `most` rows whose replayed and captured durations differ by 20 % or more."""
    outside = [gap for gap in gaps if gap.outside]
    columns = (
        *(Column("replayed / captured", ratio), "kernel type", "input shapes"),
        *(Column("replayed(us)", microseconds), Column("captured(us)", microseconds), "captured modes"),
    )
    rows = [
        (gap.ratio, gap.kernel_type, gap.input_shapes, gap.microbench_us, gap.profiling_us, gap.populations)
        for gap in outside[:most]
    ]
    title = f"Replayed durations 20 % or more off the captured ones: {len(outside):,} of {len(gaps):,} rows"
    return Table(columns, rows, title, left_out=len(outside) - len(rows))


def _report_parts(facts: SessionFacts, gaps: Sequence[Gap]) -> Iterator[Part]:
    run = {
        "database": facts.database,
        "device": facts.device or "none was opened",
        "update mode": facts.mode,
        "ledger": facts.ledger,
        "rows run": sum(facts.statuses.values()),
        "seconds": f"{facts.seconds:.1f}",
    }
    yield Fields({**run, **_what_ran(facts)}, "Run")
    if facts.figures:
        if facts.quality:
            yield Fields(facts.quality, "Rows that are not quiet")
        yield from duration_tables(facts.figures)
    yield _count_table("Outcome", facts.outcomes)
    if facts.statuses:
        yield _count_table("Status", facts.statuses)
    merged = facts.merged
    if merged is None:
        yield "The records were not merged; they are in the journal."
    else:
        left_out = {"left out by the update mode": sum(facts.left_out.values())}
        yield Fields({**_written_fields(merged), **left_out}, "Written")
        for title, names in (
            ("Missing", merged.unmatched),
            ("Missing rows that ran for sibling types", merged.of_siblings),
            ("Pruned", merged.pruned),
        ):
            if names:
                yield Table(("kernel type", "signature"), [(name.kernel_type, name.signature) for name in names], title)
    if facts.not_run:
        yield Table(("row",), [(case_id,) for case_id in facts.not_run], "Not run")
    for title, counts in (
        ("Not run again: results of earlier sessions", facts.unresolved),
        ("Duplicate signatures", facts.duplicates),
        ("Kernel types without a replay", facts.not_replayable),
    ):
        if counts:
            yield _count_table(title, counts)
    if facts.errors:
        yield cause_table("Not measured", facts.errors)
    if facts.assumptions:
        yield cause_table("Assumptions", facts.assumptions)
    if gaps and facts.not_comparable:
        yield f"{len(gaps):,} rows with both durations, {facts.not_comparable}."
    elif gaps:
        yield gap_table(gaps, _HOT_SPOTS)


def _count_table(title: str, counts: Mapping[str, int]) -> Table:
    return Table(("name", "rows"), sorted(counts.items()), title)


def _what_ran(facts: SessionFacts) -> dict[str, str]:
    manifest = facts.manifest
    if manifest is None:
        return {}
    devices = [device for device in (manifest.device, *manifest.other_devices) if device]
    taken = Counter(f"{row.cache}, {row.instrument}" for row in facts.figures)
    # Options that are off or not given are omitted.
    given = {name: value for name, value in manifest.options.items() if value not in (None, False, "", [], (), {})}
    return {
        **{str(device["name"]): _pairs_text(device.get("facts", {})) for device in devices},
        "host": f"{manifest.host}, {manifest.system}",
        "versions": _pairs_text({"python": manifest.python, **manifest.packages}),
        **{f"measured {how}": f"{count:,} rows" for how, count in taken.most_common()},
        "options": _pairs_text(given),
    }


def _pairs_text(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
