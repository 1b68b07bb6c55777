"""What it takes to combine a large CSV into another of the same rows, each measured by a newer run.

    python -m tests.benchmarks.bench_combine [--rows N] [--rounds N]

Every row is a conflict: its duration is taken, and the report lists both. The command runs in a
child process. The baseline is pandas reading both files and writing one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from opatlas.data.database import Database
from opatlas.row.columns import (
    AVERAGE,
    CACHE_STATE,
    INSTRUMENT,
    RUN_ID,
    STATUS,
    Status,
)
from opatlas.row.table import RowTable
from tests.benchmarks.children import Cost, measure
from tests.benchmarks.databases import write_adds

TARGET_S, TARGET_MB = 5, 700
_PANDAS = """
import sys
import pandas as pd
frames = [pd.read_csv(path, dtype=str, keep_default_na=False) for path in sys.argv[1:]]
frames[0].to_csv(sys.argv[1] + ".copy", index=False)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="rows of each CSV (default: 100000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the best counts (default: 3)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        combinations, copies = [], []
        source = write_measured(Path(folder, "source"), arguments.rows, "20261102T000000-bbbbbb")
        for i in range(arguments.rounds):
            target = write_measured(Path(folder, f"target{i}"), arguments.rows, "20261101T000000-aaaaaa")
            copies.append(measure([sys.executable, "-c", _PANDAS, str(target), str(source)]))
            combinations.append(
                measure([sys.executable, "-m", "opatlas", "combine", str(target.parent), str(source.parent)])
            )
            print(f"  pandas {copies[-1]}; combine {combinations[-1]}")
    best = Cost.best(combinations)
    print(f"combining {arguments.rows:,} rows into as many: {best} (target: {TARGET_S} s, {TARGET_MB} MB)")
    print(f"{best.seconds / Cost.best(copies).seconds:.2f} times pandas reading both files and writing one")
    return 0 if best.seconds < TARGET_S and best.peak_mb < TARGET_MB else 1


def write_measured(folder: Path, rows: int, run_id: str) -> Path:
    """An Add.csv with the columns of a capture, all of whose rows a run has measured."""
    path = write_adds(folder, rows, counters=True)
    database = Database(folder)
    frame = database.read("Add").frame
    measured = {CACHE_STATE: "cold", INSTRUMENT: "wall-clock", STATUS: Status.MEASURED.value, RUN_ID: run_id}
    durations = [f"{int(run_id[6:8])}.{number:06d}" for number in range(rows)]
    database.write(RowTable("Add", path, frame.assign(**{AVERAGE: durations, **measured})))
    return path


if __name__ == "__main__":
    sys.exit(main())
