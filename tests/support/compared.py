"""Databases that tests compare: rows of measured calls in CSVs, without a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path

from sessions import write_table

from opatlas.ask.compare.calls import RowCall
from opatlas.data.csv_files import text_table
from opatlas.row.columns import (
    AVERAGE,
    CACHE_STATE,
    CONTROL_RATIO,
    CONVERSIONS,
    IMPLEMENTATION,
    INPUT_DTYPES,
    INPUT_SHAPES,
    INSTRUMENT,
    MICROBENCH_DEVICE_KERNELS,
    MICROBENCH_MEDIAN,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    OUTPUT_DTYPES,
    OUTPUT_SHAPES,
    OUTPUTS_MISSING,
    POOLED_RUN_DURATIONS,
    QUALITY,
    RUN_ID,
    SPAN,
    SPEED_UP,
    SPEED_UP_AGAINST,
    SPEED_UP_HIGH,
    SPEED_UP_LOW,
    SPEED_UP_ROUNDS,
    STAND_IN,
    STATUS,
    STATUS_REASON,
)
from opatlas.row.quality import NOISE_LIMIT, Duration, Quality, Source
from opatlas.row.table import Row, RowTable


def shape(size: int) -> dict[str, str]:
    """Returns the cells that identify a row with one matrix of `size` rows."""
    matrix = f"{size},64"
    return {INPUT_SHAPES: matrix, INPUT_DTYPES: "DT_BF16", OUTPUT_SHAPES: matrix, OUTPUT_DTYPES: "DT_BF16"}


def measured(size: int, us: float, *, std_us: float | None = None, **others: str) -> dict[str, str]:
    """Returns a measured row; `others` are further cells by the names in `_MORE`."""
    return {
        **shape(size),
        AVERAGE: f"{us}",
        MICROBENCH_MEDIAN: f"{us}",
        MICROBENCH_STD: f"{us * 0.01 if std_us is None else std_us}",
        MICROBENCH_SAMPLES: "20",
        MICROBENCH_DEVICE_KERNELS: "1",
        SPAN: f"{us}",
        CACHE_STATE: "cold",
        INSTRUMENT: "cupti",
        QUALITY: "quiet",
        STATUS: "measured",
        **{_MORE[name]: text for name, text in others.items()},
    }


def lost(size: int, status: str, reason: str = "") -> dict[str, str]:
    """Returns a row that ran and has no duration."""
    return {**shape(size), STATUS: status, STATUS_REASON: reason}


_MORE = {
    "kernels": MICROBENCH_DEVICE_KERNELS,
    "span": SPAN,
    "cache": CACHE_STATE,
    "instrument": INSTRUMENT,
    "quality": QUALITY,
    "stand_in": STAND_IN,
    "missing": OUTPUTS_MISSING,
    "converted": CONVERSIONS,
    "status": STATUS,
    "samples": MICROBENCH_SAMPLES,
    "run": RUN_ID,
    "pooled": POOLED_RUN_DURATIONS,
    "implementation": IMPLEMENTATION,
    "against": SPEED_UP_AGAINST,
    "ratio": SPEED_UP,
    "low": SPEED_UP_LOW,
    "high": SPEED_UP_HIGH,
    "rounds": SPEED_UP_ROUNDS,
    "control": CONTROL_RATIO,
}


def call(
    us: float, *, noise: float = nan, samples: float = nan, quality: str = "", runs: Sequence[float] = (), **others: str
) -> RowCall:
    """Returns a call with a duration.

    Args:
        runs: the medians of the runs that the duration was pooled from.
        others: further cells by the names in `_MORE`.
    """
    cells = {_MORE[name]: text for name, text in others.items()}
    cells |= {STATUS: "measured", POOLED_RUN_DURATIONS: "; ".join(f"{i} {each!r}" for i, each in enumerate(runs))}
    duration = Duration(
        *(Source.REPLAYED, us, us, nan, noise * us, samples, Quality.from_cell(quality), noise),
        *(noise > NOISE_LIMIT, bool(cells.get(STAND_IN)), "0", "", ""),
    )
    return RowCall(_row(cells), duration)


def lost_call(status: str) -> RowCall:
    """Returns a call that ran and has no duration."""
    return RowCall(_row({STATUS: status}))


def _row(cells: Mapping[str, str]) -> Row:
    return RowTable("Sort", Path("Sort.csv"), text_table(cells, [cells])).row(0)


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, str]]]) -> Path:
    """Writes a CSV for each kernel type, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for kernel_type, rows in tables.items():
        write_table(folder / f"{kernel_type}.csv", rows)
    return folder
