"""Every kind of capture file is read, or refused with the remedy; which launches are one case."""

import json
import os
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from captures import COLLECTIVE, KERNEL_DETAILS, LEVEL_0, capture_text, cells, launch, summary_text, write_capture
from hypothesis import given, strategies as st
from printed import numbers_in

from opatlas.capture import capture_reader as capture_module
from opatlas.capture.capture_discovery import KINDS, CaptureKind, distinct_captures, find_captures
from opatlas.capture.cases import Aggregate
from opatlas.capture.ingest import IngestRequest, ingest_captures
from opatlas.capture.launches import CapturedLaunches, SkipReason
from opatlas.data.database import Database
from opatlas.errors import TableError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kernel_details.csv"


def aggregate_of(path):
    aggregate = Aggregate()
    aggregate.add_file(path)
    account = aggregate.account
    # A ledger: each row of the file is somewhere, once.
    assert account.rows == account.ingested + account.left_out.total()
    return aggregate


def ingested(path):
    """The cases of a capture whose rows all go in."""
    aggregate = aggregate_of(path)
    assert not aggregate.problems
    assert not aggregate.account.left_out.total()
    return [case for cases in aggregate.cases().values() for case in cases]


def left_out(path):
    """Reasons and how often, and the problems told, of a capture."""
    aggregate = aggregate_of(path)
    return dict(+aggregate.account.left_out), aggregate.problems


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda text: text.replace("\n", "\r\n"), id="CRLF"),
        pytest.param(lambda text: "\ufeff" + text, id="BOM"),
        pytest.param(lambda text: text.rstrip("\n"), id="no newline at the end"),
        pytest.param(lambda text: text + "\n\n", id="blank lines at the end"),
        pytest.param(lambda text: text.replace(",10.0,", ",10.0\t,"), id="trailing tab"),
        pytest.param(lambda text: text.replace("BF16,ND;ND", "BF16\t,ND;ND\t"), id="trailing tabs in slots"),
    ],
)
def test_files_that_differ_in_their_writing_are_the_same(path, edit):
    (plain,) = ingested(write_capture(path, [launch()]))
    path.write_bytes(edit(path.read_text()).encode())
    (case,) = ingested(path)
    assert (case.signature, case.durations, case.cells) == (plain.signature, plain.durations, plain.cells)


@pytest.mark.parametrize("missing", ["Device_id", "OP State", "Input Formats", "Block Dim", "Context ID"])
def test_columns_that_older_captures_lack(path, missing):
    columns = [column for column in KERNEL_DETAILS if column != missing]
    (case,) = ingested(write_capture(path, [launch()], columns))
    assert case.counters == {"aicore_time(us)": 8.0, "aic_mac_ratio": 0.5}
    assert case.cells.get(missing, "") == ""


def test_a_word_in_a_column_of_numbers_costs_its_own_cell_only(path):
    rows = [launch({"aic_mac_ratio": "0.4"}), launch({"aic_mac_ratio": "broken"})]
    (case,) = ingested(write_capture(path, rows))
    assert case.counters == {"aicore_time(us)": 8.0, "aic_mac_ratio": pytest.approx(0.4)}


@pytest.mark.parametrize("duration", ["nan", "N/A", "", "0", "-3.5", "inf", "broken", "1,234", "1.234,5", "1,23.4"])
def test_durations_that_are_none(path, duration):
    rows = [launch(duration="10.0"), launch({"aicore_time(us)": "99"}, duration=duration)]
    counts, problems = left_out(write_capture(path, rows))
    assert counts == {SkipReason.INVALID_DURATION: 1}
    # Profilers leave durations out; another word or number is an error.
    if duration in ("nan", "N/A", "", "0"):
        assert not problems
    else:
        (problem,) = problems
        assert problem.startswith(f"{path}:3: ")
        assert "'Duration(us)'" in problem
        assert repr(duration) in problem
    (case,) = aggregate_of(path).cases()["MatMulV3"]
    assert (case.durations.count, case.counters["aicore_time(us)"]) == (1, 8.0)


