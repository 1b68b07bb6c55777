"""Real captures of real devices, where a checkout has them beside it; they are not ours to ship."""

from pathlib import Path

import pytest
from captures import table
from printed import numbers_in

from opatlas.capture.capture_discovery import find_captures
from opatlas.capture.cases import Aggregate
from opatlas.capture.launches import SkipReason
from opatlas.cli.main import main
from opatlas.row.quality import find_modes
from opatlas.row.slots import parse_slots

REAL = Path(__file__).parents[3] / "shared/data/ascend_profiler"

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="no captures in ../shared/data/ascend_profiler")


def aggregate_of(name):
    aggregate = Aggregate()
    for path in find_captures(REAL / name).files:
        aggregate.add_file(path)
    account = aggregate.account
    assert account.rows == account.ingested + account.left_out.total()
    return aggregate


def test_an_llm_training_step():
    aggregate = aggregate_of("llm_training_level2_rank0")
    cases = aggregate.cases()
    assert aggregate.problems == []
    assert (aggregate.account.rows, aggregate.account.ingested) == (2463, 2422)
    left_out = {SkipReason.NO_INPUT_SHAPES: 26, SkipReason.COLLECTIVE: 12, SkipReason.OTHER_COLLECTIVE: 3}
    assert dict(+aggregate.account.left_out) == left_out
    assert sum(case.durations.count for case in cases["MatMulV3"]) == 280
    two_kinds = {
        (case.kernel_type, case.cells["Input Shapes"])
        for of_type in cases.values()
        for case in of_type
        if find_modes(case.durations_us)
    }
    assert ("MatMulV2", "4096,4096;4096,1024") in two_kinds
    assert len(two_kinds) == 7
    assert "ApplyAdamWV2" in cases
    assert "MemSet" not in cases


def test_every_case_of_the_llm_step_can_be_read_back(tmp_path):
    database = tmp_path / "database"
    arguments = ["ingest", "--profiling-path", str(REAL / "llm_training_level2_rank0")]
    assert main([*arguments, "--database-path", str(database)]) == 0
    rows = [row for path in database.glob("*.csv") for row in table(path)]
    assert len(rows) == 108
    for row in rows:
        cells = [row[f"Input {what}"] for what in ("Shapes", "Data Types", "Formats")]
        assert parse_slots(*cells, ("Input Shapes", "Input Data Types", "Input Formats"))


@pytest.mark.parametrize("name", ["cnn_level1_rank0", "cnn_level2_rank0"])
def test_a_cnn_step(name):
    aggregate = aggregate_of(name)
    assert aggregate.problems == []
    assert (aggregate.account.rows, aggregate.account.ingested) == (191, 174)


def test_level_0(tmp_path, capsys):
    arguments = ["ingest", "--profiling-path", str(REAL / "cnn_level0_rank0"), "--database-path", str(tmp_path / "d")]
    assert main(arguments) == 1
    assert "level 0" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_another_metric_group_with_a_malformed_row():
    aggregate = aggregate_of("metric_groups")
    (problem,) = aggregate.problems
    place, _, what = problem.rpartition("/")[2].partition(": ")
    assert (place, numbers_in(what)) == ("kernel_details_test_rank_0.csv:17", (31, 32))
    assert aggregate.account.left_out[SkipReason.NO_KERNEL_TYPE] == 2
    assert "aic_l0a_read_bw(GB/s)" in next(iter(aggregate.cases()["Cast"])).counters


@pytest.mark.parametrize("path", sorted(REAL.glob("op_summary/*op_summary*.csv")), ids=lambda path: path.name)
def test_op_summary_files(path):
    assert aggregate_of(path.relative_to(REAL)).account.rows > 0
