"""How long a power cap outlasts a large product on an NVIDIA GPU: NVML's flag, its clock, and durations, by time.

    python -m tests.benchmarks.bench_throttle_end [--rounds N]

Each round multiplies large matrices for a third of a second, so that the GPU reaches its power limit, then times small
kernels by CUDA events, cold, for 0.8 s, pausing 2 ms between them. Prints by time since the end of the large products
how often NVML reports throttling, the clock of the multiprocessors, and the durations in ratio to those of the last
0.2 s. A row may begin where the durations have settled, whatever the flag says.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from opatlas.run.devices.cuda import CudaDevice
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.devices.nvml import Nvml
from opatlas.run.instruments.instrument import MeasureSettings

_LOAD_S, _WATCH_S = 0.35, 0.8
#: Ends of the ranges of time since the end of the load, in seconds.
_BINS = (0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="large products (default: %(default)s)")
    arguments = parser.parse_args()
    device = CudaDevice(DeviceSpec("cuda"), MeasureSettings())
    on: Any = {"device": device.torch_device, "dtype": torch.bfloat16}
    large = torch.randn(16384, 16384, **on), torch.randn(16384, 16384, **on)
    x = torch.randn(4096, 4096, **on)
    kernels = {
        "product of 4096^3": lambda: x @ x,
        "product of 64 x 4096 x 4096": lambda: x[:64] @ x,
        "add of 32 MB": lambda: x + x,
    }
    nvml = Nvml(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def duration_us(call: Callable[[], object]) -> float:
        device.flush_cache()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1000

    for call in kernels.values():
        for _ in range(5):
            duration_us(call)
    found: list[tuple[float, bool, float, dict[str, float]]] = []
    for _ in range(arguments.rounds):
        time.sleep(1.0)
        until = time.perf_counter() + _LOAD_S
        while time.perf_counter() < until:
            large[0] @ large[1]
            torch.cuda.synchronize()
        ended = time.perf_counter()
        while (after := time.perf_counter() - ended) < _WATCH_S:
            state = nvml.state()
            flagged = state.get("throttled_by") != "nothing"
            found.append(
                (
                    after,
                    flagged,
                    float(state.get("sm_clock_mhz", 0)),
                    {name: duration_us(call) for name, call in kernels.items()},
                )
            )
            time.sleep(0.002)
    last = [each for each in found if each[0] > _WATCH_S - 0.2]
    settled = {name: median(each[3][name] for each in last) for name in kernels}
    print(
        f"{torch.cuda.get_device_name()}: seconds since the load, readings, flagged, clock (MHz), durations in ratio to"
    )
    print("  " + ", ".join(f"{name} {us:.1f} us" for name, us in settled.items()))
    for start, stop in zip((0.0, *_BINS), _BINS, strict=False):
        of_bin = [each for each in found if start <= each[0] < stop]
        if of_bin:
            ratios = "  ".join(f"{median(each[3][name] for each in of_bin) / us:.3f}" for name, us in settled.items())
            share = sum(each[1] for each in of_bin) / len(of_bin)
            clock = median(each[2] for each in of_bin)
            print(f"  {start:.2f}-{stop:.2f}  {len(of_bin):4}  {share:4.0%}  {clock:6.0f}  {ratios}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
