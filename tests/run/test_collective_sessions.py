"""Sessions of `pytest bench/test_collectives.py` over gloo: messages become rows, and a bad rank costs its message."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sessions import ROOT, UNUSED_PORT, Sessions

from opatlas.row.errors import DeviceGone, GroupTimeout
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec
from opatlas.run.group import GroupSpec
from opatlas.run.group_pool import GroupNodes, GroupPool
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.scheduler import ExcludedDevices, InTurn

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process tables are read from /proc")
MODULE = ROOT / "bench" / "test_collectives.py"
QUICKLY = ("--repeat-count=3",)
#: Ranks, whatever machine this is.
TOO_MANY = "4096"

#: All_reduce, whose second rank misbehaves for messages of some sizes.
BROKEN = """
import os
import signal

from opatlas.run.collective_plan import collective
from opatlas.row.communication import ALL_REDUCE


@collective(ALL_REDUCE)
def test_all_reduce(row, replay):
    from torch import distributed

    given = row.input_tensor()
    result = given.clone()
    message_bytes = row.count * row.dtype.itemsize if row.rank == 1 else 0

    def call():
        if message_bytes == 2048:
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.all_reduce(result)
        if message_bytes == 8192:
            result[7] += 1

    replay(call, result, row.expected_sum, restore=lambda: result.copy_(given))
