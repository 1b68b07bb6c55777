"""The two files that a session writes beside the CSVs: its report, and the differences between replay and capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.model.quality import valid_duration
from opatlas.model.schema import (
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
from opatlas.model.signature import signatures
from opatlas.report.row_summary import RowSummary, markdown_table, markdown_tables
from opatlas.store.csv_files import write_rows
from opatlas.store.database import Database
from opatlas.store.manifest import Manifest
from opatlas.store.row_copy import with_captured
from opatlas.store.write_back import WriteBackResult
from opatlas.text import pluralize, printable_lines

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
        quality: sentences on rows that are not quiet.
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
    quality: Sequence[str]
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
            frame = database.read(kernel_type).frame
            if captures is not None:
                frame = with_captured(kernel_type, frame, captures.read_or_empty(kernel_type).frame)
        except OpAtlasError as error:
            problems.append(str(error))
            continue
        if AVERAGE not in frame.columns or PROFILING_AVERAGE not in frame.columns:
            continue
        microbench = frame[AVERAGE].map(valid_duration)
        profiling = frame[PROFILING_AVERAGE].map(valid_duration)
        both = frame[microbench.notna() & profiling.notna()]
        missing = [""] * len(both)
        how_taken = zip(*(both[name] if name in both.columns else missing for name in _HOW_TAKEN), strict=True)
        gaps += [
            Gap(kernel_type, *cells)
            for cells in zip(
                signatures(kernel_type, both),
                both[INPUT_SHAPES],
                both[INPUT_DTYPES],
                both[OUTPUT_SHAPES],
                microbench[both.index],
                profiling[both.index],
                how_taken,
                strict=True,
            )
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
    merged = facts.merged or WriteBackResult()
    lines = [
        f"# Replay report of run {facts.run_id}",
        "",
        f"- Database: `{facts.database}`",
        f"- Device: {facts.device or 'none was opened'}",
        f"- Update mode: {facts.mode}",
        f"- Ledger: {facts.ledger}",
        f"- Rows run: {sum(facts.statuses.values())} in {facts.seconds:.1f} s",
        *_what_ran(facts),
        *_durations(facts),
        "",
        "## Rows",
        "",
        *markdown_table(("Outcome", "Rows"), sorted(facts.outcomes.items())),
        "",
        *markdown_table(("Status", "Rows"), sorted(facts.statuses.items())),
        "",
        "## Write-back",
        "",
        *(
            markdown_table(
                ("What", "Rows"),
                [
                    ("updated (new duration)", merged.updated.total()),
                    ("added (measured; the row was missing)", merged.added.total()),
                    ("marked (status only, durations kept)", merged.marked.total()),
                    (f"pruned (moved to `{Database(facts.database).pruned_dir}`)", len(merged.pruned)),
                    ("unchanged (merged before)", merged.unchanged.total()),
                    ("missing (without a row, reported only)", len(merged.unmatched) + len(merged.of_siblings)),
                    ("left out by the update mode", sum(facts.left_out.values())),
                    ("duplicate signatures", sum(facts.duplicates.values())),
                ],
            )
            if facts.merged is not None
            else ["The records were not merged; they are in the journal."]
        ),
    ]
    for title, names in (
        ("Missing", merged.unmatched),
        ("Missing rows that ran for sibling types", merged.of_siblings),
        ("Pruned", merged.pruned),
    ):
        if names:
            lines += ["", f"### {title}", "", *(f"- {name.kernel_type} `{name.signature}`" for name in names)]
    if facts.not_run:
        lines += ["", "### Not run", "", *(f"- `{case_id}`" for case_id in facts.not_run)]
    for title, counts in (
        ("Not run again: results of earlier sessions", facts.unresolved),
        ("Duplicate signatures", facts.duplicates),
        ("Kernel types without a replay", facts.not_replayable),
    ):
        if counts:
            lines += ["", f"### {title}", "", *markdown_table(("Kernel type", "Rows"), sorted(counts.items()))]
    for title, what, causes in (
        ("Not measured, by kernel type and cause", "Cause", facts.errors),
        ("Assumptions about measured rows", "Assumption", facts.assumptions),
    ):
        if causes:
            lines += ["", f"## {title}", ""]
            lines += markdown_table(
                ("Kernel type", "Rows", what, "First row"),
                [(cause.kernel_type, cause.rows, cause.reason, f"`{cause.case_id}`") for cause in causes],
            )
    lines += _gaps(gaps, facts.not_comparable)
    return printable_lines("\n".join(lines) + "\n")


def _what_ran(facts: SessionFacts) -> Iterator[str]:
    manifest = facts.manifest
    if manifest is None:
        return
    for device in (manifest.device, *manifest.other_devices):
        if device:
            yield f"- {device['name']}: {_pairs_text(device.get('facts', {}))}"
    yield f"- Host: {manifest.host}, {manifest.system}"
    yield f"- Versions: {_pairs_text({'python': manifest.python, **manifest.packages})}"
    taken = Counter(f"{row.cache}, {row.instrument}" for row in facts.figures)
    if taken:
        yield "- Cache and instrument: " + "; ".join(f"{how} ({pluralize(n, 'row')})" for how, n in taken.most_common())
    # Options that are off or not given are omitted.
    given = {name: value for name, value in manifest.options.items() if value not in (None, False, "", [], (), {})}
    yield f"- Options: {_pairs_text(given)}"


def _pairs_text(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _durations(facts: SessionFacts) -> Iterator[str]:
    if facts.figures:
        yield from ("", "## Durations", "")
        yield from (line for sentence in facts.quality for line in (f"{sentence}.", ""))
        yield from markdown_tables(facts.figures)


def _gaps(gaps: Sequence[Gap], not_comparable: str) -> Iterator[str]:
    """Yields the section on gaps; nothing if no row has both durations."""
    if not gaps:
        return
    yield from ("", "## Gap hot spots", "")
    if not_comparable:
        yield f"{pluralize(len(gaps), 'row')} with both durations, {not_comparable}."
        return
    outside = [gap for gap in gaps if gap.outside]
    yield (
        f"{len(outside)} of {len(gaps)} rows with both durations are outside of {LOWEST_RATIO} ... {HIGHEST_RATIO} x "
        f"(microbench / profiling)."
    )
    if outside:
        header = ("Kernel type", "Input shapes", "Microbench (us)", "Profiling (us)", "Ratio (microbench / profiling)")
        yield ""
        yield from markdown_table(
            header,
            [
                (
                    gap.kernel_type,
                    gap.input_shapes,
                    f"{gap.microbench_us:.2f}",
                    f"{gap.profiling_us:.2f}",
                    f"{gap.ratio:.2f} x",
                )
                for gap in outside[:_HOT_SPOTS]
            ],
        )
