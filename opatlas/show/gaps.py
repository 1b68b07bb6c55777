"""The rows with a replayed and a captured duration, and how far apart these are: tables, and duration_gap_*.csv."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.formats import ratio
from opatlas.row import columns as col
from opatlas.show.result import Column, Table

#: A replay within 20 % of the capture agrees with it.
LOWEST_RATIO, HIGHEST_RATIO = 0.8, 1.2
#: Columns of a gap, and those of them that the terminal shows; the CSV has all.
_CELLS = (
    *(col.INPUT_SHAPES, col.QUALITY, col.PROFILING_POPULATIONS, col.INPUT_DTYPES, col.OUTPUT_SHAPES, col.INSTRUMENT),
    *(col.MICROBENCH_STD, col.MICROBENCH_SAMPLES, col.MICROBENCH_HELPER_KERNELS, col.RUN_ID, col.PROFILING_STD),
    *(col.PROFILING_SAMPLES, col.PROFILING_RUN_ID, col.KERNEL_NAMES, col.PROFILING_KERNEL_NAMES),
)
_SHOWN = _CELLS[:3]


@dataclass(frozen=True)
class Gap:
    """A row with a replayed and a captured duration.

    Attributes:
        cells: the cells of `_CELLS`; "" for a missing column.
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
        cells = {name: table.cells(name) for name in _CELLS}
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


def gap_table(gaps: Sequence[Gap]) -> Table:
    """Returns the rows whose replayed and captured durations differ by 20 % or more, the largest difference first."""
    columns: list[Column | str] = [
        *(Column("Ratio (microbench/profiling)", ratio), "Kernel Type", col.AVERAGE, col.PROFILING_AVERAGE),
        *(Column(name, wide=name not in _SHOWN) for name in _CELLS),
        Column("Signature", wide=True),
    ]
    rows = [
        (
            *(gap.ratio, gap.kernel_type, gap.microbench_us, gap.profiling_us),
            *(*(gap.cells.get(name) for name in _CELLS), gap.signature),
        )
        for gap in gaps
        if gap.outside
    ]
    title = f"Replayed durations 20 % or more off the captured ones: {len(rows):,} of {len(gaps):,} rows"
    return Table(columns, rows, title)


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
