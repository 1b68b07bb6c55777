"""Databases of any size, for benchmarks."""

from __future__ import annotations

import csv
from pathlib import Path

from opatlas.row.columns import (
    BASE,
    PROFILING_DURATIONS,
    profiling_counter,
)
from opatlas.row.pipe_utilization import PIPE_UTILIZATION


def write_adds(database: Path, rows: int, *, counters: bool = False) -> Path:
    """An Add.csv whose rows add two vectors of one more element each; with the columns of a capture."""
    database.mkdir(parents=True)
    path = database / "Add.csv"
    profiled = (*PROFILING_DURATIONS, *map(profiling_counter, PIPE_UTILIZATION)) if counters else ()
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*BASE, *profiled])
        values = ["1.2345"] * len(profiled)
        for n in range(1, rows + 1):
            slots = (f"{n};{n}", "FLOAT;FLOAT", "ND;ND", f"{n}", "FLOAT", "ND")
            writer.writerow(["dynamic", "AI_VECTOR_CORE", *slots, *values])
    return path


def write_plain_test(path: Path, rows: int) -> None:
    """The baseline: a test that does nothing, parametrized as many times as a database has rows."""
    path.write_text(
        f"import pytest\n\n\n@pytest.mark.parametrize('row', range({rows}))\ndef test_add(row):\n    pass\n"
    )
