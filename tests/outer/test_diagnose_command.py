"""`opatlas diagnose`: its output, the prompt, answers of an endpoint with faults, and two captures side by side."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from captures import cells
from chat_server import ChatServer, Fault, chat_server
from checked import write_manifest

from opatlas.cli.main import main
from opatlas.errors import UsageError
from opatlas.outer.diagnosis import improve
from opatlas.outer.diagnosis.diagnosis import diagnose
from opatlas.outer.diagnosis.peaks import known_peaks, read_peaks
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level
from opatlas.run.implementation_catalog import read_directory
from tests.ask.tables import RUN, product_rows, write_table
from tests.outer.planted import PIPES, capture, kernel

_ROOT = Path(__file__).parents[2]
_SWIGLU = cells("4096,3072", "4096,1536")
_KERNELS = [
    kernel(90.0, "SwiGlu", **_SWIGLU, aiv_mte2_ratio="0.93", aiv_vec_ratio="0.31"),
    kernel(30.0, "SwiGlu", **_SWIGLU, aiv_mte2_ratio="0.95", aiv_vec_ratio="0.30"),
    kernel(40.0, "MyKernel", blocks="1", wait="25", aiv_scalar_ratio="0.9"),
    kernel(9.0, "Cast", core="AI_CPU"),
    kernel(70.0, "hcom_allReduce_", core="HCCL"),
]
_DEVICE = "ATLAS_800_A2_313T_64G"
_CODE = 'import torch\n\n\ndef kernel(x, dim):\n    """Doubles."""\n    return x * 2\n'
_ANSWER = f"The copy is the bottleneck.\n\n```python\n{_CODE}```\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return capture(tmp_path, _KERNELS)


def test_the_ranking_and_a_kernel_of_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(path), "--peaks", _DEVICE, "--format", "csv"]) == 0
    tables = [list(csv.reader(table.splitlines())) for table in capsys.readouterr().out.split("\n\n")]
    (ranking,) = (table for table in tables if table[0][0] == "#")
    assert [(*row[1:4], row[-1]) for row in ranking[1:]] == [
        ("SwiGlu", "4096,3072", "2", "memory bound"),
        ("MyKernel", "16,32;64,32", "1", "not enough work"),
        ("Cast", "16,32;64,32", "1", "latency bound"),
    ]
    # The work of the second is not known, so neither are its roofline and its loss.
    assert [[bool(cell) for cell in row[6:8]] for row in ranking[1:]] == [[True] * 2, [False] * 2, [True] * 2]
    assert main(["diagnose", str(path), "--peaks", _DEVICE, "--row", "2", "--format", "text"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert {"not enough work", "scalar bound", "host-bound"} <= set(shown)
    assert ["aiv_scalar_ratio", "0.9"] in map(str.split, shown)


def test_the_prompt(path: Path, golden: Callable[[str, str], None]) -> None:
    found = diagnose(path, known_peaks(_DEVICE))
    code = '@triton.jit\ndef swiglu(x):\n    """Has ``` in it."""\n'
    wishes = ["use double buffer", "vectorize with 16 elements"]
    asked = improve.prompt_text(
        found, found.ranking[1], source=code, interface="def kernel(x, dim): ...\n", wishes=wishes
    )
    golden("prompt.md", asked)


@pytest.mark.parametrize(
    "code", ["import te\n", "from tbe import dsl\n", "def f(x):\n    return te.compute(x.shape, f)\n"]
)
def test_code_of_tbe_is_told_what_can_be_run(
    code: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(code)
    assert main(["diagnose", str(path), "--source", str(tmp_path / "own.py"), "--output", str(tmp_path / "out")]) == 0
    assert "Triton-Ascend" in capsys.readouterr().out
    constraints = (tmp_path / "out" / "prompt.md").read_text().partition("## Constraints")[2]
    assert "written in Triton-Ascend" in constraints


def _json(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> Any:
    """Returns the JSON of `opatlas diagnose`."""
    capsys.readouterr()
    assert main(["diagnose", *map(str, arguments), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_prompts_have_the_interface_of_kernels_with_a_replay(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = tmp_path / "out" / "prompt.md"
    command = ["diagnose", str(path), "--output", str(tmp_path / "out")]
    assert _json(capsys, *command[1:], "--row", "1")["kernel_type"] == "SwiGlu"
    assert '@implements("SwiGlu")' in prompt.read_text()
    assert "4096,3072 bfloat16" in prompt.read_text()
    source = tmp_path / "mine.cpp"
    source.write_text("class MyKernel {};")
    assert main([*command, "--row", "2", "--source", str(source)]) == 0
    text = prompt.read_text()
    assert "```cpp\nclass MyKernel {};\n```" in text
    assert "@implements" not in text


def test_the_row_of_a_database_keeps_what_its_signature_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    header = "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats"
    row = '"9,8;5,8,7;;;;;;5",DT_BF16;DT_BF16;;;;;;INT64,ND;ND;;;;;;ND,"9,7",DT_BF16,ND'
    (tmp_path / "GroupedMatmul.csv").write_text(
        f"{header},Expert Load,Runtime avg_seq_len,Average Duration(us)\n{row},random,40,9.5\n"
    )
    found: dict[str, str] = {}
    monkeypatch.setattr(
        "opatlas.outer.diagnosis.improve._interface", lambda kind, cells, out: found.update(cells) or ""
    )
    _json(capsys, tmp_path, "--row", "1", "--output", tmp_path / "out")
    assert (found["Expert Load"], found["Runtime avg_seq_len"]) == ("random", "40")


class PlannedBench:
    """In place of RowBench: nothing is measured, and each candidate gets the next of some judgements."""

    name = "planned"
    baseline = type("Measured", (), {"samples_us": (90.0,)})()

    def __init__(self, path: Path, judgements: list[Judgement]) -> None:
        self._path, self._judgements = path, judgements

    def __enter__(self) -> PlannedBench:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def judge(self, path: Path, language: str) -> Judgement:
        return self._judgements.pop(0)

    def diagnosis(self, measured: object) -> Any:
        return diagnose(self._path)


WRONG = Judgement(ErrorClass.MISMATCH, text="1 of 4 elements differs")
FASTER = Judgement(ErrorClass.PASS, "", Level.MEASURED, duration_us=30.0, baseline_us=90.0)
SLOWER = Judgement(
    ErrorClass.RULE, "not-faster", Level.MEASURED, "the results are right", duration_us=99.0, baseline_us=90.0
)


def _posting(path: Path, url: str, folder: Path, model: str = "m") -> list[str]:
    """Returns the command that has a model improve the first kernel of the ranking."""
    models = folder.parent / "models.yaml"
    models.write_text(json.dumps({"models": {model: {"endpoint": url, "max_tokens": 77}}, "attempts": 4}))
    return ["diagnose", str(path), "--row", "1", "--models", str(models), "--output", str(folder)]


def test_what_was_found_of_an_answer_is_told_until_one_is_faster(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(improve, "RowBench", lambda *_: PlannedBench(path, [WRONG, SLOWER, FASTER]))
    answers = ["I cannot.", _ANSWER, _ANSWER, _ANSWER]
    server = ChatServer(lambda body: answers.pop(0))
    folder = tmp_path / "kernels"
    with chat_server(server) as asked:
        command = _posting(path, asked.url, folder, "Qwen/Q-3")
        content = _json(capsys, *command[1:], "--wish", "use double buffer")
        # What is recorded is not asked again.
        assert main([*command, "--wish", "use double buffer"]) == 0
    assert not answers
    first, *repairs = [each["messages"][-1]["content"] for each in server.bodies]
    assert "- use double buffer" in first
    assert "memory bound" in first
    for name, told in zip(("no_code", "mismatch", "not-faster"), repairs, strict=True):
        assert name in told
    assert _CODE in repairs[-1]
    assert [(each["attempt"], each["error_class"], each["speed_up"]) for each in content["attempts"]] == [
        *((0, "answer", None), (1, "mismatch", None), (2, "rule", 90 / 99), (3, "pass", 3.0))
    ]
    lines = [line.split()[:6] for line in capsys.readouterr().out.splitlines()]
    assert ["Qwen/Q-3", "3", "faster", "90", "30", "3.00x"] in lines
    (candidate,) = read_directory(folder)
    assert candidate.source("SwiGlu")


def test_answers_are_measured_on_the_row_against_its_baseline(tmp_path: Path, forks: object) -> None:
    row = {"Input Shapes": "1,4,9,9;4,1,3,3", "Input Data Types": "FLOAT;FLOAT", "Input Formats": "NCHW;NCHW"}
    row |= {"Output Shapes": "1,4,7,7", "Output Data Types": "FLOAT", "Output Formats": "NCHW"}
    code = "import torch\n\n\ndef kernel(x, w, *rest):\n    return torch.conv2d(x, {}, *rest)\n"
    judged = {}
    with improve.RowBench("DepthwiseConv2D", row, tmp_path) as bench:
        for name, weight in (
            ("right", "w"),
            ("wrong", "w.flip(2, 3)"),
            ("raises", "w.no_such_method()"),
            ("broken", "w.("),
        ):
            (tmp_path / f"{name}.py").write_text(code.format(weight))
            judged[name] = bench.judge(tmp_path / f"{name}.py", "")
    # The speed of this machine decides between the two.
    assert judged["right"].name in ("pass", "rule/not-faster")
    assert judged["right"].duration_us
    assert judged["right"].baseline_us
    assert [judged[name].name for name in ("wrong", "raises")] == ["mismatch", "runtime"]
    assert judged["broken"].error_class is ErrorClass.SYNTAX


def test_an_endpoint_without_an_answer(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(improve, "RowBench", lambda *_: PlannedBench(path, []))
    folder = tmp_path / "kernels"
    with chat_server(ChatServer(faults=[Fault.HTML])) as server:
        assert main(_posting(path, server.url, folder)) == 1
    shown = capsys.readouterr()
    assert "HTML" in shown.err
    # There is no kernel to run.
    assert "next:" not in shown.out
    assert (folder / "prompt.md").is_file()


def test_kernels_of_one_operator_are_compared_as_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    trace = _ROOT / "tests" / "data" / "torch_traces" / "qwen3-prefill-eager.pt.trace.json.gz"
    content = _json(capsys, trace, "--against", trace)
    (attention,) = (each for each in content["kernels"] if each["kernel_type"] == "FusedInferAttentionScore")
    # A fill and a kernel, in four calls.
    assert (attention["launches"], attention["old_us"]) == (4, pytest.approx(8.096))


def test_a_change_shows_verdicts_and_counters_side_by_side(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faster = [
        kernel(30.0, "SwiGlu", **_SWIGLU, aiv_mte2_ratio="0.6", aiv_vec_ratio="0.85"),
        *_KERNELS[2:4],
        kernel(1.0, "New"),
    ]
    new = capture(tmp_path / "new", faster)
    content = _json(capsys, new, "--against", path)
    first, *others = content["kernels"]
    assert (content["only_old"], content["only_new"], len(others)) == (0, 1, 2)
    assert (first["old_verdict"], first["new_verdict"]) == ("memory bound", "compute bound")
    assert (first["old_us"], first["new_us"], first["speed_up"]) == (60.0, 30.0, 2.0)
    assert first["counters"]["aiv_mte2_ratio"] == pytest.approx([0.94, 0.6])
    assert {each["speed_up"] for each in others} == {1.0}
    assert main(["diagnose", str(new), "--against", str(path)]) == 0
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    shown = [[cell.strip() for cell in line if cell] for line in lines]
    assert ["1", "SwiGlu", "4096,3072", "60", "30", "2.00x", "memory bound", "compute bound"] in shown
    assert ["1", "aiv_mte2_ratio", "0.94", "0.6"] in shown


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--row", "9"], "choose 1 to 3"),
        (["--source", "kernel.py"], "--output"),
        (["--models", "models.yaml"], "--output"),
        (["--wish", "be fast"], "--output"),
        (["--row", "2", "--models", str(_ROOT / "examples" / "answers" / "demo.yaml"), "--output", "out"], "no replay"),
        (["--against", "nowhere"], "nowhere"),
        (["--against", ".", "--output", "out"], "--output"),
        (["--against", ".", "--row", "1"], "--row"),
        (["--peaks", "ATLAS_800_A2"], "ATLAS_800_A2_313T_64G"),
        (["--row", "0"], "--row"),
        (["--superkernel", "--row", "1"], "--row"),
        (["--superkernel", "--against", "nowhere"], "nowhere"),
    ],
)
def test_wrong_usage(arguments: list[str], named: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(path), *arguments]) == 2
    assert named in capsys.readouterr().err


def test_a_capture_without_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = capture(tmp_path, [])
    assert main(["diagnose", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
    capture(tmp_path, [kernel(core="COMMUNICATION")])
    assert main(["diagnose", str(path), "--against", str(path)]) == 0
    content = _json(capsys, path)
    assert (content["kernels"], content["collectives"], content["ranking"]) == (0, 1, [])
    assert main(["diagnose", str(path)]) == 0


@pytest.mark.parametrize(
    ("second", "launches"),
    [
        # All launches again, in another order and with other durations.
        ([_KERNELS[3], *_KERNELS[:3], _KERNELS[4]], 4),
        # One launch more, which the first capture lacks.
        ([*_KERNELS, kernel(5.0, "New")], 5),
        ([], 4),
    ],
    ids=["same", "longer", "empty"],
)
def test_captures_of_one_run_with_other_counters_are_joined(
    second: list[dict[str, str]], launches: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture(tmp_path / "a", _KERNELS)
    slower = [{**each, "Duration(us)": f"{float(each['Duration(us)']) * 1.1:.1f}"} for each in second]
    l0 = {"aic_l0a_read_bw(GB/s)": "7"}
    capture(tmp_path / "b", [{**each, **l0} for each in slower], tuple(l0))
    capture(
        tmp_path / "c",
        [{**each, "aiv_ub_read_bw_vector(GB/s)": "9"} for each in slower],
        ("aiv_ub_read_bw_vector(GB/s)",),
    )
    content = _json(capsys, tmp_path)
    assert sum(each["launches"] for each in content["ranking"]) == launches
    assert content["kernel_us"] == pytest.approx(90 + 30 + 40 + 9 + (launches - 4) * 5.5)
    first = content["ranking"][0]
    assert (first["kernel_type"], first["launches"], first["duration_us"]) == ("SwiGlu", 2, 120)
    assert first["counters"]["aiv_mte2_ratio"] == 0.93
    if second:
        assert (first["counters"]["aic_l0a_read_bw(GB/s)"], first["counters"]["aiv_ub_read_bw_vector(GB/s)"]) == (7, 9)
        assert "a/kernel_details.csv" in content["joined"]


_MANY = [kernel(20.0, "Small", **cells("7,8", "7,8"))] * 9 + [kernel(100.0, "Large", **cells("5,8", "5,8"))]


@pytest.mark.parametrize(("kernels", "device"), [(_KERNELS, "Ascend910B3"), (_MANY, "Ascend910Z9")])
def test_a_database_of_a_capture_is_ranked_as_the_capture(
    kernels: list[dict[str, str]], device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = capture(tmp_path, kernels)
    folder = tmp_path / "rows"
    assert main(["ingest", "--profiling-path", str(path), "--database-path", str(folder), "--device", device]) == 0
    peaks = ["--peaks", device] if known_peaks(device).origin else []
    of_capture, of_database = _json(capsys, path, *peaks), _json(capsys, folder)
    assert (of_capture["kernel_us"], of_capture["launches"]) == (of_database["kernel_us"], of_database["launches"])
    for one, other in zip(of_capture["ranking"], of_database["ranking"], strict=True):
        assert (one["kernel_type"], one["launches"]) == (other["kernel_type"], other["launches"])
        assert [one[name] for name in ("duration_us", "share", "lost_us")] == pytest.approx(
            [other[name] for name in ("duration_us", "share", "lost_us")]
        )
    assert all(each["captured"] for each in of_database["ranking"])
    assert {each["device"] for each in of_database["ranking"]} == {device}


def test_durations_of_another_device_are_reported_separately_and_not_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "rows"
    path = capture(tmp_path, [kernel(50.0, "MatMulV3", **cells("16,32;64,32", "16,64"))] * 3)
    assert (
        main(["ingest", "--profiling-path", str(path), "--database-path", str(folder), "--device", "Ascend910B3"]) == 0
    )
    write_table(folder, "MatMulV2", product_rows([(16, 64, 32)], [7_000.0]).assign(Implementation="torch 2.13.0"))
    write_manifest(folder, RUN, name="AMD_EPYC")
    content = _json(capsys, folder)
    (only,) = content["ranking"]
    assert (content["device"], content["kernel_us"]) == ("Ascend910B3", 150)
    assert (only["kernel_type"], only["launches"], only["captured"], only["device"], only["by"]) == (
        *("MatMulV3", 3, True),
        *("Ascend910B3", ""),
    )
    assert "AMD_EPYC" in content["left_out"]


def test_lines_without_a_duration_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = capture(tmp_path, [*_KERNELS, {**kernel(), "Duration(us)": "long"}])
    content = _json(capsys, path, status=1)
    assert content["launches"] == 4
    assert f"{path}:7" in content["problems"][0]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("bandwidth_gbps: fast", "bandwidth_gbps"),
        ("bandwith_gbps: 1600", "bandwidth_gbps"),
        ("cube_cores: 1.5", "cube_cores"),
        ("tera_ops: {BF17: 3}", "BF17"),
        ("tera_ops: 300", "BF16: 313"),
        ("- 1", "mapping"),
        ("{", "peaks.yaml"),
    ],
)
def test_peaks_that_are_none(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "peaks.yaml").write_text(text)
    with pytest.raises(UsageError, match=named):
        read_peaks(str(tmp_path / "peaks.yaml"))


def test_peaks_of_a_file_complete_those_of_a_device(tmp_path: Path) -> None:
    (tmp_path / "peaks.yaml").write_text(
        f"device: {_DEVICE}\ntera_ops: {{bf16: 300}}\ncube_cores: 20\nvector_cores: 48\n"
    )
    peaks = read_peaks(str(tmp_path / "peaks.yaml"))
    assert (peaks.peak.bandwidth_gbps, peaks.peak.tera_ops["BF16"], peaks.peak.tera_ops["FLOAT16"]) == (1600, 300, 313)
    found = diagnose(capture(tmp_path, [kernel(blocks="40")], PIPES), peaks)
    assert found.verdicts.first.tolist() == ["not enough work"]