@pytest.mark.parametrize(
    ("text", "us"), [("1,234.56", 1234.56), ("1,234,567", 1234567.0), ("12,345,678.5", 12345678.5)]
)
def test_a_duration_with_separators_of_thousands(path, text, us):
    (case,) = ingested(write_capture(path, [launch(duration=text)]))
    assert case.durations.mean_us == us


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (COLLECTIVE, SkipReason.COLLECTIVE),
        ({**COLLECTIVE, "Type": "allReduce", "Accelerator Core": "HCCL"}, SkipReason.OTHER_COLLECTIVE),
        (launch(type="MemSet", shapes="N/A", dtypes="N/A", formats="N/A", out="N/A"), SkipReason.NO_INPUT_SHAPES),
        (launch(type="MemSet", shapes="", dtypes="UNDEFINED", formats="NULL"), SkipReason.NO_INPUT_SHAPES),
        (launch(shapes="N/A", dtypes="FLOAT"), SkipReason.NO_INPUT_SHAPES),
        *((launch(type=lost), SkipReason.NO_KERNEL_TYPE) for lost in ("0", "N/A", "", "4294967295")),
    ],
)
def test_rows_that_are_counted_and_no_problem(path, row, reason):
    assert left_out(write_capture(path, [row, launch(), row])) == ({reason: 2}, [])


def test_a_malformed_row_is_told_by_its_line_and_the_rest_goes_in(path):
    lines = capture_text([launch()] * 30).splitlines()
    lines[17] = lines[17].rpartition(",")[0]
    lines[21] = ""
    lines[25] += ",1,2"
    path.write_text("\n".join(lines))
    columns = len(KERNEL_DETAILS)
    reasons, problems = left_out(path)
    assert reasons == {SkipReason.MALFORMED: 2}
    expected = ((18, columns - 1), (26, columns + 2))
    for problem, (line, fields) in zip(problems, expected, strict=True):
        assert problem.startswith(f"{path}:{line}: ")
        assert numbers_in(problem.removeprefix(f"{path}:{line}: ")) == (fields, columns)
    assert aggregate_of(path).account.ingested == 27


@pytest.mark.parametrize("block", [2000, 1 << 20])
def test_lines_are_right_in_every_block(path, monkeypatch, block):
    monkeypatch.setattr(capture_module, "BLOCK_BYTES", block)
    lines = capture_text([launch(type=f"K{i}") for i in range(200)]).splitlines()
    lines[50] = lines[50] + ",1"
    lines[51] = ""
    lines[150] = lines[150].replace("64,32", "64,x")
    lines[151] = lines[151].replace("K150", "K/150")
    path.write_text("\n".join(lines) + "\n")
    _, problems = left_out(path)
    assert [problem.removeprefix(f"{path}:").partition(":")[0] for problem in problems] == ["51", "151", "152"]


@pytest.mark.parametrize(
    ("cell", "reason", "named"),
    [
        *(({"shapes": f"16,{size};64,32"}, SkipReason.BAD_DIMENSION, "'Input Shapes'") for size in ("-32", "x", "3.5")),
        ({"type": "../../etc/passwd"}, SkipReason.BAD_KERNEL_TYPE, "../../etc/passwd"),
    ],
)
def test_a_cell_that_no_row_may_have_is_told_once(path, cell, reason, named):
    reasons, problems = left_out(write_capture(path, [launch(), launch(**cell), launch(**cell)]))
    assert reasons == {reason: 2}
    (problem,) = problems
    assert problem.startswith(f"{path}:3: ")
    assert named in problem


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", None),
        ("", None),
        (capture_text([]), None),
        (capture_text([launch(type="N/A")], LEVEL_0), 1),
        ("OP Type,Core Type,Count\nAdd,AI_CORE,3\n", 1),
        (capture_text([launch()], [c for c in KERNEL_DETAILS if c != "Output Shapes"]), 1),
        (capture_text([launch()], [*KERNEL_DETAILS, "Name"]), 1),
    ],
    ids=["pointer", "empty", "no rows", "level 0", "other columns", "no output shapes", "column twice"],
)
def test_what_is_no_capture_is_refused(path, text, line):
    path.write_text(text)
    with pytest.raises(TableError) as error:
        Aggregate().add_file(path)
    assert (error.value.path, error.value.line) == (path, line)


