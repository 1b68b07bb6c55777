"""The cost of a model's step: the parts, their sum, and the missing ones."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest

import opatlas
from opatlas.ask.query.implementation_answers import ImplementationAnswers
from opatlas.cli.main import main
from opatlas.row.columns import CACHE_STATE, INSTRUMENT
from opatlas.theory.model_calls import model_calls
from opatlas.theory.sources import resolve_model
from tests.ask.tables import attention, product_rows, write_table

MODEL, MOE = "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B"
ROLES = ("qkv", "o_proj", "gate_up", "down")
US = 10.0
OUTSIDE = {
    *("embedding", "embedding_all_reduce", "final_norm", "last_tokens"),
    *("lm_head", "logits_cast", "logits_all_gather", "sample"),
}


def sizes() -> dict[str, tuple[int, int, int]]:
    """M, N and K of the products of a layer."""
    found = {}
    for linear in resolve_model(MODEL).linears(2):
        if linear.name in ROLES:
            found[linear.name] = (64, linear.n, linear.k)
    return found


def database(folder: Path, **columns: str) -> Path:
    rows = product_rows(list(sizes().values()), [US] * len(sizes()))
    write_table(folder, "MatMulV2", rows.assign(**columns))
    return folder


def cost(place: Path | str, tp: int = 2) -> opatlas.ModelCost:
    return opatlas.open(place).model(MODEL, tp=tp, batch=64, context=4096)


def test_stored_rows_are_counted_for_each_layer(tmp_path: Path) -> None:
    found = cost(database(tmp_path / "db"))
    parts = {part.part: part for part in found.parts}
    layers = resolve_model(MODEL).layers
    for role in ROLES:
        assert (parts[role].how, parts[role].calls, parts[role].us_per_call) == ("measured", layers, US)
    assert found.us_by_how()["measured"] == pytest.approx(len(ROLES) * layers * US)
    assert found.us == pytest.approx(sum(found.us_by_how().values()))
    low, high = found.interval_us
    assert low < found.us < high


def test_weights_have_the_layout_of_the_rows(tmp_path: Path) -> None:
    calls = model_calls(
        resolve_model(MODEL), tp=2, batch=64, context=4096, phase="decode", dtype="INT8", nz_weights=True
    )
    rows = [call.cells for call in calls if call.kernel_type == "QuantBatchMatmulV3"]
    table = pd.DataFrame(rows).assign(**{"Average Duration(us)": str(US)})
    write_table(tmp_path / "db", "QuantBatchMatmulV3", table)
    found = opatlas.open(tmp_path / "db").model(MODEL, tp=2, batch=64, context=4096, dtype="INT8")
    products = [part for part in found.parts if part.kernel_type == "QuantBatchMatmulV3"]
    assert [(part.how, part.us_per_call) for part in products] == [("measured", US)] * len(ROLES)
    assert all("FRACTAL_NZ" in part.signature for part in products)


def test_the_missing_share_is_of_calls_and_of_their_bytes(tmp_path: Path) -> None:
    found = cost(database(tmp_path / "db"))
    moved = {part.part: part.bytes_per_call for part in found.parts}
    assert moved["down"] > 10 * moved["embedding"] > 0
    assert moved["attention"] > moved["down"] > 10 * moved["cache"] > 0
    assert all(part.us is None and part.reason for part in found.missing)
    assert found.missing_calls_share == pytest.approx(
        sum(part.calls for part in found.missing) / sum(part.calls for part in found.parts)
    )
    assert found.tokens_per_s is None


def test_compositions_answer_where_nothing_else_does(tmp_path: Path) -> None:
    found = cost(database(tmp_path / "db", Quality="composition"))
    assert {part.part for part in found.parts if part.composed} >= set(ROLES)
    assert found.composition_us == pytest.approx(found.us)
    assert cost(database(tmp_path / "own")).composition_us == 0


def test_parts_that_rows_do_not_predict_are_summed_separately(tmp_path: Path) -> None:
    (norm,) = (
        call
        for call in model_calls(resolve_model(MODEL), tp=2, batch=64, context=4096, phase="decode")
        if call.part == "final_norm"
    )
    place = database(tmp_path / "db")
    row = {**norm.cells, "Average Duration(us)": "5", "Instrument": "cupti", "Status": "measured"}
    write_table(place, "AddRmsNorm", pd.DataFrame([row]))
    found = cost(place)
    untold = {part.part for part in found.parts if part.composed is None}
    assert untold == {"attention_norm", "ffn_norm", "final_norm"}
    assert found.untold_us == pytest.approx((63 + 64 + 1) * 5)
    assert found.composition_us == 0


def test_parts_from_rows_of_other_dtypes_are_summed_separately(tmp_path: Path) -> None:
    place = database(tmp_path / "db")
    assert cost(place).other_dtypes_us == 0
    half = opatlas.open(place).model(MODEL, tp=2, batch=64, context=4096, dtype="FLOAT16")
    products = [part for part in half.parts if part.kernel_type == "MatMulV2"]
    assert all(part.other_dtypes for part in products)
    assert half.other_dtypes_us == pytest.approx(half.us)
    # Operands alone, without scales.
    m, n, k = sizes()["qkv"]
    plain = product_rows([(m, n, k)], [US]).assign(**{"Input Data Types": "INT8;INT8"})
    write_table(tmp_path / "quantized", "QuantBatchMatmulV3", plain)
    found = opatlas.open(tmp_path / "quantized").model(MODEL, tp=2, batch=64, context=4096, dtype="INT8")
    assert found.us > 0
    assert found.other_dtypes_us == 0


def test_an_implementation_that_refuses_a_row_does_not_answer_it(tmp_path: Path) -> None:
    """Its durations are of rows that it takes."""
    (call,) = [call for call in model_calls(resolve_model(MOE), batch=64, context=4096) if call.part == "gating"]
    (taken,) = [call for call in model_calls(resolve_model(MOE), batch=8, context=4096) if call.part == "gating"]
    place = tmp_path / "db" / "implementations" / "flashinfer-1"
    write_table(tmp_path / "db", "MoeGatingTopK", pd.DataFrame([{**call.cells, "Average Duration(us)": "30"}]))
    rows = [{**taken.cells, "Average Duration(us)": "3"}, {**call.cells, "Status": "unsupported"}]

    def gating() -> float | None:
        found = opatlas.open(tmp_path / "db").model(MOE, batch=64, context=4096, implementation=["flashinfer", "torch"])
        return next(part.us_per_call for part in found.parts if part.part == "gating")

    write_table(place, "MoeGatingTopK", pd.DataFrame(rows[:1]))
    assert gating() != 30
    write_table(place, "MoeGatingTopK", pd.DataFrame(rows).fillna(""))
    assert gating() == 30
    asked = pd.DataFrame([call.cells])
    assert opatlas.open(tmp_path / "db").query_many("MoeGatingTopK", asked, implementation="flashinfer")["How"][0] == ""


def test_random_routing_asks_for_rows_with_that_load_then_for_equal_ones(tmp_path: Path) -> None:
    experts = [call for call in model_calls(resolve_model(MOE), batch=64, context=4096) if call.nearest]
    equal = [{**call.nearest, "Average Duration(us)": "50"} for call in experts]
    loaded = [{**call.cells, "Average Duration(us)": "70"} for call in experts[:1]]

    notes: list[str] = []

    def parts(folder: str, *rows: dict[str, str], **step: str) -> list[tuple[float | None, str]]:
        write_table(tmp_path / folder, "GroupedMatmul", pd.DataFrame(rows))
        found = opatlas.open(tmp_path / folder).model(MOE, batch=64, context=4096, **step).parts
        notes.append(next(part.note for part in found if part.kernel_type == "GroupedMatmul"))
        return [(part.us_per_call, part.expert_load) for part in found if part.kernel_type == "GroupedMatmul"]

    assert parts("equal", *equal) == [(50, "equal"), (50, "equal")]
    assert parts("both", *equal, *loaded) == [(70, "random"), (50, "equal")]
    captured = [{**call.cells, "Expert Load": "", "Profiling Average Duration(us)": "40"} for call in experts]
    assert parts("captured", *equal, *captured) == [(40, "captured")] * 2
    assert parts("captured and replayed", *equal, *loaded, *captured) == [(70, "random"), (40, "captured")]
    assert [load for _, load in parts("captured", *equal, *captured, routing="equal")] == ["", ""]
    asked = opatlas.open(tmp_path / "captured").query_row("GroupedMatmul", captured[0])
    assert (asked.how, asked.source) == ("analytic", "captured, replayed")
    others = [
        {**call.cells, "Average Duration(us)": "60"}
        for batch in (8, 16, 32, 128)
        for call in model_calls(resolve_model(MOE), batch=batch, context=4096)
        if call.nearest
    ]
    assert [load for _, load in parts("other sizes", *equal, *others)] == ["random", "random"]
    assert "other loads" in notes[-1]
    assert [load for _, load in parts("both", *equal, *loaded, routing="equal")] == ["", ""]
    # Equal rows that the implementation refuses do not replace what those of other sizes tell.
    sizes = [{**row, "Expert Load": ""} for row in others]
    refused = [{**row, "Average Duration(us)": "", "Status": "unsupported"} for row in equal]
    assert [us is not None and load for us, load in parts("refused", *refused, *sizes)] == ["random", "random"]


def test_a_part_has_the_note_of_its_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (call,) = (each for each in attention(1024) if each.part == "attention")
    told = {"Profiling Average Duration(us)": "40", "Runtime metadata_completeness": "mean-lengths"}
    write_table(tmp_path / "db", "FusedInferAttentionScore", pd.DataFrame([{**call.cells, **told}]))
    found = opatlas.open(tmp_path / "db").model(MODEL, tp=2, batch=1, context=1024, phase="prefill")
    (part,) = (each for each in found.parts if each.part == "attention")
    assert "mean length" in part.note
    asked = ["model", MODEL, str(tmp_path / "db"), "--tp", "2", "--batch", "1", "--context", "1024"]
    assert main([*asked, "--phase", "prefill", "--format", "csv"]) == 0
    assert "mean length" in capsys.readouterr().out


def test_shipped_databases_give_the_cost_of_a_step() -> None:
    found = opatlas.open("NVIDIA_H200").model(MODEL, tp=2, batch=64, context=1024)
    calls = model_calls(resolve_model(MODEL), tp=2, batch=64, context=1024, phase="decode")
    assert [(part.part, part.calls) for part in found.parts] == [(call.part, call.calls_per_step) for call in calls]
    assert (found.missing, found.missing_calls_share, found.missing_bytes_share) == ([], 0, 0)
    assert found.time is not None
    assert found.tokens_per_s == pytest.approx(64e6 / found.time.us)
    assert found.time.us > found.us
    assert 0 < found.interval_us[0] < found.us < found.interval_us[1]
    assert found.layers == resolve_model(MODEL).layers
    assert {part.part for part in found.parts if not part.layers} == {
        *OUTSIDE,
        "logits_all_gather",
        "embedding_all_reduce",
    }
    outside = sum(part.us or 0 for part in found.parts if not part.layers)
    assert found.us == pytest.approx(found.us_in_layers + outside)
    shares = found.us_by("cache")
    assert shares["cold"] > shares["warm"] > 0  # Collectives are measured warm.


def test_parts_say_how_their_rows_were_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = database(tmp_path / "NVIDIA_H200/torch/torch2.11.0_cuda13.0", **{CACHE_STATE: "cold", INSTRUMENT: "cupti"})
    found = cost(place)
    conditions = {(part.cache, part.instrument) for part in found.parts if part.part in ROLES}
    assert conditions == {("cold", "cupti")}
    assert {(part.device, part.cache, part.instrument) for part in found.missing} == {("", "", "")}
    assert found.us_by("cache") == {"cold": pytest.approx(found.us)}
    asked = ["model", MODEL, "--tp", "2", "--batch", "64", "--context", "4096", str(place)]
    assert main([*asked, "--format", "text"]) == 0
    told = capsys.readouterr().out
    assert ({"cold", "cupti"} <= set(told.split()), told.count("without missing")) == (True, 2)


def test_the_command_shows_each_part_and_the_missing_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["model", MODEL, str(database(tmp_path / "db")), "--tp", "2", "--batch", "64", "--context", "4096"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["us"] == pytest.approx(sum(part["us"] or 0 for part in found["parts"]))
    assert "attention" in found["missing"]
    assert [found[name] for name in ("tp", "batch", "context", "phase", "dtype")] == [2, 64, 4096, "decode", "BF16"]
    assert found["tokens_per_s"] is None
    assert 0 < found["missing_bytes_share"] < 1
    assert found["interval_of"] == "kernels"
    assert main([*asked, "--format", "csv"]) == 0
    *_, table = capsys.readouterr().out.split("\n\n")
    rows = {row["part"]: row for row in csv.DictReader(table.splitlines())}
    assert rows.keys() == {part["part"] for part in found["parts"]}
    assert [rows["attention"][name] for name in ("how", "each(us)")] == ["missing", ""]
    assert rows["attention"]["note"]
    assert [rows["down"][name] for name in ("how", "each(us)", "note")] == ["measured", str(US), ""]


def test_several_steps_are_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImplementationAnswers, "device_fact", lambda _, name: 150 * 10**9 * (name == "memory_bytes"))
    place = database(tmp_path / "db")
    asked = ["model", MODEL, str(place), "--context", "4096"]
    assert main([*asked, "--tp", "2,3", "--batch", "64,4096", "--json"]) == 0
    fits, large, *undivided = json.loads(capsys.readouterr().out)
    assert fits["us"] == pytest.approx(cost(place).us)
    assert (fits["batch"], fits["memory"]["tokens_left"]) == (64, cost(place).memory.tokens_left)
    problems = [each["problem"].split(":")[0] for each in (large, *undivided)]
    assert problems == ["does not fit the device", "tp 3", "tp 3"]
    assert main([*asked, "--batch", "4096"]) == 2
    assert "does not fit" in capsys.readouterr().err
    assert main(["model", "--list", "--format", "csv"]) == 0
    assert "qwen3-32b" in capsys.readouterr().out


def windowed(folder: Path) -> str:
    """A config.json of experts in MXFP4, with sliding windows and attention sinks."""
    sizes = {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1024}
    experts = {"intermediate_size": 128, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 64}
    stored = {"quantization_config": {"quant_method": "mxfp4"}}
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "gpt_oss", "num_hidden_layers": 4, **sizes, **experts, **stored}))
    return str(path)


def test_differences_from_the_model_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, model = str(database(tmp_path / "db")), windowed(tmp_path / "windowed")
    asked = ["model", model, place, "--batch", "4", "--context", "512"]
    assert main(asked) == 2
    error = capsys.readouterr().err
    assert "MXFP4 experts" in error
    assert "--dtype" in error
    assert main([*asked, "--dtype", "BF16"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("MXFP4", "sinks", "biases"))
    assert main([*asked, "--dtype", "bf16", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = opatlas.open(place).model(model, batch=4, context=512, dtype="BF16")
    assert (printed["dtype"], tuple(printed["differs"])) == ("BF16", found.differs)
    assert (found.layers, cost(place).differs) == (4, ())
    planned = [*asked, "--next", "1", "--dry-run"]
    assert main([*planned, "--dtype", "BF16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differs"] == {"windowed": list(found.differs)}
    assert main(planned) == 2


def test_parts_that_no_row_has_are_missing(tmp_path: Path) -> None:
    place = database(tmp_path / "db")
    sizes = {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1024}
    content = {"model_type": "qwen3_5", "num_hidden_layers": 8, "intermediate_size": 512, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(content))
    found = opatlas.open(place).model(str(tmp_path), batch=4, context=512)
    missing = {part.kernel_type: part.calls for part in found.missing}
    of_delta_nets = ("CausalConv1d", "RecurrentGatedDeltaRule", "fused_gdn_gating_kernel")
    assert {name: missing[name] for name in (*of_delta_nets, "Sigmoid")} == {
        **dict.fromkeys(of_delta_nets, 6),
        "Sigmoid": 2,
    }
    assert found.layers == 8


def test_rows_with_the_dtypes_of_a_call_answer_before_the_first_of_the_stack(tmp_path: Path) -> None:
    place = database(tmp_path / "db")
    half = product_rows(list(sizes().values()), [1.0] * len(sizes())).assign(**{"Input Data Types": "FLOAT16;FLOAT16"})
    write_table(place / "implementations" / "mine-1.0", "MatMulV2", half)
    found = opatlas.open(place).model(MODEL, tp=2, batch=64, context=4096, implementation=("mine", "torch"))
    parts = [part for part in found.parts if part.part in ROLES]
    assert {(part.implementation, part.us_per_call, part.other_dtypes) for part in parts} == {("torch", US, False)}


def test_a_database_that_lies_anywhere_looks_for_no_messages_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = opatlas.open(database(tmp_path / "db"))
    looked_at = list[Path]()
    monkeypatch.setattr(Path, "glob", lambda self, pattern: (looked_at.append(self), iter(()))[1])
    assert opened.messages is None
    assert not [each for each in looked_at if each in tmp_path.parents]


def test_rows_with_scales_of_blocks_answer_before_the_first_of_the_stack(tmp_path: Path) -> None:
    place, fp8 = tmp_path / "db", "FLOAT8_E4M3FN"
    for folder, name, us in (
        (place, MODEL, "90"),
        (place / "implementations" / "mine-1.0", "Qwen/Qwen3-235B-A22B-FP8", "30"),
    ):
        calls = [call.cells for call in model_calls(resolve_model(name), batch=64, context=4096, dtype=fp8)]
        rows = [
            {**cells, "Average Duration(us)": us}
            for cells in calls
            if len(cells["Input Shapes"].split(";")) == 4 and fp8 in cells["Input Data Types"]
        ]
        write_table(folder, "QuantBatchMatmulV3", pd.DataFrame(rows))
    found = opatlas.open(place).model("Qwen/Qwen3-235B-A22B-FP8", batch=64, context=4096)
    assert {part.us_per_call for part in found.parts if part.kernel_type == "QuantBatchMatmulV3"} == {30}
