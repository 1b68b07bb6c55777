"""Rows of collectives: what a message is, its bandwidths, and how records come into the four CSVs."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from opatlas.data.database import Database
from opatlas.data.write_back import WriteBackResult, write_back
from opatlas.row.communication import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, COLLECTIVES, Collective
from opatlas.row.record import Measurement, Record
from opatlas.row.signature import signature
from opatlas.row.status import Status, UpdateMode

MESSAGE = {"message_bytes": "1048576", "num_devices": "16", "dtype": "DT_BF16", "topology_tier": "1"}
RUN = "20260101T000000-aaaaaa"


def record(kernel_type: str = "hcom_allReduce_", duration_us: float = 100.0, run: str = RUN, **cells: str) -> Record:
    row = MESSAGE | cells
    samples = (duration_us, duration_us + 1, duration_us - 1)
    measurement = Measurement(samples, "cupti", "warm", device_kernels=1, counters={"Rank Spread(us)": 0.5})
    name = signature(kernel_type, row)
    return Record(kernel_type, name, row, Status.MEASURED, "", run, time.time(), measurement)


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def merged(path: Path, *records: Record, mode: UpdateMode = UpdateMode.ALL, prune: bool = False) -> WriteBackResult:
    return write_back(Database(path), records, mode, prune=prune)


def test_bus_bandwidths_are_those_of_nccl_tests() -> None:
    """On the A3 captures 16 devices gather 40 MB each in 3080.2 us: 195 GB/s, what its links are stated to do."""
    assert ALL_GATHER.bus_bandwidth_gbps(40_000_000, 16, 3080.2) == pytest.approx(194.8, abs=0.1)
    # 8 ranks, 1 GiB, at 450 GB/s of bus bandwidth: an algorithm bandwidth of 257 GB/s.
    duration_us = (1 << 30) / 257e3
    assert ALL_REDUCE.bus_bandwidth_gbps(1 << 30, 8, duration_us) == pytest.approx(257 * 7 / 4)
    assert ALL_TO_ALL.bus_bandwidth_gbps(8000, 8, 1.0) == 7.0


@given(st.sampled_from(COLLECTIVES), st.integers(1, 1 << 30), st.integers(2, 64), st.sampled_from([1, 2, 4]))
def test_messages_are_rounded_up_by_less_than_a_unit(
    collective: Collective, wanted: int, devices: int, element_bytes: int
) -> None:
    sent = collective.message_bytes(wanted, devices, element_bytes)
    unit = element_bytes * (devices if collective.in_parts else 1)
    assert sent % unit == 0
    assert wanted <= sent < wanted + unit
    assert collective.message_bytes(sent, devices, element_bytes) == sent


def test_a_row_has_the_columns_of_the_contract(tmp_path: Path) -> None:
    done = merged(tmp_path, *(record(collective.kernel_type) for collective in COLLECTIVES))
    assert done.added.total() == 5
    assert {path.name for path in tmp_path.glob("*.csv")} == {
        "hcom_allGather_.csv",
        "hcom_allReduce_.csv",
        "hcom_alltoallv_.csv",
        "hcom_broadcast_.csv",
        "hcom_reduceScatter_.csv",
    }
    (row,) = rows(tmp_path / "hcom_allReduce_.csv")
    assert list(row)[:6] == ["message_bytes", "num_devices", "dtype", "topology_tier", "Duration(us)", "bandwidth_gbps"]
    assert MESSAGE.items() <= row.items()
    # 1 MiB in 100 us; 2 * 15 / 16 of that on the busiest link.
    assert (row["Duration(us)"], row["bandwidth_gbps"], row["bus_bandwidth_gbps"]) == ("100.0000", "10.4858", "19.6608")
    assert (row["MicroBench Rank Spread(us)"], row["Instrument"], row["Run ID"]) == ("0.5", "cupti", RUN)
    assert "Average Duration(us)" not in row


def test_dtype_tier_and_devices_tell_rows_apart(tmp_path: Path) -> None:
    others = [{"dtype": "DT_FLOAT"}, {"topology_tier": "0"}, {"num_devices": "2"}, {"message_bytes": "1048580"}]
    merged(tmp_path, record(), *(record(**other) for other in others), record(dtype="BF16", duration_us=50.0))
    read = rows(tmp_path / "hcom_allReduce_.csv")
    # BF16 and DT_BF16 are one dtype, and of two records about a row the last counts.
    assert [row["Duration(us)"] for row in read] == ["50.0000", *["100.0000"] * 4]


def test_rows_of_other_tools_are_found_and_their_columns_kept(tmp_path: Path) -> None:
    path = tmp_path / "hcom_allReduce_.csv"
    path.write_text(
        "message_bytes,num_devices,dtype,topology_tier,Average Duration(us),note\n1048576.0,16,BF16,1,90.5,by hand\n"
    )
    assert merged(tmp_path, record(), mode=UpdateMode.MISSING_ONLY).updated.total() == 1
    (row,) = rows(path)
    assert (row["Average Duration(us)"], row["Duration(us)"], row["note"]) == ("90.5", "100.0000", "by hand")