@pytest.mark.parametrize("spell", [str.lower, str.upper, lambda header: header.replace("(", " ( ")])
@pytest.mark.parametrize("text", [capture_text([launch()]), summary_text([launch()])])
def test_case_and_blanks_of_the_header_do_not_matter(path, text, spell):
    header, _, rows = text.partition("\n")
    path.write_text(f"{spell(header)}\n{rows}")
    (case,) = ingested(path)
    assert (case.kernel_type, case.durations.mean_us, case.cells["Input Shapes"]) == ("MatMulV3", 10.0, "16,32;64,32")
    assert case.counters["aicore_time(us)"] == 8.0


@pytest.mark.parametrize("block_bytes", [400, 1000, 1 << 20])
def test_a_line_that_is_not_utf8_costs_itself(path, monkeypatch, block_bytes):
    monkeypatch.setattr(capture_module, "BLOCK_BYTES", block_bytes)
    header, good, short = (line.encode() for line in (*capture_text([launch()]).splitlines(), "1,2"))
    # A name is no cell of a row.
    named = capture_text([launch({"Name": "\u7b97\u5b50"})]).splitlines()[1].encode("gbk")
    lines = [
        header,
        named,
        b"\xff,2",
        b"\xff\xfe",
        short,
        good,
        good.replace(b"MatMulV3", b"\xe4"),
        short,
        "Ä".encode(),
    ]
    path.write_bytes(b"\n".join([*lines, good]) + b"\n")
    aggregate = Aggregate()
    aggregate.add_file(path)
    account = aggregate.account
    assert (account.rows, account.ingested, account.left_out[SkipReason.MALFORMED]) == (9, 3, 6)
    assert [int(problem.split(":")[1]) for problem in aggregate.problems] == [3, 4, 5, 7, 8, 9]
    assert [" UTF-8" in problem for problem in aggregate.problems] == [False, False, False, True, False, False]


def test_a_file_that_fails_late_adds_nothing(path, monkeypatch):
    monkeypatch.setattr(capture_module, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(capture_module, "_LINE_BYTES", 2000)
    path.write_bytes(capture_text([launch()] * 50).encode() + b"x" * 5000)
    aggregate = Aggregate()
    with pytest.raises(TableError):
        aggregate.add_file(path)
    assert aggregate.account.rows == 0
    assert aggregate.cases() == {}


def test_a_folder_is_searched(tmp_path):
    wanted = [
        write_capture(tmp_path / name, [launch()])
        for name in ("kernel_details.csv", "rank0/out/kernel_details_0.csv", "rank1/my_KERNEL_DETAILS.CSV")
    ]
    write_capture(tmp_path / "rank0/op_summary_1.csv", [launch()])
    write_capture(tmp_path / "rank0/kernel_details.csv.bak", [launch()])
    assert find_captures(tmp_path).files == sorted(wanted)


def test_folders_behind_links_are_searched_once_and_loops_end(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kernel_details.csv").touch()
    (tmp_path / "run" / "rank0").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "run")
    assert find_captures(tmp_path / "run").files == [tmp_path / "run" / "rank0" / "kernel_details.csv"]


def test_a_pipe_is_a_problem_and_keeps_nothing_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "kernel_details.csv"
    os.mkfifo(pipe)
    problems: list[str] = []
    assert distinct_captures([pipe], problems) == []
    (problem,) = problems
    assert str(pipe) in problem


def cases_of(tmp_path, rows):
    aggregate = Aggregate()
    aggregate.add_file(write_capture(tmp_path / "kernel_details.csv", rows))
    return [case for cases in aggregate.cases().values() for case in cases]


@pytest.mark.parametrize(
    "other", [{"formats": "ND;FRACTAL_NZ"}, {"shapes": "16,32;32,64"}, {"out": "16,65"}, {"type": "MatMulV2"}]
)
def test_what_makes_another_case(tmp_path, other):
    assert len(cases_of(tmp_path, [launch(), launch(**other)])) == 2


@pytest.mark.parametrize(
    "same",
    [
        {"dtypes": "BF16;BF16"},
        {"formats": "FORMAT_ND;FORMAT_ND"},
        {
            "shapes": "16,32;64,32;;",
            "dtypes": "DT_BF16;DT_BF16;DT_UNDEFINED;DT_UNDEFINED",
            "formats": "ND;ND;NULL;NULL",
        },
    ],
)
def test_what_does_not(tmp_path, same):
    (case,) = cases_of(tmp_path, [launch(), launch(**same)])
    assert case.durations.count == 2
    assert case.cells["Input Data Types"] == "DT_BF16;DT_BF16"


def test_an_absent_input_with_its_default_dtype_is_no_other_case(tmp_path):
    """CANN 8.5 writes the dtype of the kernel's definition, older versions DT_UNDEFINED."""
    shapes = {"type": "GroupedMatmul", "shapes": "64,32;8,32,16;;;;;;8", "out": "64,16"}
    older = {"dtypes": "BF16;BF16;;;;;;INT64", "formats": "ND;ND;NULL;NULL;NULL;NULL;NULL;ND"}
    newer = {"dtypes": "BF16;BF16;FLOAT;UINT64;FLOAT;FLOAT16;FLOAT16;INT64", "formats": ";".join(["ND"] * 8)}
    (case,) = cases_of(tmp_path, [launch(**shapes, **newer, duration="10"), launch(**shapes, **older, duration="20")])
    assert (case.durations.count, case.durations.mean_us) == (2, 15.0)
    assert case.cells["Input Data Types"] == newer["dtypes"]
    sums = [launch(type="Add", shapes="4;", dtypes=f"FLOAT;{word}") for word in ("FLOAT", "DT_UNDEFINED")]
    assert len(cases_of(tmp_path, sums)) == 2


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0.001, 1e7).map(lambda us: round(us, 3))), min_size=1))
def test_every_launch_is_in_the_statistics_of_its_case(tmp_path_factory, launches):
    rows = [launch(type=f"K{which}", duration=str(us)) for which, us in launches]
    found = {case.kernel_type: case.durations for case in cases_of(tmp_path_factory.mktemp("c"), rows)}
    for which in {which for which, _ in launches}:
        mine, case = [us for other, us in launches if other == which], found[f"K{which}"]
        assert (case.count, case.median_us) == (len(mine), statistics.median(mine))
        assert case.mean_us == pytest.approx(statistics.fmean(mine))
        assert case.std_us == pytest.approx(statistics.stdev(mine) if len(mine) > 1 else 0.0, abs=1e-6)


