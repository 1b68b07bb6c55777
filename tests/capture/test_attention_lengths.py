"""The Runtime columns of attention rows: from shapes of a capture, and from records of calls (--attention-records)."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from contextlib import suppress

import pandas as pd
import pytest
from attention_calls import ATTENTION, DECODE, PACKED, attention, decode, packed
from captures import KERNEL_DETAILS, table, write_capture
from frames import rewrite
from hypothesis import given, strategies as st

from opatlas.capture.ingest import IngestRequest, ingest_captures
from opatlas.capture.launches import SOURCE_PROFILE
from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.row.attention import VALID_BLOCKS, CallRecord, JoinKey, row_key
from opatlas.row.columns import INPUT_SHAPES, PROFILING_AVERAGE, RUNTIME, RUNTIME_PREFIX
from opatlas.row.signature import signatures
from opatlas.row.table import RowTable
from opatlas.typed_json import DecodeError, decode as decode_json

KV = "actual_seq_lengths_kv_values"
CAPTURE = "capture/kernel_details.csv"


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
    """Runs the command on records (texts are taken as lines, bytes as the file); gives status, counts and stderr."""
    capsys.readouterr()

    def run(*records, options: Sequence[str] = ()):
        path = tmp_path / "calls.jsonl"
        if isinstance(records[0], bytes):
            path.write_bytes(records[0])
        else:
            lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
            path.write_text("".join(line + "\n" for line in lines))
        words = ["--attention-records", str(path), "--database-path", str(database.path), *options]
        status = main(["ingest", *words, "--json"])
        out, err = capsys.readouterr()
        return status, json.loads(out)["attention_records"] if out else {}, err

    return run


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
    rewrite(database, stored)


def test_values_of_a_record(fill, database):
    status, out, err = fill(decode())
    assert (status, err) == (0, "")
    row, other = rows(database)
    filled = {name.removeprefix(RUNTIME_PREFIX): text for name, text in row.items() if name.startswith(RUNTIME_PREFIX)}
    assert filled == {
        "source_profile": CAPTURE,
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
        "pre_tokens": "",
        "attn_state": "",
        "kv_cache_mode": "",
        "operator_input_shapes_raw": "",
        "metadata_completeness": "complete",
    }
    assert row[PROFILING_AVERAGE] == "20"
    assert runtime(other, "actual_seq_lengths_values", KV, "metadata_completeness") == ["", "", "shapes-only"]
    assert (
        out.items()
        >= {
            **dict.fromkeys(("records", "filled", "without_record"), 1),
            **dict.fromkeys(("unmatched", "added", "unchanged"), 0),
            "rows": 2,
        }.items()
    )


def test_lengths_that_add_up_are_not_averaged_as_they_are(fill, database):
    fill(packed())
    row = rows(database)[1]
    assert runtime(row, "avg_seq_len", KV) == ["15.5", "10,31"]
    # 0 stands for the number of query heads.
    assert runtime(row, "num_heads", "num_key_value_heads") == ["4", "4"]


def test_distinct_records_make_several_rows(fill, database):
    status, _, _ = fill(decode((300, 128, 7)), decode((5, 5, 5)), decode((300, 128, 7)), decode((1, 2, 3)))
    assert status == 0
    first, packed_row, *added = rows(database)
    assert runtime(first, KV) == ["300,128,7"]
    assert [runtime(row, KV) for row in added] == [["5,5,5"], ["1,2,3"]]
    assert packed_row[INPUT_SHAPES] == PACKED
    # The capture does not tell them apart: all have what it says of them together.
    assert {row[PROFILING_AVERAGE] for row in (first, *added)} == {"20"}
    assert {row["Profiling Samples"] for row in (first, *added)} == {"2"}
    assert {row[SOURCE_PROFILE] for row in (first, *added)} == {CAPTURE}
    frame = database.read(ATTENTION).frame
    assert len(set(signatures(ATTENTION, frame))) == len(frame) == 4


def test_a_second_run_changes_nothing(fill, database):
    calls = [decode((300, 128, 7)), decode((5, 5, 5)), packed()]
    fill(*calls)
    before = database.csv_path(ATTENTION).read_bytes()
    status, out, _ = fill(*reversed(calls))
    assert status == 0
    assert database.csv_path(ATTENTION).read_bytes() == before
    assert (out["unchanged"], out["filled"]) == (3, 0)


@pytest.mark.parametrize("limit", [1, 3])
def test_a_captured_row_becomes_so_many_rows_at_most(fill, database, limit, monkeypatch):
    monkeypatch.setattr("opatlas.capture.attention._MOST_ROWS", limit)
    calls = [decode((n, 1, 1)) for n in range(1, 12)]
    fill(*calls)
    assert len(rows(database)) == 1 + limit
    before = sorted(map(str, rows(database)))
    random.Random(0).shuffle(calls)
    fill(*calls)
    assert sorted(map(str, rows(database))) == before


def test_records_without_a_row_and_rows_without_a_record_are_reported(fill, database, tmp_path):
    status, out, _ = fill(
        decode(),
        *[decode(key_shape=[98, 128, 128], value_shape=[98, 128, 128])] * 3,
        decode(query_shape=None),
        {"query_shape": [1], "key_shape": [2], "value_shape": [3]},
    )
    assert status == 0
    calls = tmp_path / "calls.jsonl"
    assert [place[:3] for place in out["unmatched_places"]] == [
        ["record", 3, f"{calls}:2"],
        ["record", 1, f"{calls}:5"],
        ["record", 1, f"{calls}:6"],
        ["row", 1, f"{ATTENTION}.csv:3"],
    ]


def test_malformed_lines_are_named_and_left_out(fill, database, tmp_path):
    torn = json.dumps(decode())[:50]
    status, out, err = fill(decode(), "nonsense", "", "[1]", json.dumps(packed(num_heads="4")), packed(), torn)
    assert status == 1
    calls = tmp_path / "calls.jsonl"
    assert [line.split(": ")[1] for line in err.splitlines()] == [f"{calls}:{number}" for number in (2, 4, 5, 7)]
    assert out["records"] == 2
    assert all(runtime(row, "metadata_completeness") == ["complete"] for row in rows(database))


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
    spelled = {KV: "[300, 128, 7]", "num_heads": "4.0"}
    edit(database, **{RUNTIME_PREFIX + name: text for name, text in spelled.items()})
    fill(decode())
    assert len(rows(database)) == 2
    assert runtime(rows(database)[0], *spelled, "block_size") == ["[300, 128, 7]", "4.0", "128"]


def test_values_that_a_record_contradicts_stay(fill, database):
    edit(database, **{RUNTIME_PREFIX + "sparse_mode": "0"})
    fill(decode())
    first, _, added = rows(database)
    assert runtime(first, "sparse_mode", KV) == ["0", ""]
    assert runtime(added, "sparse_mode", KV) == ["3", "300,128,7"]


def test_several_files_one_of_them_packed(fill, database, tmp_path):
    packed_file = tmp_path / "more.jsonl.gz"
    packed_file.write_bytes(gzip.compress(json.dumps(packed()).encode() + b"\n"))
    _, out, _ = fill(decode(), options=["--attention-records", str(packed_file)])
    assert out["records"] == 2
    assert all(runtime(row, "metadata_completeness") == ["complete"] for row in rows(database))


@pytest.mark.parametrize(
    "spelt",
    [lambda text: gzip.compress(text.encode()), lambda text: text.encode("utf-8-sig")],
    ids=["packed under another name", "with a mark"],
)
def test_records_are_read_whatever_the_file_begins_with(fill, spelt):
    assert fill(spelt(json.dumps(decode()) + "\n"))[1]["filled"] == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (json.dumps(decode()).encode("utf-16"), "UTF-8"),
        (json.dumps([decode()]).encode(), "JSON array"),
        (json.dumps([decode()], indent=1).encode(), "JSON array"),
        (b"PK\x03\x04\0\0xl/workbook.xml", "UTF-8"),
    ],
)
def test_a_file_of_another_kind_is_one_error_that_names_it(fill, tmp_path, content, said):
    status, _, err = fill(content)
    (line,) = err.splitlines()
    assert status == 1
    assert f"{tmp_path}/calls.jsonl" in line
    assert said in line


def test_a_record_fills_the_row_of_its_mean_length(fill, database):
    stored = database.read(ATTENTION)
    twice = pd.concat([stored.frame.iloc[:1]] * 2 + [stored.frame.iloc[1:]], ignore_index=True)
    twice["avg_seq_len"] = ["999", "145", ""]
    database.write(RowTable(ATTENTION, stored.path, twice))
    assert fill(decode())[1]["filled"] == 1
    assert [runtime(row, KV) for row in rows(database)] == [[""], ["300,128,7"], [""]]
    # Of a call with another mean length the row with 999 is none, and a row is added.
    assert fill(decode((10, 20, 30)))[1]["added"] == 1
    *_, added = rows(database)
    assert (*runtime(added, "avg_seq_len"), added["avg_seq_len"]) == ("20", "")


def parse(line: bytes) -> CallRecord:
    return decode_json(line, CallRecord, "calls.jsonl:1")


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b'{"query_shape": [1, -2]}', "query_shape"),
        (b'{"query_shape": [1.5]}', "query_shape"),
        (b'{"actual_seq_lengths_kv": 7}', "actual_seq_lengths_kv"),
        (b'{"actual_seq_lengths_kv": [%s, 1]}' % (b"9" * 4000), ""),
        (b'{"sparse_mode": true}', "sparse_mode"),
        (b'{"block_table_valid_blocks": ["1"]}', "block_table_valid_blocks"),
        (b'{"input_layout": 3}', "input_layout"),
        (b'{"input_layout": "TN D"}', "input_layout"),
        (b"\xff\xfe{", ""),
        ('{"num_heads": 4}'.encode("utf-16"), ""),
        (b'{"input_layout": "\xed\xa0\x80"}', ""),
        (b"[" * 100_000, ""),
    ],
    ids=range(12),
)
def test_an_invalid_line_is_refused_with_its_field(line, field):
    with pytest.raises(DecodeError) as error:
        parse(line)
    assert field in error.value.problem


@given(st.binary() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_line_is_a_record_or_refused(line):
    with suppress(DecodeError):
        record = parse(line if isinstance(line, bytes) else line.encode())
        assert isinstance(record.key, JoinKey)
        assert all(isinstance(cell, str) for cell in record.cells().values())


def test_blocks_in_use_may_be_one_number():
    assert parse(json.dumps(decode(block_table_valid_blocks=7)).encode()).cells()[VALID_BLOCKS] == "7"


def test_the_shapes_that_the_operator_saw_count():
    cells = {INPUT_SHAPES: "1,1;1,1;1,1", RUNTIME_PREFIX + "operator_input_shapes_raw": f'"{DECODE}"'}
    key = row_key(cells)
    assert key == JoinKey((3, 4, 128), (99, 128, 128), (99, 128, 128), 3, (2048, 2048), (3, 16))
    assert row_key({INPUT_SHAPES: "a,b;1;1"}) is None


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "capture"


@pytest.fixture
def ingest(tmp_path, folder):
    database = Database(tmp_path / "database")

    def run(*launches, place="rank_0"):
        capture = write_capture(folder / place / "kernel_details.csv", launches, KERNEL_DETAILS)
        assert not ingest_captures(database, [capture], IngestRequest(folder)).problems
        return table(database.csv_path(ATTENTION))

    return run


def filled(row):
    """The Runtime columns that are not empty."""
    return {name.removeprefix("Runtime "): row[name] for name in RUNTIME if row[name]}


def test_slots_5_6_and_14_give_the_shapes(ingest):
    (row,) = ingest(attention())
    assert filled(row) == {
        "source_profile": "capture/rank_0/kernel_details.csv",
        "actual_seq_lengths_shape": "128",
        "actual_seq_lengths_kv_shape": "64",
        "block_table_shape": "128,512",
        "metadata_completeness": "shapes-only",
    }


def test_what_fill_runtime_found_out_survives_the_next_ingest(ingest, tmp_path):
    ingest(attention(duration="10"))
    database = Database(tmp_path / "database")
    stored = database.read(ATTENTION)
    # fill-runtime: one captured row that two distinct records match becomes two rows.
    stored.frame = stored.frame.loc[[0, 0]].reset_index(drop=True)
    stored.frame[RUNTIME_PREFIX + KV] = ["[128]", "[4096]"]
    stored.frame["Runtime metadata_completeness"] = "complete"
    rewrite(database, stored)
    rows = ingest(attention(duration="30"), place="rank_1")
    assert [row[PROFILING_AVERAGE] for row in rows] == ["20", "20"]
    assert [row[RUNTIME_PREFIX + KV] for row in rows] == ["[128]", "[4096]"]
    assert {row["Runtime metadata_completeness"] for row in rows} == {"complete"}
    assert {row[SOURCE_PROFILE] for row in rows} == {
        "capture/rank_0/kernel_details.csv; capture/rank_1/kernel_details.csv"
    }


def test_lengths_that_fit_no_row_are_an_error(fill, database):
    """And those that fit are no error the second time."""
    batches = {"3x1@300": 0, "3x4@300": 1}
    for batch, status in batches.items():
        for _ in range(2):
            assert main(["ingest", "--attention", batch, "--database-path", str(database.path)]) == status, batch
