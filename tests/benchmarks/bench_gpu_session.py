"""The pace of a session over a random shard of a database, and what its start and its end take.

    python -m tests.benchmarks.bench_gpu_session [--rows N] [--device cuda|cpu] [--database DIR] [OPTIONS of pytest]

Draws rows evenly over the kernel types of a database, copies them without durations, and measures them. Start: until
the first row is done. End: after the last one. A session that collects the rows goes before: the first session of an
installation has Python compile its files.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from opatlas.data.database import Database
from opatlas.row.columns import BASE, RUNTIME_IN_SIGNATURE
from tests.benchmarks.children import ROOT

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


def write_rows(database: Path, drawn: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    """Writes rows by kernel type into a new database."""
    database.mkdir()
    for kernel_type, rows in drawn.items():
        with open(database / f"{kernel_type}.csv", "w", newline="", encoding="utf-8") as file:
            columns = list(dict.fromkeys([*BASE, *(column for row in rows for column in row)]))
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def _bytes(row: Mapping[str, str]) -> float:
    """Returns about how many bytes the tensors of a row take: four for each element."""
    shapes = f"{row['Input Shapes']};{row['Output Shapes']}".replace('"', "").split(";")
    return sum(4 * math.prod(int(word) for word in shape.split(",") if word.isdigit()) for shape in shapes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, default=DATABASE, help="whose rows (default: the shipped H200 rows)")
    parser.add_argument("--rows", type=int, default=600, help="about so many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: %(default)s)")
    parser.add_argument("--most-mb", type=float, default=math.inf, help="largest row in MB (default: any)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    arguments, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        database = Path(name, "database")
        write_rows(database, draw_rows(arguments.database, arguments.rows, arguments.seed, arguments.most_mb * 1e6))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "bench",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--database-path={database}",
        ]
        command += ["-p", "tests.benchmarks.finish_times", f"--device={arguments.device}", *more]
        # Images of containers often have Python keep no compiled files.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        subprocess.run([*command, "--collect-only"], cwd=ROOT, capture_output=True, env=environment)
        start = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
        end = time.perf_counter()
    finished = [float(at) for at in re.findall(r"^finished at ([\d.]+)$", done.stdout, flags=re.MULTILINE)]
    if len(finished) < 2:
        raise RuntimeError(done.stdout + done.stderr)
    rate, around_s = (len(finished) - 1) / (finished[-1] - finished[0]), finished[0] - start + end - finished[-1]
    print(*(line for line in done.stdout.splitlines() if "collected = " in line), sep="\n")
    print(
        f"{len(finished)} rows: {rate:.1f} rows/s (target: {TARGET_ROWS_PER_S:g}); start {finished[0] - start:.1f} s, "
        f"end {end - finished[-1]:.1f} s (target: {TARGET_SESSION_S:g} together); load {os.getloadavg()[0]:.1f}, "
        f"{os.cpu_count()} cores"
    )
    return 0 if rate >= TARGET_ROWS_PER_S and around_s <= TARGET_SESSION_S else 1


if __name__ == "__main__":
    sys.exit(main())
