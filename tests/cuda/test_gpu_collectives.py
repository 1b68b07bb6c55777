"""Collectives over NCCL between two GPUs: measured by the device's own records, right on both."""

from __future__ import annotations

import pytest
from sessions import ROOT, Sessions

from opatlas.run.devices.device import available_devices


@pytest.fixture
def two_gpus(gpu) -> None:
    if len(available_devices("cuda")) < 2:
        pytest.skip("needs two GPUs")


@pytest.mark.parametrize(
    ("options", "instruments"),
    [((), {"cupti", "kineto"}), (("--instrument=cuda-events",), {"cuda-events"})],
    ids=["kernels", "events"],
)
def test_every_collective_between_two_gpus(
    two_gpus, sessions: Sessions, options: tuple[str, ...], instruments: set[str]
) -> None:
    wanted = ("--device=cuda", "--num-devices", "2", "--bytes-grid", "1024", "16777216", *options)
    done = sessions.run(str(ROOT / "bench" / "test_collectives.py"), *wanted, measure=("--repeat-count=10",))
    assert (done.code, done.ledger()) == (0, {"measured": 10}), done.output
    for name in ("allReduce", "allGather", "reduceScatter", "alltoallv", "broadcast"):
        small, large = sessions.read(f"hcom_{name}_")
        assert {small["Instrument"], large["Instrument"]} <= instruments
        # A link that carries less than PCIe, or more than any, is none: times are of another unit, or of other kernels.
        assert 1 < float(large["bus_bandwidth_gbps"]) < 2000
        assert float(small["Duration(us)"]) < float(large["Duration(us)"])
    assert not sessions.left_behind()
