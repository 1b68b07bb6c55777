"""Whether recorded durations are the kernels': sixty rows by CUPTI against kineto, events and do_bench.

    python -m tests.benchmarks.bench_gpu_truth [--json FILE]

A process has one profiler, so each instrument has a process of its own; the rows and their inputs are the same, the
cache is cold, and medians of fifty samples are compared. Exits with 1 where a row's duration differs from kineto's by
more than 2 % and by more than 0.3 us. Needs a GPU with the extra "cuda"; do_bench is triton's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tests.benchmarks.children import ROOT
from tests.benchmarks.gpu_rows import truth_rows

RELATIVE, ABSOLUTE_US = 0.02, 0.3
_SAMPLES = 50
_INSTRUMENTS = ("cupti", "kineto", "cuda-events", "do_bench")


class DoBench:
    """triton's, which flushes the cache itself and gives one number."""

    name = "do_bench"

    def sample(self, call: Callable[[], object], before_each: object, rule: object) -> object:
        from triton.testing import do_bench

        from bench.instruments import Samples

        return Samples((do_bench(call, warmup=5, rep=20, return_mode="median") * 1000,))


def measure(instrument: str) -> None:
    """Prints the median and the number of device kernels of each row, in JSON."""
    from replaying import job_of

    from bench.devices.at_hand import devices_at_hand
    from bench.job import MeasureSettings
    from bench.runner import Runner

    spec = devices_at_hand("cuda")[0]
    named = None if instrument == DoBench.name else instrument
    runner = Runner(spec, MeasureSettings(repeat_count=_SAMPLES, instrument=named))
    if named is None:
        runner._instrument = DoBench()  # type: ignore[assignment]
    results = []
    for kernel_type, row in truth_rows():
        outcome = runner.run(job_of(kernel_type, row))
        if outcome.measurement is None:
            raise RuntimeError(f"{kernel_type} {row}: {outcome.reason}\n{outcome.detail}")
        results.append((median(outcome.measurement.samples_us), outcome.measurement.device_kernels))
    print(json.dumps(results))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers there, too")
    parser.add_argument("--measure", choices=_INSTRUMENTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return 0
    by_instrument = {}
    for instrument in _INSTRUMENTS:
        command = [sys.executable, "-m", "tests.benchmarks.bench_gpu_truth", "--measure", instrument]
        done = subprocess.run(command, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE, check=True)
        by_instrument[instrument] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{'kernel type and input':52s} kernels {'cupti':>9s} {'kineto':>9s}      off {'events':>9s} {'do_bench':>9s}"
    )
    wrong = 0
    errors = []
    for i, (kernel_type, row) in enumerate(truth_rows()):
        cupti, kineto, events, do_bench = (by_instrument[name][i][0] for name in _INSTRUMENTS)
        off = abs(cupti - kineto)
        errors.append(off / kineto)
        is_wrong = off > max(RELATIVE * kineto, ABSOLUTE_US)
        wrong += is_wrong
        kernels = by_instrument["cupti"][i][1]
        print(
            f"{kernel_type + ' ' + row.split('|')[0]:52.52s} {kernels:7d} {cupti:9.2f} {kineto:9.2f} "
            f"{(cupti / kineto - 1) * 100:+7.2f}% {events:9.2f} {do_bench:9.2f}{'  OFF' if is_wrong else ''}"
        )
    print(
        f"{len(errors) - wrong} of {len(errors)} rows within 2 % or 0.3 us; off by {median(errors) * 100:.2f} % "
        f"in the median, {max(errors) * 100:.2f} % at most"
    )
    if arguments.json:
        rows = [[*row, *(by_instrument[name][i] for name in _INSTRUMENTS)] for i, row in enumerate(truth_rows())]
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
