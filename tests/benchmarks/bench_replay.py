"""What the harness costs per row: a tiny Add, replayed thousands of times.

    python -m tests.benchmarks.bench_replay [--rows N] [--rounds N]

Prints the seconds of a short session and the milliseconds a row takes in `pytest bench/` (device
process and journal included), the same with --in-process, and what plain pytest takes for a test that
does nothing. The rows are measured warm and once each, so that nearly all of the time is the harness's.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.benchmarks.children import measure, run_benchmark
from tests.benchmarks.databases import write_adds, write_plain_test

TARGET_MS = 2.0
#: Of isolation, against --in-process.
SESSION_TARGET_S, ROW_TARGET_MS = 1.5, 0.5


def main(*, rows: int = 20_000, rounds: int = 3) -> int:
    """Returns 1 if a target is missed.

    Args:
        rows: rows of the database.
        rounds: sessions of ten rows: the best counts.
    """
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    once = ["--repeat-count=1", "--cache=warm"]
    with tempfile.TemporaryDirectory() as folder:

        def costs(name: str, *options: str) -> tuple[float, float]:
            """Seconds that a session of ten rows takes, and milliseconds that each further row takes."""
            few, many = Path(folder, f"{name}-few"), Path(folder, f"{name}-many")
            write_adds(few, 10)
            write_adds(many, rows)
            command = [*pytest, "bench", f"--database-path={few}", *once, *options]
            start_s = min(measure(command).seconds for _ in range(rounds))
            cost = measure([*pytest, "bench", f"--database-path={many}", *once, *options])
            print(f"  {name}: start {start_s:.2f} s, {rows:,} rows {cost}")
            return start_s, (cost.seconds - start_s) / (rows - 10) * 1000

        isolated_s, isolated = costs("device process")
        here_s, here = costs("in process", "--in-process")
        plain_file = Path(folder, "test_plain.py")
        write_plain_test(plain_file, rows)
        plain = measure([*pytest, str(plain_file)]).seconds / rows * 1000
    print(f"{isolated:.2f} ms a row (target: at most {TARGET_MS:g}); collection, write-back and report included")
    print(f"{here:.2f} ms with --in-process; plain pytest takes {plain:.2f} ms for a test that does nothing")
    print(
        f"isolation costs {isolated_s - here_s:.2f} s a session (target: {SESSION_TARGET_S:g}) and "
        f"{isolated - here:.2f} ms a row (target: {ROW_TARGET_MS:g}); the whole is {isolated / plain:.1f} times "
        f"plain pytest"
    )
    met = isolated_s - here_s <= SESSION_TARGET_S and isolated - here <= ROW_TARGET_MS and isolated <= TARGET_MS
    return 0 if met else 1


if __name__ == "__main__":
    run_benchmark(main)
