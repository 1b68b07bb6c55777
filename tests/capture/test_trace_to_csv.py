"""`python -m opatlas.cli.trace_to_csv`: a profiler's Chrome trace as a table."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from captures import table
from hypothesis import given, strategies as st
from printed import numbers_by_line, numbers_in

from opatlas.cli.app import run_tool
from opatlas.cli.trace_to_csv import COLUMNS, cells_of, columns_of, trace_to_csv


def event(name="aclnnAdd_AddAiCore_Add", dur=2.5, ph="X", args=None, **more):
    """A complete event, as profilers write it."""
    return {"ph": ph, "name": name, "ts": "1764246877073569.640", "dur": dur, "pid": 7, "tid": 2, **more} | (
        {} if args is None else {"args": args}
    )


@pytest.fixture
def flatten(tmp_path, capsys):
    """Runs the command on a trace (bytes, or what becomes JSON); gives status, rows, stdout and stderr."""

    def run(trace, *options, name="trace_view.json"):
        path = tmp_path / name
        path.write_bytes(trace if isinstance(trace, bytes) else json.dumps(trace).encode())
        status = run_tool(trace_to_csv, "trace_to_csv", ["--trace", str(path), *options])
        output = tmp_path / "trace_view.csv"
        return status, table(output) if output.exists() else None, *capsys.readouterr()

    return run


def test_a_trace_of_an_npu(flatten):
    args = {"Model Id": 4294967295, "Task Type": "AI_VECTOR_CORE", "Stream Id": 2}
    status, rows, out, err = flatten(
        [
            {"ph": "M", "name": "process_name", "args": {"name": "Ascend Hardware"}},
            event(args=args),
            event("hcom_allReduce__170_1_1", dur="12.25", args={"Stream Id": 5, "size(Byte)": 64}),
            {"ph": "s", "name": "HostToDevice"},
            event("aten::add", dur=0, cat="cpu_op"),
        ]
    )
    assert (status, err) == (0, "")
    assert rows[0] == {
        "op_name": "aclnnAdd_AddAiCore_Add",
        "kernel_type": "Add",
        "dur_us": "2.5",
        "shapes": "",
        "ts_us": "1764246877073569.640",
        "pid": "7",
        "tid": "2",
        "category": "",
        "Model Id": "4294967295",
        "Task Type": "AI_VECTOR_CORE",
        "Stream Id": "2",
        "size(Byte)": "",
    }
    assert [(row["kernel_type"], row["dur_us"], row["Stream Id"], row["size(Byte)"]) for row in rows[1:]] == [
        ("", "12.25", "5", "64"),
        ("", "0", "", ""),
    ]
    assert rows[2]["category"] == "cpu_op"
    assert numbers_by_line(out)["other events"] == (2,)


def test_a_trace_of_torch(flatten):
    kernel = event(
        "gemm", args={"Input Dims": [[2, 3], [], [[4], [5, 6]], [3, 4]], "External id": 9, "a": [1, {"b": 2.5}]}
    )
    status, rows, _, _ = flatten({"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": [kernel], "z": 1})
    assert status == 0
    (row,) = rows
    assert row["shapes"] == "2,3;;4;5,6;3,4"
    assert row["Input Dims"] == "[[2, 3], [], [[4], [5, 6]], [3, 4]]"
    assert (row["External id"], row["a"]) == ("9", '[1, {"b": 2.5}]')


def test_numbers_are_written_as_they_stand_there(flatten):
    _, rows, _, _ = flatten(
        b'[{"ph":"X","name":"a","ts":1764246877073569.640,"dur":0.10,"args":{"n":12345678901234567890}}]'
    )
    assert (rows[0]["ts_us"], rows[0]["dur_us"], rows[0]["n"]) == (
        "1764246877073569.640",
        "0.10",
        "12345678901234567890",
    )


def test_an_arg_that_is_called_as_a_column(flatten):
    _, rows, _, _ = flatten([event(args={"pid": 1, "shapes": "2,2"})])
    assert [rows[0][name] for name in ("pid", "args.pid", "shapes", "args.shapes")] == ["7", "1", "2,2", "2,2"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_was_cut_off(flatten, tmp_path, packed):
    whole = json.dumps({"traceEvents": [event(args={"n": n}) for n in range(3000)]}).encode()
    cut = gzip.compress(whole)[:-2000] if packed else whole[: len(whole) // 2]
    name = "trace_view.json.gz" if packed else "trace_view.json"
    status, rows, out, err = flatten(cut, name=name)
    assert status == 1
    place = f"error: {tmp_path / name}: "
    assert err.startswith(place)
    assert len(rows) in numbers_in(err.removeprefix(place))
    assert [row["n"] for row in rows] == [str(n) for n in range(len(rows))]
    assert len(rows) > 1000
    assert len(rows) in numbers_in(out.replace(str(tmp_path), ""))


def test_events_that_should_be_rows(flatten, tmp_path):
    events = [event(dur=None), event(dur="long"), event(dur=-1), 17, event(), *[event(dur="inf")] * 100]
    status, rows, _, err = flatten(events)
    assert (status, len(rows)) == (1, 1)
    errors = err.splitlines()
    assert f"{104 - len(errors) + 1} more" in errors[-1]
    for number, (error, named) in enumerate(zip(errors, ("dur", "'long'", "'-1'", "JSON"), strict=False), start=1):
        place = f"error: {tmp_path / 'trace_view.json'}: event {number}: "
        assert error.startswith(place)
        assert named in error.removeprefix(place)


@pytest.mark.parametrize("trace", [b"", b"ph,name\n", b"{}", b"[]"])
def test_what_is_no_trace(flatten, tmp_path, trace):
    status, rows, _, err = flatten(trace)
    assert (status, rows) == (1, None)
    assert err.startswith(f"error: {tmp_path / 'trace_view.json'}: ")


def test_the_trace_is_never_written_over(flatten, tmp_path):
    status, _, _, err = flatten([event()], "--output", str(tmp_path / "trace_view.json"))
    assert status == 2
    assert all(named in err for named in (str(tmp_path / "trace_view.json"), "--output"))
    assert run_tool(trace_to_csv, "trace_to_csv", ["--trace", str(tmp_path / "nowhere.json")]) == 2
    assert not list(tmp_path.glob(".*"))


TEXTS = st.text(st.characters(exclude_characters="\r\0") | st.sampled_from('"\n,\ud800'), max_size=6)


@given(st.lists(st.dictionaries(st.sampled_from("abcdefgh"), TEXTS, max_size=4), max_size=8))
def test_cells_survive_whatever_they_hold(tmp_path_factory, all_args):
    folder: Path = tmp_path_factory.getbasetemp()
    events = [event(args=args) for args in all_args]
    columns = columns_of(events)
    with open(folder / "target", "w", encoding="utf-8", newline="") as target:
        csv.writer(target).writerows([[*COLUMNS, *columns.values()], *(cells_of(each, columns) for each in events)])
    with open(folder / "target", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = dict.fromkeys(name for args in all_args for name in args)
    assert list(columns.values()) == list(names)
    assert [{name: row[name] for name in names} for row in rows] == [
        {name: args.get(name, "").encode(errors="backslashreplace").decode() for name in names} for args in all_args
    ]


def number_of(digits):
    return b'{"ph": "X", "name": "b", "dur": 1, "args": {"n": ' + b"9" * digits + b"}}"


@pytest.mark.parametrize(
    "bad",
    [
        number_of(5000),
        # It begins in one block of bytes that the parser reads, and goes on in the next.
        number_of(200_000),
        b'{"ph": "X", "name": "b\xff", "dur": 1}',
        b'{"ph": "X", "name": "b", "dur": 1e9999999999999999999}',
        b'{"ph": "X", "dur": 1, "name": "' + b"b" * (10 << 20) + b'"}',
    ],
    ids=["5,000 digits", "200,000 digits", "not UTF-8", "out of range", "10 MB of text"],
)
@pytest.mark.parametrize("packed", [False, True])
def test_events_before_what_no_parser_bears_are_kept(bad, packed, flatten, tmp_path):
    trace = b'[{"ph": "X", "name": "a", "dur": 2}, ' + bad + b', {"ph": "X", "name": "c", "dur": 3}]'
    name = "trace_view.json.gz" if packed else "trace_view.json"
    status, rows, _, err = flatten(gzip.compress(trace) if packed else trace, name=name)
    assert (status, [row["op_name"] for row in rows]) == (1, ["a"])
    assert str(tmp_path / name) in err
    assert {path.name for path in tmp_path.iterdir()} == {name, "trace_view.csv"}
