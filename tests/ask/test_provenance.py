"""The provenance of a number: captured or replayed, device, instrument; one device answers for a database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
from captures import launch, write_capture

import opatlas
from opatlas.cli.main import main
from opatlas.data.database import Database
from opatlas.theory.model_calls import model_calls
from opatlas.theory.sources import resolve_model
from tests.ask.tables import RUN, product_rows, write_table

MODEL = "Qwen/Qwen3-32B"
UNNAMED = "an unnamed NPU"
CPU, GPU, NPU = "AMD_EPYC", "NVIDIA_H100", "Ascend910B3"
CAPTURED_US, REPLAYED_US = 5.86, 19.9
OWN = {"Type": "MyOwnKernel", "Duration(us)": "3.8"}


def replay_of(folder: Path, device: str, *, us: float = REPLAYED_US, run: str = RUN) -> None:
    """A replay of all rows but those of MyOwnKernel, with captured durations."""
    runs = folder / "runs"
    runs.mkdir(exist_ok=True)
    manifest = {"device": {"name": device}, "packages": {}, "started_at": 1.0, "statuses": {"measured": 1}}
    (runs / f"{run}.json").write_text(json.dumps(manifest))
    for path in folder.glob("[!.]*.csv"):
        if path.stem != "MyOwnKernel":
            table = Database(folder).read(path.stem).frame
            own = {"Average Duration(us)": str(us), "Run ID": run, "Instrument": "wall-clock", "Quality": "quiet"}
            table.assign(**own, Status="measured").to_csv(path, index=False)


def ingested(folder: Path, device: str) -> Path:
    launches = [
        launch(type="RmsNorm", duration=str(CAPTURED_US), shapes="64,1024;1024", out="64,1024;64,1"),
        launch(OWN),
    ]
    capture = write_capture(folder.with_suffix(".capture") / "kernel_details.csv", launches)
    named = ["--device", device] if device else []
    assert main(["ingest", "--profiling-path", str(capture), "--database-path", str(folder), *named]) == 0
    return folder


def asked(folder: Path, capsys: pytest.CaptureFixture[str], *question: str) -> dict[str, object]:
    capsys.readouterr()
    assert main(["query", str(folder), *question, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def origin(answer: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(answer[name] for name in ("duration_us", "source", "device", "implementation"))


RMS = ("RmsNorm", "64,1024", "1024")


@pytest.mark.parametrize(("named", "captured_on", "replayed_on"), [("", UNNAMED, CPU), (NPU, NPU, GPU)])
def test_a_captured_database_answers_with_its_own_device_also_where_another_one_replayed_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str, captured_on: str, replayed_on: str
) -> None:
    folder = ingested(tmp_path / "db", named)
    replay_of(folder, replayed_on)
    answer = asked(folder, capsys, *RMS)
    assert origin(answer) == (CAPTURED_US, "captured", captured_on, "torch_npu")
    assert [origin(rival) for rival in answer["rivals"]] == [(REPLAYED_US, "replayed", replayed_on, "torch")]  # type: ignore[attr-defined]
    assert main(["query", str(folder), *RMS]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("captured", captured_on, "replayed", replayed_on, "19.9"))
    own = asked(folder, capsys, "MyOwnKernel", *launch()["Input Shapes"].strip('"').split(";"))
    assert origin(own) == (3.8, "captured", captured_on, "torch_npu")
    assert own["rivals"] == []
    database = opatlas.open(folder)
    rows = Database(folder).read("RmsNorm").frame
    (line,) = database.query_many("RmsNorm", rows).to_dict("records")
    assert [line[name] for name in ("Duration(us)", "Source", "Device")] == [CAPTURED_US, "captured", captured_on]
    for kernel_type in ("RmsNorm", "MyOwnKernel"):
        (typed,) = database.frame(kernel_type).to_dict("records")
        assert [typed[name] for name in ("source", "device", "implementation")] == [
            "captured",
            captured_on,
            "torch_npu",
        ]
    assert main(["export", str(folder), "--output", str(tmp_path / "rows.csv")]) == 0
    table = pd.read_csv(tmp_path / "rows.csv")
    assert set(table["device"]) == {captured_on}
    assert set(table["source"]) == {"captured"}
    assert set(table["implementation"]) == {"torch_npu"}
    capsys.readouterr()
    assert main(["show", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["device"], list(shown["captured_on"])) == (captured_on, [captured_on])
    assert [name.split()[0] for name in shown["devices"]] == [replayed_on]
    assert main(["show", str(folder)]) == 0
    page = capsys.readouterr().out
    assert captured_on in page
    assert replayed_on in page


@pytest.mark.parametrize("named", ["", NPU, "ATLAS_800_A2_376T_64G"])
def test_a_replay_on_the_device_of_the_capture_answers_and_the_capture_is_a_rival(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    folder = ingested(tmp_path / "db", named)
    replay_of(folder, NPU)
    answer = asked(folder, capsys, *RMS)
    assert origin(answer) == (REPLAYED_US, "replayed", NPU, "torch_npu")
    (rival,) = answer["rivals"]  # type: ignore[misc]
    assert origin(rival) == (CAPTURED_US, "captured", named or UNNAMED, "torch_npu")


def test_a_row_of_another_device_only_does_not_answer_and_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ingested(tmp_path / "db", "")
    write_table(folder, "MatMulV2", product_rows([(16, 512, 1024)], [0]).assign(**{"Average Duration(us)": ""}))
    replay_of(folder, CPU)
    with pytest.raises(opatlas.NoAnswer, match=CPU):
        opatlas.open(folder).query("MatMulV2", "16,1024;512,1024")
    assert main(["query", str(folder), "MatMulV2", "16,1024", "512,1024"]) == 1
    # With a captured row of the type: predicted from that, and named.
    rows = pd.concat([Database(folder).read("MatMulV2").frame, product_rows([(32, 512, 1024)], [0])]).fillna("")
    rows["Profiling Average Duration(us)"] = ["", "9.5"]
    rows.iloc[1, list(rows.columns).index("Average Duration(us)")] = ""
    write_table(folder, "MatMulV2", rows)
    answer = opatlas.open(folder).query("MatMulV2", "16,1024;512,1024")
    assert (answer.how, answer.source, answer.device) == ("analytic", "captured", UNNAMED)
    assert [(rival.device, rival.duration_us) for rival in answer.rivals] == [(CPU, REPLAYED_US)]
    assert CPU in answer.note


def test_a_step_has_durations_of_one_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ingested(tmp_path / "db", NPU)
    calls = {
        call.part: call
        for call in model_calls(resolve_model(MODEL), tp=2, batch=2, context=100, phase="decode")
        if call.kernel_type in ("MatMulV2", "RmsNorm", "SwiGlu")
    }
    for kernel_type in ("MatMulV2", "SwiGlu", "RmsNorm"):
        rows = pd.DataFrame([dict(call.cells) for call in calls.values() if call.kernel_type == kernel_type])
        rows["Profiling Average Duration(us)"] = "" if kernel_type == "SwiGlu" else "11"
        write_table(folder, kernel_type, rows.fillna(""))
    replay_of(folder, CPU, us=1000.0)
    found = opatlas.open(folder).model(MODEL, tp=2, batch=2, context=100)
    assert set(found.us_by("device")) == {NPU}
    assert set(found.us_by("source")) == {"captured"}
    parts = {part.part: part for part in found.parts}
    assert (parts["qkv"].us_per_call, parts["qkv"].device) == (11.0, NPU)
    assert parts["act"].how == "missing"
    assert CPU in parts["act"].reason
    asked_for = ["model", MODEL, str(folder), "--tp", "2", "--batch", "2", "--context", "100"]
    capsys.readouterr()
    assert main([*asked_for, "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert (list(written["us_by_device"]), list(written["us_by_source"])) == ([NPU], ["captured"])
    assert main([*asked_for, "--format", "text"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("captured", NPU, CPU))


def test_of_several_replaying_devices_the_one_with_the_most_rows_answers(tmp_path: Path) -> None:
    rows = product_rows([(16, 512, 1024), (32, 512, 1024), (64, 512, 1024)], [5, 6, 70])
    rows.loc[2, "Run ID"] = "20260102T000000-bbbbbb"
    write_table(tmp_path, "MatMulV2", rows)
    for run, device, count in ((RUN, "NVIDIA_H200", 2), ("20260102T000000-bbbbbb", GPU, 1)):
        manifest = {"device": {"name": device}, "packages": {}, "started_at": 1.0, "statuses": {"measured": count}}
        (tmp_path / "runs").mkdir(exist_ok=True)
        (tmp_path / "runs" / f"{run}.json").write_text(json.dumps(manifest))
    database = opatlas.open(tmp_path)
    assert database.query("MatMulV2", "16,1024;512,1024").device == "NVIDIA_H200"
    other = database.query("MatMulV2", "64,1024;512,1024")
    assert (other.device, other.how) == ("NVIDIA_H200", "analytic")
    assert [(rival.device, rival.duration_us) for rival in other.rivals] == [(GPU, 70.0)]
