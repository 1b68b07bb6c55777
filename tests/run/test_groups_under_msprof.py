"""Kernels of a group of NPUs under msprof: the real ranks over gloo, under stand-ins for the devices and for msprof."""

from __future__ import annotations

import re
import sys

import pytest
from replaying import cells_of
from sample_rows import LAYER, TOLD
from sessions import ROOT, Sessions, row
from stand_in_npus import StandInNpus, is_mean_us

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process tables are read from /proc")
NAME = "test_expert_parallel.py"


def dispatch(tokens: int) -> dict[str, str]:
    """A row of two ranks with three experts each, and two for each token."""
    room = tokens * 2 * 2
    row = f"{tokens},64;{tokens},2 | DT_BF16;INT32 -> {room},64;{room};{2 * tokens};3;6 | DT_BF16;{TOLD}"
    return cells_of(row)


def layer(tokens: int, ep_size: str) -> dict[str, str]:
    """A row of ranks with three experts each."""
    row = f"{tokens},40;3,40,48;3,24,40;{tokens},3;3,48;3,40;{tokens},3 | {LAYER} -> {tokens},40;3 | DT_BF16;INT32"
    return {**cells_of(row), "EP Size": ep_size}


def test_rows_of_a_group_share_one_profile_of_each_rank(npus: StandInNpus, sessions: Sessions) -> None:
    # Next to a conftest.py that knows the stand-ins, and so outside of its package.
    module = (ROOT / "bench" / NAME).read_text()
    module = module.replace("from . import", "from opatlas.bench import").replace("from .", "from opatlas.bench.")
    (sessions.folder / NAME).write_text(module)
    sessions.write("MoeDistributeDispatch", [dispatch(tokens) for tokens in (4, 9)])
    # A row without a group, and one whose group is too large, lie between those that can run.
    sessions.write("DispatchFFNCombine", [layer(5, "2"), layer(6, "two"), layer(7, "16"), layer(8, "2")])
    # Those of one device run first.
    sessions.write("Toy", [row(5), row(6)])
    done = npus.run(NAME, "test_toys.py", "-s", "-n0", npus=2)
    assert (done.code, done.ledger()) == (1, {"measured": 6, "invalid": 1, "skipped": 1}), done.output
    # One of the process of one device, and one for each rank.
    assert done.output.count("Start profiling") == 3, done.output
    statuses = [cells["Status"] for cells in sessions.read("DispatchFFNCombine")]
    assert statuses == ["measured", "invalid", "skipped", "measured"]
    for kernel_type in ("Toy", "MoeDistributeDispatch", "DispatchFFNCombine"):
        for cells in sessions.read(kernel_type):
            if cells["Status"] == "measured":
                size = int(re.match(r"\d+", cells["Input Shapes"])[0])
                assert cells["Instrument"] == "msprof"
                assert is_mean_us(float(cells["Average Duration(us)"]), size), cells
    assert not sessions.left_behind()
