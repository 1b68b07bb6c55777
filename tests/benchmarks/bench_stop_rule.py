"""How many of the samples of past runs the stop rule takes, and how far the means of these are off.

    python -m tests.benchmarks.bench_stop_rule DATABASE... [--instruments cupti]

Reads all samples in the histories of databases, best of runs with `--repeat-count 200`. Prints for the stop rule, and
for fixed numbers, how many samples of a row are taken, and how far their mean and median are from those of all samples
of the row. Exits with 1 where the means by the stop rule differ by more than two sessions do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median, quantiles

from opatlas.data import log as history
from opatlas.data.database import Database
from opatlas.run.instruments.instrument import LEAST_SAMPLES, StopRule
from tests.benchmarks.children import run_benchmark

#: Differences in percent, median and 95th percentile: those of two sessions on an H200.
TARGET = 0.39, 2.74


def present_rule(samples: Sequence[float]) -> int:
    rule = StopRule(repeat_count=None, time_limit_s=1.0, clock=lambda: 0.0)
    counts = range(LEAST_SAMPLES, len(samples), LEAST_SAMPLES)
    return next((count for count in counts if rule.enough(samples[:count])), len(samples))


def first(count: int) -> Callable[[Sequence[float]], int]:
    return lambda samples: min(count, len(samples))


RULES: Mapping[str, Callable[[Sequence[float]], int]] = {
    "all": len,
    "stop rule": present_rule,
    "20": first(20),
    "10": first(10),
}


def samples_of(database: Database, instruments: Sequence[str]) -> list[Sequence[float]]:
    """Returns the samples of each measurement in the histories, without those of a throttled device."""
    found = (
        record.measurement for run_id in history.runs(database) for record in history.read(database, run_id).records
    )
    return [each.samples_us for each in found if each and each.samples_us and not each.throttled
            and each.instrument in instruments]  # fmt: skip


def off(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Returns median, 95th percentile and maximum of the distances from 1, in percent."""
    found = [abs(ratio - 1) * 100 for ratio in ratios]
    return median(found), quantiles(found, n=20)[-1], max(found)


def main(*databases: Path, instruments: list[str] | None = None) -> int:
    """Returns 1 if a target is missed.

    Args:
        databases: with histories.
        instruments: whose samples (default: cupti).
    """
    rows = [samples for path in databases for samples in samples_of(Database(path), instruments or ["cupti"])]
    print(f"{len(rows)} rows; differences from all samples: median, 95th percentile, maximum")
    differences: dict[str, tuple[float, float, float]] = {}
    for name, rule in RULES.items():
        taken = [samples[: rule(samples)] for samples in rows]
        differences[name] = means = off([fmean(some) / fmean(all_) for some, all_ in zip(taken, rows, strict=True)])
        medians = off([median(some) / median(all_) for some, all_ in zip(taken, rows, strict=True)])
        count = fmean(map(len, taken))
        shown = "; ".join(
            f"{what} {found[0]:.2f} {found[1]:.2f} {found[2]:.1f} %"
            for what, found in (("means", means), ("medians", medians))
        )
        print(f"  {name:10} {count:6.1f} samples; {shown}")
    met = all(found <= limit for found, limit in zip(differences["stop rule"][:2], TARGET, strict=True))
    print(f"target: the means by the stop rule differ by {TARGET[0]} % and {TARGET[1]} % at most")
    return 0 if met else 1


if __name__ == "__main__":
    run_benchmark(main)
