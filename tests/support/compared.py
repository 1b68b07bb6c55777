"""Databases that tests compare: rows of measured calls in CSVs, without a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path

from sessions import write_table

from opatlas.ask.compare.calls import RowCall
from opatlas.data.csv_files import text_table
from opatlas.row import columns as col
from opatlas.row.quality import NOISE_LIMIT, Duration, Quality, Source
from opatlas.row.table import Row, RowTable


def shape(size: int) -> dict[str, str]:
    """Returns the cells that identify a row with one matrix of `size` rows."""
    matrix = f"{size},64"
    return {
        col.INPUT_SHAPES: matrix,
        col.INPUT_DTYPES: "DT_BF16",
        col.OUTPUT_SHAPES: matrix,
        col.OUTPUT_DTYPES: "DT_BF16",
    }


def measured(size: int, us: float, *, std_us: float | None = None, **others: str) -> dict[str, str]:
    """Returns a measured row; `others` are further cells by the names in `_MORE`."""
    return {
        **shape(size),
        col.AVERAGE: f"{us}",
        col.MICROBENCH_MEDIAN: f"{us}",
        col.MICROBENCH_STD: f"{us * 0.01 if std_us is None else std_us}",
        col.MICROBENCH_SAMPLES: "20",
        col.MICROBENCH_DEVICE_KERNELS: "1",
        col.SPAN: f"{us}",
        col.CACHE_STATE: "cold",
        col.INSTRUMENT: "cupti",
        col.QUALITY: "quiet",
        col.STATUS: "measured",
        **{_MORE[name]: text for name, text in others.items()},
    }


def lost(size: int, status: str, reason: str = "") -> dict[str, str]:
    """Returns a row that ran and has no duration."""
    return {**shape(size), col.STATUS: status, col.STATUS_REASON: reason}


_MORE = {
    "kernels": col.MICROBENCH_DEVICE_KERNELS,
    "span": col.SPAN,
    "cache": col.CACHE_STATE,
    "instrument": col.INSTRUMENT,
    "quality": col.QUALITY,
    "stand_in": col.STAND_IN,
    "missing": col.OUTPUTS_MISSING,
    "converted": col.CONVERSIONS,
    "status": col.STATUS,
    "samples": col.MICROBENCH_SAMPLES,
    "run": col.RUN_ID,
    "pooled": col.POOLED_RUN_DURATIONS,
    "implementation": col.IMPLEMENTATION,
    "against": col.SPEED_UP_AGAINST,
    "ratio": col.SPEED_UP,
    "low": col.SPEED_UP_LOW,
    "high": col.SPEED_UP_HIGH,
    "rounds": col.SPEED_UP_ROUNDS,
    "control": col.CONTROL_RATIO,
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
    cells |= {
        col.STATUS: "measured",
        col.POOLED_RUN_DURATIONS: "; ".join(f"{i} {each!r}" for i, each in enumerate(runs)),
    }
    duration = Duration(
        *(Source.REPLAYED, us, us, nan, noise * us, samples, Quality.from_cell(quality), noise),
        *(noise > NOISE_LIMIT, bool(cells.get(col.STAND_IN)), "0", "", ""),
    )
    return RowCall(_row(cells), duration)


def lost_call(status: str) -> RowCall:
    """Returns a call that ran and has no duration."""
    return RowCall(_row({col.STATUS: status}))


def _row(cells: Mapping[str, str]) -> Row:
    return RowTable("Sort", Path("Sort.csv"), text_table(cells, [cells])).row(0)


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, str]]]) -> Path:
    """Writes a CSV for each kernel type, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for kernel_type, rows in tables.items():
        write_table(folder / f"{kernel_type}.csv", rows)
    return folder
