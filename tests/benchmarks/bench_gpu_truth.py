"""Whether recorded durations are the kernels': sixty rows by CUPTI against kineto, events and do_bench.

    python -m tests.benchmarks.bench_gpu_truth

A process has one profiler at a time, so that no launch is seen by both. For each row CUPTI and kineto take turns, twice
fifty cold samples each, of the same call of the same tensors, one turn right behind the other: where a tensor lies in
memory decides for some kernels, by up to a tenth. Medians are compared. Exits with 1 where a row's duration differs
from kineto's by more than 2 % and by more than 0.3 us. Needs a GPU with the extra "cuda"; do_bench is triton's.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import torch

from opatlas.run.instruments.instrument import Instrument, Samples
from opatlas.run.instruments.kernel_records import KernelRecords
from tests.benchmarks.children import run_benchmark
from tests.benchmarks.gpu_rows import truth_rows

if TYPE_CHECKING:
    from opatlas.run.instruments.cupti import CuptiRecorder

RELATIVE, ABSOLUTE_US = 0.02, 0.3
_SAMPLES, _TURNS = 50, 2
_SPIN_CYCLES = 200_000_000
_NAMES = ("cupti", "kineto", "cuda-events", "do_bench")


class All:
    """An instrument that is all of them, one after the other; remembers the median of each, in microseconds."""

    name = "all"

    def __init__(self) -> None:
        from opatlas.run.devices.device import kind_named
        from opatlas.run.instruments.instrument import MeasureSettings

        self.medians: list[dict[str, float]] = []
        self._cupti, self._kineto, self._events = (
            cast("KernelRecords", kind_named("cuda").open_instrument(MeasureSettings(instrument=name)))
            for name in ("cupti", "kineto", "cuda-events")
        )
        self._cupti_us = 1.0
        # Kineto sets CUPTI's clock to one of its own when it is first used, which others read from then on.
        self._spin(self._kineto)
        self._cupti_us = self._true_us() / self._spin(self._cupti)

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Any) -> Samples:
        from triton.testing import do_bench

        from opatlas.run.instruments.instrument import StopRule

        def by(instrument: Instrument) -> Samples:
            self._take_records(instrument)
            return instrument.sample(call, before_each, StopRule(repeat_count=_SAMPLES, time_limit_s=60))

        turns = [(by(self._cupti), by(self._kineto)) for _ in range(_TURNS)]
        cupti, kineto = ([us for samples in own for us in samples.durations_us] for own in zip(*turns, strict=True))
        self.medians.append(
            {
                "cupti": median(cupti) * self._cupti_us,
                "kineto": median(kineto),
                "cuda-events": median(by(self._events).durations_us),
                "do_bench": do_bench(call, warmup=5, rep=20, return_mode="median") * 1000,
            }
        )
        return turns[0][0]

    def _take_records(self, instrument: Instrument) -> None:
        """Kineto asks for the process's records each time; CUPTI's instrument does so once, being alone."""
        if instrument is self._cupti:
            cast("CuptiRecorder", self._cupti._recorder).register()

    def _spin(self, instrument: KernelRecords) -> float:
        """Microseconds that an instrument sees of a kernel of a tenth of a second."""
        self._take_records(instrument)
        with instrument._recorder.recording() as records:
            torch.cuda._sleep(_SPIN_CYCLES)
            (record,) = records()
        return float(record.duration_us)

    def _true_us(self) -> float:
        """The same kernel between two events: what they add is a few microseconds."""
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(_SPIN_CYCLES)
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1000


def measure() -> list[tuple[dict[str, float], int]]:
    """Medians by instrument, and the number of device kernels, of each row."""
    from replaying import job_of

    from opatlas.run.devices.device import available_devices
    from opatlas.run.instruments.instrument import MeasureSettings
    from opatlas.run.runner import Runner

    runner = Runner(available_devices("cuda")[0], MeasureSettings(instrument="cuda-events"))
    runner._instrument = everything = All()
    kernels = []
    for kernel_type, row in truth_rows():
        outcome = runner.run(job_of(kernel_type, row))
        if outcome.measurement is None:
            raise RuntimeError(f"{kernel_type} {row}: {outcome.reason}\n{outcome.detail}")
        kernels.append(outcome.measurement.device_kernels or 0)
    return list(zip(everything.medians, kernels, strict=True))


def main() -> int:
    """Returns 1 if a row is off."""
    rows, found = truth_rows(), measure()
    header = (f"{name:>9s}" for name in ("cupti", "kineto", "off %", "events", "do_bench"))
    print(f"{'kernel type and input':52s} kernels {' '.join(header)}")
    wrong, differences = 0, []
    for (kernel_type, row), (medians, kernels) in zip(rows, found, strict=True):
        cupti, kineto, events, do_bench = (medians[name] for name in _NAMES)
        is_wrong = abs(cupti - kineto) > max(RELATIVE * kineto, ABSOLUTE_US)
        wrong += is_wrong
        differences.append(abs(cupti / kineto - 1) * 100)
        print(
            f"{kernel_type + ' ' + row.split('|')[0]:52.52s} {kernels:7d} {cupti:9.2f} {kineto:9.2f} "
            f"{(cupti / kineto - 1) * 100:+9.2f} {events:9.2f} {do_bench:9.2f}{'  OFF' if is_wrong else ''}"
        )
    print(
        f"{len(rows) - wrong} of {len(rows)} rows within 2 % or 0.3 us; off by {median(differences):.2f} % in the "
        f"median, {max(differences):.2f} % at most"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    run_benchmark(main)
