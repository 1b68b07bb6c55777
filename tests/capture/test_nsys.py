"""Exports of nsys: kernels with their operators and sizes, told by share, and their timeline; no rows."""

import json
import sqlite3
from pathlib import Path

import pytest
from nsys_exports import write_export

from opatlas.capture.cases import Aggregate
from opatlas.capture.launches import SkipReason
from opatlas.capture.nsys import nsys_launches
from opatlas.cli.main import main
from opatlas.errors import TableError
from opatlas.outer.diagnosis.diagnosis import diagnose


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return write_export(tmp_path / "report1.sqlite")


def test_kernels_have_the_operator_and_the_sizes_of_the_innermost_range(export: Path) -> None:
    read = nsys_launches(export)
    told = [(each.kernel_type, each.dimensions, each.step[:11], each.launched_ns) for each in read.launches]
    assert told == [
        ("aten::mm", "8,16;16,4;3;3", "iteration 3", 1000),
        ("aten::relu", "", "iteration 3", 1500),
        ("ncclDevKernel_AllReduce", "", "iteration 3", 6500),
        ("Memcpy HtoD", "", "", None),
        ("gemm", "", "", None),
    ]
    assert read.device_name == "NVIDIA_H200"


def test_every_launch_is_left_out_with_its_share(export: Path) -> None:
    aggregate = Aggregate()
    aggregate.add_file(export)
    shares = {(reason, each.kernel_type): each.share for reason, each in aggregate.account.time_left_out}
    total = 3000 + 1000 + 4000 + 500 + 1000
    assert shares == {
        (SkipReason.COLLECTIVE, "ncclDevKernel_AllReduce"): 4000 / total,
        (SkipReason.NO_DTYPES, "aten::mm 8,16;16,4;3;3"): 3000 / total,
        (SkipReason.NO_DTYPES, "aten::relu"): 1000 / total,
        (SkipReason.NO_DTYPES, "gemm"): 1000 / total,
        (SkipReason.MEMORY_COPY, "Memcpy HtoD"): 500 / total,
    }
    (device,) = aggregate.account.devices
    assert (device.span_us, device.busy_us, device.idle_us) == (11, 9.5, 1.5)


def test_a_diagnosis_has_the_timeline(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(export), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["collectives"], found["device"]) == (1, "NVIDIA_H200")
    (timeline,) = found["timelines"]
    assert (timeline["span_us"], timeline["phases"][0]["busy_us"]) == (11, 9.5)
    assert [(gap["idle_us"], gap["host_us"]) for gap in timeline["gaps"]] == [(1.0, 1.0), (0.5, 0.0)]


def test_an_export_without_kernels_is_told_how_to_record_them(export: Path) -> None:
    with sqlite3.connect(export) as database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY")
    database.close()
    with pytest.raises(TableError, match="cuda-graph-trace=node"):
        nsys_launches(export)


def test_the_waits_of_a_device_are_not_those_of_another(export: Path) -> None:
    """A kernel of another GPU fills no gap of this one."""
    before = diagnose(export).table.frame["Wait Time(us)"].tolist()
    with sqlite3.connect(export) as database:
        database.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT 1000, 20000, 1, 7, 77, globalPid, shortName, demangledName "
            "FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1"
        )
    database.close()
    assert diagnose(export).table.frame.groupby("Device_id").get_group("0")["Wait Time(us)"].tolist() == before


@pytest.mark.parametrize("damage", ["deviceId = NULL", '"end" = 0'])
def test_damaged_events_cost_only_themselves(export: Path, damage: str) -> None:
    with sqlite3.connect(export) as database:
        database.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {damage}")
    database.close()
    Aggregate().add_file(export)
    found = diagnose(export)
    assert (found.table.frame["Duration(us)"] > 0).all()
    assert len(found.table.problems) == (damage == '"end" = 0')


def test_captures_of_two_gpus_have_no_common_peaks(export: Path) -> None:
    with sqlite3.connect(write_export(export.with_name("report2.sqlite"))) as database:
        database.execute("UPDATE TARGET_INFO_GPU SET name = 'NVIDIA B200'")
    database.close()
    found = diagnose(export.parent)
    assert (found.table.device, found.peaks.origin) == ("", "")
