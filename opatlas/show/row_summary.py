"""Texts and tables of the numbers of measured rows: durations, noise, rates, shares of a peak; gaps to captures.

The terminal, the session report and JUnit all show these; duration_gap_*.csv has the gaps.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from opatlas import formats
from opatlas.data.database import Database
from opatlas.errors import noted
from opatlas.grouping import grouped
from opatlas.row import columns as col
from opatlas.row.communication import bandwidth_gbps, is_communication
from opatlas.row.quality import NOISE_LIMIT, Quality, relative_noise
from opatlas.row.record import Measurement, Record
from opatlas.row.roofline import PRODUCTS, Peak, achieved_rates, row_work
from opatlas.row.slots import base_type
from opatlas.show.result import Column, Table

#: Prefixes of integer dtypes.
_WHOLE_NUMBERS = ("INT", "UINT")


@dataclass(frozen=True, slots=True)
class RowSummary:
    """The numbers of one measured row.

    Attributes:
        kernel_type, shapes: the row: input shapes and the first dtype, or the bytes and devices of a message.
        median_us, min_us: of the samples, in microseconds.
        noise: the standard deviation of the samples as a share of their mean; None for one sample.
        samples: the number of samples.
        quality: the quality of the samples.
        instrument, cache: how the samples were measured.
        captured_us: the captured duration of the row; None without one.
        rate_per_s, unit: the bytes or operations a second, whichever is nearer to its peak; None if the work of the row
            is unknown.
        share: the share of the peak that bounds the row; None if no peak is known, or a stand-in was timed. More than 1
            if results stay in the last-level cache until the sample has ended.
    """

    kernel_type: str
    shapes: str
    median_us: float
    min_us: float
    noise: float | None
    samples: int
    quality: Quality
    instrument: str
    cache: str
    captured_us: float | None = None
    rate_per_s: float | None = None
    unit: str = "B/s"
    share: float | None = None

    @property
    def name(self) -> str:
        """The name of the row: `MatMulV2 1,1024;4096,1024 BF16`."""
        return f"{self.kernel_type} {self.shapes}".rstrip()

    @property
    def ratio(self) -> float | None:
        """The median divided by the captured duration; None without a capture."""
        return self.median_us / self.captured_us if self.captured_us else None

    @property
    def rate(self) -> str:
        """`1.6 TB/s`, `312 TFLOP/s`; "" if the work is unknown."""
        return formats.scaled(self.rate_per_s, self.unit) if self.rate_per_s else ""

    @property
    def warning(self) -> str:
        """The quality, if it needs a warning; "" otherwise."""
        return self.quality.value if self.quality.is_warning else ""

    @property
    def mark(self) -> str:
        """The quality, if it needs a warning or is a composition; "" otherwise."""
        return self.quality.value if self.quality is Quality.COMPOSITION else self.warning

    def line(self) -> str:
        """Returns `15.1 us ±0.9 % n=30 cold cupti, captured 14.2 us (1.06x)`, which -v and CI show."""
        parts = [formats.duration(self.median_us), formats.noise(self.noise), f"n={self.samples}", self.cache]
        parts = [" ".join(filter(None, (*parts, self.instrument)))]
        parts += filter(None, [self.mark, self.rate])
        if self.share is not None:
            parts.append(f"{formats.percent(self.share)} of peak")
        if self.captured_us and self.ratio:
            parts.append(f"captured {formats.duration(self.captured_us)} ({formats.ratio(self.ratio)})")
        return ", ".join(parts)


def summarize_row(record: Record, peak: Peak, captured_us: float | None = None) -> RowSummary:
    """Returns the summary of a measured record.

    Args:
        peak: the peaks of the device.
        captured_us: the captured duration of the row, or None.
    """
    measurement = record.measurement
    assert measurement is not None
    summary = measurement.summary
    cells = record.cells
    if is_communication(record.kernel_type):
        rates: dict[str, Any] = {"rate_per_s": bandwidth_gbps(int(cells[col.MESSAGE_BYTES]), summary.median_us) * 1e9}
    else:
        rates = _rates(record, measurement, peak, summary.median_us)
    return RowSummary(
        kernel_type=record.kernel_type,
        shapes=row_shapes(record.kernel_type, cells),
        median_us=summary.median_us,
        min_us=summary.min_us,
        noise=relative_noise(measurement.samples_us),
        samples=summary.count,
        quality=measurement.verdict.quality,
        instrument=measurement.instrument,
        cache=measurement.cache_state,
        captured_us=captured_us,
        **rates,
    )


def row_shapes(kernel_type: str, cells: Mapping[str, str]) -> str:
    """Returns the shapes of a row as in `RowSummary`, for any cells."""
    if is_communication(kernel_type):
        return f"{cells.get(col.MESSAGE_BYTES, '')} B on {cells.get(col.NUM_DEVICES, '')}"
    dtype, *_ = cells.get(col.INPUT_DTYPES, "").split(";")
    return f"{cells.get(col.INPUT_SHAPES, '')} {dtype}".replace('"', "").strip()


def _rates(record: Record, measurement: Measurement, peak: Peak, median_us: float) -> dict[str, Any]:
    # The rate is that of the launched kernel.
    ran = record.launched_record() or record
    work = row_work(ran.kernel_type, ran.cells)
    if work is None:
        return {}
    reached = achieved_rates(work, peak, median_us, cold=measurement.cache_state == "cold")
    share = None if measurement.stand_in else reached.share
    by_arithmetic = base_type(ran.kernel_type) in PRODUCTS if share is None else reached.bound_by_arithmetic
    if by_arithmetic and reached.tera_ops:
        unit = "OP/s" if work.dtype.startswith(_WHOLE_NUMBERS) else "FLOP/s"
        return {"rate_per_s": reached.tera_ops * 1e12, "unit": unit, "share": share}
    return {"rate_per_s": reached.gbps * 1e9, "share": share}


_SHOWN = 5


def duration_tables(rows: Collection[RowSummary]) -> Iterator[Table]:
    """Yields a table of the kernel types, and of many rows the slowest and the noisiest ones."""
    columns = (
        *("kernel type", "rows", "median(us)", "shortest(us)", "longest(us)"),
        *(Column("noise", formats.percent), "not quiet", "best rate", Column("of peak", formats.percent)),
    )
    of_type = grouped((row.kernel_type, row) for row in rows)
    yield Table(columns, [_type_cells(name, of_type[name]) for name in sorted(of_type)])
    # Few rows need no lists besides the table.
    if len(rows) > _SHOWN:
        yield _table_of_rows("slowest", heapq.nlargest(_SHOWN, rows, key=lambda row: row.median_us))
        noisiest = heapq.nlargest(_SHOWN, (row for row in rows if row.noise), key=lambda row: row.noise or 0.0)
        yield _table_of_rows("noisiest", noisiest)


def _type_cells(kernel_type: str, rows: Sequence[RowSummary]) -> tuple[Any, ...]:
    """Returns the cells of a kernel type: of its medians, its noise, its warnings, and its row nearest to a peak."""
    medians = [row.median_us for row in rows]
    noise = [row.noise for row in rows if row.noise is not None]
    best = max(rows, key=lambda row: (row.share or 0.0, row.rate_per_s or 0.0))
    return (
        *(kernel_type, len(rows), median(medians), min(medians), max(medians), median(noise) if noise else None),
        *(sum(bool(row.warning) for row in rows), best.rate, best.share),
    )


def _table_of_rows(title: str, rows: Iterable[RowSummary]) -> Table:
    columns = (
        *("median(us)", Column("noise", formats.percent), "samples", "quality", "rate"),
        *(Column("of peak", formats.percent), "kernel type", "shapes"),
    )
    cells = [
        (*(row.median_us, row.noise, row.samples, row.mark, row.rate, row.share), *(row.kernel_type, row.shapes))
        for row in rows
    ]
    return Table(columns, cells, title)


def quality_fields(rows: Collection[RowSummary], cause: str) -> dict[str, tuple[int, str]]:
    """Returns the number of rows of each quality but quiet, with its meaning.

    Args:
        cause: what may have caused noise; "" if nothing is known.
    """
    meanings = {
        Quality.COMPOSITION: "of torch operators: no estimate of the kernel's own duration",
        Quality.NOISY: f"above {formats.percent(NOISE_LIMIT, 0)}{f': {cause}' if cause else ''}",
        Quality.UNKNOWN: "fewer than 3 samples",
    }
    counts = Counter(row.quality for row in rows if row.quality is not Quality.QUIET)
    return {
        "unknown quality" if quality is Quality.UNKNOWN else quality.value: (count, meanings.get(quality, ""))
        for quality, count in counts.most_common()
    }


#: A replay within 20 % of the capture agrees with it.
LOWEST_RATIO, HIGHEST_RATIO = 0.8, 1.2
#: Columns of a gap, and those of them that the terminal shows; the CSV has all.
_CELLS = (
    *(col.INPUT_SHAPES, col.QUALITY, col.PROFILING_POPULATIONS, col.INPUT_DTYPES, col.OUTPUT_SHAPES, col.INSTRUMENT),
    *(col.MICROBENCH_STD, col.MICROBENCH_SAMPLES, col.MICROBENCH_HELPER_KERNELS, col.RUN_ID, col.PROFILING_STD),
    *(col.PROFILING_SAMPLES, col.PROFILING_RUN_ID, col.KERNEL_NAMES, col.PROFILING_KERNEL_NAMES),
)
_CELLS_SHOWN = _CELLS[:3]


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
    gaps: list[Gap] = []
    problems: list[str] = []
    for kernel_type in kernel_types:
        with noted(problems):
            table = database.read(kernel_type)
            if captures is not None:
                table = table.with_captured(captures.read_or_empty(kernel_type))
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
        *(Column("Ratio (microbench/profiling)", formats.ratio), "Kernel Type", col.AVERAGE, col.PROFILING_AVERAGE),
        *(Column(name, wide=name not in _CELLS_SHOWN) for name in _CELLS),
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
    by_type = grouped((gap.kernel_type, gap) for gap in gaps)
    columns = (
        "kernel type",
        "rows",
        Column("median", formats.ratio),
        Column("p90", formats.ratio),
        "same kernels",
        "compositions",
    )
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
