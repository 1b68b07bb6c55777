"""Throttled samples: dropped, taken again after a pause, kept and noted where the device stays slow."""

from __future__ import annotations

import itertools

import pytest

from opatlas.run.instruments.instrument import Samples, StopRule
from opatlas.run.instruments.timers import UnthrottledInstrument

HOT = ("hardware thermal slowdown",)


class Steady:
    """Takes one sample at each call, each longer than the last."""

    name = "steady"

    def __init__(self):
        self.taken = 0

    def sample(self, call, before_each, rule):
        assert not rule.enough([])
        self.taken += 1
        return Samples((float(self.taken),))


def sample(said, *, rule=None, instrument=None):
    """Samples with a device that says `said`, one after the other, of its clocks; and the pauses made."""
    answers, pauses = iter(said), []
    watched = UnthrottledInstrument(instrument or Steady(), lambda: next(answers), pauses.append)
    assert watched.name == "steady"
    return watched.sample(lambda: None, None, rule or StopRule(repeat_count=None, time_limit_s=60)), pauses


def test_samples_of_a_device_at_its_full_clocks_are_as_they_are():
    assert sample([(), ()]) == (Samples((1.0,)), [])


def test_it_waits_until_throttling_has_ended():
    samples, pauses = sample([HOT, HOT, HOT, (), ()])
    assert samples == Samples((1.0,))
    assert len(pauses) == 3


def test_samples_taken_while_throttled_are_dropped_and_taken_again():
    samples, pauses = sample([(), HOT, HOT, (), ()])
    assert samples.durations_us == (2.0,)
    (note,) = samples.notes
    assert note.startswith("1 sample ")
    assert len(pauses) == 1


def test_throttling_that_returns_keeps_the_samples_with_a_note():
    samples, pauses = sample([(), HOT, HOT, (), HOT])
    assert samples.durations_us == (2.0,)
    assert HOT[0] in samples.throttled
    assert samples.notes
    assert len(pauses) == 1


def test_a_long_row_that_throttles_the_device_is_taken_again_at_once():
    class Long(Steady):
        def sample(self, call, before_each, rule):
            super().sample(call, before_each, rule)
            return Samples((200_000.0 + self.taken,))

    samples, pauses = sample([(), HOT, HOT], instrument=Long())
    assert samples.durations_us == (200_002.0,)
    assert HOT[0] in samples.throttled
    assert samples.notes
    assert pauses == []


def test_where_it_does_not_end_the_samples_are_taken_once_after_half_a_second():
    samples, pauses = sample(itertools.repeat(HOT))
    assert samples.durations_us == (1.0,)
    assert HOT[0] in samples.throttled
    assert sum(pauses) == pytest.approx(0.5)


def test_the_rows_time_limit_counts_over_all_tries():
    now = iter([0.0, 5.0, 5.0])
    samples, _ = sample([(), HOT], rule=StopRule(repeat_count=None, time_limit_s=5, clock=lambda: next(now)))
    assert samples.durations_us == (1.0,)
    assert samples.notes == ()
    assert HOT[0] in samples.throttled


@pytest.mark.parametrize("said", [[(), HOT]])
def test_a_rank_of_a_group_does_not_sample_again_by_itself(said):
    class Agreed(StopRule):
        def again(self):
            return None

    samples, pauses = sample(said, rule=Agreed(repeat_count=1, time_limit_s=5))
    assert samples.durations_us == (1.0,)
    assert pauses == []
