"""The ranks of a group in step: they take equally many samples, whatever each would take alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from opatlas.row.record import Measurement
from opatlas.row.status import Status
from opatlas.run.group import Group, SynchronizedInstrument, spread_us
from opatlas.run.groups.rank_main import combine_ranks
from opatlas.run.instruments.instrument import StopRule
from opatlas.run.instruments.timers import WallClock
from opatlas.run.job import RowOutcome


class Recorded(Group):
    """A rank whose group decides otherwise than its own rule, and that notes its steps."""

    def __init__(self, decisions: list[bool]) -> None:
        self.decisions = decisions
        self.done: list[str] = []
        #: The values of the other rank, the last one first; 0 from then on.
        self.of_the_other: list[float] = []
        super().__init__(0, 2, _report=lambda step, event: self.done.append(f"{step} {event}"))

    def first_rank_decides(self, value: bool) -> bool:
        return self.decisions.pop(0)

    def barrier(self) -> None:
        self.done.append("together")

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values), [self.of_the_other.pop() if self.of_the_other else 0.0]]


@pytest.mark.parametrize("before_each", [None, lambda: None])
def test_the_group_decides_and_a_sample_is_one_call(before_each: Callable[[], None] | None) -> None:
    group = Recorded([False, False, False, True])
    rule = StopRule(repeat_count=1, time_limit_s=60)
    samples = SynchronizedInstrument(WallClock(), group).sample(lambda: group.done.append("call"), before_each, rule)
    assert (len(samples.durations_us), samples.calls_per_sample) == (3, 1)
    assert [event.split()[-1] for event in group.done[1:]] == ["call", "together", "call"] * 3


class SlowInTurns(Group):
    """A second rank, each of whose samples is slow where the first one's is not."""

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        other = [12.0, 10.0, 10.0, 10.0] if len(values) > 1 else list(values)
        return [list(values), other]


def test_a_sample_of_a_group_is_the_longest_of_its_ranks() -> None:
    own = RowOutcome(Status.MEASURED, measurement=Measurement((10.0, 10.0, 12.0, 10.0), "wall-clock", "cold"))
    outcome = combine_ranks("Sum", own, SlowInTurns(0, 2))
    assert outcome.status is Status.MEASURED
    assert outcome.measurement is not None
    assert outcome.measurement.samples_us == (12.0, 10.0, 12.0, 10.0)


def test_spread_is_that_of_the_medians() -> None:
    assert spread_us([[1, 2, 100], [5, 6, 7], [3, 3, 3]]) == 4
    # As a CSV shows it: 0.3 - 0.1 is 0.19999999999999998.
    assert spread_us([[0.1], [0.3]]) == 0.2
