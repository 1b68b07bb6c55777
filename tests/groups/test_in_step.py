"""What keeps the ranks of a group in step: they take equally many samples, whatever each would take alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bench.groups.group import Group, InStep, spread_us
from bench.instruments.wall_clock import WallClock
from bench.stop_rule import StopRule


class Recorded(Group):
    """A rank whose group decides otherwise than its own rule, and that notes what it does."""

    def __init__(self, decisions: list[bool]) -> None:
        self.decisions = decisions
        self.done: list[str] = []
        #: What the other rank gives, the last one first; 0 from then on.
        self.of_the_other: list[float] = []
        super().__init__(0, 2, _report=lambda step, what: self.done.append(f"{step} {what}"))

    def agree(self, value: bool) -> bool:
        return self.decisions.pop(0)

    def together(self) -> None:
        self.done.append("together")

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values), [self.of_the_other.pop() if self.of_the_other else 0.0]]


@pytest.mark.parametrize("before_each", [None, lambda: None])
def test_the_group_decides_and_a_sample_is_one_call(before_each: Callable[[], None] | None) -> None:
    group = Recorded([False, False, False, True])
    rule = StopRule(repeat_count=1, time_limit_s=60)
    samples = InStep(WallClock(), group).sample(lambda: group.done.append("call"), before_each, rule)
    assert (len(samples.durations_us), samples.calls_per_sample) == (3, 1)
    assert [what.split()[-1] for what in group.done[1:]] == ["call", "together", "call"] * 3


def test_a_sample_in_which_any_rank_had_a_pause_is_taken_again_by_all() -> None:
    group = Recorded([False, False, False, True])
    group.of_the_other = [1.0, 0.0]
    samples = InStep(WallClock(), group).sample(lambda: None, None, StopRule(repeat_count=1, time_limit_s=60))
    assert len(samples.durations_us) == 2
    assert len(samples.notes) == 1


def test_spread_is_that_of_the_medians() -> None:
    assert spread_us([[1, 2, 100], [5, 6, 7], [3, 3, 3]]) == 4
