"""No row gets the duration of another: a kernel that writes, forks or closes, and a wait that something interrupts."""

from __future__ import annotations

from moods import Mood
from sessions import Sessions, row

#: Each row takes as many microseconds as its size says, by a clock of its own, so that its duration identifies the row.
#: A row whose size is a key of DEEDS does that first.
ROGUE_REPLAY = """
import ctypes
import os
import stat
import sys
import time

from opatlas.bench import formulas

from opatlas.bench.implementations import torch as impl
from opatlas.run.instruments import instrument
from opatlas.run.registry import replays


class Clock:
    now_ns = 0


instrument.perf_counter_ns = lambda: Clock.now_ns


def sockets():
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                yield int(name)
        except OSError:
            pass


def write():
    for fd in sockets():
        os.write(fd, b"123456789")


def write_a_length():
    # As multiprocessing's connections have it: a message of 1 MB follows, which never comes.
    for fd in sockets():
        os.write(fd, bytes([0, 16, 0, 0, 1]))


def put_a_file_in_place():
    for fd in list(sockets()):
        file = os.open(os.path.join(os.path.dirname(__file__), "victim"), os.O_RDWR)
        os.dup2(file, fd)


def fork_and_return():
    os.fork()


def fork_and_raise():
    if os.fork() == 0:
        raise ValueError("the child has its own mind")


def fork_and_exit():
    if os.fork() == 0:
        sys.exit("the child leaves")


def fork_unseen():
    # No function of Python's takes part.
    ctypes.CDLL(None).fork()


def close_stdout():
    sys.stdout.close()


def leave():
    sys.exit("enough")


def hang():
    time.sleep(1000)


DEEDS = {
    101: write, 102: write_a_length, 103: put_a_file_in_place, 104: fork_and_return, 105: fork_and_raise,
    106: fork_and_exit, 107: fork_unseen, 108: close_stdout, 109: leave,
    600: hang,
}


@replays("Rogue", npu=None)
def test_rogue(row, replay):
    size = row.shape(0)[0]
    DEEDS.get(size, int)()

    def slowly(x, y):
        Clock.now_ns += size * 1000
        return impl.add(x, y)

    replay(slowly, *row.inputs(), expected=formulas.add)
"""
NEIGHBOURS = (200, 400, 300, 500)
LEAVES = 109
#: The outcomes of rows that misuse their process.
STATUSES = {
    **dict.fromkeys((101, 102, 103), "crashed"),
    **dict.fromkeys((104, 105, 106, 107, 108), "measured"),
    LEAVES: "crashed",
}


def rogues(sessions: Sessions, *sizes: int) -> None:
    """The rows of these sizes, with neighbours before and behind."""
    (sessions.folder / "test_rogue.py").write_text(ROGUE_REPLAY)
    (sessions.folder / "victim").write_text("precious")
    sessions.write("Rogue", [row(size) for size in (NEIGHBOURS[0], *sizes, *NEIGHBOURS[1:])])


def statuses_and_own_durations(sessions: Sessions) -> dict[int, str]:
    """Status by size; each duration must be that of its own row."""
    for cells in sessions.read("Rogue"):
        size = int(cells["Input Shapes"].partition(";")[0])
        if duration := cells.get("MicroBench Min Duration(us)"):
            assert float(duration) == size, cells
    return sessions.statuses("Rogue")


def test_a_kernel_that_misuses_the_connection_costs_its_row_at_most(sessions: Sessions) -> None:
    (sessions.folder / "test_rogue.py").write_text(ROGUE_REPLAY)
    (sessions.folder / "victim").write_text("precious")
    # Each is between two neighbours.
    neighbours = range(200, 201 + len(STATUSES))
    sizes = [size for pair in zip(neighbours, STATUSES, strict=False) for size in pair]
    sessions.write("Rogue", [row(size) for size in (*sizes, neighbours[-1])])
    done = sessions.run("--case-timeout=300")
    expected = {**dict.fromkeys(neighbours, "measured"), **STATUSES}
    assert statuses_and_own_durations(sessions) == expected, done.output
    reasons = {cells["Input Shapes"]: cells["Status Reason"] for cells in sessions.read("Rogue")}
    assert reasons[f"{LEAVES};{LEAVES}"].endswith("exit code 1")
    assert (sessions.folder / "victim").read_text() == "precious"
    assert "Traceback" not in done
    assert sessions.left_behind() == []


LATE = 600
#: A limit of pytest-timeout for the late row alone, so that no slow machine makes others late.
LIMIT = """

def pytest_collection_modifyitems(items):
    import pytest
    for item in items:
        if "{size}_{size}" in item.nodeid:
            item.add_marker(pytest.mark.timeout(5, method="{method}", func_only=True))
"""


class TestPytestTimeout:
    """The plugin that many projects use interrupts the wait for a row."""

    def test_its_signal_costs_the_row_that_is_late(self, sessions: Sessions) -> None:
        rogues(sessions, LATE)
        with open(sessions.folder / "conftest.py", "a") as conftest:
            conftest.write(LIMIT.format(size=LATE, method="signal"))
        done = sessions.run()
        late = {LATE: "timeout"}
        assert statuses_and_own_durations(sessions) == {**dict.fromkeys(NEIGHBOURS, "measured"), **late}, done.output
        assert done.ledger() == {"measured": 4, "timeout": 1}
        assert sessions.left_behind() == []

    def test_a_limit_shorter_than_the_opening_of_the_device_costs_no_row(self, sessions: Sessions) -> None:
        """Neither at the start, nor when a process is replaced that a row has ended."""
        with open(sessions.folder / "simulated_device.py", "a") as module:
            module.write("\nimport time\n\ntime.sleep(5)\n")
        sessions.write("Moody", [row(1), row(Mood.EXIT), row(2), row(3)])
        done = sessions.run("--timeout=4", SIMULATED_DEVICES="1")
        assert sessions.statuses("Moody") == {1: "measured", Mood.EXIT: "crashed", 2: "measured", 3: "measured"}, (
            done.output
        )
        assert done.ledger() == {"measured": 3, "crashed": 1}
