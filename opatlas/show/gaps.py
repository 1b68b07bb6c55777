"""The rows with a replayed and a captured duration, and how far apart these are: tables, and duration_gap_*.csv."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opatlas.data.csv_files import write_rows
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.formats import microseconds, ratio
from opatlas.row import columns as col
from opatlas.show.result import Column, Table

#: A replay within 20 % of the capture agrees with it.
LOWEST_RATIO, HIGHEST_RATIO = 0.8, 1.2
_ROW = (col.INPUT_SHAPES, col.INPUT_DTYPES, col.OUTPUT_SHAPES)
#: Columns that say how the two durations of a gap were measured, and their quality.
_HOW_TAKEN = (
    *(
        col.INSTRUMENT,
        col.QUALITY,
        col.MICROBENCH_STD,
        col.MICROBENCH_SAMPLES,
        col.MICROBENCH_HELPER_KERNELS,
        col.RUN_ID,
    ),
    *(col.PROFILING_STD, col.PROFILING_SAMPLES, col.PROFILING_POPULATIONS, col.PROFILING_RUN_ID),
    *(col.KERNEL_NAMES, col.PROFILING_KERNEL_NAMES),
)
_RATIO = "Ratio (microbench/profiling)"


@dataclass(frozen=True)
class Gap:
    """A row with a replayed and a captured duration.

    Attributes:
        cells: the cells of `_ROW` and `_HOW_TAKEN`; "" for a missing column.
    """

    kernel_type: str
    signature: str
    cells: Mapping[str, str]
    microbench_us: float
    profiling_us: float

    @property
    def ratio(self) -> float:
        """The replayed duration / the captured one."""
        return self.microbench_us / self.profiling_us

    @property
    def outside(self) -> bool:
        return not LOWEST_RATIO <= self.ratio <= HIGHEST_RATIO


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
        microbench, profiling = table.durations_us(col.AVERAGE), table.durations_us(col.PROFILING_AVERAGE)
        cells = {name: table.cells(name) for name in (*_ROW, *_HOW_TAKEN)}
        gaps += [
            Gap(
                kernel_type,
                table.signatures[i],
                {name: column[i] for name, column in cells.items()},
                float(microbench[i]),
                float(profiling[i]),
            )
            for i in np.flatnonzero(np.isfinite(microbench) & np.isfinite(profiling)).tolist()
        ]
    return sorted(gaps, key=lambda gap: -max(gap.ratio, 1 / gap.ratio)), problems


def write_gap_csv(path: Path, gaps: Sequence[Gap]) -> None:
    """Writes the rows with a ratio outside 0.8 to 1.2, largest difference first. Raises OpAtlasError."""
    header = ("Kernel Type", *_ROW, col.AVERAGE, col.PROFILING_AVERAGE, _RATIO, *_HOW_TAKEN, "Signature")
    rows = [
        (
            *(gap.kernel_type, *(gap.cells[name] for name in _ROW)),
            *(f"{value:.4f}" for value in (gap.microbench_us, gap.profiling_us, gap.ratio)),
            *(*(gap.cells[name] for name in _HOW_TAKEN), gap.signature),
        )
        for gap in gaps
        if gap.outside
    ]
    write_rows(path, header, rows)


def gap_table(gaps: Sequence[Gap], most: int) -> Table:
    """Returns the first `most` rows whose replayed and captured durations differ by 20 % or more."""
    outside = [gap for gap in gaps if gap.outside]
    columns = (
        *(Column("replayed / captured", ratio), "kernel type", "input shapes"),
        *(Column("replayed(us)", microseconds), "quality", Column("captured(us)", microseconds), "captured modes"),
    )
    rows = [
        (
            *(gap.ratio, gap.kernel_type, gap.cells[col.INPUT_SHAPES]),
            *(
                gap.microbench_us,
                gap.cells.get(col.QUALITY),
                gap.profiling_us,
                gap.cells.get(col.PROFILING_POPULATIONS),
            ),
        )
        for gap in outside[:most]
    ]
    title = f"Replayed durations 20 % or more off the captured ones: {len(outside):,} of {len(gaps):,} rows"
    return Table(columns, rows, title, left_out=len(outside) - len(rows))


def gaps_by_type(gaps: Sequence[Gap]) -> Table:
    """Returns replayed over captured by kernel type, the farthest first, and of how many rows other kernels ran."""
    by_type: dict[str, list[Gap]] = {}
    for gap in gaps:
        by_type.setdefault(gap.kernel_type, []).append(gap)
    columns = ("kernel type", "rows", Column("median", ratio), Column("p90", ratio), "same kernels", "compositions")
    rows = [
        (
            *(kernel_type, len(of_type), *np.quantile([gap.ratio for gap in of_type], (0.5, 0.9)).tolist()),
            sum(map(_same_kernels, of_type)) if any(gap.cells[col.PROFILING_KERNEL_NAMES] for gap in of_type) else None,
            sum("composition" in gap.cells[col.QUALITY] for gap in of_type),
        )
        for kernel_type, of_type in by_type.items()
    ]
    rows.sort(key=lambda row: -max(row[2], 1 / row[2]))
    return Table(columns, rows, "Replayed / captured by kernel type")


def _same_kernels(gap: Gap) -> bool:
    replayed, captured = gap.cells[col.KERNEL_NAMES], gap.cells[col.PROFILING_KERNEL_NAMES]
    return bool(replayed) and replayed in captured.split(" | ")
