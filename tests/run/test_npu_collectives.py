"""Collectives of NPUs under msprof: the real ranks over gloo, under stand-ins for the devices and for msprof."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from sessions import ROOT, Finished, Sessions
from stand_in_npu import collective_us
from stand_in_npus import SAMPLES, StandInNpus

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process tables are read from /proc")
NAME = "test_collectives.py"
SLOWEST_US = collective_us(1)
#: All_reduce, whose second rank dies of one message, and whose first one kills pytest at another.
BROKEN = """
import os
import signal
from pathlib import Path

from opatlas.run.collective_plan import collective
from opatlas.row.communication import ALL_REDUCE


@collective(ALL_REDUCE)
def test_all_reduce(row, replay):
    from torch import distributed

    given = row.input_tensor()
    result = given.clone()
    size = row.count * row.dtype.itemsize

    def call():
        if size == 2048 and row.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if size == 8192 and row.rank == 0:
            os.kill(int(Path(__file__).with_name("pytest-pid").read_text()), signal.SIGKILL)
        distributed.all_reduce(result)

    replay(call, result, row.expected_sum, restore=lambda: result.copy_(given))
"""


def run(npus: StandInNpus, *options: str, **more: object) -> Finished:
    return npus.run(NAME, "--num-devices=2", *options, npus=2, **more)  # type: ignore[arg-type]


def durations(sessions: Sessions) -> dict[int, float]:
    """By message bytes."""
    return {int(cells["message_bytes"]): float(cells["Duration(us)"]) for cells in sessions.read("hcom_allReduce_")}


@pytest.fixture(autouse=True)
def module(sessions: Sessions) -> Path:
    """The module, next to a conftest.py that knows the stand-ins."""
    return Path(shutil.copy(ROOT / "bench" / NAME, sessions.folder))


def test_a_rank_that_dies_costs_its_message_and_one_that_crashes_at_its_end_no_profile(
    npus: StandInNpus, sessions: Sessions, module: Path
) -> None:
    ends = "        distributed.destroy_process_group = lambda: os.kill(os.getpid(), signal.SIGSEGV)\n"
    first, second = BROKEN.split("    replay(call")
    module.write_text(f"{first}    if row.rank == 0:\n{ends}    replay(call{second}")
    # When the first rank of the second group crashes, msprof of the other one still has to write its records.
    options = ("--ops=all_reduce", "--bytes-grid=1024,2048,4096", "-s")
    done = run(npus, *options, faults={"2/rank1": "slow"})
    assert (done.code, done.ledger()) == (1, {"measured": 2, "crashed": 1}), done.output
    assert durations(sessions) == {1024: SLOWEST_US, 4096: SLOWEST_US}
    for cells in sessions.read("hcom_allReduce_"):
        assert (cells["Instrument"], cells["MicroBench Samples"]) == ("msprof", str(SAMPLES))
        assert float(cells["MicroBench Rank Spread(us)"]) == SLOWEST_US - collective_us(0)
    # Two groups, and nothing ran again: the profiles of the other rank were whole, and no later msprof can parse them.
    assert done.output.count("Start profiling") == 4, done.output
    assert not sessions.left_behind()
