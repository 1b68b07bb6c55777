"""Profiler files launch by launch, and which files of a PROF_ folder count."""

from __future__ import annotations

from pathlib import Path

import pytest
from printed import numbers_in

from opatlas.capture.capture_discovery import op_summaries, profile_folders
from opatlas.capture.single_launches import read_launches

HEADER = (
    "Device_id,Op Name,OP Type,OP State,Task Type,Task Start Time(us),Task Duration(us),Input Shapes,Input Data Types,"
    "Input Formats,Output Shapes,Output Data Types,Output Formats,Context ID,aicore_time(us),aic_mac_ratio"
)


def line(start: str, us: str, counters: str = "1.5,0.25") -> str:
    base = '"""4,2;4,2""",FLOAT;FLOAT,ND;ND,"""4,2""",FLOAT,ND'
    return f"0,add,Add,dynamic,AI_VECTOR_CORE,{start},{us},{base},N/A,{counters}"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join((HEADER, *lines)) + "\n")
    return path


def test_launches_come_in_the_order_of_their_start(tmp_path: Path) -> None:
    # A float holds no nanoseconds of such a time, and msprof ends the cell with a tab.
    starts = ["1791629758426053.771\t", "1791629758426053.770\t", "1791629758426053\t"]
    read = read_launches(write(tmp_path / "op_summary.csv", *[line(start, "2.5") for start in starts]))
    assert [launch.start_ns % 1000 for launch in read.launches] == [0, 770, 771]
    first = read.launches[0]
    assert (first.kernel_type, first.duration_us, first.dimensions, first.device) == ("Add", 2.5, "4,2;4,2", "0")
    assert first.cells["Output Shapes"] == "4,2", "as a row of the database has it"
    assert first.counters == {"aicore_time(us)": 1.5, "aic_mac_ratio": 0.25}
    assert read.problems == ()


@pytest.mark.parametrize(
    ("column", "name"), [("Op Name", "add"), ("Name", "add"), ("OP Detail", "")], ids=["msprof", "torch_npu", "neither"]
)
def test_a_launch_has_the_name_that_its_profiler_gave_it(tmp_path: Path, column: str, name: str) -> None:
    path = tmp_path / "s.csv"
    path.write_text(f"{HEADER.replace('Op Name', column)}\n{line('1.0', '2.5')}\n")
    (launch,) = read_launches(path).launches
    assert launch.name == name


def test_a_line_that_cannot_be_read_costs_itself_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "s.csv", line("1.0", "N/A"), line("2.0", "2.5", "N/A,N/A"), line("3.0", "2.5")[:60])
    read = read_launches(path)
    assert [launch.start_ns for launch in read.launches] == [2000]
    assert read.launches[0].counters == {}
    first, second = read.problems
    assert first.startswith(f"{path}:2: ")
    assert numbers_in(second.removeprefix(f"{path}:4: ")) == (9, 16)


def test_the_last_export_counts_with_all_its_slices(tmp_path: Path) -> None:
    profile = tmp_path / "PROF_000001_20261121203158123_ABC"
    output = profile / "mindstudio_profiler_output"
    output.mkdir(parents=True)
    # A later export of the same slices, the second of which took it another second.
    names = [f"op_summary_slice_{n}_{time}.csv" for time in (20261121203200, 20261121203300) for n in (0, 1)]
    names[3] = "op_summary_slice_1_20261121203301.csv"
    for name in (*names, "op_statistic_20261121203300.csv"):
        (output / name).touch()
    assert [path.name for path in op_summaries(profile)] == names[2:]
    assert profile_folders(tmp_path) == profile_folders(profile) == [profile]
