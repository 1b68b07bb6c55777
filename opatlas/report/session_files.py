"""The two files a session leaves beside the CSVs: what it did, and where replay and capture disagree."""

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
from opatlas.store.write_back import WriteBackResult
from opatlas.text import counted, shown

#: A replay within 20 % of the capture counts as agreeing with it.
LOWEST_RATIO, HIGHEST_RATIO = 0.8, 1.2
_HOT_SPOTS = 10
#: What tells how the two durations of a gap were taken, and how good they are.
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
    """A row whose replayed and captured durations can be compared; `ratio` is microbench / profiling.

    Attributes:
        how_taken: cells that tell how the durations were taken, as `_HOW_TAKEN` names them; "" for a missing one.
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
        """The two kinds of captured launches; "" where they are of one kind."""
        return self.how_taken[_HOW_TAKEN.index(PROFILING_POPULATIONS)]

    @property
    def outside(self) -> bool:
        return not LOWEST_RATIO <= self.ratio <= HIGHEST_RATIO

    @property
    def distance(self) -> float:
        """How far from agreement: 2 for twice or half the duration."""
        return max(self.ratio, 1 / self.ratio)


@dataclass(frozen=True)
class Cause:
    """Why rows were not measured, or what was assumed of measured ones.

    Attributes:
        reason: status and reason, or the assumption, in the words of the first of the rows.
        rows: how many there are.
        case_id: that of the first of them.
    """

    kernel_type: str
    reason: str
    rows: int
    case_id: str


@dataclass(frozen=True)
class SessionFacts:
    """What a session did, for its report.

    Attributes:
        run_id, database, device, mode: which session.
        outcomes: cases by pytest's outcome ("passed", "failed", "xfailed", "skipped", ...).
        ledger: every collected row by what became of it, as a sum.
        not_run: ids of the rows that were collected and not run.
        unresolved: rows that earlier sessions left without a measurement and this one did not run, by status.
        statuses: cases by status of their row.
        errors: why rows were not measured, the most frequent first.
        assumptions: what was assumed of the rows that were measured, the most frequent first.
        left_out: rows that the mode left out, by kernel type.
        duplicates: rows whose signature stands in an earlier row, by kernel type.
        not_replayable: rows whose kernel type has no replay, by kernel type.
        merged: what the write-back did; None where it failed.
        seconds: how long rows ran.
        figures: the numbers of the rows that were measured.
        quality: how many of them are not quiet, and why, in sentences.
        manifest: that of the run; None where nothing was written.
        not_comparable: why captured durations do not compare with those of the session; "" where they do.
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


def find_gaps(database: Database, kernel_types: Iterable[str]) -> tuple[list[Gap], list[str]]:
    """Rows of some kernel types that have both durations, worst first; and files that could not be read."""
    gaps, problems = [], []
    for kernel_type in kernel_types:
        try:
            frame = database.read(kernel_type).frame
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
    """Every row outside of 0.8 ... 1.2, worst first. Raises OpAtlasError."""
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
    """The report of a session as Markdown."""
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
                    ("updated (duration measured anew)", merged.updated.total()),
                    ("added (measured, and not there before)", merged.added.total()),
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
        ("Missing, and ran for rows of sibling types", merged.of_siblings),
        ("Pruned", merged.pruned),
    ):
        if names:
            lines += ["", f"### {title}", "", *(f"- {name.kernel_type} `{name.signature}`" for name in names)]
    if facts.not_run:
        lines += ["", "### Not run", "", *(f"- `{case_id}`" for case_id in facts.not_run)]
    for title, counts in (
        ("Left as earlier sessions left them", facts.unresolved),
        ("Duplicate signatures", facts.duplicates),
        ("Kernel types without a replay", facts.not_replayable),
    ):
        if counts:
            lines += ["", f"### {title}", "", *markdown_table(("Kernel type", "Rows"), sorted(counts.items()))]
    for title, what, causes in (
        ("Not measured, by kernel type and cause", "Cause", facts.errors),
        ("Assumed of measured rows", "Assumed", facts.assumptions),
    ):
        if causes:
            lines += ["", f"## {title}", ""]
            lines += markdown_table(
                ("Kernel type", "Rows", what, "First row"),
                [(cause.kernel_type, cause.rows, cause.reason, f"`{cause.case_id}`") for cause in causes],
            )
    lines += _gaps(gaps, facts.not_comparable)
    return shown("\n".join(lines) + "\n")


def _what_ran(facts: SessionFacts) -> Iterator[str]:
    manifest = facts.manifest
    if manifest is None:
        return
    for device in (manifest.device, *manifest.other_devices):
        if device:
            yield f"- {device['name']}: {_listed(device.get('facts', {}))}"
    yield f"- Host: {manifest.host}, {manifest.system}"
    yield f"- Versions: {_listed({'python': manifest.python, **manifest.packages})}"
    taken = Counter(f"{row.cache}, {row.instrument}" for row in facts.figures)
    if taken:
        yield "- Cache and instrument: " + "; ".join(f"{how} ({counted(n, 'row')})" for how, n in taken.most_common())
    # What is not given, or off, says nothing.
    given = {name: value for name, value in manifest.options.items() if value not in (None, False, "", [], ())}
    yield f"- Options: {_listed(given)}"


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _durations(facts: SessionFacts) -> Iterator[str]:
    if facts.figures:
        yield from ("", "## Durations", "")
        yield from (line for sentence in facts.quality for line in (f"{sentence}.", ""))
        yield from markdown_tables(facts.figures)


def _gaps(gaps: Sequence[Gap], not_comparable: str) -> Iterator[str]:
    """Nothing where no row has both durations."""
    if not gaps:
        return
    yield from ("", "## Gap hot spots", "")
    if not_comparable:
        yield f"{counted(len(gaps), 'row')} with both durations, {not_comparable}."
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
