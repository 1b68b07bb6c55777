"""What a measured row costs on a GPU: eighteen matrix products, twenty cold samples each.

    python -m tests.benchmarks.bench_gpu_cost [--instrument NAME]

A `pytest bench/` session over three files of the same eighteen rows (MatMulCommon, MatMulV2, MatMulV3). Between the
first record of the second file and the last one of the third lies all that a row costs: pytest, the way to the device
process, inputs, warm-up, samples, check, journal. The first eighteen rows also load what CUDA loads late.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.benchmarks.children import run_benchmark, run_session
from tests.benchmarks.databases import write_rows
from tests.benchmarks.finish_times import PLUGIN, times_of
from tests.benchmarks.gpu_rows import cells_by_type, gemm_rows

TARGET_MS = 5.0
_SAMPLES = 20
_TYPES = ("MatMulCommon", "MatMulV2", "MatMulV3")


def of_session(instrument: str, folder: str) -> tuple[float, float]:
    """Milliseconds of each of the first eighteen rows, and of each of the others, in a session."""
    database = Path(folder, "database")
    write_rows(database, cells_by_type(dict.fromkeys(_TYPES, gemm_rows())))
    options = ("--device=cuda", f"--repeat-count={_SAMPLES}", f"--instrument={instrument}", "-n0")
    done = run_session(database, *options, *PLUGIN)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    times = times_of(done.stdout)
    rows = len(gemm_rows())
    if len(times) != rows * len(_TYPES):
        raise RuntimeError(done.stdout)
    return (times[rows - 1] - times[0]) / (rows - 1) * 1000, (times[-1] - times[rows - 1]) / (len(times) - rows) * 1000


def main(*, instrument: str = "cupti") -> int:
    """Returns 1 if a target is missed.

    Args:
        instrument: what takes the durations.
    """
    with tempfile.TemporaryDirectory() as folder:
        first, others = of_session(instrument, folder)
    print(f"{instrument}: {others:.2f} ms a row all in (target: {TARGET_MS:g}); the first 18 {first:.1f} ms")
    return 0 if others <= TARGET_MS else 1


if __name__ == "__main__":
    run_benchmark(main)
