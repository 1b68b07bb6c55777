"""The guards around the calls of a candidate: inputs, allocations, results, functions, settings, threads, files."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from opatlas.outer.judging.input_sets import InputSets, Variant
from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass
from opatlas.outer.judging.process_guard import (
    FunctionTable,
    PersistingCache,
)
from opatlas.outer.judging.results import (
    Compared,
    PoisonedAllocations,
    poison_free_memory,
    poisoned_elements,
    same_results,
)
from opatlas.outer.judging.trial import CandidateTrial

CPU = torch.device("cpu")


def _mixed(seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(300, generator=generator)
    square = torch.randn(8, 8, generator=generator)
    return [
        x,
        [x[:200].to(torch.bfloat16), x[:128].to(torch.float8_e4m3fn)],
        {"indices": torch.randint(9, (50,), generator=generator), "mask": x > 0},
        torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last),
        torch.empty(0, 4),
        x[:4].expand(3, 4),
        x.view(30, 10)[:, 2:7],
        torch.tensor(2.5) * x[0],
        square + square.T,
        7,
        None,
    ]


def _leaves(arguments: Any) -> list[torch.Tensor]:
    if isinstance(arguments, torch.Tensor):
        return [arguments]
    if isinstance(arguments, dict):
        arguments = list(arguments.values())
    return [leaf for item in arguments for leaf in _leaves(item)] if isinstance(arguments, list) else []


def _bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def test_inputs_change_in_place_without_a_version() -> None:
    inputs = InputSets(_mixed, (1, 2))
    before = [(each.data_ptr(), each._version, _bits(each)) for each in _leaves(inputs.arguments)]
    inputs.write(Variant(1))
    after = [(each.data_ptr(), each._version, _bits(each)) for each in _leaves(inputs.arguments)]
    assert [place[:2] for place in before] == [place[:2] for place in after]
    assert [place[2] for place in after] == [_bits(each) for each in _leaves(_mixed(2))]
    assert inputs.arguments[-2:] == [7, None]
    assert [each.stride() for each in _leaves(inputs.arguments)] == [each.stride() for each in _leaves(_mixed(2))]
    assert not inputs.changed()


def test_inputs_move_to_other_addresses() -> None:
    inputs = InputSets(_mixed, (1, 2))
    inputs.write(Variant(1, seed=3))
    before = [(each.data_ptr(), _bits(each)) for each in _leaves(inputs.arguments)]
    inputs.move()
    for (address, bits), each in zip(before, _leaves(inputs.arguments), strict=True):
        assert each.data_ptr() != address or not each.numel()
        assert _bits(each) == bits


def test_a_variant_differs_in_one_percent_of_the_floating_point_elements() -> None:
    inputs = InputSets(lambda seed: [torch.ones(10_000), torch.arange(100), torch.eye(30)], (1, 2))
    inputs.write(Variant(0, seed=5))
    x, integers, symmetric = inputs.arguments
    assert 50 < int((x != 1).sum()) <= 100
    assert integers.tolist() == list(range(100))
    assert torch.equal(symmetric, torch.eye(30))
    values, _ = inputs.values(Variant(0, seed=5))
    assert torch.equal(values[0], x)
    assert not inputs.changed()
    inputs.write(Variant(0))
    assert bool((x == 1).all())


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
    poison_free_memory(CPU, 1 << 20)


def test_memory_that_holds_nan_of_an_earlier_call_is_no_result() -> None:
    """Way 2 where the allocator gives back what the guards have filled: poison cannot be told from it."""

    def candidate(x: torch.Tensor) -> torch.Tensor:
        found = torch.empty_like(x)
        return found if bool((found == 1).all()) else found.fill_(torch.nan)

    trial, _ = _relu_trial(candidate, 0)
    trial.first_call()
    with pytest.raises(CandidateRejected) as caught:
        trial.examine()
    assert caught.value.sub_class == "uninitialized"


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
    assert bool(same_results((one,), (other,))) is same
    assert not bool(same_results((one,), (one, one)))
    assert bool(same_results((one, 2.0, None), (one, 2.0, None)))
    assert not bool(same_results((one, 2.0), (one, 3.0)))
    assert not bool(same_results((one,), (one[1:],)))


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


def _relu_trial(candidate: Callable[..., Any], seed: int) -> tuple[CandidateTrial, Callable[..., Any]]:
    inputs = InputSets(lambda seed: [torch.randn(50, generator=torch.Generator().manual_seed(seed))], (1, 2, 3))
    trial = CandidateTrial(candidate, inputs, CPU, generator=random.Random(seed))
    return trial, lambda arguments, weights: (torch.relu(arguments[0]),)


def _compare(results: Any, expected: Any) -> Compared:
    return Compared(0.0, 0.0, 1, "" if torch.equal(results[0], expected[0]) else "wrong", "other")


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_a_result_that_is_wrong_in_few_timed_calls_is_unstable(share: float) -> None:
    """Only one that is wrong in many calls gains by it."""
    draw = random.Random(1)
    trial, reference = _relu_trial(lambda x: torch.relu(x) + is_timed * (draw.random() < share), 0)
    is_timed = 0
    trial.first_call()
    trial.examine()
    is_timed = 1
    for _ in range(60):
        trial.prepare()
        trial.launch()
    with pytest.raises(CandidateRejected) as caught:
        trial.verify(reference, _compare)
    assert caught.value.error_class is (ErrorClass.HACK if share == 1 else ErrorClass.UNSTABLE)


class _StopsInTime:
    """A candidate that computes in the first two timed calls, and returns its last result from then on."""

    def __init__(self) -> None:
        self.timed_calls = 0
        self.latest = torch.empty(0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.timed_calls < 3:
            self.latest = torch.relu(x)
        return self.latest


def test_a_result_of_earlier_inputs_is_stale_in_few_timed_calls_too() -> None:
    """Of few calls a third may be wrong by chance alone."""
    found: Counter[str] = Counter()
    for seed in range(40):
        candidate = _StopsInTime()
        trial, reference = _relu_trial(candidate, seed)
        trial.first_call()
        trial.examine()
        for number in range(1, 7):
            candidate.timed_calls = number
            trial.prepare()
            trial.launch()
        try:
            trial.verify(reference, _compare)
        except CandidateRejected as error:
            found[error.sub_class or error.error_class.value] += 1
    assert found["stale-result"] >= 38
    assert not found["unstable"]


@pytest.mark.parametrize("model_changes", [True, False])
def test_a_candidate_may_change_the_inputs_that_the_model_changes(model_changes: bool) -> None:
    inputs = InputSets(lambda seed: [3, torch.randn(50), torch.randn(50)], (1, 2, 3))
    trial = CandidateTrial(lambda number, x, y: y.add_(x), inputs, CPU)
    trial.first_call()
    trial.examine()

    def model(arguments: list[Any], weights: Any) -> Any:
        _, x, y = arguments
        return (y.add_(x) if model_changes else y + x,)

    if model_changes:
        trial.verify(model, _compare)
        return
    with pytest.raises(CandidateRejected) as caught:
        trial.verify(model, _compare)
    assert caught.value.sub_class == "changed-input"
    assert "input 1" in str(caught.value)


@pytest.mark.parametrize("is_timed_only", [False, True])
def test_the_values_of_a_view_are_timed(is_timed_only: bool) -> None:
    """torch computes a negative view when it is read, so that one in the timed calls alone would gain."""
    inputs = InputSets(lambda seed: [torch.randn(50)], (1, 2, 3))
    trial = CandidateTrial(lambda x: torch._neg_view(x) if is_view else -x, inputs, CPU)
    is_view = not is_timed_only
    trial.first_call()
    trial.examine()
    is_view = True

    def timed() -> None:
        for _ in range(3):
            trial.prepare()
            trial.launch()
            assert is_timed_only or not any(each.is_neg() for each in trial.tensors())
        trial.verify(lambda arguments, weights: (-arguments[0],), _compare)

    if not is_timed_only:
        timed()
        return
    with pytest.raises(CandidateRejected) as caught:
        timed()
    assert caught.value.sub_class == "lazy-result"


def test_a_task_with_one_result_for_all_inputs_is_reported() -> None:
    inputs = InputSets(lambda seed: [torch.randn(50)], (1, 2, 3))
    trial = CandidateTrial(lambda x: x * 0, inputs, CPU)
    trial.first_call()
    trial.examine()
    trial.verify(lambda arguments, weights: (arguments[0] * 0,), _compare)
    assert len(trial.notes) == 1
