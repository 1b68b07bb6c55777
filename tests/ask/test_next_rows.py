"""Which rows to measure next: after them the cost of a model's step is known best."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import opatlas
from opatlas.ask.query.next_rows import NextRows, calls_of
from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.row.signature import signatures
from opatlas.show.output import USAGE
from opatlas.theory.model_step import Step
from tests.ask.tables import product_rows, write_table

MODEL = "Qwen/Qwen3-32B"
DECODE = Step(MODEL, batch=16, context=1024)
TOKENS = (1, 2, 4, 8, 16, 32, 64)
STEP = ("--batch", "16", "--context", "1024")
WEIGHTS = ((256, 1024), (1024, 256), (1024, 1024), (4096, 1024), (1024, 4096))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sizes = [(m, n, k) for m in TOKENS for n, k in WEIGHTS]
    write_table(
        tmp_path / "db", "MatMulV2", product_rows(sizes, [5 + n * k / 1e6 + m * n * k / 1e8 for m, n, k in sizes])
    )
    return tmp_path / "db"


def planned(folder: Path, n: int = 1000) -> NextRows:
    return opatlas.open(folder).next_rows(n, [DECODE])


def products(found: NextRows) -> list[opatlas.NextRow]:
    return [row for row in found.rows if row.kernel_type == "MatMulV2"]


def test_the_rows_are_those_of_the_step_and_lower_its_error(folder: Path) -> None:
    found = planned(folder)
    assert {(row.kernel_type, row.signature) for row in found.rows} == {
        (call.kernel_type, call.signature()) for call in calls_of(DECODE)
    }
    gains = [row.gain for row in found.rows]
    assert gains == sorted(gains, reverse=True)
    now, waiting, after = found.error
    assert now == waiting
    assert after == pytest.approx(now - sum(gains), abs=1e-9)
    assert after < 1e-6


def test_fewer_rows_are_the_first_of_more(folder: Path) -> None:
    few, more = planned(folder, 3), planned(folder)
    assert list(few.rows) == list(more.rows[:3])
    assert few.error[2] > more.error[2]


def test_a_measured_row_is_not_planned_and_a_waiting_one_counts_as_measured(folder: Path) -> None:
    before = planned(folder)
    first, second = products(before)[:2]
    table = Database(folder).read("MatMulV2").frame
    rows = pd.DataFrame([dict(first.cells), dict(second.cells)]).fillna("")
    rows["Average Duration(us)"] = [f"{first.duration_us:.4f}", ""]
    rows["Status"] = ["measured", ""]
    write_table(folder, "MatMulV2", pd.concat([table, rows]).fillna(""))
    after = planned(folder)
    assert {row.signature for row in products(after)} == {row.signature for row in products(before)[2:]}
    now, waiting, _ = after.error
    assert (after.waiting, waiting < now < before.error[0]) == (1, True)


def test_a_row_that_another_implementation_measured_is_not_planned(tmp_path: Path) -> None:
    device = tmp_path / "data" / "NVIDIA_H200"
    torch = device / "torch" / "torch2.11.0_cuda13.0"
    write_table(torch, "Sort", product_rows([(1, 1, 1)], [5]))
    before = next(row for row in planned(torch).rows if row.kernel_type == "SwiGlu")
    row = {**before.cells, "Average Duration(us)": "5.0", "Status": "measured", "Quality": "quiet"}
    flashinfer = device / "flashinfer" / "flashinfer0.5.3_torch2.11.0_cuda13.0"
    write_table(flashinfer, "SwiGlu", pd.DataFrame([row]))
    assert before.signature not in {row.signature for row in planned(torch).rows if row.kernel_type == "SwiGlu"}


@pytest.mark.parametrize("stack", ["mine,torch", "torch,mine"])
def test_the_row_is_planned_that_would_have_answered(
    folder: Path, stack: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = products(planned(folder))
    measured = pd.DataFrame([dict(row.cells) for row in before]).fillna("")
    own = {"Average Duration(us)": "9.0", "Status": "measured", "Quality": "quiet"}
    # Torch has measured all rows of the step, mine has others.
    table = Database(folder).read("MatMulV2").frame
    write_table(folder / "implementations" / "mine-1.0", "MatMulV2", table)
    write_table(folder, "MatMulV2", pd.concat([table, measured.assign(**own)]).fillna(""))
    (folder / "stack.txt").write_text(stack)
    after = planned(folder)
    # Its rows wait in the CSV for mine, and torch needs none.
    assert after.waiting == (len(before) if stack.startswith("mine") else 0)
    (folder / "MatMulV2.csv").unlink()
    write_table(folder, "MatMulV2", table)
    found = products(planned(folder))
    assert {row.implementation for row in found} == {stack.split(",")[0]}
    assert main(["model", MODEL, str(folder), *STEP, "--next", "1000"]) == 0
    printed = capsys.readouterr().out
    assert ("--implementation torch,mine" in printed) == stack.startswith("mine")


def test_the_command_adds_rows_that_a_replay_reads_and_a_second_one_adds_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["model", MODEL, str(folder), *STEP, "--next", "3"]
    before = {path.name: path.read_bytes() for path in folder.glob("*.csv")}
    assert main([*call, "--dry-run", "--json"]) == 0
    told_rows = {(row["kernel_type"], row["signature"]) for row in json.loads(capsys.readouterr().out)["rows"]}
    assert {path.name: path.read_bytes() for path in folder.glob("*.csv")} == before
    expected = {(row.kernel_type, row.signature) for row in planned(folder, 3).rows}
    assert told_rows == expected
    assert main(call) == 0
    database = Database(folder)
    assert len(list(database.runs_dir.glob("*.json"))) == 1
    added = {
        (name, signature)
        for name in database.kernel_types()
        for signature in signatures(name, database.read(name).frame)
        if name != "MatMulV2" or signature not in opatlas.open(folder).answers.stored_rows(name, "torch").by_signature
    }
    assert added == expected
    assert main(call) == 0
    printed = capsys.readouterr().out
    assert all(kernel_type in printed for kernel_type, _ in expected)
    assert sum(len(database.read(name).frame) for name in database.kernel_types()) == len(TOKENS) * len(WEIGHTS) + 6


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--next", "0"], "0"),
        (["--dry-run"], "--next"),
        (["--next", "1", "--implementation", "torch"], "--implementation"),
        (["--next", "1", "--tp", "7"], "tp 7"),
        (["--next", "1", "--dtype", "INT3"], "INT3"),
    ],
)
def test_impossible_rows_are_wrong_usage(
    folder: Path, options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", MODEL, str(folder), *STEP, *options]) == USAGE
    assert named in capsys.readouterr().err