def read_events(path, root, on_bytes):
    """Reads a JSON list of kernel types, shapes (null: not understood) and microseconds."""
    events = json.loads(path.read_text())
    launches = CapturedLaunches(path, root)
    slots = ({**cells(shapes or "N/A", "N/A"), "Accelerator Core": ""} for _, shapes, _ in events)
    kinds = [launches.kind(event[0], each, at) for at, (event, each) in enumerate(zip(events, slots, strict=True), 1)]
    durations_us = np.array([us for _, _, us in events])
    launches.add(np.array(kinds), durations_us, {}, lambda at: (at + 1, str(durations_us[at])))
    return launches


def test_a_further_kind_of_capture_is_a_reader_and_an_entry(tmp_path, monkeypatch):
    toy = CaptureKind("toy", re.compile(r".*\.toy\.json"), read_events)
    monkeypatch.setattr("opatlas.capture.capture_discovery.KINDS", (*KINDS, toy))
    trace = tmp_path / "capture" / "rank0.toy.json"
    trace.parent.mkdir()
    trace.write_text(
        json.dumps([["Add", "4;4", 3.0], ["Add", "4;4", 5.0], ["triton_1", None, 2.0], ["Add", "4;x", 1.0]])
    )
    found = find_captures(trace.parent)
    assert found.files == [trace]
    database = Database(tmp_path / "database")
    done = ingest_captures(database, found.files, IngestRequest(trace.parent))
    (row,) = database.read("Add")
    assert row.captured is not None
    assert (row.captured.us, row.captured.samples) == (4.0, 2)
    shares = {each.kernel_type: each.share for _, each in done.account.time_left_out}
    assert shares == {"triton_1": 2 / 11, "Add": 1 / 11}
    assert sum(done.account.time_ns.values()) == 11_000
    (problem,) = done.problems
    assert problem.startswith(f"{trace}:4: column 'Input Shapes' is '4;x': ")
