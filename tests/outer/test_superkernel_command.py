"""`opatlas diagnose --superkernel`: scopes, and the comparison of captures with and without SuperKernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from decode_timelines import QWEN3_LAYER, TimelineKernel, decode_steps, write_timeline

from opatlas.cli.main import main
from opatlas.outer.superkernel.scopes_command import steadiness


def fused(kernels: list[TimelineKernel]) -> list[TimelineKernel]:
    """Steps whose layers are one SuperKernel each, without the gaps inside."""
    found: list[TimelineKernel] = []
    inside = False
    for each in kernels:
        if each.kernel_type in ("GatherV2", "ArgMaxV2"):
            inside = each.kernel_type == "GatherV2"
            found.append(each)
        elif inside and found[-1].kernel_type == "SuperKernel":
            last = found[-1]
            found[-1] = last.of(duration_us=last.duration_us + each.duration_us)
        else:
            found.append(each.of(kernel_type="SuperKernel", core="MIX_AIC", cells={}))
    return found


def runs(folder: Path, kernels: list[TimelineKernel], *, factors: tuple[float, ...] = (1.0, 1.01, 0.99)) -> Path:
    """A folder with a capture for each run; in each the durations are multiplied by a factor."""
    for number, factor in enumerate(factors):
        slower = [each.of(duration_us=round(each.duration_us * factor, 2)) for each in kernels]
        write_timeline(folder / f"run{number}/kernel_details.csv", slower)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> Any:
    """Returns the JSON of the command."""
    assert main(["diagnose", *map(str, arguments), "--superkernel", "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_scopes_with_their_prediction_and_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = decode_steps(layers=28, steps=3)
    cast = [each.of(kernel_type="Cast") if each.kernel_type == "Muls" else each for each in kernels]
    path = write_timeline(tmp_path / "kernel_details.csv", cast)
    found = run(capsys, path)
    assert (found["cap_us"], found["sync_us"], found["kernels"]) == (5.0, 0.5, 3 * (28 * len(QWEN3_LAYER) + 4))
    assert [each["kind"] for each in found["scopes"]] == ["attention", "ffn", "layer", "all layers"]
    assert [(cut["reason"], cut["count"]) for cut in found["cuts"]] == [
        ("type that cannot be fused", 3 * 28),
        ("boundary of steps", 2),
    ]
    assert found["advice"]["order"] == ["attention", "layer", "all layers"]
    assert main(["diagnose", str(path), "--superkernel", "--format", "text"]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    for each in found["scopes"]:
        ending = f"{each['saved_us']:.4g} {each['step_share']:.1%} {each['verdict']}"
        cells = ending.replace("%", " %").split()
        assert cells in [line[-len(cells) :] for line in lines]
    assert found["advice"]["snippet"][1] in shown


def test_a_comparison_that_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = decode_steps(layers=8, steps=3, gap=lambda: 3.0)
    base, new = runs(tmp_path / "base", kernels), runs(tmp_path / "new", fused(kernels))
    found = run(capsys, new, "--against", base)
    assert found["verdict"] == "passed"
    assert {check["name"]: check["state"] for check in found["checks"]} == {
        "gain": "passed",
        "steps of old": "passed",
        "steps of new": "passed",
        "SuperKernel rows": "passed",
    }
    saved = 3.0 * (8 * len(QWEN3_LAYER) + 1)
    mean = found["old"]["mean_us"]
    assert found["gain"] == pytest.approx(saved / mean, rel=0.01)
    assert (found["old"]["class"], len(found["old"]["runs"]), len(found["old"]["runs"][0])) == ("excellent", 3, 3)
    assert (found["old"]["super_kernels"], found["new"]["super_kernels"]) == (0, 9)


def states(found: Any) -> dict[str, str]:
    return {check["name"]: check["state"] for check in found["checks"]}


def test_a_small_gain_is_reported_and_wrong_input_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = decode_steps(layers=8, steps=3, gap=lambda: 0.5)
    base, new = runs(tmp_path / "base", kernels), runs(tmp_path / "new", fused(kernels))
    found = run(capsys, new, "--against", base)
    assert (states(found)["gain"], found["verdict"]) == ("gain below gate", "gain below gate")

    unsteady = runs(tmp_path / "unsteady", fused(kernels), factors=(0.6, 0.9, 1.3))
    assert states(run(capsys, unsteady, "--against", base, status=1))["steps of new"] == "failed"

    found = run(capsys, base, "--against", base, status=1)
    assert (states(found)["gain"], states(found)["SuperKernel rows"]) == ("failed", "failed")
    assert states(run(capsys, base, "--against", new, status=1))["SuperKernel rows"] == "failed"
    assert main(["diagnose", str(base), "--superkernel", "--against", str(new)]) == 1
    assert "no baseline" in capsys.readouterr().out


def test_one_run_counts_its_steps_and_captures_without_steps_count_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = decode_steps(layers=4, steps=5)
    base = write_timeline(tmp_path / "base.csv", kernels)
    new = write_timeline(tmp_path / "new.csv", fused(kernels))
    found = run(capsys, new, "--against", base)
    assert [len(each) for each in found["old"]["runs"]] == [5]
    assert len(found["notes"]) == 2, "one run each"
    write_timeline(new, [each.of(step="N/A") for each in fused(kernels)])
    found = run(capsys, new, "--against", base)
    assert ([len(each) for each in found["old"]["runs"]], len(found["notes"])) == ([1], 3)
    assert states(found)["steps of old"] == "not given"


def log(path: Path, decode_ms: list[float], model: str = "deepseek-v3") -> Path:
    """The output of cann-recipes-infer, whose first step compiles."""
    steps = [("prefill", 900.0), ("decode", 5000.0), *(("decode", each) for each in decode_ms)]
    path.write_text("".join(f"INFO {model} inference time cost of {phase} is {ms:.2f} ms\n" for phase, ms in steps))
    return path


def test_logs_of_two_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = log(tmp_path / "baseline.log", [31.4, 31.5, 31.6, 31.5])
    new = log(tmp_path / "optimized.log", [27.0, 27.1, 26.9, 27.0])
    found = run(capsys, new, "--against", old)
    assert (found["verdict"], states(found)["gain"]) == ("passed", "passed")
    assert (found["old"]["mean_us"], found["gain"]) == (pytest.approx(31_500), pytest.approx(1 - 27 / 31.5))
    assert "SuperKernel rows" not in states(found)
    assert any("DeepSeek-V3" in note and "moe" in note for note in found["notes"])
    assert states(run(capsys, old, "--against", new, status=1))["gain"] == "failed"
    new.write_text("no step here\n")
    assert main(["diagnose", str(new), "--superkernel", "--against", str(old)]) == 1
    assert "optimized.log" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variation", "name"),
    [
        (0.049, "excellent"),
        (0.05, "good"),
        (0.1, "more runs needed"),
        (0.2, "more runs needed"),
        (0.21, "too unsteady"),
    ],
)
def test_classes_of_variation(variation: float, name: str) -> None:
    assert steadiness(variation) == name
