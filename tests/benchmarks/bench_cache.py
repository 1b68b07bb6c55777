"""Whether cold is cold: memory-bound rows with a flushed cache against the same rows warm.

    python -m tests.benchmarks.bench_cache

The rows' tensors fit into the last-level cache, so warm repeats find them there; none of the rows
makes a large new tensor, whose fresh pages would cost more than the cache saves. The ratio of the
medians is what the flush is for; a ratio near 1 would mean that "cold" rows ran warm.
"""

from __future__ import annotations

import sys

from opatlas.run.devices.device import DeviceSpec
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job
from opatlas.run.runner import Runner

LEAST_RATIO = 1.2
_ROWS = {
    "TensorMove": ("test_movement", "test_tensor_move", "1048576", "FLOAT", "1048576"),
    "ReduceSum": ("test_norm", "test_reduce_sum", "1024,1024;1", "FLOAT;INT64", "1024"),
}


def main() -> int:
    slowest = min(_ratio(kernel_type, *row) for kernel_type, row in _ROWS.items())
    print(f"least ratio {slowest:.2f} (expected: at least {LEAST_RATIO})")
    return 0 if slowest >= LEAST_RATIO else 1


def _ratio(kernel_type: str, module: str, function: str, inputs: str, dtypes: str, output: str) -> float:
    cells = {
        "Input Shapes": inputs,
        "Input Data Types": dtypes,
        "Output Shapes": output,
        "Output Data Types": dtypes.partition(";")[0],
    }
    job = Job(f"bench.{module}", "", function, kernel_type, cells, timeout_s=600)
    medians = {}
    for cache in ("cold", "warm"):
        runner = Runner(DeviceSpec("cpu"), MeasureSettings(cache=cache))
        with runner.locked(print):
            outcome = runner.run(job)
        if outcome.measurement is None:
            raise RuntimeError(f"{kernel_type}: {outcome.reason}\n{outcome.detail}")
        medians[cache] = outcome.measurement.summary.median_us
    ratio = medians["cold"] / medians["warm"]
    print(f"  {kernel_type} {inputs}: cold {medians['cold']:.1f} us, warm {medians['warm']:.1f} us, ratio {ratio:.2f}")
    return ratio


if __name__ == "__main__":
    sys.exit(main())
