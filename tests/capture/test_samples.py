"""Files of msprof launch by launch, which of them count, whose samples they hold, and shares of the device time."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from captures import cells, launch, launched, summary_text, write_capture, write_summary
from printed import numbers_in

from opatlas.capture.capture_discovery import op_summaries, profile_folders
from opatlas.capture.launches import time_shares
from opatlas.capture.profile_samples import ProfileMatcher, RowSamples, read_profile
from opatlas.capture.single_launches import read_launches
from opatlas.errors import OpAtlasError
from opatlas.row.columns import AVERAGE, PROFILING_AVERAGE, PROFILING_SAMPLES
from opatlas.row.table import RowTable

PROFILE = "PROF_000001_20240102030405678_ABCDEF"
OUTPUT = f"{PROFILE}/mindstudio_profiler_output"
V2, V3 = "MatMulV2", "MatMulV3"


def samples(tmp_path: Path, launches: list[dict[str, str]], **rows: list[dict[str, str]]) -> ProfileMatcher:
    """Of a profile with those launches, for a database with those rows by kernel type; `measured` is a row's flag."""
    profile = read_profile(write_summary(tmp_path / "op_summary_1.csv", launches))
    known = {}
    for kernel_type, of_type in rows.items():
        columns = dict.fromkeys(column for row in of_type for column in row if column != "measured")
        rows = [{column: row.get(column, "") for column in columns} for row in of_type]
        durations = ["1" if "measured" in row else "" for row in of_type]
        known[kernel_type] = RowTable(kernel_type, Path(), pd.DataFrame(rows, dtype=str).assign(**{AVERAGE: durations}))
    return ProfileMatcher(profile, known)


def durations(found: RowSamples | str) -> tuple[float, ...]:
    assert isinstance(found, RowSamples), found
    return found.measurement.samples_us


def test_slices_devices_and_header_generations_are_one_profile(tmp_path: Path) -> None:
    write_summary(tmp_path / OUTPUT / "op_summary_slice_0_20240102030406.csv", [launched(V3, 1.0), launched(V3, 2.0)])
    write_summary(tmp_path / OUTPUT / "op_summary_slice_1_20240102030407.csv", [launched(V3, 3.0) | {"Device_id": "1"}])
    write_summary(tmp_path / "two/PROF_2/device_0/summary/op_summary_0_1.csv", [launched(V3, 4.0)], older=True)
    (tmp_path / OUTPUT / "op_statistic_20240102030406.csv").write_text("nothing of ours\n")
    profile = read_profile(tmp_path)
    (case,) = profile.cases[V3]
    assert sorted(case.durations_us) == [1.0, 2.0, 3.0, 4.0]
    assert (len(profile.files), profile.problems) == (3, ())
    assert read_profile(tmp_path / PROFILE).account.ingested == 3


def test_of_several_exports_the_last_counts_and_copies_elsewhere_do_not(tmp_path: Path) -> None:
    for exported, us in (("20240102030406", 1.0), ("20250102030406", 5.0)):
        write_summary(tmp_path / OUTPUT / f"op_summary_{exported}.csv", [launched(V3, us)])
    write_summary(tmp_path / PROFILE / "device_0/summary/op_summary_0_1_20240102030406.csv", [launched(V3, 1.0)])
    assert [case.durations_us for case in read_profile(tmp_path).cases[V3]] == [(5.0,)]


def test_profiles_that_were_not_parsed_are_told_of_with_the_command_that_does_it(tmp_path: Path) -> None:
    (tmp_path / PROFILE / "device_0/data").mkdir(parents=True)
    command = f"msprof --export=on --output={tmp_path / PROFILE}"
    for path in (tmp_path, tmp_path / PROFILE):
        with pytest.raises(OpAtlasError, match=command):
            read_profile(path)
    write_summary(tmp_path / "PROF_2/mindstudio_profiler_output/op_summary_20240102030406.csv", [launched(V3, 1.0)])
    (problem,) = read_profile(tmp_path).problems
    assert command in problem
    renamed = tmp_path / "renamed"
    (renamed / "host").mkdir(parents=True)
    with pytest.raises(OpAtlasError, match="msprof --export=on"):
        read_profile(renamed)


def test_paths_that_hold_no_samples_are_refused_with_the_remedy(tmp_path: Path) -> None:
    for nothing in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(OpAtlasError, match=re.escape(f"{nothing}: ")):
            read_profile(nothing)
    kernel_details = write_capture(tmp_path / "kernel_details.csv", [launch()])
    with pytest.raises(OpAtlasError, match="opatlas ingest"):
        read_profile(tmp_path)
    with pytest.raises(OpAtlasError, match="opatlas ingest"):
        read_profile(kernel_details)
    other = tmp_path / "op_summary.csv"
    for text in ("Device_id,OP Type,Count\n0,MatMulV3,3\n", summary_text([])):
        other.write_text(text)
        with pytest.raises(OpAtlasError, match=re.escape(str(other))):
            read_profile(other)


