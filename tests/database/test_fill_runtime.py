"""`opatlas ingest --attention-records`: records of calls into the Runtime columns of attention rows."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from captures import DECODE_RECORD, DECODE_SHAPES, KERNEL_DETAILS, table, write_capture
from hypothesis import given
from hypothesis import strategies as st
from test_ingest_attention import ATTENTION, attention

from opatlas.capture.attention import SOURCE_PROFILE
from opatlas.capture.attention_records import (
    CallValues,
    DistinctRecords,
    JoinKey,
    NearestKeys,
    RecordError,
    parse_record,
    row_key,
)
from opatlas.cli.main import main
from opatlas.model.schema import INPUT_SHAPES, RUNTIME_PREFIX
from opatlas.model.signature import signatures
from opatlas.store.database import Database, SessionLock, Table

#: The operator takes 31 inputs.
DECODE = ";".join([*DECODE_SHAPES, *[""] * 16])
PACKED = ";".join(["23,4,128", "31,4,128", "31,4,128", "", "", "2", "2", *[""] * 24])
VALUE_COLUMNS = ("actual_seq_lengths_values", "actual_seq_lengths_kv_values")


def decode(kv=(300, 128, 7), **changes):
    """A record of a call of DECODE's shapes."""
    lengths = {
        "actual_seq_lengths_kv": None if kv is None else list(kv),
        "block_table_valid_blocks": None if kv is None else [-(-length // 128) for length in kv],
    }
    return {**DECODE_RECORD, **lengths, **changes}


def packed(**changes):
    record = {
        "query_shape": [23, 4, 128],
        "key_shape": [31, 4, 128],
        "value_shape": [31, 4, 128],
        "atten_mask_shape": None,
        "block_table_shape": None,
        "actual_seq_lengths": [11, 23],
        "actual_seq_lengths_kv": [10, 31],
        "block_table_valid_blocks": None,
        "num_heads": 4,
        "num_key_value_heads": 0,
        "sparse_mode": 0,
        "input_layout": "TND",
        "block_size": 0,
    }
    return {**record, **changes}


@pytest.fixture
def database(tmp_path):
    """Two captured attention rows: DECODE with a mean of 20 us, PACKED with 30 us."""
    launches = [attention(shapes=DECODE, duration="15"), attention(shapes=DECODE, duration="25")]
    launches.append(attention(shapes=PACKED, duration="30"))
    capture = write_capture(tmp_path / "capture/kernel_details.csv", launches, KERNEL_DETAILS)
    database = Database(tmp_path / "database")
    assert main(["ingest", "--profiling-path", str(capture), "--database-path", str(database.path)]) == 0
    return database


@pytest.fixture
def fill(database, tmp_path, capsys):
    """Runs the command on records (texts are taken as lines); gives status, stdout and stderr."""
    capsys.readouterr()

    def run(*records, options: Sequence[str] = (), path: Path | None = None):
        path = path or tmp_path / "calls.jsonl"
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        path.write_text("".join(line + "\n" for line in lines))
        status = main(["ingest", "--attention-records", str(path), "--database-path", str(database.path), *options])
        return status, *capsys.readouterr()

    return run


def counts(out):
    """The first lines of a summary: `filled   3   ...`."""
    return {line.split()[0]: int(line.split()[1].replace(",", "")) for line in out.splitlines()[:8]}


def rows(database):
    return table(database.csv_path(ATTENTION))


def runtime(row, *names):
    return [row[RUNTIME_PREFIX + name] for name in names]


def edit(database, **columns):
    """Sets columns of the first row."""
    stored = database.read(ATTENTION)
    for name, text in columns.items():
        if name not in stored.frame.columns:
            stored.frame[name] = ""
        stored.frame.loc[0, name] = text
    database.write(stored)


def test_values_of_a_record(fill, database):
    status, out, err = fill(decode())
    assert (status, err) == (0, "")
    row, other = rows(database)
    filled = {name.removeprefix(RUNTIME_PREFIX): text for name, text in row.items() if name.startswith(RUNTIME_PREFIX)}
    assert filled == {
        "source_profile": "capture/kernel_details.csv",
        "actual_seq_lengths_shape": "3",
        "actual_seq_lengths_values": "1,2,3",
        "actual_seq_lengths_kv_shape": "3",
        "actual_seq_lengths_kv_values": "300,128,7",
        "avg_seq_len": "145",
        "block_table_shape": "3,16",
        "block_table_valid_blocks": "3,1,1",
        "num_heads": "4",
        "num_key_value_heads": "1",
        "sparse_mode": "3",
        "input_layout": "TND",
        "block_size": "128",
        "attn_state": "",
        "kv_cache_mode": "",
        "operator_input_shapes_raw": "",
        "metadata_completeness": "complete",
    }
    assert row["Profiling Average Duration(us)"] == "20"
    assert runtime(other, *VALUE_COLUMNS, "metadata_completeness") == ["", "", "shapes-only"]
    assert counts(out) == {
        **dict.fromkeys(("files", "records", "filled", "without"), 1),
        **dict.fromkeys(("unmatched", "added", "unchanged"), 0),
        "rows": 2,
    }


def test_lengths_that_add_up_are_not_averaged_as_they_are(fill, database):
    fill(packed())
    row = rows(database)[1]
    assert runtime(row, "avg_seq_len", "actual_seq_lengths_kv_values") == ["15.5", "10,31"]
    # 0 stands for the number of query heads.
    assert runtime(row, "num_heads", "num_key_value_heads") == ["4", "4"]


def test_distinct_records_make_several_rows(fill, database):
    status, _, _ = fill(decode((300, 128, 7)), decode((5, 5, 5)), decode((300, 128, 7)), decode((1, 2, 3)))
    assert status == 0
    first, packed_row, *added = rows(database)
    assert runtime(first, "actual_seq_lengths_kv_values") == ["300,128,7"]
    assert [runtime(row, "actual_seq_lengths_kv_values") for row in added] == [["5,5,5"], ["1,2,3"]]
    assert packed_row[INPUT_SHAPES] == PACKED
    # The capture does not tell them apart: all have what it says of them together.
    assert {row["Profiling Average Duration(us)"] for row in (first, *added)} == {"20"}
    assert {row["Profiling Samples"] for row in (first, *added)} == {"2"}
    assert {row[SOURCE_PROFILE] for row in (first, *added)} == {"capture/kernel_details.csv"}
    frame = database.read(ATTENTION).frame
    assert len(set(signatures(ATTENTION, frame))) == len(frame) == 4


def test_a_second_run_changes_nothing(fill, database):
    calls = [decode((300, 128, 7)), decode((5, 5, 5)), packed()]
    fill(*calls)
    before = database.csv_path(ATTENTION).read_bytes()
    status, out, _ = fill(*reversed(calls))
    assert status == 0
    assert database.csv_path(ATTENTION).read_bytes() == before
    assert (counts(out)["unchanged"], counts(out)["filled"]) == (3, 0)


def test_further_records_come_later(fill, database):
    fill(decode((300, 128, 7)))
    fill(decode((5, 5, 5)))
    kv = [row[RUNTIME_PREFIX + "actual_seq_lengths_kv_values"] for row in rows(database)]
    assert kv == ["300,128,7", "", "5,5,5"]


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_a_captured_row_becomes_so_many_rows_at_most(fill, database, limit):
    calls = [decode((n, 1, 1)) for n in range(1, 12)]
    options = ["--max-rows", str(limit)]
    fill(*calls, options=options)
    assert len(rows(database)) == 1 + limit
    before = sorted(map(str, rows(database)))
    random.Random(0).shuffle(calls)
    fill(*calls, options=options)
    assert sorted(map(str, rows(database))) == before


def test_any_number_of_rows(fill, database):
    fill(*[decode((n, 1, 1)) for n in range(1, 131)], options=["--max-rows", "0"])
    assert len(rows(database)) == 131


def unmatched(database):
    """What, Count, Place and Nearest of each line of the report of unmatched records and rows."""
    (report,) = database.reports_dir.glob("fill_runtime_*.csv")
    with open(report, newline="") as file:
        return [tuple(line[name] for name in ("What", "Count", "Place", "Nearest")) for line in csv.DictReader(file)]


def test_records_without_a_row_name_the_nearest_row(fill, database, tmp_path):
    status, _, _ = fill(
        decode(),
        *[decode(key_shape=[98, 128, 128], value_shape=[98, 128, 128])] * 3,
        decode((1, 2), block_table_shape=[2, 16], query_shape=[2, 4, 128]),
        decode(query_shape=None),
        {"query_shape": [1], "key_shape": [2], "value_shape": [3]},
    )
    assert status == 0
    calls = tmp_path / "calls.jsonl"
    # The row of DECODE, in line 2, is the nearest to two keys; the others lack a shape, or share none. The row of
    # PACKED has the number of sequences of the fifth record.
    assert unmatched(database) == [
        ("record", "3", f"{calls}:2", f"{ATTENTION}.csv:2"),
        ("record", "1", f"{calls}:5", f"{ATTENTION}.csv:2"),
        ("record", "1", f"{calls}:6", ""),
        ("record", "1", f"{calls}:7", ""),
        ("row", "1", f"{ATTENTION}.csv:3", f"{calls}:5"),
    ]


def test_rows_without_a_record_name_the_nearest_record(fill, database, tmp_path):
    fill(packed(actual_seq_lengths_kv=[5, 6, 20, 31]))
    calls = tmp_path / "calls.jsonl"
    # That record shares no shape with the row of DECODE, in line 2.
    assert unmatched(database) == [
        ("record", "1", f"{calls}:1", f"{ATTENTION}.csv:3"),
        ("row", "1", f"{ATTENTION}.csv:2", ""),
        ("row", "1", f"{ATTENTION}.csv:3", f"{calls}:1"),
    ]


def test_the_report(database, tmp_path, monkeypatch, capsys):
    """The wording, in golden/fill_runtime.txt; lines fit a terminal of 80 columns."""
    edit(database, **{"Average Duration(us)": "17.5", "Status": "measured", "Run ID": "r"})
    calls = [*(decode((n, 1, 1)) for n in range(1, 5)), decode((1, 2), query_shape=[2, 4, 128])]
    monkeypatch.chdir(tmp_path)
    Path("calls.jsonl").write_text("\n".join([*map(json.dumps, calls), "[1]\n"]))
    capsys.readouterr()
    main(["ingest", "--attention-records", "calls.jsonl", "--database-path", "database", "--max-rows", "2"])
    (report,) = database.reports_dir.glob("fill_runtime_*.csv")
    out = capsys.readouterr().out.replace(report.name, "fill_runtime.csv").replace(f"{tmp_path}/", "")
    assert out == (Path(__file__).parent / "golden/fill_runtime.txt").read_text()
    assert all(len(line) <= 80 for line in out.splitlines())


def test_malformed_lines_are_named_and_left_out(fill, database, tmp_path):
    torn = json.dumps(decode())[:50]
    status, out, err = fill(decode(), "nonsense", "", "[1]", json.dumps(packed(num_heads="4")), packed(), torn)
    assert status == 1
    calls = tmp_path / "calls.jsonl"
    assert [line.split(": ")[1] for line in err.splitlines()] == [f"{calls}:{number}" for number in (2, 4, 5, 7)]
    assert counts(out)["records"] == 2
    assert all(runtime(row, "metadata_completeness") == ["complete"] for row in rows(database))


def test_many_malformed_lines_are_counted(fill):
    _, _, err = fill(*["{"] * 100)
    lines = err.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "error: and 80 more malformed lines"


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b'{"query_shape": [1, -2]}', "query_shape"),
        (b'{"query_shape": [1.5]}', "query_shape"),
        (b'{"actual_seq_lengths_kv": 7}', "actual_seq_lengths_kv"),
        (b'{"actual_seq_lengths_kv": [%s, 1]}' % (b"9" * 4000), "actual_seq_lengths_kv"),
        (b'{"sparse_mode": true}', "sparse_mode"),
        (b'{"block_table_valid_blocks": ["1"]}', "block_table_valid_blocks"),
        (b'{"input_layout": 3}', "input_layout"),
        (b'{"input_layout": "TN D"}', "input_layout"),
        (b"\xff\xfe{", ""),
        (b'{"query_shape": [%s]}' % (b"9" * 5000), ""),
        ('{"num_heads": 4}'.encode("utf-16"), ""),
        (b'{"input_layout": "\xed\xa0\x80"}', ""),
        (b"[" * 100_000, ""),
    ],
    ids=range(13),
)
def test_an_invalid_line_is_refused_with_its_field(line, field):
    with pytest.raises(RecordError) as error:
        parse_record(line)
    assert error.value.field == field


