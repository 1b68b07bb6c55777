"""A process that is stopped and goes on: the pause is in no sample."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = 5

#: Stops itself in the calls that its arguments name, and prints its samples.
STOPS_ITSELF = """
import json
import os
import signal
import sys
import time

from opatlas.run.instruments.timers import count_stops, stops
from opatlas.run.instruments.instrument import StopRule
from opatlas.run.instruments.timers import DeviceEvents, WallClock
from opatlas.row.errors import ReplayError

which, samples, stopped = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
calls = 0


def call():
    global calls
    calls += 1
    if calls in stopped:
        before = stops()
        os.kill(os.getpid(), signal.SIGSTOP)
        # With several threads the stop may come after os.kill returned, and the count after the process goes on.
        while stops() == before:
            time.sleep(0.001)


class Event:
    record = synchronize = lambda self: None
    elapsed_time = lambda self, end: 1.0


count_stops()
instrument = WallClock() if which == "wall-clock" else DeviceEvents("events", Event, lambda: None)
try:
    taken = instrument.sample(call, lambda: None, StopRule(repeat_count=samples, time_limit_s=600))
    print(json.dumps([calls, len(taken.durations_us), taken.notes]))
except ReplayError as error:
    print(json.dumps([calls, 0, [str(error)]]))
"""


def sample(instrument: str, stops: list[int]) -> tuple[int, int, list[str]]:
    """The number of calls and of samples, and the note of the instrument."""
    process = subprocess.Popen(
        [sys.executable, "-c", STOPS_ITSELF, instrument, str(SAMPLES), json.dumps(stops)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    while True:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            break
        os.kill(process.pid, signal.SIGCONT)
    assert process.stdout is not None
    with process.stdout:
        calls, taken, said = json.loads(process.stdout.read())
    process.returncode = os.waitstatus_to_exitcode(status)
    return calls, taken, said


@pytest.mark.parametrize("instrument", ["wall-clock", "events"])
def test_a_sample_with_a_pause_is_taken_again_and_reported(instrument: str) -> None:
    assert sample(instrument, [])[:2] == (SAMPLES, SAMPLES)
    calls, taken, said = sample(instrument, [1, 3])
    assert (calls, taken) == (SAMPLES + 2, SAMPLES)
    assert len(said) == 1


def test_where_every_sample_has_a_pause_the_row_is_not_measured() -> None:
    calls, taken, said = sample("wall-clock", list(range(1, 100)))
    assert calls < 20
    assert taken == 0
    assert said