def test_a_row_has_the_samples_of_its_signature_and_nothing_is_guessed_of_them(tmp_path: Path) -> None:
    bf16, fp32 = cells(), cells(dtype="FLOAT")
    found = samples(
        tmp_path, [launched(V3, 1.0, bf16), launched(V3, 2.0, bf16), launched(V3, 9.0, fp32)], **{V3: [bf16]}
    )
    row = found.of_row(V3, bf16)
    assert isinstance(row, RowSamples)
    assert (row.remark, row.measurement.samples_us) == ("", (1.0, 2.0))
    assert (row.measurement.instrument, row.measurement.cache_state) == ("msprof", "unknown")
    assert row.measurement.device_kernels is None
    assert row.measurement.counters == {"aicore_time(us)": 8.0, "aic_mac_ratio": 0.5}
    assert "warm-up" in row.measurement.assumptions[0]
    (unmatched,) = found.unmatched()
    assert (unmatched.kernel_type, unmatched.measurement.samples_us) == (V3, (9.0,))
    assert unmatched.cells["Input Data Types"] == "FLOAT;FLOAT"
    assert isinstance(found.of_row("Add", cells("16;16", "16")), str)


def test_a_sibling_fills_a_row_that_was_never_measured(tmp_path: Path) -> None:
    row, measured = cells(), cells("8,32;64,32", "8,64", measured="yes")
    launches = [launched(V3, 1.0), launched(V3, 2.0, cells("8,32;64,32", "8,64"))]
    found = samples(tmp_path, launches, MatMulV2=[row, measured])
    filled = found.of_row(V2, row)
    assert durations(filled) == (1.0,)
    assert isinstance(filled, RowSamples)
    ran_as = filled.measurement.ran_as
    assert ran_as is not None
    assert (ran_as.kernel_type, ran_as.cells["Input Shapes"]) == (V3, "16,32;64,32")
    assert isinstance(found.of_row(V2, measured), str)
    assert {sample.kernel_type for sample in found.unmatched()} == {V3}, "they go to the type that ran"
    assert isinstance(found.of_row("BatchMatMulV2", row), str)


def test_the_canonical_form_serves_only_where_nothing_matches_exactly(tmp_path: Path) -> None:
    row, transposed = cells(), cells("16,32;32,64")
    launches = [launched(V3, 1.0, transposed)]
    found = samples(tmp_path, launches, MatMulV2=[row]).of_row(V2, row)
    assert durations(found) == (1.0,)
    assert isinstance(found, RowSamples)
    assert found.remark
    ran_as = found.measurement.ran_as
    assert ran_as is not None
    assert (ran_as.kernel_type, ran_as.cells["Input Shapes"]) == (V3, "16,32;32,64")
    # Samples of the row's own type come first, then those of which there are more.
    launches += [launched(V2, 5.0, cells("32,16;32,64"))]
    assert durations(samples(tmp_path, launches, MatMulV2=[row]).of_row(V2, row)) == (5.0,)
    # The transposed product is a row of its own: its samples are no other row's.
    both = samples(tmp_path, launches[:1], MatMulV2=[row], MatMulCommon=[transposed])
    assert isinstance(both.of_row(V2, row), str)
    exact = [*launches, launched(V3, 7.0)]
    assert durations(samples(tmp_path, exact, MatMulV2=[row]).of_row(V2, row)) == (7.0,)


def test_run_time_values_count_where_both_sides_have_them(tmp_path: Path) -> None:
    kernel_type = "FusedInferAttentionScore"
    tensors, others = cells("4,8,16;4,8,16;4,8,16", "4,8,16"), cells("2,8,16;2,8,16;2,8,16", "2,8,16")
    alone = tensors | {"Runtime num_heads": "8", "Runtime actual_seq_lengths_kv_values": "1,2,3,4"}
    twins = [others | {"Runtime actual_seq_lengths_kv_values": values} for values in ("1,1", "9,9")]
    launches = [launched(kernel_type, 1.0, tensors), launched(kernel_type, 2.0, others)]
    found = samples(tmp_path, launches, FusedInferAttentionScore=[alone, *twins])
    row = found.of_row(kernel_type, alone)
    assert durations(row) == (1.0,)
    assert isinstance(row, RowSamples)
    assert row.remark
    for twin in twins:
        assert isinstance(found.of_row(kernel_type, twin), str)
    assert list(found.unmatched()) == [], "they are of rows that are there"
    (new,) = samples(tmp_path, launches, FusedInferAttentionScore=[alone]).unmatched()
    assert new.cells["Runtime source_profile"].endswith("op_summary_1.csv")


def test_no_summary_tells_an_ep_size(tmp_path: Path) -> None:
    row = cells() | {"EP Size": "16"}
    found = samples(tmp_path, [launched("DispatchFFNCombine", 1.0)], DispatchFFNCombine=[row])
    reason = found.of_row("DispatchFFNCombine", row)
    assert isinstance(reason, str)
    assert "EP Size" in reason
    assert list(found.unmatched()) == []


