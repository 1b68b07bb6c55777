"""Whether two sessions agree: some rows of a database, measured twice, each time from scratch.

    python -m tests.benchmarks.bench_gpu_repeat DATABASE [--rows N]

Each session works on a copy of the database, measures the same part of its rows, and has processes of its own. Compares
the rows' average durations; exits with 1 where they differ by more than 2 % in the median, or 6 % at the 95th
percentile.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles

from opatlas.model.schema import (
    AVERAGE,
    BASE,
    RUN_ID,
    RUNTIME_IN_SIGNATURE,
)
from opatlas.store.database import Database
from tests.benchmarks.children import ROOT

MEDIAN, NINETY_FIFTH = 0.02, 0.06


def rows_of(database: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """By kernel type and what identifies a row."""
    found = {}
    for kernel_type in Database(database).kernel_types():
        with open(Database(database).csv_path(kernel_type), newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                found[(kernel_type, *(row.get(column, "") for column in (*BASE, *RUNTIME_IN_SIGNATURE)))] = row
    return found


def session(database: Path, part: str, folder: Path) -> dict[tuple[str, ...], float]:
    """Microseconds of each row that a session measured."""
    folder.mkdir()
    for path in database.glob("*.csv"):
        shutil.copy(path, folder)
    before = {key: row.get(RUN_ID) for key, row in rows_of(folder).items()}
    command = [sys.executable, "-m", "pytest", "bench", "-q", "-p", "no:cacheprovider", f"--database-path={folder}"]
    done = subprocess.run([*command, "--device=cuda", f"--shard={part}"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print("\n".join(line for line in done.stdout.splitlines() if " rows " in line))
    return {
        key: float(row[AVERAGE])
        for key, row in rows_of(folder).items()
        if row[AVERAGE] and row[RUN_ID] not in ("", before[key])
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", type=Path)
    parser.add_argument("--rows", type=int, default=500, help="about so many (default: %(default)s)")
    arguments = parser.parse_args()
    part = f"1/{max(1, len(rows_of(arguments.database)) // arguments.rows)}"
    with tempfile.TemporaryDirectory() as folder:
        first, second = (session(arguments.database, part, Path(folder, name)) for name in ("first", "second"))
    off = sorted((abs(second[key] / first[key] - 1), key) for key in first.keys() & second.keys())
    differences = [difference for difference, _ in off]
    middle, high = median(differences), quantiles(differences, n=20)[-1]
    print(f"{len(off)} rows: off by {middle * 100:.2f} % in the median, {high * 100:.2f} % at the 95th percentile")
    for difference, key in off[-5:]:
        print(f"  {difference * 100:6.1f} %  {first[key]:10.2f} us {second[key]:10.2f} us  {key[0]} {key[3][:60]}")
    return 0 if middle <= MEDIAN and high <= NINETY_FIFTH else 1


if __name__ == "__main__":
    sys.exit(main())
