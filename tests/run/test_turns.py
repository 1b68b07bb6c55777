"""A kernel and its baseline take turns: the order, the rule that ends them, and what a replay makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
import torch
from replaying import job_of

from opatlas.row.errors import ReplayError
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.implementation import KernelSource
from opatlas.run.instruments.instrument import MeasureSettings, StopRule, WallClock
from opatlas.run.instruments.kernel_records import KernelRecord, KernelRecords
from opatlas.run.job import Against
from opatlas.run.runner import Runner
from opatlas.run.sampling import RoundsRule, Turns, Varying

KERNEL = """
import time
from opatlas.bench.implementations import torch as functions

def same(x, y, **keywords):
    return functions.add(x, y, **keywords)

def longer(x, y, **keywords):
    end = time.perf_counter() + 0.002
    while time.perf_counter() < end:
        pass
    return functions.add(x, y, **keywords)

def broken(x, y, **keywords):
    raise RuntimeError("not today")

def wrong(x, y, **keywords):
    return functions.add(x, y, **keywords) + 1
"""


def turns_of(count: int, made: list[str]) -> Turns:
    def say(text: str) -> Callable[[], None]:
        return lambda: made.append(text)

    names = "abc"[:count]
    return Turns([say(name) for name in names], [say(f"before {name}") for name in names])


@pytest.mark.parametrize(("count", "order"), [(2, "abbaabba"), (3, "abccbaabccba")])
def test_calls_take_turns_there_and_back(count: int, order: str) -> None:
    made: list[str] = []
    turns = turns_of(count, made)
    WallClock().sample(turns, turns.before_each, RoundsRule(turns, repeat_count=4, time_limit_s=9))
    assert made == [text for name in order for text in (f"before {name}", name)]


def test_values_belong_to_the_last_launches() -> None:
    turns = turns_of(2, [])
    for _ in range(6):
        turns.before_each()
    # a b b a a b: the first launch tried the instrument out, and the last round is not whole.
    assert turns.split([1.0, 2.0, 3.0, 4.0, 5.0]) == [[3.0, 4.0], [1.0, 2.0]]


def rounds_until_enough(kernel_us: Sequence[float], baseline_us: Sequence[float], clock: Sequence[float] = ()) -> int:
    turns, times = turns_of(2, []), iter(clock)
    rule = RoundsRule(turns, repeat_count=None, time_limit_s=1, clock=lambda: next(times, 0.0))
    samples: list[float] = []
    while not rule.enough(samples):
        turns.before_each()
        turn = turns.made[-1]
        samples.append((kernel_us, baseline_us)[turn][turns.made.count(turn) - 1])
    return len(samples) // 2


def test_rounds_end_with_an_answer_or_with_the_time() -> None:
    level = [100.0 + i % 3 for i in range(200)]
    swing = [100.0 * (1 + 0.2 * (i % 3 - 1)) for i in range(200)]
    assert rounds_until_enough(level, level) == 20
    assert rounds_until_enough([1.5 * us for us in level], level) == 20
    assert rounds_until_enough(swing, level) == 60
    assert rounds_until_enough(swing, level, clock=[0.0] * 50 + [2.0] * 500) < 30


def recorded() -> tuple[list[str], KernelRecords]:
    """The kernels that are launched, and the instrument that has records of them."""
    launched: list[str] = []

    class Recorder:
        name = "recorder"

        @contextmanager
        def recording(self) -> Iterator[Callable[[], list[KernelRecord]]]:
            launched.clear()
            yield lambda: [
                KernelRecord(i, name, 10.0 * i, 2.0 if name == "fast" else 5.0) for i, name in enumerate(launched)
            ]

    return launched, KernelRecords(Recorder(), lambda: launched.append("spin_kernel"), lambda: None)


def test_records_of_kernels_are_compared_within_a_turn() -> None:
    """The device's records of two different kernels, as CUPTI gives them."""
    launched, instrument = recorded()
    turns = Turns([lambda: launched.append("fast"), lambda: launched.append("slow")], [lambda: None, lambda: None])
    samples = instrument.sample(turns, turns.before_each, RoundsRule(turns, repeat_count=5, time_limit_s=9))
    assert turns.split(samples.durations_us) == [[2.0] * 5, [5.0] * 5]
    assert (samples.kernel_names, samples.kernels_us) == (("fast",), (2.0,))


def test_a_call_with_other_inputs_may_launch_other_kernels() -> None:
    launched, instrument = recorded()
    names = cycle(["fast", "slow", "fast"])
    call = Varying(lambda: launched.append(next(names)))
    samples = instrument.sample(call, None, StopRule(repeat_count=6, time_limit_s=9))
    assert sorted(samples.durations_us) == [2.0] * 4 + [5.0] * 2
    with pytest.raises(ReplayError, match="different kernels"):
        instrument.sample(lambda: launched.append(next(names)), None, StopRule(repeat_count=6, time_limit_s=9))


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=12, cache="warm"))


@pytest.fixture
def rival(tmp_path: Path) -> Callable[[str], KernelSource]:
    path = tmp_path / "mine.py"
    path.write_text(KERNEL)
    return lambda function: KernelSource("mine 1", "", str(path), function)


ADD = "8,8;8,8 | FLOAT;FLOAT -> 8,8 | FLOAT"


def test_a_replay_has_the_rounds_of_kernel_and_baseline(runner: Runner, rival: Callable[[str], KernelSource]) -> None:
    outcome = runner.run(replace(job_of("Add", ADD), source=rival("longer"), against=Against(control=True)))
    measurement = outcome.measurement
    assert measurement is not None, outcome
    assert measurement.against == f"torch {torch.__version__.partition('+')[0]}"
    assert measurement.execution.implementation == "mine 1"
    (rounds,) = measurement.rounds
    assert len(rounds.kernel_us) == len(rounds.baseline_us) == len(rounds.control_us) == 12
    assert measurement.samples_us == rounds.kernel_us
    assert min(rounds.kernel_us) > 2000 > max(rounds.ratios.ratio * us for us in rounds.kernel_us[:1])
    assert measurement.checked_elements == 64


def test_a_wrong_kernel_is_wrong_in_turns_too(runner: Runner, rival: Callable[[str], KernelSource]) -> None:
    outcome = runner.run(replace(job_of("Add", ADD), source=rival("wrong"), against=Against()))
    assert (outcome.status.value, outcome.measurement) == ("failed", None)


def test_a_kernel_without_a_baseline_is_measured_alone(runner: Runner, rival: Callable[[str], KernelSource]) -> None:
    measurement = runner.run(replace(job_of("Add", ADD), source=rival("same"))).measurement
    assert measurement is not None
    assert (measurement.against, measurement.rounds) == ("", ())


def test_a_baseline_that_fails_costs_the_rounds_alone(runner: Runner, rival: Callable[[str], KernelSource]) -> None:
    against = Against(rival("broken"))
    outcome = runner.run(replace(job_of("Add", ADD), source=rival("same"), against=against))
    assert outcome.measurement is not None
    assert (outcome.measurement.against, outcome.measurement.rounds) == ("", ())
    assert "not today" in outcome.reason
