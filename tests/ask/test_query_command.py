"""`opatlas query`: one call, a file of calls, and wrong usage."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from opatlas.cli.main import main
from tests.ask.tables import RUN, product_rows, write_table

SIZES = [(m, n, 1024) for m in (1, 2, 4, 8, 16, 32, 64, 128) for n in (512, 1024, 2048)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = product_rows(SIZES, [5 + m * n / 1e5 for m, n, _ in SIZES])
    pooled = {"Pooled Machines": "3", "Pooled Machine Spread(%)": "1.5", "Pooled Run Durations(us)": f"{RUN}:5"}
    conditions = {"Cache State": "cold", "Instrument": "cupti"}
    write_table(tmp_path / "db", "MatMulV2", rows.assign(**conditions, **pooled))
    return tmp_path / "db"


def asked(folder: Path, capsys: pytest.CaptureFixture[str], *question: str) -> dict[str, Any]:
    """The JSON output of the command."""
    capsys.readouterr()
    assert main(["query", str(folder), *question, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_stored_call_answers_with_its_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["MatMulV2", "16,1024", "512,1024", "--dtypes", "BF16"]
    found = asked(folder, capsys, *call)
    assert found["duration_us"] == pytest.approx(5 + 16 * 512 / 1e5, abs=1e-4)
    assert (found["how"], found["run_ids"]) == ("measured", [RUN])
    assert [found[name] for name in ("cache", "instrument", "machines")] == ["cold", "cupti", 3]
    assert main(["query", str(folder), *call]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("measured", "cold", "cupti", RUN, "5.082"))


def test_words_that_people_use_ask_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = asked(folder, capsys, "MatMulV2", "16,1024", "512,1024")["rows"]
    for words in (("matmul", "16x1024", "512x1024"), ("mat_mul_v2", "16,1024", "512X1024")):
        assert asked(folder, capsys, *words)["rows"] == call
    shipped = Path("NVIDIA_H200")
    found = asked(shipped, capsys, "attention", "64x1@4096", "64/8")
    assert (found["kernel_type"], found["how"]) == ("FusedInferAttentionScore", "measured")
    for wrong in (["64x1@4096"], ["64x1@4096", "64"], ["64@1", "64/8"], ["2x1@9+1x1@8", "64/8"]):
        assert main(["query", str(shipped), "attention", *wrong]) == 2


def test_the_lines_of_a_file_are_answered(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = tmp_path / "rows.csv"
    product_rows([(16, 512, 1024), (24, 512, 1024)], [0, 0]).to_csv(questions, index=False)
    call = ["query", str(folder), "MatMulV2", "--file", str(questions)]
    assert main([*call, "--format", "csv"]) == 0
    written = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert written["How"].tolist() == ["measured", "interpolated"]
    assert written["Input Shapes"].tolist() == ["16,1024;512,1024", "24,1024;512,1024"]
    assert written["Duration(us)"][0] == pytest.approx(5 + 16 * 512 / 1e5, abs=1e-4)
    assert (written["Low(us)"] < written["High(us)"]).all()
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answers"] == {"measured": 1, "interpolated": 1}


def test_a_line_without_an_answer_has_status_1(folder: Path, tmp_path: Path) -> None:
    questions = tmp_path / "rows.csv"
    product_rows([(16, 512, 1024)], [0]).assign(**{"Input Shapes": "x;y"}).to_csv(questions, index=False)
    assert main(["query", str(folder), "MatMulV2", "--file", str(questions)]) == 1


def test_a_collective_is_asked_by_bytes_and_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = {"message_bytes": "4096", "num_devices": "2", "dtype": "DT_BF16", "topology_tier": "1"}
    folder = tmp_path / "data" / "NVIDIA_H200" / "nccl" / "2.28.9"
    write_table(folder, "hcom_allReduce_", pd.DataFrame([{**message, "Duration(us)": "7.5", "Status": "measured"}]))
    found = asked(folder, capsys, "all_reduce", "4096", "2")
    assert [found[name] for name in ("duration_us", "implementation", "device")] == [7.5, "nccl 2.28.9", "NVIDIA_H200"]
    for wrong in (["4096"], ["4096", "x"], ["4096", "2", "1"], ["4096", "2", "--implementation", "torch"]):
        assert main(["query", str(folder), "all_reduce", *wrong]) == 2


def test_a_misspelt_collective_and_a_stored_dtype_are_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", str(folder), "allreduced", "4096", "2"]) == 1
    assert "all_reduce" in capsys.readouterr().err
    assert main(["query", str(folder), "MatMulV2", "24,1024", "512,1024", "--dtypes", "FLOAT16"]) == 1
    assert "BF16;BF16" in capsys.readouterr().err


@pytest.mark.parametrize("dtypes", ["BF16;BF16;FLOAT;INT8", "BF16;BF16;;", "BF16;BF16"])
@pytest.mark.parametrize("stored", ["DT_BF16;DT_BF16;FLOAT;INT8", "DT_BF16;DT_BF16;DT_UNDEFINED;DT_UNDEFINED"])
def test_an_absent_input_is_found_with_its_default_dtype_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stored: str, dtypes: str
) -> None:
    rows = product_rows([(16, 512, 1024)], [7.0]).assign(
        **{"Input Shapes": "16,1024;512,1024;;", "Input Data Types": stored, "Input Formats": "ND;ND;ND;ND"}
    )
    write_table(tmp_path, "MatMulV3", rows)
    found = asked(tmp_path, capsys, "MatMulV3", "16,1024", "512,1024", "--dtypes", dtypes)
    assert (found["how"], found["duration_us"]) == ("measured", 7.0)


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ([], 2),
        (["16,1024", "512,1024", "--file", "rows.csv"], 2),
        (["--file", "rows.csv", "--dtypes", "BF16"], 2),
        (["16,1024"], 1),
        (["--file", "missing.csv"], 1),
        (["16,1024", "512,1024", "--implementation", "other"], 1),
    ],
)
def test_questions_without_an_answer_have_a_status(folder: Path, options: list[str], status: int) -> None:
    assert main(["query", str(folder), "MatMulV2", *options]) == status
