"""Whether a flush by line leaves rows as cold as a read of the whole cache, and what each costs.

    python -m tests.benchmarks.bench_flush

"By line" is what a virtual machine does whose two cores are told to have their host's cache of 480 MiB: it reads
128 MiB and evicts the row's tensors line by line. It takes turns on each row with a read of twice the cache of this
machine, and with a read of 960 MiB. The ratio is that of rows after the first and the second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter

import torch

from opatlas.run.devices.cpu import EXPENSIVE_READ_BYTES, CpuFlush, FlushPlan, evictor, plan_flush
from opatlas.run.devices.system import available_cores, usable_cores

_TOLD_BYTES = 480 << 20
_SIZES = (64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
_TURNS = 31
#: Rows by line may take longer, since 128 MiB may be more than this machine's cache needs. Of a row of microseconds a
#: tenth is code and page tables, which a large cache keeps. Warm rows take a tenth to a half.
LEAST_RATIO = 0.85


def main() -> int:
    if evictor() is None:
        print("this machine offers no way to evict a line")
        return 0
    threads = available_cores()
    torch.set_num_threads(threads)
    flushes = {
        "own cache": CpuFlush(replace(plan_flush(usable_cores(), threads), by_line=False)),
        "960 MiB": CpuFlush(FlushPlan(_TOLD_BYTES, 1, 2 * _TOLD_BYTES, 2 * _TOLD_BYTES, by_line=False)),
        "by line": CpuFlush(FlushPlan(_TOLD_BYTES, 1, 2 * _TOLD_BYTES, EXPENSIVE_READ_BYTES, by_line=True)),
    }
    least = min(_ratio(size, flushes) for size in _SIZES)
    print(f"least ratio {least:.2f} (expected: at least {LEAST_RATIO})")
    return 0 if least >= LEAST_RATIO else 1


def _ratio(size: int, flushes: Mapping[str, CpuFlush]) -> float:
    """Gathers a number of each cache line, in random order: nearly all of its time is waiting for memory."""
    values, places = torch.ones(size // 4), torch.randperm(size // 64) * 16
    result = torch.empty(len(places))

    def row() -> None:
        torch.index_select(values, 0, places, out=result)

    row()
    warm = min(_seconds(row) for _ in range(_TURNS))
    took: dict[str, list[float]] = {name: [] for name in flushes}
    cost: dict[str, list[float]] = {name: [] for name in flushes}
    for _ in range(_TURNS):
        for name, flush in flushes.items():
            cost[name].append(_seconds(partial(flush, [values, places, result])))
            took[name].append(_seconds(row))
    cold = {name: _quiet(seconds) for name, seconds in took.items()}
    ratio = cold["by line"] / cold["own cache"]
    told = ", ".join(f"{name} {1e6 * cold[name]:.1f} us (flush {1e3 * median(cost[name]):.1f} ms)" for name in flushes)
    print(f"  {size >> 10} KiB: warm {1e6 * warm:.1f} us, {told}; ratio {ratio:.2f}", flush=True)
    return ratio


def _quiet(seconds: Sequence[float]) -> float:
    """The median of the shorter half: what else the machine did is not the flush's."""
    return median(sorted(seconds)[: len(seconds) // 2])


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