"""


def test_messages_become_rows_that_are_not_measured_again_and_a_bad_rank_costs_its_message(sessions: Sessions) -> None:
    wanted = (str(MODULE), "--num-devices", "2", TOO_MANY, "--bytes-grid", "1000", "1001")
    junit = "--junitxml=report.xml"
    first = sessions.run(*wanted, "--ops=all_reduce,all_to_all", "--comm-dtype=float32", junit, measure=QUICKLY)
    # 1000 and 1001 bytes for 2 devices are 1000 and 1008, and 1004 without parts.
    # For many both are one where there are parts.
    assert (first.code, first.ledger()) == (0, {"measured": 4, "skipped": 3}), first.output
    assert f"needs {TOO_MANY} ranks" in first
    for name, sizes in (("hcom_allReduce_", ["1000", "1004"]), ("hcom_alltoallv_", ["1000", "1008"])):
        rows = sessions.read(name)
        assert [row["message_bytes"] for row in rows] == sizes
        for row in rows:
            assert (row["num_devices"], row["dtype"], row["topology_tier"]) == ("2", "DT_FLOAT", "1")
            assert (row["Status"], row["Instrument"], row["Cache State"]) == ("measured", "wall-clock", "warm")
            duration_us, gbps = float(row["Duration(us)"]), float(row["bandwidth_gbps"])
            assert gbps == pytest.approx(int(row["message_bytes"]) / duration_us / 1e3, rel=1e-4)
            assert float(row["bus_bandwidth_gbps"]) == pytest.approx(
                gbps * (0.5 if "alltoall" in name else 1), rel=1e-4
            )
            assert float(row["MicroBench Rank Spread(us)"]) >= 0
            assert row["MicroBench Samples"] == "3"
    # In the order of the file: the duration of JUnit is the stored one.
    durations = [
        float(p.get("value", "nan"))
        for p in ElementTree.parse(sessions.folder / "report.xml").iter("property")
        if p.get("name") == "duration_us"
    ]
    stored = [row["Duration(us)"] for name in ("hcom_allReduce_", "hcom_alltoallv_") for row in sessions.read(name)]
    assert durations == [float(cell) for cell in stored]
    (run,) = {row["Run ID"] for row in rows}
    manifest = json.loads((sessions.database / "runs" / f"{run}.json").read_text())
    assert manifest["options"]["communication"][0].startswith("grid 1 x ")
    # The same messages with others, of a replay that misbehaves: a bad rank costs its message and no other.
    (sessions.folder / "test_collectives.py").write_text(BROKEN)
    of_two = ("test_collectives.py", "--num-devices", "2", "--ops=all_reduce", "--comm-dtype=float32")
    missing = ("--update-mode=missing-only", "--bytes-grid", "1000", "1004")
    more = sessions.run(*of_two, *missing, "8", "2048", "16384", "8192", measure=QUICKLY)
    assert (more.code, more.ledger()) == (1, {"measured": 2, "crashed": 1, "failed": 1}), more.output
    assert "2 messages left out" in more
    assert "SIGKILL (signal 9)" in more
    assert "element 7 of 2048" in more
    kept = sessions.read("hcom_allReduce_")
    assert [row["message_bytes"] for row in kept] == ["1000", "1004", "8", "16384"]
    assert [row["Duration(us)"] for row in kept[:2]] == stored[:2]
    assert not sessions.left_behind()


def test_two_nodes_measure_one_group(sessions: Sessions) -> None:
    """Two sessions on one machine, which meet at a port and have the same results."""
    shutil.copy(MODULE, sessions.folder)
    options = ("--nnodes=2", f"--master-port={UNUSED_PORT}", "--ops=all_gather,reduce_scatter", "--num-devices=2")
    nodes = [
        sessions.start("test_collectives.py", *options, f"--node-rank={node}", "--bytes-grid", "4096", measure=QUICKLY)
        for node in range(2)
    ]
    for done in [node.wait() for node in nodes]:
        assert (done.code, done.ledger()) == (0, {"measured": 2}), done.output
    for name in ("hcom_allGather_", "hcom_reduceScatter_"):
        (row,), (other,) = (sessions.read(f"{folder}{name}") for folder in ("", "node1/"))
        assert (row["num_devices"], row["topology_tier"]) == ("2", "0")
        # The samples of the slowest rank, whichever node it is of.
        assert row["Duration(us)"] == other["Duration(us)"]
    assert not sessions.left_behind()


class Absent(InTurn):
    """A group that does not come together, or one that does."""

    tries: list[GroupSpec]

    def __init__(self, spec: GroupSpec, devices: object, settings: object) -> None:
        super().__init__()
        self._spec = spec

    def describe(self) -> DeviceDescription:
        return DeviceDescription("of a group", {})

    def _run(self, job: Job) -> RowOutcome:
        self.tries.append(self._spec)
        if self._spec.nnodes > 1:
            raise GroupTimeout("no node 1", nodes=True)
        if self._spec.ranks == 2:
            raise DeviceGone("rank 1 of 2 died")
        if self._spec.ranks == 4:
            raise GroupTimeout("rank 1 of 4 did not join within 180 s", nodes=False)
        return RowOutcome(Status.FAILED, "ran")

    def close(self) -> None:
        pass


def test_a_group_that_does_not_start_costs_its_messages_only(tmp_path: Path) -> None:
    Absent.tries = []
    pool = GroupPool(GroupNodes([DeviceSpec("cpu")]), MeasureSettings(), ExcludedDevices(tmp_path), Absent)
    assert pool.describe().name == "cpu"
    specs = [GroupSpec(n, members=tuple(range(n))) for n in (2, 2, 2, 3, 2, 4, 4)]
    outcomes = [pool.run(Job("m", "m.py", "f", "hcom_allReduce_", {}, 1.0, spec)) for spec in specs]
    assert [outcome.status for outcome in outcomes] == [
        Status.DEVICE_ERROR,
        Status.DEVICE_ERROR,
        Status.SKIPPED,
        Status.FAILED,
        Status.SKIPPED,
        Status.DEVICE_ERROR,
        Status.SKIPPED,
    ]
    assert outcomes[0].reason == "rank 1 of 2 died"
    assert outcomes[2].reason.endswith(f": {outcomes[0].reason}")
    assert outcomes[6].reason.endswith(f": {outcomes[5].reason}")
    # A group that was waited for, which takes minutes, is tried once.
    assert [spec.ranks for spec in Absent.tries] == [2, 2, 3, 4]
    assert pool.describe().name == "of a group"


def test_nodes_that_did_not_come_are_not_waited_for_again(tmp_path: Path) -> None:
    Absent.tries = []
    pool = GroupPool(GroupNodes([DeviceSpec("cpu")]), MeasureSettings(), ExcludedDevices(tmp_path), Absent)
    groups = [GroupSpec(ranks, nnodes=2) for ranks in (2, 4)] + [GroupSpec(1)]
    outcomes = [pool.run(Job("m", "m.py", "f", "hcom_allReduce_", {}, 1.0, spec)) for spec in groups]
    statuses = [outcome.status for outcome in outcomes]
    assert statuses == [Status.DEVICE_ERROR, Status.SKIPPED, Status.FAILED]
    assert outcomes[1].reason.endswith(f": {outcomes[0].reason}")