def test_samples_of_a_run_whose_ep_size_the_user_names_are_of_its_rows(tmp_path: Path) -> None:
    kernel_type = "DispatchFFNCombine"
    launches = [launched(kernel_type, 1.0)]
    of_8, of_16, unknown = (cells() | {"EP Size": size} for size in ("8", "16", ""))

    def found(size: int, *rows: dict[str, str]) -> ProfileMatcher:
        plain = samples(tmp_path, launches)
        table = RowTable(kernel_type, Path(), pd.DataFrame(rows, dtype=str))
        return ProfileMatcher(plain.profile, {kernel_type: table} if rows else {}, ep_size=size)

    both = found(16, of_8, of_16)
    assert durations(both.of_row(kernel_type, of_16)) == (1.0,)
    assert "of EP Size 16" in str(both.of_row(kernel_type, of_8))
    assert list(both.unmatched()) == []
    assert durations(found(16, of_8, unknown).of_row(kernel_type, unknown)) == (1.0,)
    assert "of EP Size 16" in str(found(16, of_16, unknown).of_row(kernel_type, unknown))
    drawn = of_16 | {"Expert Load": "random"}
    assert "2 rows" in str(found(16, of_16 | {"Expert Load": ""}, drawn).of_row(kernel_type, drawn))
    for rows in ((), (of_8,)):
        (new,) = found(16, *rows).unmatched()
        assert new.cells["EP Size"] == "16"
    (plain,) = samples(tmp_path, launches).unmatched()
    assert "EP Size" not in plain.cells
    assert plain.signature != new.signature


@pytest.mark.parametrize(("asked", "ran"), [("AddAiCore", "Add"), ("Add", "AddAiCore"), ("GatherV2", "GatherV3")])
def test_a_row_has_the_samples_of_its_kernel_under_another_name(tmp_path: Path, asked: str, ran: str) -> None:
    row = cells("40,8;40,8", "40,8")
    found = samples(tmp_path, [launched(ran, 3.0, row)], **{asked: [row]}).of_row(asked, row)
    assert durations(found) == (3.0,)
    assert isinstance(found, RowSamples)
    assert found.measurement.ran_as is not None
    assert found.measurement.ran_as.kernel_type == ran
    measured = samples(tmp_path, [launched(ran, 3.0, row)], **{asked: [row | {"measured": "yes"}]})
    assert isinstance(measured.of_row(asked, row), str), "it has a duration of its own"


def frame(*rows: tuple[str, str]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[PROFILING_AVERAGE, PROFILING_SAMPLES])


@pytest.mark.parametrize(
    ("table", "time_us"),
    [
        (frame(("10.5", "4"), ("2", "1"), ("", ""), ("", "3")), pytest.approx(44.0)),
        (pd.DataFrame({"Input Shapes": ["1"]}), 0),
        # The number of launches is unknown.
        (frame(("10.5", "4"), ("2", "")), None),
        (frame(("10.5", "4"))[[PROFILING_AVERAGE]], None),
    ],
)
def test_time_is_the_launches_times_their_average(table: pd.DataFrame, time_us: float | None) -> None:
    assert RowTable("Mul", Path("Mul.csv"), table).captured_time_us == time_us


def test_the_largest_share_comes_first() -> None:
    found = time_shares({"Small": 9, "A": 1, "B": 2}, {"Small": 0.1, "A": 30.0, "B": 69.9, "Add": 900.0})
    assert [(each.kernel_type, each.count) for each in found] == [("B", 2), ("A", 1), ("Small", 9)]
    assert [each.share for each in found] == pytest.approx([0.0699, 0.03, 0.0001])
    assert time_shares({}, {"Add": 1.0}) == []


@pytest.mark.parametrize("time_us", [{"Exp": 0.0}, {"Exp": None, "Add": 10.0}, {}])
def test_without_captured_times_rows_alone_are_counted(time_us: dict[str, float | None]) -> None:
    (found,) = time_shares({"Exp": 2}, time_us)
    assert (found.count, found.share) == (2, None)


SUMMARY_HEADER = (
    "Device_id,Op Name,OP Type,OP State,Task Type,Task Start Time(us),Task Duration(us),Input Shapes,Input Data Types,"
    "Input Formats,Output Shapes,Output Data Types,Output Formats,Context ID,aicore_time(us),aic_mac_ratio"
)


def line(start: str, us: str, counters: str = "1.5,0.25") -> str:
    base = '"""4,2;4,2""",FLOAT;FLOAT,ND;ND,"""4,2""",FLOAT,ND'
    return f"0,add,Add,dynamic,AI_VECTOR_CORE,{start},{us},{base},N/A,{counters}"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join((SUMMARY_HEADER, *lines)) + "\n")
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
    path.write_text(f"{SUMMARY_HEADER.replace('Op Name', column)}\n{line('1.0', '2.5')}\n")
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
