"""--where: expressions over the cells of a row."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from moods import Mood
from opatlas.plugins.choice import parse_where
from sessions import Sessions, row

from opatlas.row.table import RowTable

PRODUCT = {
    "Input Shapes": "16,5120;25600,5120",
    "Input Data Types": "DT_BF16;DT_BF16",
    "Input Formats": "ND;ND",
    "Output Shapes": "16,25600",
    "Output Data Types": "DT_BF16",
    "Output Formats": "ND",
    "Average Duration(us)": "100.0",
    "MicroBench Std Duration(us)": "25",
    "MicroBench Samples": "20",
    "Cache State": "cold",
    "Quality": "noisy",
    "Status": "measured",
    "Run ID": "20200101T000000-abcdef",
    "my own (note)": "seen",
}
VECTOR = {**dict.fromkeys(PRODUCT, ""), **row(7)}


def selected(text: str, kernel_type: str = "MatMulV2", cells: dict[str, str] = PRODUCT) -> bool:
    (found,) = parse_where(text).selected(RowTable(kernel_type, Path("table.csv"), pd.DataFrame([cells])))
    return found


@pytest.mark.parametrize(
    "text",
    [
        "M == 16 and N == 25600 and K == 5120",
        "m <= 64 and dtype == BF16",
        "dtype == 'DT_BF16' and bfloat16 == dtype",
        "dtype in (INT8, BF16)",
        "'INT8' not in input_data_types",
        "type == matmulv2 or type == Add",
        "'MatMul' in type",
        "8 < tokens < 32",
        "elements == 409600 and bytes > elements",
        "'16,25600' in output_shapes and '16,5120' in input_shapes",
        "duration >= 100 and not duration > 100",
        "noise > 0.2 and quality == noisy and samples == 20",
        "cache == cold and format == ND",
        "run != none",
        "average_duration_us == 100.0",
        "my_own_note == seen",
        "quality != quiet",
        "status in [measured, failed]",
        "m in (16)",
        "dtype in (BF16)",
        "m not in (165)",
    ],
)
def test_what_is_true_of_a_product(text: str) -> None:
    assert selected(text)
    assert not selected(f"not ({text})")


@pytest.mark.parametrize("text", ["m <= 64", "not m <= 64", "duration > 0", "quality != quiet", "noise < 1"])
def test_a_row_that_lacks_what_is_compared_is_not_selected(text: str) -> None:
    assert not selected(text, "Add", VECTOR)


def test_what_a_row_lacks_leaves_the_rest_of_an_expression_alone() -> None:
    assert selected("m <= 64 or type == Add", "Add", VECTOR)
    assert selected("run == none and status == none", "Add", VECTOR)
    assert not selected("m <= 64", "Add", {**VECTOR, "Input Shapes": "a;b"})


@pytest.mark.parametrize(
    "text",
    [
        "().__class__",
        "__import__('os').system('true')",
        "type.upper() == 'ADD'",
        "[n for n in inputs]",
        "lambda: 1",
        "m is n",
        "m ** 9",
        "m * 2 == 32",
        "inputs[0] == (16, 5120)",
        "m <=",
        "",
        "not " * 200 + "m",
        "~" * 490 + "m",
        "f'{m}' == '1'",
        "quality == nosy",
    ],
)
def test_what_is_no_expression_of_cells_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_where(text)


def test_an_unknown_name_is_told_with_its_place() -> None:
    where = parse_where("m <= 64 and dtyp == BF16")
    assert where.names == {"m": 1, "dtyp": 13}
    assert "column 13" in where.unknown([])
    assert re.search(r"\bdtype\b", where.unknown([]))
    assert parse_where("noted == x").unknown(["noted"]) == ""


def test_a_session_runs_the_rows_of_which_it_is_true(sessions: Sessions) -> None:
    sessions.write("Toy", [row(n) for n in (1, 2, 3, 4)])
    assert sessions.run_in_process("--where", "tokens > 2 and status == none").ledger() == {"measured": 2}
    nothing = sessions.run_in_process("--where", "tokens > 1000")
    assert nothing.code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert sessions.run_in_process("--where", "noise > 1000 or quality == drifting").code == 0
    assert re.search(r"^nothing to do +4 ", nothing.output, re.MULTILINE)
    wrong = sessions.run_in_process("--where", "status in (oom, 'faild')")
    assert wrong.code == pytest.ExitCode.USAGE_ERROR
    assert re.search(r"'faild'.*\bfailed\b", wrong.output)


def test_a_stopped_session_with_an_expression_goes_on_with_a_longer_one(sessions: Sessions) -> None:
    sessions.write("Moody", [row(n) for n in (101, Mood.NEEDS_VARIABLE, 102)])
    sessions.run_in_process(MOOD="good")
    stopped = sessions.run_in_process("-x", "--where", "tokens == 101 or tokens > 0")
    assert re.search(r"^not run +\d+ .*\d\.\d min", stopped.output, re.MULTILINE)
    (command,) = re.findall(r"--where .*(?= goes on)", stopped.output)
    assert sessions.run_in_process(*shlex.split(command), MOOD="good").ledger() == {"measured": 2}
