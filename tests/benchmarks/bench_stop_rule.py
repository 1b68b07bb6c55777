"""How many samples a rule takes, and how far its means are off: two sessions of the same rows, 200 samples each.

    python -m tests.benchmarks.bench_stop_rule [--rows N] [--device cuda|cpu] [--most-us US]

Draws rows that take at most some time evenly over the kernel types of a database. Each rule then chooses the first
samples of each row. Prints by rule the number of samples, how far the mean of these is from the mean of all 200, and by
how much the means of the two sessions differ.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, quantiles, stdev

from opatlas.instruments.stop_rule import LEAST_SAMPLES, MOST_SAMPLES, StopRule
from opatlas.model.schema import AVERAGE
from opatlas.store import history
from opatlas.store.database import Database
from tests.benchmarks.bench_gpu_session import DATABASE, draw_rows, write_rows
from tests.benchmarks.children import ROOT

#: Differences of sessions in percent: median and 95th percentile.
TARGET = 2.0, 6.0
#: Samples of a row, by kernel type and signature.
Samples = Mapping[tuple[str, str], Sequence[float]]


def present_rule(samples: Sequence[float]) -> int:
    rule = StopRule(repeat_count=None, time_limit_s=1.0, clock=lambda: 0.0)
    return next(n for n in range(LEAST_SAMPLES, len(samples) + 1, LEAST_SAMPLES) if rule.enough(samples[:n]))


def fixed(count: int) -> Callable[[Sequence[float]], int]:
    return lambda samples: count


def standard_error(limit: float) -> Callable[[Sequence[float]], int]:
    """As the present rule, and ends as soon as the standard error of the mean is below a share of the mean."""

    def count(samples: Sequence[float]) -> int:
        for n in range(LEAST_SAMPLES, present_rule(samples), LEAST_SAMPLES):
            if stdev(samples[:n]) / math.sqrt(n) < limit * fmean(samples[:n]):
                return n
        return present_rule(samples)

    return count


RULES: Mapping[str, Callable[[Sequence[float]], int]] = {
    "all": fixed(MOST_SAMPLES),
    "present rule": present_rule,
    "standard error 0.25 %": standard_error(0.0025),
    "standard error 0.5 %": standard_error(0.005),
    "standard error 1 %": standard_error(0.01),
    "20": fixed(20),
    "10": fixed(10),
}


def session(database: Path, device: str) -> Samples:
    command = [sys.executable, "-m", "pytest", "bench", "-q", "-p", "no:cacheprovider", f"--database-path={database}"]
    options = [f"--device={device}", f"--repeat-count={MOST_SAMPLES}", "-n0"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    print(*(line for line in done.stdout.splitlines() if "collected = " in line), sep="\n")
    of_database = Database(database)
    (run_id,) = history.runs(of_database)
    return {
        (record.kernel_type, record.signature): record.measurement.samples_us
        for record in history.read(of_database, run_id).records
        if record.measurement is not None and len(record.measurement.samples_us) == MOST_SAMPLES
    }


def off(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Returns median, 95th percentile and maximum of the distances from 1, in percent."""
    found = [abs(ratio - 1) * 100 for ratio in ratios]
    return median(found), quantiles(found, n=20)[-1], max(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, default=DATABASE, help="whose rows (default: the shipped H200 rows)")
    parser.add_argument("--rows", type=int, default=300, help="about so many (default: %(default)s)")
    parser.add_argument("--most-us", type=float, default=300.0, help="longest duration (default: %(default)s)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    arguments = parser.parse_args()
    drawn = draw_rows(
        arguments.database, arguments.rows, 1, lambda row: 0 < float(row.get(AVERAGE) or 0) <= arguments.most_us
    )
    with tempfile.TemporaryDirectory() as name:
        databases = [Path(name, "first"), Path(name, "second")]
        for database in databases:
            write_rows(database, drawn)
        first, second = (session(database, arguments.device) for database in databases)
    rows = sorted(first.keys() & second.keys())
    whole = [fmean(first[row]) for row in rows]
    print(f"{len(rows)} rows; differences: median, 95th percentile and maximum")
    met = False
    for name, rule in RULES.items():
        one, other = ([samples[row][: rule(samples[row])] for row in rows] for samples in (first, second))
        of_all = off([fmean(taken) / mean for taken, mean in zip(one, whole, strict=True)])
        means = off([fmean(taken) / fmean(again) for taken, again in zip(one, other, strict=True)])
        medians = off([median(taken) / median(again) for taken, again in zip(one, other, strict=True)])
        print(f"{name:22} {fmean(map(len, one)):6.1f} samples", end="")
        for what, found in (("from all", of_all), ("means of sessions", means), ("their medians", medians)):
            print(f"; {what} {found[0]:.2f} {found[1]:.2f} {found[2]:.1f} %", end="")
        print()
        met = met or (rule is present_rule and means[0] <= TARGET[0] and means[1] <= TARGET[1])
    print(f"target: the means of sessions differ by {TARGET[0]:g} % and {TARGET[1]:g} % at most by the present rule")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
