"""What a measured row costs on a GPU: eighteen matrix products, twenty cold samples each.

    python -m tests.benchmarks.bench_gpu_cost [--instrument NAME]

A `pytest bench/` session over three files of the same eighteen rows (MatMulCommon, MatMulV2, MatMulV3). Between the
first record of the second file and the last one of the third lies all that a row costs: pytest, the way to the device
process, inputs, warm-up, samples, check, journal. The first eighteen rows also load what CUDA loads late. Then the
same rows in one process, to tell where the time goes, and how long the GPU was busy.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.benchmarks.children import ROOT
from tests.benchmarks.gpu_rows import gemm_rows, write_rows

TARGET_MS = 5.0
_SAMPLES = 20
_TYPES = ("MatMulCommon", "MatMulV2", "MatMulV3")
_ROUNDS = 5


def of_session(instrument: str, folder: str) -> tuple[float, float]:
    """Milliseconds of each of the first eighteen rows, and of each of the others, in a session."""
    database = Path(folder, "database")
    write_rows(database, dict.fromkeys(_TYPES, gemm_rows()))
    command = [sys.executable, "-m", "pytest", "bench", "-q", "-p", "no:cacheprovider", f"--database-path={database}"]
    command += ["--device=cuda", f"--repeat-count={_SAMPLES}", f"--instrument={instrument}", "-n0"]
    watched = [*command, "-p", "tests.benchmarks.finish_times"]
    done = subprocess.run(watched, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    times = list(map(float, re.findall(r"^finished at ([\d.]+)$", done.stdout, flags=re.MULTILINE)))
    rows = len(gemm_rows())
    if len(times) != rows * len(_TYPES):
        raise RuntimeError(done.stdout)
    return (times[rows - 1] - times[0]) / (rows - 1) * 1000, (times[-1] - times[rows - 1]) / (len(times) - rows) * 1000


def in_process(instrument: str) -> None:
    """Prints where the time of a row goes, once everything is loaded."""
    from replaying import job_of

    from opatlas.run import replay
    from opatlas.run.devices.discovery import available_devices
    from opatlas.run.instruments.instrument import MeasureSettings
    from opatlas.run.instruments.kernel_records import KernelRecord, KernelRecords
    from opatlas.run.runner import Runner

    spent: defaultdict[str, float] = defaultdict(float)

    def timed(owner: object, name: str, what: str) -> None:
        function = getattr(owner, name)

        def call(*arguments: object, **keywords: object) -> object:
            start = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                spent[what] += time.perf_counter() - start

        setattr(owner, name, call)

    def busy(of: KernelRecords) -> None:
        records = of._records

        def kept(*arguments: object) -> Iterable[KernelRecord]:
            found = list(records(*arguments))  # type: ignore[arg-type]
            spent["device busy with samples and flushes"] += sum(record.duration_us for record in found) / 1e6
            return found

        of._records = kept  # type: ignore[method-assign, assignment]

    runner = Runner(available_devices("cuda")[0], MeasureSettings(repeat_count=_SAMPLES, instrument=instrument))
    timed(runner._instrument, "sample", "sampling")
    timed(replay, "check", "check")
    inner = runner._instrument._instrument  # type: ignore[attr-defined]
    if isinstance(inner, KernelRecords):
        busy(inner)
        timed(inner, "_records", "samples with their records")
    jobs = [job_of("MatMulV2", row) for row in gemm_rows()]
    for job in jobs:
        runner.run(job)
    spent.clear()
    start = time.perf_counter()
    for _ in range(_ROUNDS):
        for job in jobs:
            outcome = runner.run(job)
            assert outcome.measurement is not None, outcome
    wall = time.perf_counter() - start
    count = _ROUNDS * len(jobs)
    print(json.dumps({"in process": wall / count * 1000, **{what: s / count * 1000 for what, s in spent.items()}}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instrument", default="cupti", help="what takes the durations (default: %(default)s)")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_process:
        in_process(arguments.instrument)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        first, others = of_session(arguments.instrument, folder)
    command = [sys.executable, "-m", "tests.benchmarks.bench_gpu_cost", "--in-process"]
    done = subprocess.run(
        [*command, "--instrument", arguments.instrument], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    parts = json.loads(done.stdout.splitlines()[-1])
    print(f"{arguments.instrument}: {others:.2f} ms a row all in (target: {TARGET_MS:g}); the first 18 {first:.1f} ms")
    for what, milliseconds in parts.items():
        print(f"  {what}: {milliseconds:.2f} ms a row")
    busy = parts.get("device busy with samples and flushes")
    if busy:
        print(f"the GPU is busy with samples and flushes {busy / others * 100:.0f} % of the time")
    return 0 if others <= TARGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())
