"""What kernel types that nobody asked for cost a session: a database of 2,000 CSVs against one of a single CSV.

    python -m tests.benchmarks.bench_many_types [--types N] [--rounds N]

Each is `pytest bench/ --collect-only -q` in a process of its own, in turns; the better round counts. `--ops` tells
which files need reading; `-k` does not, since it looks at ids, which only the rows of a file give.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.children import Cost, measure
from tests.benchmarks.databases import write_adds

_ROWS = 10
TARGET_RATIO = 1.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", type=int, default=2000, help="kernel types of the large database (default: 2000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the best counts (default: 3)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one, many = Path(folder, "one"), Path(folder, "many")
        for database in (one, many):
            path = write_adds(database, _ROWS, counters=True)
        for number in range(1, arguments.types):
            shutil.copy(path, many / f"Kernel{number}.csv")
        collect = [sys.executable, "-m", "pytest", "bench", "--collect-only", "-q", "-p", "no:cacheprovider"]
        costs: dict[str, list[Cost]] = {"one": [], "many --ops": [], "many -k": []}
        for _ in range(arguments.rounds):
            costs["one"].append(measure([*collect, f"--database-path={one}"]))
            costs["many --ops"].append(measure([*collect, f"--database-path={many}", "--ops=Add"]))
            costs["many -k"].append(measure([*collect, f"--database-path={many}", "-k=Add"]))
            print("  " + "   ".join(f"{name} {found[-1]}" for name, found in costs.items()))
    best = {name: Cost.best(found).seconds for name, found in costs.items()}
    asked, read = best["many --ops"] / best["one"], best["many -k"] / best["one"]
    print(f"{arguments.types:,} kernel types: {asked:.2f} times the time with --ops, {read:.2f} times with -k")
    print(f"(target with --ops: at most {TARGET_RATIO} times)")
    return 0 if asked <= TARGET_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
