"""`opatlas show --kernels`, and the pages that list kernels."""

from __future__ import annotations

import json
from difflib import unified_diff
from pathlib import Path

from kernel_pages import generated

from opatlas.cli.main import main
from opatlas.run.registry import KINDS, PROOFS, proof_of, read_facts, replay_spec, replays_of_bench, runs_on_cpu

REPOSITORY = Path(__file__).parents[2]


def shown(capsys, *names):
    """Returns what the command prints as JSON."""
    assert main(["show", "--kernels", *names, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_replay_is_listed_with_what_is_known(capsys):
    found = {kernel["kernel_type"]: kernel for kernel in shown(capsys)["kernels"]}
    assert found.keys() == replays_of_bench().keys()
    assert list(found["RmsNorm"].values()) == [
        *("RmsNorm", "norm", "torch_npu.npu_rms_norm", "meta kernel", "npu, cuda, cpu", "aten._fused_rms_norm")
    ]


def test_chosen_kernels(capsys):
    names = ["matmulv2", "norm", "hcom_allReduce"]
    found = shown(capsys, *names)
    chosen = {kernel["kernel_type"] for kernel in found["kernels"]}
    assert {"MatMulV2", "RmsNorm", "LayerNormV4"} <= chosen
    assert not {"Abs", "MatMulV3"} & chosen
    assert set(found["without_replay"]) == {"hcom_allReduce_", "DSARandomNormal"}
    assert main(["show", "--format", "text", "--kernels", *names]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{name} " in out for name in chosen | {"hcom_allReduce_"})


def test_every_call_is_proven():
    """The findings of tests/npu, with the torch_npu that is not at hand everywhere."""
    calls = {replay_spec(function).npu for function in replays_of_bench().values()}
    assert [call for call in calls if not proof_of(call)] == [], "run `pytest tests/npu --write-npu-proofs`"
    stored = read_facts(PROOFS)
    assert set(stored) <= calls
    assert set(stored.values()) <= set(KINDS)
    assert [call for call, kind in stored.items() if kind == "torch" and runs_on_cpu(call)] == []


def test_what_is_generated_is_up_to_date():
    changed: list[str] = []
    for page, text in generated().items():
        now = (REPOSITORY / page).read_text(encoding="utf-8")
        changed += unified_diff(now.splitlines(), text.splitlines(), page, n=0)
    assert not changed, "\n".join(["run `python -m tests.support.kernel_pages`, which changes:", *changed])
