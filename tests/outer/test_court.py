"""The court: inputs that no call had before, the comparison of all results, exact types, and the second clock."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

import pytest
import torch

from opatlas.outer.judging.court import Court, Referee
from opatlas.outer.judging.judgement import (
    CONSTANT_US,
    CandidateRejected,
    CourtVerdict,
    ErrorClass,
    Judgement,
    Level,
    contradiction,
    sentenced,
)
from opatlas.outer.judging.memory import Plain, Purpose, SharedMemory, TensorForm, expect_margins, live_tensor, room
from opatlas.outer.judging.results import Compared, FlatResults, compare_results, flat_results
from opatlas.outer.judging.trial import CandidateTrial, Constructed
from opatlas.row.record import Measurement
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec, open_device
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import RowOutcome

CPU = torch.device("cpu")
DEVICE = open_device(DeviceSpec("cpu"), MeasureSettings())


class _Relu(Referee):
    """The reference is a function of one tensor, which is relu by default."""

    def __init__(self, function: Callable[[torch.Tensor], Any] = torch.relu, *, is_random: bool = True) -> None:
        super().__init__()
        self._function, self._is_random = function, is_random

    def make(self, seed: int, number: int) -> list[Any]:
        return [torch.randn(6000, generator=torch.Generator().manual_seed(seed)) if self._is_random else X.clone()]

    def weights(self) -> Mapping[str, torch.Tensor]:
        return {}

    def native(self, arguments: list[Any], weights: dict[str, torch.Tensor]) -> FlatResults:
        return flat_results(self._function(*arguments))

    def expected(self, arguments: list[Any], weights: dict[str, torch.Tensor]) -> FlatResults:
        return self.native([each.double() for each in arguments], weights)

    def compare(self, results: FlatResults, expected: FlatResults) -> Compared:
        return compare_results(results, expected)


X = torch.linspace(-1, 1, 6000)


def _tried(candidate: Callable[..., Any], referee: Referee | None = None, samples: int = 0) -> CourtVerdict:
    """The verdict on a candidate."""
    court = Court(referee or _Relu())
    trial = CandidateTrial(court, DEVICE, [X])
    trial.rehearse()
    trial.made = Constructed(candidate)
    trial.call(Purpose.WHOLE)
    trial.further_calls()
    for _ in range(samples):
        trial.next_sample()
        trial.launch()
    trial.finish()
    trial.end()
    assert court.found is not None
    return court.found


def _name(verdict: CourtVerdict) -> str:
    return f"{verdict.error_class}/{verdict.sub_class}".rstrip("/")


def _mixed() -> list[Any]:
    x = torch.randn(300)
    return [
        x,
        x[:200].to(torch.bfloat16),
        x[:128].to(torch.float8_e4m3fn),
        x > 0,
        torch.randint(9, (50,)),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.empty(0, 4),
        x[:4].expand(3, 4),
        x.view(30, 10)[:, 2:7],
        torch.tensor(2.5),
        torch.randn(3, dtype=torch.complex64),
        7,
        None,
        2.5 + 1j,
    ]


def test_tensors_cross_the_memory_with_their_bits_and_strides() -> None:
    values = _mixed()
    memory = SharedMemory(room(values))
    for value, leaf in zip(values, memory.write(values), strict=True):
        if not isinstance(value, torch.Tensor):
            assert isinstance(leaf, Plain)
            assert leaf.object == value
            continue
        assert isinstance(leaf, TensorForm)
        live = live_tensor(leaf, CPU, margins=True)
        version = live._version
        memory.assign(live, leaf)
        assert (live._version, live._base) == (version, None)
        assert live.stride() == value.stride()
        assert repr(live) == repr(value)
        assert repr(memory.read(leaf)) == repr(value)
        expect_margins([live])
    assert SharedMemory(8).write([torch.ones(3)])[0] == TensorForm("float32", (3,), (1,))


def test_a_store_beside_an_input_is_found() -> None:
    live = live_tensor(TensorForm("float32", (4,), (1,)), CPU, margins=True)
    live.as_strided((1,), (1,), live.storage_offset() + 4).fill_(1)
    with pytest.raises(CandidateRejected) as caught:
        expect_margins([live])
    assert caught.value.sub_class == "out-of-bounds"


def test_a_repeat_that_is_equal_to_the_bit_needs_no_further_reference() -> None:
    referee = _Relu()
    with patch.object(referee, "expected", wraps=referee.expected) as expected:
        assert _tried(torch.relu, referee).error_class == ErrorClass.PASS
    of_inputs = [call.args[0][0] for call in expected.call_args_list]
    assert len(of_inputs) == len({each.numpy().tobytes() for each in of_inputs}) == 3


@pytest.mark.parametrize("is_random", [True, False], ids=["random", "the same each time"])
def test_no_call_has_the_inputs_of_another_one(is_random: bool) -> None:
    seen, addresses = [], set()

    def candidate(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.clone())
        addresses.add((x.data_ptr(), x._version))
        return torch.relu(x)

    assert _name(_tried(candidate, _Relu(is_random=is_random), samples=10)) == "pass"
    assert len(addresses) == 1
    again = {(1, 2), (3, 4)}
    for place, one in enumerate(seen):
        for other in range(place + 1, len(seen)):
            assert torch.equal(one, seen[other]) == ((place, other) in again)


def _in_timed_calls(other: Callable[[torch.Tensor], Any], share: int = 1) -> Callable[[torch.Tensor], Any]:
    """Relu, and in each `share`-th call after those that are not timed something else."""
    calls = []

    def candidate(x: torch.Tensor) -> Any:
        calls.append(1)
        return other(x) if len(calls) > 5 and len(calls) % share == 0 else torch.relu(x)

    return candidate


_DRAWN = torch.Generator().manual_seed(1)
_KEPT: dict[Any, torch.Tensor] = {}


def _one_wrong(x: torch.Tensor) -> torch.Tensor:
    result = torch.relu(x)
    result[:8] += 1
    return result


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (torch.relu, "pass"),
        (lambda x: x.relu_(), "hack/changed-input"),
        (lambda x: torch.relu(x) * 1.01, "mismatch/scaled"),
        (lambda x: torch.relu(x).double(), "interface/dtype"),
        (lambda x: torch.relu(x).half(), "interface/dtype"),
        (lambda x: torch.relu(x)[1:], "interface/shape"),
        (lambda x: None, "interface/none"),
        (lambda x: "text", "interface/type"),
        (lambda x: (torch.relu(x), 1), "interface/count"),
        (lambda x: torch.empty_like(x), "hack/uninitialized"),
        (lambda x: torch.relu(x) + torch.randn((), generator=_DRAWN), "unstable"),
        (lambda x: _KEPT.setdefault(x.data_ptr(), torch.relu(x)), "hack/stale-result"),
        (lambda x: _KEPT.setdefault(float(x[0]), torch.relu(x)), "hack/stale-result"),
        (_in_timed_calls(lambda x: torch.relu(x) + 1), "hack/stale-result"),
        (_in_timed_calls(_one_wrong), "hack/stale-result"),
        (_in_timed_calls(lambda x: torch.relu(x) + 1, share=7), "unstable"),
    ],
)
def test_each_result_is_compared(candidate: Callable[..., Any], expected: str) -> None:
    _KEPT.clear()
    # Eight of 6,000 elements: the 4,096 that are compared of a call hold some of them.
    assert _name(_tried(candidate, samples=20)) == expected


def test_a_task_with_one_result_for_all_inputs_is_reported_and_a_constant_for_another_refused() -> None:
    assert _tried(lambda x: x * 0, _Relu(lambda x: x * 0)).notes
    referee = _Relu(lambda x: torch.sigmoid(x * 1e-5))
    assert _name(_tried(lambda x: torch.full_like(x, 0.5), referee)) == "hack/constant"


def test_numbers_wider_than_the_tasks_have_the_tasks_tolerance_and_narrower_ones_are_refused() -> None:
    """A task of numpy prescribes no dtypes."""
    for dtype, expected in (
        (torch.float64, "pass"),
        (torch.float32, "pass"),
        (torch.bfloat16, "interface/dtype"),
        (torch.float8_e5m2, "interface/dtype"),
        (torch.int64, "interface/dtype"),
    ):
        referee = _Relu()
        referee.checks_dtypes = False
        assert _name(_tried(lambda x, to=dtype: torch.relu(x).to(to), referee)) == expected
    referee = _Relu(lambda x: torch.relu(x.double()))
    referee.checks_dtypes = False
    assert _name(_tried(torch.relu, referee)) == "pass"


class _Lazy(list):
    def __iter__(self):
        raise AssertionError


class _Number(float):
    pass


class _Tensor(torch.Tensor):
    pass


class _Dict(dict):
    pass


class _Tuple(namedtuple("_Tuple", "x y")):
    def __iter__(self):
        raise AssertionError


_Named = namedtuple("_Named", "x y")


def test_results_of_exact_types_are_flattened() -> None:
    x = torch.ones(2)
    found = flat_results(
        [x, (1, {"y": 2.0}), OrderedDict(z=None), _Named(x, 3), torch.max(x, 0), torch.nn.Parameter(x)]
    )
    assert [type(each).__name__ for each in found] == [
        *("Tensor", "int", "float", "NoneType", "Tensor", "int", "Tensor", "Tensor", "Parameter")
    ]
    (view,) = flat_results(torch._neg_view(x))
    assert not view.is_neg()


@pytest.mark.parametrize(
    "value",
    [_Lazy(), _Number(1.0), torch.ones(2).as_subclass(_Tensor), _Dict(), _Tuple(1, 2)],
    ids=lambda value: type(value).__name__,
)
def test_a_class_that_may_compute_later_is_lazy(value: Any) -> None:
    for each in (value, [value], {"x": (value,)}):
        with pytest.raises(CandidateRejected) as caught:
            flat_results(each)
        assert caught.value.sub_class == "lazy-result"


PASS = CourtVerdict("pass", max_error=0.1, difference=0.0, calls=3)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (None, "crash/no-verdict"),
        (CourtVerdict("pass"), "crash/no-verdict"),
        (CourtVerdict("pass", max_error=math.nan, difference=0.0, calls=1), "pass"),
        (CourtVerdict("mismatch", "nan", "wrong", difference=1.0, calls=1), "mismatch/nan"),
        (PASS, "pass"),
    ],
)
def test_no_candidate_passes_without_an_error(verdict: CourtVerdict | None, expected: str) -> None:
    said = Judgement(ErrorClass.PASS, level=Level.MEASURED)
    found = Judgement.of(sentenced(RowOutcome(Status.CHECKED, judged=said.judged), verdict))
    assert found is not None
    assert found.name == expected


@pytest.mark.parametrize(
    ("failed", "found", "expected"),
    [
        ("NoKernelLaunched", "hack", "hack/kind"),
        ("NoKernelLaunched", "mismatch", "mismatch/kind"),
        ("ValueError", "hack", "hack/kind"),
        ("ValueError", "mismatch", "runtime/ValueError"),
    ],
)
def test_faked_results_stand_although_the_process_failed_after_them(failed: str, found: str, expected: str) -> None:
    """A candidate that returns what it kept launches no kernel, so that nothing can be timed."""
    said = Judgement(ErrorClass.RUNTIME, failed, Level.COMPILE)
    verdict = CourtVerdict(found, "kind", calls=3, max_error=2.0)
    judged = Judgement.of(sentenced(RowOutcome(Status.FAILED, judged=said.judged), verdict))
    assert judged is not None
    assert judged.name == expected


def _clocked(
    durations: list[float], brackets: list[float], claims: list[float] | None = None, waited: float = 0.0
) -> str:
    brackets = [each + 900 for each in brackets]
    waits = (waited,) * len(brackets)
    verdict = CourtVerdict(
        "pass", brackets_us=tuple(brackets), waits_us=waits, claims_us=tuple(claims or durations), empty_us=900.0
    )
    return contradiction(Measurement(tuple(durations), "wall-clock", "cold"), verdict)


def test_the_second_clock_contradicts_durations_that_it_cannot_have_seen() -> None:
    honest = [100.0 + each for each in range(20)]
    assert not _clocked(honest, [each + 1 for each in honest])
    assert not _clocked(honest, [each + CONSTANT_US + 2 * 900 for each in honest])
    # Another process disturbed most calls.
    assert not _clocked(honest, [50_000.0] * 19 + [120.0])
    assert not _clocked(honest[:2], [5_000.0] * 2)
    assert "second clock" in _clocked(honest, [20_000.0] * 20)
    # Other processes had the processor in each of the calls.
    assert not _clocked(honest, [20_000.0] * 20, waited=17_000.0)
    assert "second clock" in _clocked(honest[:2], [90_000.0] * 2)
    assert "second clock" in _clocked(honest, [each - 1_000 for each in honest])
    assert "became" in _clocked([1.0 + each / 100 for each in range(20)], honest, honest)
    assert "step" in _clocked([100.0] * 20, [101.0] * 20)
    assert "calls" in _clocked(honest, honest[:19])
    for wrong in (0.0, -2.0, math.nan, math.inf):
        assert "sample" in _clocked([*honest[:3], wrong], honest[:4])


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not tell waits")
def test_what_a_candidate_waits_for_a_processor_is_told() -> None:
    def busy(x: torch.Tensor) -> torch.Tensor:
        end = process_time() + 0.02
        while process_time() < end:
            pass
        return torch.relu(x)

    allowed = os.sched_getaffinity(0)
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for process in (0, rival.pid):
            os.sched_setaffinity(process, {min(allowed)})
        found = _tried(busy, samples=3)
    finally:
        os.sched_setaffinity(0, allowed)
        rival.kill()
        rival.wait()
    assert max(found.waits_us) > 0
    assert all(wait < bracket for wait, bracket in zip(found.waits_us, found.brackets_us, strict=True))


def test_inputs_of_the_rehearsal_are_the_candidates_first() -> None:
    court = Court(_Relu())
    inputs = court.ask(Purpose.REHEARSAL, has_weights=False)
    assert [type(each) for each in (*inputs.leaves, *inputs.results)] == [TensorForm, TensorForm]
    assert isinstance(court.memory.read(inputs.leaves[0]), torch.Tensor)
