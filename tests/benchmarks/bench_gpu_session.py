"""Where the wall time of a session goes, by row and by phase: rows of all kernel types in a `pytest bench/` session.

    python -m tests.benchmarks.bench_gpu_session [--rows N] [--device cuda|cpu] [--database DIR]

Draws rows evenly over the kernel types of a database, copies them without durations, and measures them in a session of
one device process. Both processes wrap the functions of a row with a clock (session_clock.py), which costs a few
microseconds a sample. The library has no such code.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from opatlas.data.database import Database
from opatlas.row.columns import BASE, RUNTIME_IN_SIGNATURE
from tests.benchmarks.children import ROOT
from tests.benchmarks.session_clock import FOLDER, MODULE, STARTED, WAIT

DATABASE = ROOT / "database" / "data" / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0"
TARGET_ROWS_PER_S, TARGET_SESSION_S = 60.0, 5.0


def draw_rows(
    database: Path, count: int, seed: int, keep: Callable[[Mapping[str, str]], bool]
) -> dict[str, list[dict[str, str]]]:
    """Returns `count` rows at most, as many of each kernel type, without durations; `keep` chooses among all rows."""
    by_type: dict[str, list[dict[str, str]]] = {}
    for kernel_type in Database(database).kernel_types():
        with open(Database(database).csv_path(kernel_type), newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if keep(row)]
        random.Random(f"{seed} {kernel_type}").shuffle(rows)
        if rows:
            by_type[kernel_type] = rows
    drawn: dict[str, list[dict[str, str]]] = {kernel_type: [] for kernel_type in by_type}
    places = ((kernel_type, i) for i in range(count) for kernel_type in by_type if i < len(by_type[kernel_type]))
    for _, (kernel_type, i) in zip(range(count), places, strict=False):
        kept = [column for column in by_type[kernel_type][i] if column in (*BASE, *RUNTIME_IN_SIGNATURE)]
        drawn[kernel_type].append({column: by_type[kernel_type][i][column] for column in kept})
    return {kernel_type: rows for kernel_type, rows in drawn.items() if rows}


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
    total = 0
    for column in ("Input Shapes", "Output Shapes"):
        for shape in row[column].strip('"').split(";"):
            numbers = [int(word) for word in shape.split(",") if word.isdigit()]
            total += 4 * functools.reduce(int.__mul__, numbers, 1)
    return total


def run_session(database: Path, folder: Path, options: Sequence[str]) -> tuple[float, str]:
    """Returns the seconds of the session, and what it printed."""
    environment = {**os.environ, FOLDER: str(folder), STARTED: str(time.perf_counter())}
    command = [sys.executable, "-m", "pytest", "bench", "-q", "-p", "no:cacheprovider", "-p", MODULE, "-n0"]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, f"--database-path={database}", *options],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if not (folder / "parent.json").exists():
        raise RuntimeError(done.stdout + done.stderr)
    return time.perf_counter() - start, done.stdout


def print_table(title: str, columns: Sequence[tuple[Mapping[str, float], int]], *, least_ms: float = 0.03) -> None:
    """Prints milliseconds a row by label, the largest first; a label's waits are in brackets behind it.

    Args:
        columns: seconds by label, and the number of rows.
    """
    waits = [
        {label.removesuffix(WAIT): s for label, s in spent.items() if label.endswith(WAIT)} for spent, _ in columns
    ]
    totals = [
        {label: spent.get(label, 0.0) + own.get(label, 0.0) for label in {*spent, *own} if not label.endswith(WAIT)}
        for (spent, _), own in zip(columns, waits, strict=True)
    ]
    counts = [count / 1000 for _, count in columns]
    print(f"{title}: " + " and ".join(f"{sum(own.values()) / n:.2f}" for own, n in zip(totals, counts, strict=True)))
    small = [0.0] * len(columns)
    for label in sorted(totals[0], key=lambda label: -totals[0][label]):
        each = [own.get(label, 0.0) / n for own, n in zip(totals, counts, strict=True)]
        if max(each) < least_ms:
            small = [a + b for a, b in zip(small, each, strict=True)]
            continue
        waited = [own.get(label, 0.0) / n for own, n in zip(waits, counts, strict=True)]
        behind = (
            f"  (waits for the device {' '.join(f'{one:.2f}' for one in waited)})" if max(waited) >= least_ms else ""
        )
        print(" ".join(f"{one:8.2f}" for one in each), f"  {label}{behind}")
    print(" ".join(f"{one:8.2f}" for one in small), f"  everything below {least_ms:g} ms")


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints how rows differ: the share of the slowest, the first row of each type, samples, and the slowest types."""
    total = sum(row["s"] for row in rows)
    walls = sorted((row["s"] for row in rows), reverse=True)
    tenth = sum(walls[: len(walls) // 10])
    busy, own = sum(row["busy_us"] for row in rows) / 1e6, sum(row["own_us"] for row in rows) / 1e6
    samples = [row["samples"] for row in rows if row["samples"]]
    print(
        f"rows in the device process: median {median(walls) * 1000:.2f} ms; the slowest tenth has {tenth / total:.0%} "
        f"of the time; samples: median {median(samples):g}, mean {sum(samples) / len(samples):.0f}"
    )
    print(
        f"the GPU works {busy:.1f} s in recordings ({busy / total:.0%} of {total:.1f} s), {own:.1f} s of that in calls"
    )
    # The last of equal keys stays: of the reversed rows that is the first row of a type.
    first = list({row["type"]: row["s"] for row in reversed(rows)}.values())
    others = (total - sum(first)) / max(len(rows) - len(first), 1)
    print(f"the first row of a type takes {sum(first) / len(first) * 1000:.1f} ms, another {others * 1000:.1f} ms")
    by_type: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_type[row["type"]].append(row)
    print("slowest types (ms a row; GPU; largest parts):")
    for kernel_type, own_rows in sorted(by_type.items(), key=lambda item: -sum(row["s"] for row in item[1]))[:12]:
        spent = sorted(_added(own_rows).items(), key=lambda item: -item[1])
        parts = ", ".join(f"{label} {s / len(own_rows) * 1000:.1f}" for label, s in spent[:4])
        each, gpu = (sum(row[key] for row in own_rows) / len(own_rows) for key in ("s", "busy_us"))
        print(f"  {kernel_type[:28]:28} {each * 1000:7.1f} {gpu / 1000:7.1f}  {parts}"[:150])


def _added(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the seconds of all rows by label."""
    spent: dict[str, float] = defaultdict(float)
    for row in rows:
        for label, seconds in row["spent"].items():
            spent[label] += seconds
    return spent


def print_phases(title: str, steps: Sequence[tuple[str, float]], *, least_s: float = 0.02) -> None:
    found = [(step, at - before) for (_, before), (step, at) in itertools.pairwise(steps)]
    print(f"{title}: " + ", ".join(f"{step} {s:.2f}" for step, s in found if s >= least_s))


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, default=DATABASE, help="whose rows (default: the shipped H200 rows)")
    parser.add_argument("--rows", type=int, default=600, help="about so many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: %(default)s)")
    parser.add_argument("--most-mb", type=float, help="largest row in MB (default: 32 on a CPU, else no limit)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--time-limit", default="1", help="seconds of samples of a row (default: %(default)s)")
    arguments, more = parser.parse_known_args()
    most_mb = arguments.most_mb or (32 if arguments.device == "cpu" else float("inf"))
    with tempfile.TemporaryDirectory() as name:
        database, folder = Path(name, "database"), Path(name, "figures")
        folder.mkdir()
        drawn = draw_rows(arguments.database, arguments.rows, arguments.seed, lambda row: _bytes(row) <= most_mb * 1e6)
        write_rows(database, drawn)
        options = [f"--device={arguments.device}", f"--time-limit={arguments.time_limit}", *more]
        seconds, printed = run_session(database, folder, options)
        parent = json.loads((folder / "parent.json").read_text())
        processes = [json.loads(path.read_text()) for path in sorted(folder.glob("device-*.json"))]
    of_rows = [row for process in processes for row in process["rows"]]
    steps = [(step, at) for step, at in parent["phases"]]
    before = next(at for (_, at), (step, _) in itertools.pairwise(steps) if step == "rows")
    wall = dict(steps)["rows"] - before
    print(*(line for line in printed.splitlines() if "collected = " in line), sep="\n")
    rate, around_s = parent["rows"] / wall, seconds - wall
    print(
        f"{parent['rows']} rows in {wall:.1f} s: {rate:.1f} rows/s (target: {TARGET_ROWS_PER_S:g}); start and end "
        f"{around_s:.1f} s (target: {TARGET_SESSION_S:g}); {len(processes)} device processes"
    )
    processor = next((line for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "").partition(": ")[2]
    print(f"{os.cpu_count()} cores of {processor}, load {os.getloadavg()[0]:.1f}")
    print_phases("session (s)", [*steps, ("exit", steps[0][1] + seconds)])
    print_phases("device process (s)", processes[0]["phases"])
    print_table("pytest's process, ms a row", [(parent["spent"], parent["rows"])])
    fast = sorted(of_rows, key=lambda row: row["s"])[: len(of_rows) * 8 // 10]
    columns = [(_added(of_rows), len(of_rows)), (_added(fast), len(fast))]
    print_table("device process, ms a row, of all rows and of the fastest 80 %", columns)
    print_rows(of_rows)
    return 0 if rate >= TARGET_ROWS_PER_S and around_s <= TARGET_SESSION_S else 1


if __name__ == "__main__":
    sys.exit(main())
