"""Whether two sessions agree: some rows of a database, measured twice, each time from scratch.

    python -m tests.benchmarks.bench_gpu_repeat DATABASE [--rows N]

Draws rows evenly over the kernel types of a database and copies them without durations. Each of two sessions measures
a copy of these, with processes of its own. Compares the rows' average durations; exits with 1 where they differ by more
than 2 % in the median, or 6 % at the 95th percentile.
"""

from __future__ import annotations

import csv
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles

from opatlas.data.database import Database
from opatlas.row.columns import AVERAGE, BASE, RUNTIME_IN_SIGNATURE
from tests.benchmarks.bench_gpu_session import draw_rows
from tests.benchmarks.children import run_benchmark, run_session
from tests.benchmarks.databases import write_rows

MEDIAN, NINETY_FIFTH = 0.02, 0.06


def measured(
    drawn: Mapping[str, Sequence[Mapping[str, str]]], database: Path, device: str
) -> dict[tuple[str, ...], float]:
    """Returns the microseconds that a session measured, by kernel type and the cells that identify a row."""
    write_rows(database, drawn)
    done = run_session(database, f"--device={device}")
    print("\n".join(line for line in done.stdout.splitlines() if " rows " in line))
    found = {}
    for kernel_type in Database(database).kernel_types():
        with open(Database(database).csv_path(kernel_type), newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row[AVERAGE]:
                    cells = [row.get(column, "") for column in (*BASE, *RUNTIME_IN_SIGNATURE)]
                    key = (kernel_type, *cells)
                    found[key] = float(row[AVERAGE])
    return found


def main(database: Path, /, *, rows: int = 500, device: str = "cuda") -> int:
    """Returns 1 if a target is missed.

    Args:
        database: whose rows.
        rows: so many at most.
        device: cuda or cpu.
    """
    drawn = draw_rows(database, rows, seed=0, most_bytes=math.inf)
    with tempfile.TemporaryDirectory() as folder:
        first, second = (measured(drawn, Path(folder, name), device) for name in ("first", "second"))
    off = sorted((abs(second[key] / first[key] - 1), key) for key in first.keys() & second.keys())
    differences = [difference for difference, _ in off]
    middle, high = median(differences), quantiles(differences, n=20)[-1]
    print(f"{len(off)} rows: off by {middle * 100:.2f} % in the median, {high * 100:.2f} % at the 95th percentile")
    print(f"target: {MEDIAN * 100:g} % and {NINETY_FIFTH * 100:g} %")
    for difference, key in off[-5:]:
        print(f"  {difference * 100:6.1f} %  {first[key]:10.2f} us {second[key]:10.2f} us  {key[0]} {key[3][:60]}")
    return 0 if middle <= MEDIAN and high <= NINETY_FIFTH else 1


if __name__ == "__main__":
    run_benchmark(main)
