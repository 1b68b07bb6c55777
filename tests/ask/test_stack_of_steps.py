"""Which implementations answer for the calls of a step."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd
import pytest
from tiny_models import CONFIG

import opatlas
from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.run.devices.device import DeviceSpec
from opatlas.theory.config_json import read_config
from opatlas.theory.model_calls import step_calls
from opatlas.theory.model_step import Step
from plugins.steps import read_choice, steps
from tests.ask.tables import attention, write_table

MODEL = "Qwen/Qwen3-32B"
BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
GROUPED = """
from opatlas import implements

VERSION = "1.0"


@implements("GroupedMatmul")
def grouped(x, weight, *, group_list, **more):
    raise NotImplementedError
"""


def stacked(folder: Path, *, named: str = "") -> Path:
    """Attention with a slow row at each power of two in the default, and faster rows of mine at other sizes."""
    lengths = {"torch": [256 << i for i in range(9)], "mine": [i * 700 for i in range(1, 12)]}
    for name, tokens in lengths.items():
        rows = []
        for length in tokens:
            (call,) = (each for each in attention(length) if each.part == "attention")
            us = (20 if name == "torch" else 10) * (1 + length**2 / 1e6)
            rows.append({**call.cells, "Average Duration(us)": f"{us:.3f}", "Status": "measured", "Quality": "quiet"})
        place = folder if name == "torch" else folder / "implementations" / "mine-1.0"
        write_table(place, "FusedInferAttentionScore", pd.DataFrame(rows))
    if named:
        (folder / "stack.txt").write_text(named)
    return folder


@pytest.mark.parametrize(
    ("named", "asked", "answers", "stack"),
    [
        ("", (), "torch", ["torch", "mine 1.0"]),
        ("mine,torch\n", (), "mine 1.0", ["mine 1.0", "torch"]),
        ("gone\nmine, torch", (), "mine 1.0", ["mine 1.0", "torch"]),
        ("mine,torch", ("torch",), "torch", ["torch"]),
        ("", ("mine", "torch"), "mine 1.0", ["mine 1.0", "torch"]),
    ],
)
def test_one_stack_answers_for_neighbouring_sizes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    named: str,
    asked: tuple[str, ...],
    answers: str,
    stack: list[str],
) -> None:
    place = stacked(tmp_path / "db", named=named)
    shipped = opatlas.open(place)
    last = 0.0
    for length in (700, 1024, 1500, 2048, 3000):
        found = shipped.model(MODEL, tp=2, batch=1, context=length, phase="prefill", implementation=asked)
        (part,) = (part for part in found.parts if part.part == "attention")
        assert part.implementation == answers
        assert part.us_per_call is not None
        assert part.us_per_call > last
        last = part.us_per_call
        assert list(found.stack) == stack
    command = ["model", MODEL, str(place), "--tp", "2", "--batch", "1", "--phase", "prefill", "--context", "2048"]
    command += ["--implementation", ",".join(asked)] if asked else []
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stack"] == stack


def test_fastest_mixes_by_the_rule_of_query(tmp_path: Path) -> None:
    place = stacked(tmp_path / "db")
    database = opatlas.open(place)
    for length in (1024, 1400, 2048):
        found = database.model(MODEL, tp=2, batch=1, context=length, phase="prefill", implementation="fastest")
        (part,) = (part for part in found.parts if part.part == "attention")
        (call,) = (each for each in attention(length) if each.part == "attention")
        answer = database.query_row(part.kernel_type, call.cells)
        assert (part.implementation, part.us_per_call) == (answer.implementation, answer.duration_us)
        assert list(found.stack) == ["fastest"]


@pytest.mark.parametrize(("asked", "status"), [("gone", 1), ("mine,gone", 1)])
def test_a_stack_of_implementations_that_are_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: str, status: int
) -> None:
    place = stacked(tmp_path / "db")
    command = ["model", MODEL, str(place), "--batch", "1", "--context", "64"]
    assert main([*command, "--implementation", asked]) == status
    assert "gone" in capsys.readouterr().err
    (place / "stack.txt").write_text("gone\n")
    assert main(command) == 1
    assert "stack.txt" in capsys.readouterr().err


@pytest.mark.parametrize(("scales", "runs"), [({}, ""), (BLOCKS, "mine GroupedMatmul")])
def test_a_measured_step_runs_who_answers_for_the_dtypes_and_scales_of_its_calls(
    tmp_path: Path, scales: dict[str, object], runs: str
) -> None:
    """Torch has rows of products of experts in BF16, mine has them in FP8 with scales of blocks."""
    sizes = {**CONFIG, "hidden_size": 256, "moe_intermediate_size": 128}
    for folder, of_rows in ((tmp_path / "db", {}), (tmp_path / "db" / "implementations" / "mine-1.0", BLOCKS)):
        calls = step_calls(read_config("tiny", {**sizes, **of_rows}), Step.read("tiny,batch=2,context=16"))
        measured = {"Average Duration(us)": "5.0", "Status": "measured", "Quality": "quiet"}
        rows = [{**call.cells, **measured} for call in calls if call.kernel_type == "GroupedMatmul"]
        write_table(folder, "GroupedMatmul", pd.DataFrame(rows))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "grouped_matmul.py").write_text(GROUPED)
    (tmp_path / "config.json").write_text(json.dumps({**sizes, **scales}))
    option = argparse.Namespace(
        step=[read_choice(f"{tmp_path},batch=2,context=16")], implementation=("torch", str(tmp_path / "mine"))
    )
    tables, _ = steps(option, [DeviceSpec("cpu", name="toy")]).rows(Database(tmp_path / "db" / "steps"))
    assert tables["Step"][0]["Step Stack"] == runs
