"""The names of a candidate's kernels, its share of the time, and durations that are impossible."""

from __future__ import annotations

import math

import pytest

from opatlas.outer.judging.judged_replay import expect_possible, own_share, share_notes
from opatlas.outer.judging.judgement import CandidateRejected
from opatlas.outer.judging.source import CandidateSource
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
        *("row_softmax", "scaled", "plain", "helper"),
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


@pytest.mark.parametrize("durations_us", [[0.0], [1.0, -2.0], [math.nan], [math.inf, 3.0], []])
def test_durations_that_are_no_times_are_refused(durations_us: list[float]) -> None:
    with pytest.raises(CandidateRejected):
        expect_possible(durations_us, read_bytes=0, peak=Peak(), is_accelerator=False)


@pytest.mark.parametrize(
    ("duration_us", "options", "possible"),
    [
        (0.4, {}, False),
        (0.4, {"is_accelerator": False}, True),
        # 4 MB at 4 TB/s are one microsecond.
        (0.9, {"read_bytes": 4_000_000}, False),
        (0.96, {"read_bytes": 4_000_000}, True),
        (0.9, {"read_bytes": 4_000_000, "is_cold": False}, True),
        (0.9, {"read_bytes": 4_000_000, "baseline_us": lambda: 0.8}, True),
        (0.9, {"read_bytes": 4_000_000, "baseline_us": lambda: 5.0}, False),
    ],
)
def test_a_kernel_cannot_be_faster_than_memory(duration_us: float, options: dict, possible: bool) -> None:
    options = {"read_bytes": 0, "is_accelerator": True, **options}
    if possible:
        expect_possible([duration_us] * 9, peak=Peak(4000.0), **options)
        return
    with pytest.raises(CandidateRejected) as caught:
        expect_possible([duration_us] * 9, peak=Peak(4000.0), **options)
    assert caught.value.sub_class == "impossible-time"
