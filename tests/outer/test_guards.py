"""The guards in the process of a candidate: allocations, results, functions, the cache of a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opatlas.outer.judging.memory import PoisonedAllocations, poisoned_elements
from opatlas.outer.judging.process_guard import FunctionTable, PersistingCache
from opatlas.outer.judging.results import same_results

CPU = torch.device("cpu")


def test_memory_without_values_is_poisoned() -> None:
    with PoisonedAllocations():
        made = [
            torch.empty(3),
            torch.empty_like(torch.ones(2, 2).to(torch.bfloat16)),
            torch.ones(2).new_empty(4),
            torch.empty(3, dtype=torch.int32),
            torch.empty(0).resize_(2),
            torch.empty(2, dtype=torch.complex64),
            torch.zeros(5),
        ]
    assert [poisoned_elements([each]) for each in made] == [3, 4, 4, 3, 2, 2, 0]


@pytest.mark.parametrize(
    ("dtype", "factor", "same"),
    [
        (torch.float32, 1 + 1e-5, True),
        (torch.float32, 1.01, False),
        (torch.bfloat16, 1.01, True),
        (torch.bfloat16, 1.1, False),
        (torch.complex64, 1.01, False),
        (torch.int64, 2, False),
    ],
)
def test_results_are_the_same_within_two_tolerances(dtype: torch.dtype, factor: float, same: bool) -> None:
    values = torch.arange(1, 50).to(torch.float32)
    one, other = values.to(dtype), (values * factor).to(dtype)
    assert same_results((one,), (other,)) is same
    assert not same_results((one,), (one, one))
    assert same_results((one, 2.0, None), (one, 2.0, None))
    assert not same_results((one, 2.0), (one, 3.0))
    assert not same_results((one,), (one[1:],))


def test_other_code_in_the_same_function_is_named() -> None:
    from opatlas.run.result_check import check

    table, code = FunctionTable(), check.__code__
    try:
        check.__code__ = (lambda formula, arguments, keywords, results, seed: None).__code__
        assert "opatlas.run.result_check.check" in table.replaced()
    finally:
        check.__code__ = code


class _Runtime:
    """A substitute for CUDA's runtime."""

    def __init__(self) -> None:
        self.limit, self.resets = 0, 0

    def cudaDeviceGetLimit(self, found: Any, limit: int) -> int:  # noqa: N802
        found._obj.value = self.limit
        return 0

    def cudaDeviceSetLimit(self, limit: int, value: Any) -> int:  # noqa: N802
        self.limit = value.value
        return 0

    def cudaCtxResetPersistingL2Cache(self) -> int:  # noqa: N802
        self.resets += 1
        return 0


def test_a_part_of_the_cache_that_was_set_aside_is_given_back() -> None:
    runtime = _Runtime()
    cache = PersistingCache(torch.device("cuda"), runtime)
    assert cache.reset() == []
    runtime.limit = 16 << 20
    assert len(cache.reset()) == 1
    assert (runtime.limit, runtime.resets) == (0, 1)
    assert PersistingCache(CPU, runtime).reset() == []
