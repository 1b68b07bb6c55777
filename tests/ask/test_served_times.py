"""Served times beside predicted steps (`opatlas model --against`)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

import opatlas
from opatlas.ask.query.implementation_answers import ImplementationAnswers
from opatlas.ask.query.sweep import served_costs
from opatlas.cli.main import main
from opatlas.errors import TableError
from tests.ask.test_model_cost import MODEL, cost, database

#: A line of a file of served times.
SERVED = {"model": "q", "hf_id": MODEL, "engine": "vllm", "gpu": "H200", "tp": 2, "ep": 1, "dp": 1, "weights": "bf16"}
SERVED |= {"kv": "", "concurrency": 64, "mean_context": 4096, "tpot_ms": 1.0}


@pytest.mark.parametrize(("late", "share"), [((1.4, 1.4, 1.4), 0.4), ((1.4, 0.7, 1.4), 0.0)])
def test_what_an_engine_adds_is_fitted_on_other_models_as_far_as_it_helps_those(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    late: tuple[float, ...],
    share: float,
) -> None:
    monkeypatch.setattr(ImplementationAnswers, "device", "NVIDIA_H200")
    place, served = database(tmp_path / "db"), tmp_path / "served.csv"
    models = [MODEL, "Qwen/Qwen3-0.6B", "meta-llama/Llama-3.1-8B"]
    lines = pd.DataFrame([{**SERVED, "model": name, "hf_id": name} for name in models])
    for _ in range(2):
        lines.to_csv(served, index=False)
        assert main(["model", "all", str(place), "--against", str(served), "--json"]) == 0
        points = json.loads(capsys.readouterr().out)["points"]
        lines["tpot_ms"] = [each["us"] / 1000 * more for each, more in zip(points, late, strict=True)]
    assert points[0]["error"] == pytest.approx(1 / late[0] - 1)
    assert points[0]["fitted_share"] == pytest.approx(share)
    assert points[0]["fitted_error"] == pytest.approx((1 + share) / late[0] - 1)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["model", "all", str(place), "--against", str(served)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_served_times_are_compared_and_points_left_out_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImplementationAnswers, "device", "NVIDIA_H200")
    place = database(tmp_path / "db")
    us = cost(place).us
    point = {**SERVED, "tpot_ms": us / 1000 / 1.5, "kv_load": 0.5}
    others = [
        {"gpu": "H100"},
        {"weights": "mxfp4"},
        {"hf_id": "x/y"},
        {"kv_load": 0.95},
        {"tp": 3},
        {"concurrency": 65},
        {"model": "w", "hf_id": "Qwen/Qwen3-0.6B", "tpot_ms": us / 1000 * 2},
        {"model": "q again", "concurrency": 66},
    ]
    served = tmp_path / "served.csv"
    pd.DataFrame([point, *({**point, **other} for other in others)]).to_csv(served, index=False)
    assert main(["model", "all", str(place), "--against", str(served), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    points, left, dropped = found["points"], found["refused"], found["dropped"]
    assert [each["concurrency"] for each in points] == [64, 65, 64, 66]
    assert points[0]["error"] == pytest.approx(0.5)
    words = [each["why"] for each in left]
    assert all(word in why for word, why in zip(("H100", "mxfp4", "x/y", "tp 3"), words, strict=True))
    assert ["cache" in each["why"] for each in dropped] == [True]
    # Of `q` one model is left, whatever the labels: nothing says that a share of it would help.
    assert [each["fitted_share"] for each in points] == [0.0] * 4
    assert points[0]["fitted_error"] == points[0]["error"]
    assert main(["model", "r", str(place), "--against", str(served)]) == 1
    told = capsys.readouterr().err
    assert str(served) in told
    assert re.search(r"\br: [^,]* q, w, q again, [^,]*\ball\b", told)


@pytest.mark.parametrize(
    ("column", "cell"),
    [("mean_context", "inf"), ("mean_context", "1e300"), ("tpot_ms", "12,5"), ("tp", "two"), ("kv_load", "95%")],
)
def test_a_served_time_that_is_no_number_is_told_with_its_line_column_and_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, cell: str
) -> None:
    monkeypatch.setattr(ImplementationAnswers, "device", "NVIDIA_H200")
    served, opened = tmp_path / "served.csv", opatlas.open(database(tmp_path / "db"))
    pd.DataFrame([SERVED, {**SERVED, column: cell}]).to_csv(served, index=False)
    with pytest.raises(TableError) as caught:
        served_costs(opened, served, "all", (), lambda _: None)
    assert (caught.value.path, caught.value.line) == (served, 3)
    assert (caught.value.column, caught.value.value) == (column, cell)


def test_served_points_are_read_as_spelled_and_never_as_another_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache in "FP8" was one in BF16 without a word, and 10^17 requests took all memory."""
    monkeypatch.setattr(ImplementationAnswers, "device", "NVIDIA_H200")
    served, opened = tmp_path / "served.csv", opatlas.open(database(tmp_path / "db"))
    others: list[dict[str, object]] = [{}, {"weights": "BF16", "kv": "FP8"}, {"kv": "fp99"}, {"concurrency": 10**17}]
    pd.DataFrame([{**SERVED, **other} for other in others]).to_csv(served, index=False, encoding="utf-8-sig")
    found = served_costs(opened, served, "all", (), lambda _: None)
    assert [each.cost.step.cache_dtype for each in found.points] == ["BF16", "FLOAT8_E4M3FN"]
    assert [point.kv for point, _ in found.refused] == ["fp99", ""]
    assert main(["model", "all", str(tmp_path / "db"), "--against", str(served), "--tp", "8"]) == 2
    served.write_text(served.read_text()[:-30])
    with pytest.raises(TableError):
        served_costs(opened, served, "all", (), lambda _: None)


def test_points_that_rest_on_compositions_of_operators_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No engine runs them: rows of linear attention by torch made steps of Qwen3.5 twice as long as served ones."""
    monkeypatch.setattr(ImplementationAnswers, "device", "NVIDIA_H200")
    place, served = database(tmp_path / "db"), tmp_path / "served.csv"
    pd.DataFrame([SERVED]).to_csv(served, index=False)
    for share, left_out in ((0.05, 0), (0.5, 1)):
        monkeypatch.setattr(opatlas.ModelCost, "composition_us", property(lambda own, share=share: own.us * share))
        main(["model", "all", str(place), "--against", str(served), "--json"])
        found = json.loads(capsys.readouterr().out)
        assert (len(found["points"]), len(found["refused"])) == (1 - left_out, left_out)
