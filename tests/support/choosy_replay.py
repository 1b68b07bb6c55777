"""A DispatchFFNCombine that takes few shapes, in the place of the installed kernel: there is none on a CPU.

It refuses some as a kernel's tiling does, and dies of others.
"""

from __future__ import annotations

import os
import signal

from opatlas.bench.implementations import torch as impl
from opatlas.bench.test_expert_parallel import test_dispatch_ffn_combine as replay_layer

from opatlas.run.registry import replays

MOST_M, STEP_H, MOST_N, MOST_K, MOST_BYTES = 40, 32, 128, 6, 40 * 128 * 96


def takes(m: int, h: int, n: int, experts: int, top_k: int, ranks: int) -> bool:
    fits = m * h * n <= MOST_BYTES
    return m <= MOST_M and h % STEP_H == 0 and n <= MOST_N and top_k <= min(MOST_K, experts * ranks) and fits


def choosy(**arguments):
    m, h = arguments["x"].shape
    n, top_k = arguments["weight1"][0].shape[2], arguments["expert_idx"].shape[1]
    if h % STEP_H:
        raise RuntimeError("EZ1001: tiling: h is not aligned")
    if n > MOST_N:
        os.kill(os.getpid(), signal.SIGSEGV)
    if m > MOST_M or top_k > MOST_K or m * h * n > MOST_BYTES:
        raise RuntimeError("EZ9999: no tiling for these sizes")
    return impl.dispatch_ffn_combine(**arguments)


@replays("DispatchFFNCombine", npu=None)
def dispatch_ffn_combine(row, replay, group):
    replay_layer(row, lambda kernel, **keywords: replay(choosy, **keywords), group, npu=None, custom_opp=None)
