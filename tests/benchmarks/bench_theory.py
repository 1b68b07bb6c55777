"""How fast theory rows are enumerated, and drawn.

    python -m tests.benchmarks.bench_theory --capture PATH [--rounds N]

Two measurements, each in a child process of its own, which tells its peak memory:

- the whole catalog without a cap, on a database that was ingested from the capture (an empty one without):
  every row with its signature, told from those that are there, and written to the CSVs;
- the same with parallel sizes from 1 to 64 and all alternates, until there are 500,000 rows, for the memory;
- the whole catalog drawn by the strategies, 1,000 rows of each kernel type.

The tool that this replaces enumerated 111,561 rows in 8.95 s on a machine like the one of tests/benchmarks/README.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.children import ROOT, result_of, run_benchmark

ORIGINAL_ROWS_PER_S = 12_500
TARGET_ROWS_PER_S = 60_000
TARGET_PEAK_MB = 500
TARGET_DRAWN_S = 60
MANY_ROWS = 500_000

_RUN = """
import json, resource, sys, time
from pathlib import Path
from opatlas.data.database import Database
from opatlas.shapes.strategies import sample_rows
from opatlas.theory.catalog import built_in_catalog, database_kernels
from opatlas.theory.plan import Request, add_theory_rows, plan_kernel, read_table
from opatlas.theory.sources import resolve_targets
database, rows, write = Database(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
kernels = database_kernels(database, built_in_catalog())
start = time.perf_counter()
request = Request(resolve_targets([]), rows, 0, 32 * 10**9, sample_rows)
count = 0
for kernel in kernels.values():
    if write:
        count += len(add_theory_rows(database, kernel, request).signatures)
    else:
        count += len(plan_kernel(kernel, read_table(database, kernel.kernel_type), request).signatures)
seconds = time.perf_counter() - start
print(json.dumps([count, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000]))
"""


def main(*, capture: Path | None = None, rounds: int = 3) -> int:
    """Returns 1 if a target is missed.

    Args:
        capture: a capture to ingest first (default: an empty database).
        rounds: rounds, of which the best counts.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        planned = min((run(folder, capture, 0, write=False) for _ in range(rounds)), key=seconds_of)
        written = min((run(folder, capture, 0, write=True) for _ in range(rounds)), key=seconds_of)
        # As many ways to divide the models as it takes.
        many = run(folder, capture, 0, write=True, twins=True)
        drawn = run(folder, capture, 1000, write=True)
    rate = planned[0] / planned[1]
    print(
        f"enumerated, with signatures: {told(planned)}: {rate / ORIGINAL_ROWS_PER_S:.1f} times the original tool's "
        f"{ORIGINAL_ROWS_PER_S:,} rows/s"
    )
    print(f"and written: {told(written)}: {written[0] / written[1] / ORIGINAL_ROWS_PER_S:.1f} times")
    print(f"many rows: {told(many)} (target: under {TARGET_PEAK_MB} MB for {MANY_ROWS:,} rows)")
    print(f"drawn, 1,000 a kernel type: {told(drawn)} (target: under {TARGET_DRAWN_S} s)")
    reached = rate >= TARGET_ROWS_PER_S and many[0] >= MANY_ROWS and many[2] < TARGET_PEAK_MB
    return 0 if reached and drawn[1] < TARGET_DRAWN_S else 1


def run(folder: Path, capture: Path | None, rows: int, *, write: bool, twins: bool = False) -> tuple[int, float, float]:
    """Rows, seconds and peak megabytes of a run on a fresh database."""
    database = Path(tempfile.mkdtemp(dir=folder))
    if capture is not None:
        ingest = ["-m", "opatlas", "ingest", "--profiling-path", str(capture), "--database-path", str(database)]
        subprocess.run([sys.executable, *ingest], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    if twins:
        add_alternates(database)
    count, seconds, peak_mb = result_of(_RUN, database, rows, json.dumps(write))
    return count, seconds, peak_mb


def add_alternates(database: Path) -> None:
    """Four more names for each kernel type, as a mapping of operators gives them: five times as many rows."""
    from opatlas.theory.catalog import built_in_catalog

    lines = ["operator_mappings:"]
    for name in built_in_catalog().kernels:
        others = ", ".join(f"{name}Alternate{number}" for number in range(4))
        lines.append(f"  {name}: {{kernel_type: {name}, alternate_kernel_types: [{others}]}}")
    (database / "op_mapping.yaml").write_text("\n".join(lines) + "\n")


def seconds_of(result: tuple[int, float, float]) -> float:
    return result[1]


def told(result: tuple[int, float, float]) -> str:
    count, seconds, peak_mb = result
    return f"{count:,} rows in {seconds:.2f} s, {count / seconds:,.0f} rows/s, {peak_mb:.0f} MB"


if __name__ == "__main__":
    run_benchmark(main)
