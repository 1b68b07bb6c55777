"""`opatlas show --kernels`, and the pages that list kernels."""

from __future__ import annotations

import json
import subprocess
import sys
from difflib import unified_diff
from pathlib import Path

import pytest
from kernel_pages import PAGE, as_page

from opatlas.cli.kernels import as_text, kernels
from opatlas.cli.main import main
from opatlas.engine.kernel_facts import KINDS, proof_of, read_proofs, replays_of_bench, runs_on_cpu
from opatlas.engine.registry import replay_spec

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    """A terminal on which each line has all columns."""
    monkeypatch.setenv("COLUMNS", "1000")


def test_every_replay_has_its_line():
    lines = as_text(kernels()).splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(kernels())]] == [known.kernel_type for known in kernels()]
    assert {known.kernel_type for known in kernels()} == set(replays_of_bench())


def test_a_line_has_the_known_facts(capsys):
    assert main(["show", "--kernels"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("RmsNorm "))
    known = "RmsNorm norm torch_npu.npu_rms_norm meta kernel npu, cuda, cpu aten._fused_rms_norm"
    assert " ".join(line.split()) == known


def test_chosen_kernels_and_their_json(tmp_path, capsys):
    path = tmp_path / "kernels.json"
    assert main(["show", "--kernels", "matmulv2", "norm", "hcom_allReduce", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    names = {kernel["kernel_type"]: kernel for kernel in found["kernels"]}
    assert {"MatMulV2", "RmsNorm", "LayerNormV4"} <= set(names)
    assert not {"Abs", "MatMulV3"} & set(names)
    assert names["RmsNorm"]["npu_call"] == "torch_npu.npu_rms_norm"
    assert set(found["without_replay"]) == {"hcom_allReduce_", "DSARandomNormal"}
    shown = capsys.readouterr().out
    assert all(f"\n{name} " in shown for name in names)


def test_names_that_choose_nothing_are_refused(capsys):
    assert main(["show", "--kernels", "Matmulx"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["show", "--kernels"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if line.startswith("RmsNorm ")] == ["RmsNorm"]


def test_it_does_not_wait_for_torch():
    code = (
        "import sys; from opatlas.cli.main import main; main(['show', '--kernels']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, capture_output=True)


def test_every_call_is_proven():
    """The findings of tests/npu, with the torch_npu that is not at hand everywhere."""
    calls = {replay_spec(function).npu for function in replays_of_bench().values()}
    assert [call for call in calls if not proof_of(call)] == [], "run `pytest tests/npu --write-npu-proofs`"
    stored = read_proofs()
    assert set(stored) <= calls
    assert set(stored.values()) <= set(KINDS)
    assert [call for call, kind in stored.items() if kind == "torch" and runs_on_cpu(call)] == []


def test_the_page_is_up_to_date():
    page = (REPOSITORY / PAGE).read_text(encoding="utf-8")
    changed = list(unified_diff(page.splitlines(), as_page(kernels()).splitlines(), PAGE, n=0))
    assert not changed, "\n".join(["run `python -m tests.support.kernel_pages`, which changes:", *changed])
