"""`opatlas superkernel`: its report, its JSON, and the comparison of captures with and without SuperKernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from decode_timelines import QWEN3_LAYER, TimelineKernel, decode_steps, write_timeline

from opatlas.cli.main import main
from opatlas.superkernel.advice import Steadiness

GOLDEN = Path(__file__).parent / "golden"


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


def run(*arguments: object) -> int:
    return main(["superkernel", *map(str, arguments)])


def test_the_report_has_all_parts_within_80_columns(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    monkeypatch.chdir(tmp_path)
    kernels = decode_steps(layers=28, steps=3)
    cast = [each.of(kernel_type="Cast") if each.kernel_type == "Muls" else each for each in kernels]
    write_timeline(Path("kernel_details.csv"), cast)
    assert run("kernel_details.csv") == 0
    report = capsys.readouterr().out
    assert max(map(len, report.splitlines())) <= 80
    golden = GOLDEN / "decode.txt"
    if pytestconfig.getoption("--write-golden"):
        golden.write_text(report, encoding="utf-8")
    assert report == golden.read_text(encoding="utf-8")


def test_json_has_what_the_report_has_and_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_timeline(tmp_path / "kernel_details.csv", decode_steps(layers=4, steps=2))
    assert run(path, "--json", "-", "--cap", "3", "--sync", "0") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cap_us"], found["sync_us"], found["kernels"]) == (3.0, 0.0, 2 * (4 * len(QWEN3_LAYER) + 4))
    everything = found["scopes"][-1]
    assert everything["kind"] == "all layers"
    assert everything["saved_us"] == pytest.approx(everything["capped_us"])
    assert [each["gain"] for each in found["measured_by_others"]] == pytest.approx([0.0561, 0.0222], abs=1e-4)
    assert found["advice"]["order"] == ["attention", "layer", "all layers"]


def test_a_comparison_that_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernels = decode_steps(layers=8, steps=3, gap=lambda: 3.0)
    base, new = runs(tmp_path / "base", kernels), runs(tmp_path / "new", fused(kernels))
    json_file = tmp_path / "out.json"
    assert run(new, "--against", base, "--json", json_file) == 0
    report = capsys.readouterr().out
    assert "verdict: passed" in report.splitlines()
    assert max(len(line) for line in report.splitlines() if str(tmp_path) not in line) <= 80
    found = json.loads(json_file.read_text())
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


def states(path: Path) -> dict[str, str]:
    return {check["name"]: check["state"] for check in json.loads(path.read_text())["checks"]}


def test_a_small_gain_is_told_and_what_is_wrong_fails(tmp_path: Path) -> None:
    kernels = decode_steps(layers=8, steps=3, gap=lambda: 0.5)
    base, new = runs(tmp_path / "base", kernels), runs(tmp_path / "new", fused(kernels))
    out = tmp_path / "out.json"
    assert run(new, "--against", base, "--json", out) == 0
    assert (states(out)["gain"], json.loads(out.read_text())["verdict"]) == ("gain below gate", "gain below gate")

    unsteady = runs(tmp_path / "unsteady", fused(kernels), factors=(0.6, 0.9, 1.3))
    assert run(unsteady, "--against", base, "--json", out) == 1
    assert states(out)["steps of new"] == "failed"

    assert run(base, "--against", base, "--json", out) == 1
    assert (states(out)["gain"], states(out)["SuperKernel rows"]) == ("failed", "failed")
    assert run(base, "--against", new, "--json", out) == 1
    assert states(out)["SuperKernel rows"] == "failed"


def test_one_run_counts_its_steps_and_captures_without_steps_count_as_one(tmp_path: Path) -> None:
    kernels = decode_steps(layers=4, steps=5)
    base = write_timeline(tmp_path / "base.csv", kernels)
    new = write_timeline(tmp_path / "new.csv", fused(kernels))
    out = tmp_path / "out.json"
    assert run(new, "--against", base, "--json", out) == 0
    found = json.loads(out.read_text())
    assert [len(each) for each in found["old"]["runs"]] == [5]
    assert len(found["notes"]) == 2, "one run each"
    write_timeline(new, [each.of(step="N/A") for each in fused(kernels)])
    assert run(new, "--against", base, "--json", out) == 0
    found = json.loads(out.read_text())
    assert ([len(each) for each in found["old"]["runs"]], len(found["notes"])) == ([1], 3)
    assert states(out)["steps of old"] == "not given"


@pytest.mark.parametrize(
    ("variation", "steadiness"),
    [
        (0.0, Steadiness.EXCELLENT),
        (0.049, Steadiness.EXCELLENT),
        (0.05, Steadiness.GOOD),
        (0.1, Steadiness.MORE_RUNS),
        (0.2, Steadiness.MORE_RUNS),
        (0.21, Steadiness.BAD),
    ],
)
def test_classes_of_variation(variation: float, steadiness: Steadiness) -> None:
    assert Steadiness.of(variation) is steadiness


@pytest.mark.parametrize(
    ("options", "status", "named"),
    [
        (["--against", "CAPTURE", "--phase", "decode"], 2, "--phase"),
        (["--against", "nowhere"], 1, "nowhere"),
        (["--module-map", "nowhere"], 1, "nowhere"),
    ],
)
def test_wrong_usage_names_what_is_wrong(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    status: int,
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_timeline(Path("CAPTURE"), decode_steps(layers=2, steps=1))
    assert run("CAPTURE", *options) == status
    assert named in capsys.readouterr().err
