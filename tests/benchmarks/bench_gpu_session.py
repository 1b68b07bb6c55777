"""The pace of a session over a random shard of a database, and what its start and its end take.

    python -m tests.benchmarks.bench_gpu_session [--rows N] [--device cuda|cpu] [--database DIR] [OPTIONS of pytest]

Draws rows evenly over the kernel types of a database, copies them without durations, and measures them. Start: until
the first row is done. End: after the last one. A session that collects the rows goes before: the first session of an
installation has Python compile its files.
"""

from __future__ import annotations

import csv
import math
import os
import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from opatlas.data.database import Database
from opatlas.row.columns import BASE, RUNTIME_IN_SIGNATURE
from tests.benchmarks.children import ROOT, run_benchmark, run_session
from tests.benchmarks.databases import write_rows
from tests.benchmarks.finish_times import PLUGIN, times_of

DATABASE = ROOT / "database" / "data" / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0"
TARGET_ROWS_PER_S, TARGET_SESSION_S = 60.0, 5.0


def draw_rows(database: Path, count: int, seed: int, most_bytes: float) -> dict[str, list[dict[str, str]]]:
    """Returns `count` rows at most, as many of each kernel type, without durations."""
    left: dict[str, list[dict[str, str]]] = {}
    for kernel_type in Database(database).kernel_types():
        with open(Database(database).csv_path(kernel_type), newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if _bytes(row) <= most_bytes]
        random.Random(f"{seed} {kernel_type}").shuffle(rows)
        left[kernel_type] = [{c: row[c] for c in row if c in (*BASE, *RUNTIME_IN_SIGNATURE)} for row in rows]
    places = [(kernel_type, i) for i in range(count) for kernel_type in left if i < len(left[kernel_type])][:count]
    drawn: dict[str, list[dict[str, str]]] = {}
    for kernel_type, i in places:
        drawn.setdefault(kernel_type, []).append(left[kernel_type][i])
    return drawn


def _bytes(row: Mapping[str, str]) -> float:
    """Returns about how many bytes the tensors of a row take: four for each element."""
    shapes = f"{row['Input Shapes']};{row['Output Shapes']}".replace('"', "").split(";")
    return sum(4 * math.prod(int(word) for word in shape.split(",") if word.isdigit()) for shape in shapes)


def main(
    *more: Annotated[str, Parameter(allow_leading_hyphen=True)],
    database: Path = DATABASE,
    rows: int = 600,
    seed: int = 1,
    most_mb: float = math.inf,
    device: str = "cuda",
) -> int:
    """Returns 1 if a target is missed.

    Args:
        more: options of pytest.
        database: whose rows.
        rows: about so many.
        seed: of the draw.
        most_mb: largest row in MB.
        device: cuda or cpu.
    """
    with tempfile.TemporaryDirectory() as name:
        drawn = Path(name, "database")
        write_rows(drawn, draw_rows(database, rows, seed, most_mb * 1e6))
        options = (*PLUGIN, f"--device={device}", *more)
        # Images of containers often have Python keep no compiled files.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        run_session(drawn, *options, "--collect-only")
        start = time.perf_counter()
        done = run_session(drawn, *options)
        end = time.perf_counter()
    finished = times_of(done.stdout + done.stderr)
    rate, around_s = (len(finished) - 1) / (finished[-1] - finished[0]), finished[0] - start + end - finished[-1]
    print(*(line for line in done.stdout.splitlines() if "collected = " in line), sep="\n")
    print(
        f"{len(finished)} rows: {rate:.1f} rows/s (target: {TARGET_ROWS_PER_S:g}); start {finished[0] - start:.1f} s, "
        f"end {end - finished[-1]:.1f} s (target: {TARGET_SESSION_S:g} together); load {os.getloadavg()[0]:.1f}, "
        f"{os.cpu_count()} cores"
    )
    return 0 if rate >= TARGET_ROWS_PER_S and around_s <= TARGET_SESSION_S else 1


if __name__ == "__main__":
    run_benchmark(main)
