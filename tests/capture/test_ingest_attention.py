"""The Runtime columns of attention rows."""

import pytest
from captures import KERNEL_DETAILS, launch, table, write_capture
from frames import rewrite

from opatlas.capture.cases import Aggregate
from opatlas.capture.ingest import IngestRequest, ingest_captures
from opatlas.capture.launches import SOURCE_PROFILE, source_cell
from opatlas.data.database import Database
from opatlas.row.columns import PROFILING_AVERAGE, RUNTIME, RUNTIME_PREFIX

ATTENTION = "FusedInferAttentionScore"
#: The capture of the first rank, as a row names it.
CAPTURE = "capture/rank_0/kernel_details.csv"
KV = RUNTIME_PREFIX + "actual_seq_lengths_kv_values"
NOTHING = [""] * 7
SHAPES = ";".join(
    ["128,4,128", "99,128,128", "99,128,128", "", "2048,2048", "128", "64", *NOTHING, "128,512", *[""] * 16]
)
DTYPES = ["DT_BF16"] * 3 + ["DT_UNDEFINED", "INT8", "INT64", "INT64", *["DT_UNDEFINED"] * 7, "INT32"]


def attention(shapes=SHAPES, **cells):
    dtypes = ";".join(DTYPES + ["DT_UNDEFINED"] * 16)
    formats = ";".join("NULL" if dtype == "DT_UNDEFINED" else "ND" for dtype in dtypes.split(";"))
    return launch(type=ATTENTION, shapes=shapes, dtypes=dtypes, formats=formats, out="128,4,128;", **cells)


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


def test_files_beside_the_capture_are_found(ingest, folder):
    (folder / "rank_0").mkdir(parents=True)
    (folder / "rank_0/operator_details.csv").write_text("")
    (folder / "rank_0/trace_view.json").write_text("")
    (row,) = ingest(attention())
    assert row[SOURCE_PROFILE] == ("capture/rank_0/kernel_details.csv + operator_details.csv + trace_view.json")


def test_a_row_of_many_ranks_names_the_first(folder):
    aggregate = Aggregate(folder)
    for rank in range(5):
        aggregate.add_file(write_capture(folder / f"rank_{rank}/kernel_details.csv", [attention()]))
    (case,) = aggregate.cases()[ATTENTION]
    assert source_cell(case.sources) == (
        "capture/rank_0/kernel_details.csv; capture/rank_1/kernel_details.csv; "
        "capture/rank_2/kernel_details.csv; and 2 more"
    )


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
