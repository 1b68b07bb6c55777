"""The names of a candidate's kernels, its share of the time, and the shortest duration."""

from __future__ import annotations

import pytest

from opatlas.outer.judging.judged_replay import own_share, share_notes, shortest_us
from opatlas.outer.judging.rules import CandidateSource
from opatlas.row.roofline import Peak

_SOURCE = '''
import torch, triton
from torch.utils.cpp_extension import load_inline

@triton.autotune(configs=[], key=[])
@triton.jit
def row_softmax(pointer): ...

cuda = """
template <typename T>
__global__ void __launch_bounds__(256, 2) scaled(T* x) {}
extern "C" __global__ void plain(float* x) {}
"""
'''


def _source(text: str) -> CandidateSource:
    return CandidateSource(text)


def test_kernels_of_triton_and_of_strings_are_the_candidates_own() -> None:
    assert _source(_SOURCE).own_kernels(["__global__ static void helper(int n) {}"]) == {
        *("row_softmax", "scaled", "plain", "helper")
    }


@pytest.mark.parametrize(
    ("names", "durations_us", "share"),
    [
        (["row_softmax"], [4.0], 1.0),
        (["row_softmax_0d1d2de", "at::native::vectorized_elementwise_kernel"], [1.0, 3.0], 0.25),
        (["mine::scaled", "softmax_warp_forward"], [3.0, 1.0], 0.75),
        (["scaled_dot_product"], [1.0], 0.0),
        ([], [], None),
    ],
)
def test_the_share_is_that_of_the_time(names: list[str], durations_us: list[float], share: float | None) -> None:
    assert own_share(names, durations_us, {"row_softmax", "scaled"}) == share
    assert bool(share_notes(share)) == (share is not None and share <= 0.5)


def test_a_kernel_is_no_faster_than_memory() -> None:
    # 4 MB at 4 TB/s are one microsecond.
    assert shortest_us(4_000_000, Peak(4000.0)) == pytest.approx(0.95)
    assert shortest_us(1_000_000, Peak(4000.0)) == shortest_us(4_000_000, Peak()) == 0.5
