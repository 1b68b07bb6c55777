"""From calls of the real torch_npu to measured rows: recorded, filled in, replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from npu_environment import run
from opatlas.plugins.choice import Choice
from plans import plan_of
from replaying import cells_of
from sample_rows import MASK, ROWS, fia

from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.row.columns import BASE, RUNTIME_PREFIX
from opatlas.row.table import RowTable
from opatlas.run.inputs.attention import read_attention, with_operator_shapes
from opatlas.run.inputs.replay_row import ReplayRow

ATTENTION = "FusedInferAttentionScore"
#: As a capture has the calls of serving.py, and one that it does not make.
CAPTURED = (
    fia("7,4,16", query="7,4,16", key="12,16,32", mask=MASK, query_lengths="3", kv_lengths="3", table="3,4"),
    fia("23,4,16", query="23,4,16", key="31,1,16", query_lengths="2", kv_lengths="2"),
    ROWS["FusedInferAttentionScore"][4],
    fia("2,4,16", query="2,4,16", key="12,16,32", mask=MASK, query_lengths="2", kv_lengths="2", table="2,4"),
)


@pytest.fixture(scope="module")
def records(npu_python, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    done = run(npu_python, Path(__file__).with_name("serving.py"), folder / "calls.jsonl", folder=folder)
    assert done.returncode == 0, done.stdout
    (path,) = folder.iterdir()
    return path


def test_recorded_calls(records):
    calls = [json.loads(line) for line in records.read_text().splitlines()]
    assert [call["actual_seq_lengths_kv"] for call in calls] == [[40, 9, 2], [17, 33, 64], [11, 31], [20, 1, 16]]
    assert [call["actual_seq_lengths"] for call in calls] == [[2, 6, 7], [2, 6, 7], [5, 23], None]
    assert [call["block_table_valid_blocks"] for call in calls] == [[3, 1, 1], [2, 3, 4], None, [2, 1, 1]]
    assert [call["input_layout"] for call in calls] == ["TND", "TND", "TND", "BNSD_NBSD"]


@pytest.fixture
def database(records, tmp_path) -> Database:
    """The captured rows, filled in."""
    database = Database(tmp_path / "database")
    frame = pd.DataFrame([cells_of(row) for row in CAPTURED]).reindex(columns=BASE, fill_value="").astype(str)
    database.write(RowTable(ATTENTION, database.csv_path(ATTENTION), frame))
    assert main(["ingest", "--attention-records", str(records), "--database-path", str(database.path)]) == 0
    return database


def test_recorded_calls_become_cases_with_their_lengths(database):
    plan = plan_of(database.path, Choice())
    (table,) = plan.tables.values()
    cases = [ReplayRow(ATTENTION, row.cells, torch.device("cpu")) for row in table.to_run]
    calls = [read_attention(with_operator_shapes(case)).keywords for case in cases]
    assert [call["actual_seq_lengths_kv"] for call in calls[:3]] == [[40, 9, 2], [11, 31], [20, 1, 16]]
    assert calls[4]["actual_seq_lengths_kv"] == [17, 33, 64]
    assert [call["actual_seq_lengths"] for call in (calls[0], calls[1], calls[4])] == [[2, 6, 7], [5, 23], [2, 6, 7]]
    # Nothing is left to assume, but for the row that was never called.
    assert [bool(case.assumptions) for case in cases] == [False, False, False, True, False]
    assert [case.cells[RUNTIME_PREFIX + "metadata_completeness"] for case in cases] == ["complete"] * 3 + [
        "",
        "complete",
    ]
