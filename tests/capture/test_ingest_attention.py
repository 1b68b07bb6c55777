"""The Runtime columns of attention rows."""

import pytest
from attention_calls import ATTENTION, attention
from captures import KERNEL_DETAILS, table, write_capture
from frames import rewrite

from opatlas.capture.ingest import IngestRequest, ingest_captures
from opatlas.capture.launches import SOURCE_PROFILE
from opatlas.data.database import Database
from opatlas.row.columns import PROFILING_AVERAGE, RUNTIME, RUNTIME_PREFIX

#: The capture of the first rank, as a row names it.
CAPTURE = "capture/rank_0/kernel_details.csv"
KV = RUNTIME_PREFIX + "actual_seq_lengths_kv_values"


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


def runtime(row):
    """The Runtime columns that are not empty."""
    return {name.removeprefix("Runtime "): row[name] for name in RUNTIME if row[name]}


def test_slots_5_6_and_14_give_the_shapes(ingest):
    (row,) = ingest(attention())
    assert runtime(row) == {
        "source_profile": CAPTURE,
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
    stored.frame[KV] = ["[128]", "[4096]"]
    stored.frame["Runtime metadata_completeness"] = "complete"
    rewrite(database, stored)
    rows = ingest(attention(duration="30"), place="rank_1")
    assert [row[PROFILING_AVERAGE] for row in rows] == ["20", "20"]
    assert [row[KV] for row in rows] == ["[128]", "[4096]"]
    assert {row["Runtime metadata_completeness"] for row in rows} == {"complete"}
    assert {row[SOURCE_PROFILE] for row in rows} == {
        "capture/rank_0/kernel_details.csv; capture/rank_1/kernel_details.csv"
    }
