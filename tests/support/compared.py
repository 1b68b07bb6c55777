"""Databases that tests compare: rows of measured calls in CSVs, without a session."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from opatlas.row.columns import (
    AVERAGE,
    CACHE_STATE,
    CONVERSIONS,
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
    STAND_IN,
    STATUS,
    STATUS_REASON,
)


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
}


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, str]]]) -> Path:
    """Writes a CSV for each kernel type, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for kernel_type, rows in tables.items():
        columns = list(dict.fromkeys(name for row in rows for name in row))
        with (folder / f"{kernel_type}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return folder
