"""What collecting 100,000 rows costs, against a plain parametrized test of as many values.

    python -m tests.benchmarks.bench_collect [--rows N] [--rounds N]

Both are `pytest --collect-only -q` in a process of their own, in turns; the better round counts.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.benchmarks.children import Cost, load, measure, run_benchmark
from tests.benchmarks.databases import write_adds, write_plain_test

TARGET_CPU, TARGET_MEMORY = 1.2, 1.5


def main(*, rows: int = 100_000, rounds: int = 3) -> int:
    """Returns 1 if a target is missed.

    Args:
        rows: rows of the database.
        rounds: rounds, of which the best counts.
    """
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "database")
        write_adds(database, rows)
        plain_file = Path(folder, "test_plain.py")
        write_plain_test(plain_file, rows)
        collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
        plain, ours = [], []
        for _ in range(rounds):
            plain.append(measure([*collect, str(plain_file)]))
            ours.append(measure([*collect, "bench", f"--database-path={database}"]))
            print(f"  plain pytest {plain[-1]}   rows {ours[-1]}")
    best_plain, best_rows = Cost.best(plain), Cost.best(ours)
    cpu_ratio = best_rows.cpu_s / best_plain.cpu_s
    memory_ratio = best_rows.peak_mb / best_plain.peak_mb
    print(f"collecting {rows:,} rows: {cpu_ratio:.2f} times the CPU, {memory_ratio:.2f} times the memory")
    print(f"(target: at most {TARGET_CPU} and {TARGET_MEMORY} times; {load()})")
    return 0 if cpu_ratio <= TARGET_CPU and memory_ratio <= TARGET_MEMORY else 1


if __name__ == "__main__":
    run_benchmark(main)