@given(st.binary() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_line_is_a_record_or_refused(line):
    with suppress(RecordError):
        key, values = parse_record(line if isinstance(line, bytes) else line.encode())
        assert isinstance(key, JoinKey)
        assert isinstance(values, CallValues)


def test_blocks_in_use_may_be_one_number():
    assert parse_record(json.dumps(decode(block_table_valid_blocks=7)).encode())[1].valid_blocks == "7"


def test_a_measurement_of_assumed_lengths_is_kept_apart(fill, database):
    edit(database, **{"Average Duration(us)": "17.5", "MicroBench Samples": "9", "Status": "measured", "Run ID": "r"})
    fill(decode(), decode((5, 5, 5)))
    for row in (rows(database)[0], rows(database)[2]):
        assert (row["Average Duration(us)"], row["MicroBench Samples"], row["Status"], row["Run ID"]) == ("",) * 4
    (pruned,) = table(database.pruned_dir / f"{ATTENTION}.csv")
    assert (pruned["Average Duration(us)"], pruned["Run ID"]) == ("17.5", "r")
    assert pruned["Pruned Reason"]


def test_a_measurement_of_the_same_lengths_stays(fill, database):
    fill(decode())
    edit(database, **{"Average Duration(us)": "17.5", "Status": "measured", RUNTIME_PREFIX + "avg_seq_len": ""})
    fill(decode())
    row = rows(database)[0]
    assert (row["Average Duration(us)"], *runtime(row, "avg_seq_len")) == ("17.5", "145")
    assert not database.pruned_dir.exists()


def test_values_in_another_spelling_are_the_same(fill, database):
    spelled = {"actual_seq_lengths_kv_values": "[300, 128, 7]", "num_heads": "4.0"}
    edit(database, **{RUNTIME_PREFIX + name: text for name, text in spelled.items()})
    fill(decode())
    assert len(rows(database)) == 2
    assert runtime(rows(database)[0], *spelled, "block_size") == ["[300, 128, 7]", "4.0", "128"]


def test_values_that_a_record_contradicts_stay(fill, database):
    edit(database, **{RUNTIME_PREFIX + "sparse_mode": "0"})
    fill(decode())
    first, _, added = rows(database)
    assert runtime(first, "sparse_mode", "actual_seq_lengths_kv_values") == ["0", ""]
    assert runtime(added, "sparse_mode", "actual_seq_lengths_kv_values") == ["3", "300,128,7"]


def test_rows_that_stand_twice_are_filled_twice(fill, database):
    stored = database.read(ATTENTION)
    database.write(Table(ATTENTION, stored.path, pd.concat([stored.frame, stored.frame[:1]], ignore_index=True)))
    fill(decode())
    kv = [row[RUNTIME_PREFIX + "actual_seq_lengths_kv_values"] for row in rows(database)]
    assert kv == ["300,128,7", "", "300,128,7"]


def test_a_call_without_lengths_is_incomplete(fill, database):
    edit(database, **{INPUT_SHAPES: DECODE.replace(";3;3;", ";;;"), RUNTIME_PREFIX + "actual_seq_lengths_kv_shape": ""})
    fill(decode(None, actual_seq_lengths=None))
    assert runtime(rows(database)[0], "num_heads", "metadata_completeness") == ["4", "partial"]


def test_other_columns_survive(fill, database):
    edit(database, Note="mine", **{RUNTIME_PREFIX + "attn_state": "DecodeOnly"})
    fill(decode(), decode((5, 5, 5)))
    first, _, added = rows(database)
    assert (first["Note"], added["Note"]) == ("mine", "mine")
    assert (*runtime(first, "attn_state"), *runtime(added, "attn_state")) == ("DecodeOnly", "")


def test_several_files_one_of_them_packed(fill, database, tmp_path):
    packed_file = tmp_path / "more.jsonl.gz"
    packed_file.write_bytes(gzip.compress(json.dumps(packed()).encode() + b"\n"))
    _, out, _ = fill(decode(), options=["--attention-records", str(packed_file)])
    assert counts(out)["files"] == 2
    assert all(runtime(row, "metadata_completeness") == ["complete"] for row in rows(database))


def test_a_packed_file_that_ends_early(fill, tmp_path):
    whole = gzip.compress(b"".join(json.dumps(decode((n, 1, 1))).encode() + b"\n" for n in range(2000)))
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    status, out, err = fill(decode(), options=["--attention-records", str(cut)])
    assert status == 1
    assert f"error: {cut}: ends early after line " in err
    assert counts(out)["records"] > 1


def test_wrong_usage(fill, database, tmp_path, capsys):
    status = main(["ingest", "--attention-records", str(tmp_path / "nowhere"), "--database-path", str(database.path)])
    assert (status, capsys.readouterr().err) == (2, f"error: {tmp_path / 'nowhere'}: no such file: check the path\n")
    status = main(["ingest", "--attention-records", __file__, "--database-path", str(tmp_path / "nowhere")])
    assert status == 2
    assert "no such folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        fill(decode(), options=["--max-rows", "-1"])


def test_a_database_in_use_is_left_alone(fill, database):
    before = database.csv_path(ATTENTION).read_bytes()
    lock = SessionLock(database, run_id="other", command="pytest bench/")
    lock.acquire(0, print)
    try:
        status, _, err = fill(decode())
    finally:
        lock.release()
    assert status == 1
    assert "is in use by session other" in err
    assert database.csv_path(ATTENTION).read_bytes() == before


def test_a_database_without_attention(fill, database):
    database.csv_path(ATTENTION).unlink()
    status, out, _ = fill(decode())
    assert status == 0
    assert "no row has any of its shapes" in out


def test_the_shapes_that_the_operator_saw_count():
    cells = {INPUT_SHAPES: "1,1;1,1;1,1", RUNTIME_PREFIX + "operator_input_shapes_raw": f'"{DECODE}"'}
    key = row_key(cells)
    assert key == JoinKey((3, 4, 128), (99, 128, 128), (99, 128, 128), 3, (2048, 2048), (3, 16))
    assert row_key({INPUT_SHAPES: "a,b;1;1"}) is None


KEYS = st.builds(JoinKey, *[st.none() | st.tuples(st.integers(1, 3))] * 3, *[st.none() | st.integers(1, 3)] * 3)


@given(st.lists(KEYS, min_size=1, max_size=6), KEYS)
def test_the_nearest_agrees_in_the_most_components(keys, wanted):
    def agreeing(key):
        return sum(a == b for a, b in zip(key, wanted, strict=True) if (a, b) != (None, None))

    found = NearestKeys(enumerate_keys := [(key, at) for at, key in enumerate(keys)]).to(wanted)
    if all(key == wanted for key in keys):
        return
    if found is None:
        assert not any(agreeing(key) for key in keys if key != wanted)
    else:
        assert found in enumerate_keys


@given(st.lists(st.integers(0, 40), max_size=80), st.integers(1, 10))
def test_a_choice_does_not_depend_on_the_order(numbers, limit):
    def chosen(order):
        choice = DistinctRecords(limit, "")
        for number in order:
            choice.add(CallValues((str(number),), "", "", ()))
        return {values.case for values in choice.values()}

    assert chosen(numbers) == chosen(sorted(numbers))
    assert len(chosen(numbers)) == min(limit, len(set(numbers)))


@pytest.mark.parametrize(
    "spelt",
    [lambda text: gzip.compress(text.encode()), lambda text: text.encode("utf-8-sig")],
    ids=["packed under another name", "with a mark"],
)
def test_records_are_read_whatever_the_file_begins_with(fill, database, tmp_path, capsys, spelt):
    path = tmp_path / "calls.txt"
    path.write_bytes(spelt(json.dumps(decode()) + "\n"))
    assert main(["ingest", "--attention-records", str(path), "--database-path", str(database.path)]) == 0
    assert counts(capsys.readouterr().out)["filled"] == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps(decode()).encode("utf-16"), "UTF-16"),
        (json.dumps([decode()]).encode(), "JSON array"),
        (json.dumps([decode()], indent=1).encode(), "JSON array"),
        (b"PK\x03\x04\0\0xl/workbook.xml", "workbook"),
    ],
)
def test_a_file_of_another_kind_is_one_error_that_names_it(database, tmp_path, capsys, content, said):
    path = tmp_path / "calls.jsonl"
    path.write_bytes(content)
    assert main(["ingest", "--attention-records", str(path), "--database-path", str(database.path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line
    assert said in line


def test_a_record_fills_the_row_of_its_mean_length(fill, database):
    stored = database.read(ATTENTION)
    twice = pd.concat([stored.frame.iloc[:1]] * 2 + [stored.frame.iloc[1:]], ignore_index=True)
    twice["avg_seq_len"] = ["999", "145", ""]
    database.write(Table(ATTENTION, stored.path, twice))
    assert counts(fill(decode())[1])["filled"] == 1
    assert [runtime(row, "actual_seq_lengths_kv_values") for row in rows(database)] == [[""], ["300,128,7"], [""]]
    # Of a call with another mean length the row with 999 is none, and a row is added.
    assert counts(fill(decode((10, 20, 30)))[1])["added"] == 1
    *_, added = rows(database)
    assert (*runtime(added, "avg_seq_len"), added["avg_seq_len"]) == ("20", "")
