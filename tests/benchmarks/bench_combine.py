"""What it takes to combine a large CSV into another of the same rows, and to restore it from the log of its run.

    python -m tests.benchmarks.bench_combine [--rows N] [--differing N] [--rounds N] [--baseline CHECKOUT]

A newer run has measured some of the rows (1,000), or every row: their durations are taken, and the report lists both.
`opatlas history --restore csvs` gets a CSV whose durations are those of the log, and one that has lost them. Each
command runs in a child process. The baseline is pandas reading both files and writing one, or the same command in
another checkout of this repository with a virtual environment of its own, in turns.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.children import ROOT, Cost, apart, load, measure, run_benchmark
from tests.benchmarks.databases import write_adds, write_run

TARGET_S, TARGET_MB, TARGET_RATIO = 5, 700, 1.2
_EARLIER, _LATER = "20261101T000000-aaaaaa", "20261102T000000-bbbbbb"
_PANDAS = """
import sys
import pandas as pd
frames = [pd.read_csv(path, dtype=str, keep_default_na=False) for path in sys.argv[1:]]
frames[0].to_csv(sys.argv[1] + ".copy", index=False)
"""


def main(*, rows: int = 100_000, differing: int = 1_000, rounds: int = 3, baseline: Path | None = None) -> int:
    """Returns 1 if a target is missed.

    Args:
        rows: rows of each CSV.
        differing: rows that a newer run has.
        rounds: rounds, of which the best counts.
        baseline: another checkout (default: pandas is the baseline).
    """
    met = True
    with tempfile.TemporaryDirectory() as folder:
        bare = write_adds(Path(folder, "bare"), rows, counters=True).parent
        target = Path(folder, "target")
        shutil.copytree(bare, target)
        apart(write_run, target, _EARLIER, samples=30)
        commands: dict[str, tuple[Path, Callable[[Path], list[str]]]] = {}
        for name, every in (("some", max(1, rows // differing)), ("all", 1)):
            source = Path(folder, name)
            shutil.copytree(target, source)
            apart(write_run, source, _LATER, samples=3, every=every)
            commands[f"combine, {name} rows differ"] = target, _combine(source)
        commands["restore, nothing to do"] = target, _restore
        lost = Path(folder, "lost")
        shutil.copytree(target, lost)
        shutil.copy(bare / "Add.csv", lost)
        commands["restore of a CSV without durations"] = lost, _restore
        for title, (database, command) in commands.items():
            met &= _compare(title, database, command, rounds, baseline)
    return 0 if met else 1


def _combine(source: Path) -> Callable[[Path], list[str]]:
    return lambda target: ["combine", str(target), str(source)]


def _restore(target: Path) -> list[str]:
    return ["history", str(target), "--restore", "csvs"]


def _compare(
    title: str, database: Path, command: Callable[[Path], list[str]], rounds: int, baseline: Path | None
) -> bool:
    """Prints what a command takes, and its baseline; returns whether the target is met."""
    ours, theirs = [], []
    for _ in range(rounds):
        if baseline is None:
            csv = str(database / "Add.csv")
            theirs.append(measure([sys.executable, "-c", _PANDAS, csv, csv]))
            Path(f"{csv}.copy").unlink()
        else:
            python = baseline.absolute() / ".venv" / "bin" / "python"
            theirs.append(_on_copy(database, command, str(python), baseline))
        ours.append(_on_copy(database, command, sys.executable, ROOT))
        print(f"  {title}: {ours[-1]}; {baseline or 'pandas'} {theirs[-1]}")
    best, base = Cost.best(ours), Cost.best(theirs)
    ratio = best.cpu_s / base.cpu_s
    if baseline is None:
        print(f"{title}: {best}, {ratio:.2f} times pandas (target: {TARGET_S} s, {TARGET_MB} MB; {load()})")
        return best.cpu_s < TARGET_S and best.peak_mb < TARGET_MB
    print(f"{title}: {best}, {ratio:.2f} times the CPU of the baseline (target: {TARGET_RATIO} times; {load()})")
    return ratio <= TARGET_RATIO


def _on_copy(database: Path, command: Callable[[Path], list[str]], python: str, checkout: Path) -> Cost:
    """Runs a command in a checkout with a copy of a database that it may change."""
    copy = database.with_name("copy")
    shutil.copytree(database, copy)
    try:
        return measure([python, "-m", "opatlas", *command(copy)], checkout)
    finally:
        shutil.rmtree(copy)


if __name__ == "__main__":
    run_benchmark(main)
