"""The features of a row's duration: sizes of products of experts and of attention, partial blocks, axes that move."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import opatlas
from opatlas.ask.query.features import RowFeatures, row_features
from opatlas.row.attention import attention_sizes
from opatlas.row.columns import INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.row.slots import row_slots
from tests.ask.tables import RUN, write_table


def features(kernel_type: str, inputs: str, outputs: str, **others: str) -> RowFeatures:
    dtypes = [";".join("BF16" if shape else "" for shape in cell.split(";")) for cell in (inputs, outputs)]
    cells = dict(zip((*INPUT_SLOTS[:2], *OUTPUT_SLOTS[:2]), (inputs, dtypes[0], outputs, dtypes[1]), strict=True))
    found = row_features(kernel_type, cells | others, 132)
    assert found is not None
    return found


def test_groups_without_rows_are_not_read() -> None:
    few = features("GroupedMatmul", "2,1024;64,1024,512", "2,512")
    many = features("GroupedMatmul", "640,1024;64,1024,512", "640,512")
    weight = 2 * 1024 * 512
    assert 2 * weight < few.work[0] < 3 * weight
    assert 64 * weight < many.work[0] < 66 * weight
    # Each core has a tile, or none.
    assert few.work[1] == 2 * 64 * 128 * 1024


@pytest.mark.parametrize(
    ("load", "filled"), [("", 1), ("random", 128 / 189.7), ("16384" + ",0" * 127, 1), ("1" + ",129" * 127, 1 / 2)]
)
def test_random_routing_begins_tiles_that_it_does_not_fill(load: str, filled: float) -> None:
    """128 rows of each of 128 experts fill its tile of 128; of random ones half have more."""
    found = features("GroupedMatmul", "16384,64;128,64,64", "16384,64", **{"Expert Load": load})
    assert found.fills[0] == pytest.approx(filled, abs=0.01)


def test_products_of_experts_have_larger_tiles_from_129_rows_of_each_expert_on() -> None:
    few, more = (features("GroupedMatmul", f"{8 * rows},64;8,64,256", f"{8 * rows},256") for rows in (128, 129))
    assert (few.fills[0], more.fills[0]) == (1, 129 / 256)
    assert few.regime != more.regime


def test_a_drawn_load_has_whole_experts() -> None:
    """Of 32 experts 3 rows take 2.9 on average, and in the draw of a replay 3."""
    drawn, equal = (
        features("GroupedMatmul", "3,1024;32,1024,512", "3,512", **{"Expert Load": load}) for load in ("random", "")
    )
    assert drawn.work == equal.work


@pytest.mark.parametrize(
    ("m", "n", "k", "scales", "divided", "longest"),
    [
        (64, 2048, 7168, None, True, 3584),
        (64, 2048, 2048, None, False, 2048),
        (512, 8192, 7168, None, False, 2 * 7168),
        (32, 2048, 6144, "16,48;32,48", True, 3072),
        (32, 2048, 5120, "16,40;32,40", False, 5120),
        (64, 2048, 6144, "16,48;64,48", False, 6144),
        (32, 2048, 6144, "2048;32", False, 6144),
    ],
)
def test_k_is_divided_where_kernels_of_an_h200_divide_it(
    m: int, n: int, k: int, scales: str | None, divided: bool, longest: int
) -> None:
    weight = f"{k},{n}" if scales == "2048;32" else f"{n},{k}"
    if scales is None:
        found = features("MatMulV2", f"{m},{k};{weight}", f"{m},{n}")
    else:
        dtypes = {INPUT_SLOTS[1]: "FLOAT8_E4M3FN;FLOAT8_E4M3FN;FLOAT;FLOAT"}
        found = features("QuantBatchMatmulV3", f"{m},{k};{weight};{scales}", f"{m},{n}", **dtypes)
    assert (bool(found.fills[-1]), found.work[2]) == (divided, longest)


@pytest.mark.parametrize(
    ("tokens", "heads", "mask", "longest"),
    [
        # 132 tiles of 128 queries are a wave of 132 cores; one more makes two.
        (128, 132, "", 256),
        (128, 133, "", 512),
        # With a mask, tiles of half and of all keys come in turn.
        (256, 66, "512,512", 384),
        (256, 132, "512,512", 384 + 384),
    ],
)
def test_attention_takes_as_long_as_the_core_with_the_most_keys(
    tokens: int, heads: int, mask: str, longest: float
) -> None:
    inputs = ";".join(f"{tokens},{heads},{size}" for size in (128, 64, 128, 64, 128))
    inputs += f";{mask}"
    assert features("RINGMLAPrefillBF16Kernel", inputs, f"{tokens},{heads},128").work[1] == longest * 2 * 128 * (
        192 + 128
    )


def test_decode_with_few_heads_to_a_key_is_compared_with_its_kind_only() -> None:
    """Engines compute it without tensor cores; a prompt of the same heads with them."""

    def regime(heads: int, queries: int = 1) -> str:
        lengths = {"Runtime actual_seq_lengths_values": f"{queries}", "Runtime actual_seq_lengths_kv_values": "64"}
        facts = {"Runtime num_heads": f"{heads}", "Runtime num_key_value_heads": "2", "Runtime input_layout": "TND"}
        inputs = f"{queries},{heads},128;64,2,128;64,2,128;;;1;1"
        return features("FusedInferAttentionScore", inputs, f"{queries},{heads},128", **lengths, **facts).regime

    assert regime(2) == regime(6) != regime(8) == regime(64)
    assert regime(2, queries=64) == regime(8, queries=64) not in (regime(2), regime(8))


@pytest.mark.parametrize(
    ("first", "result", "moves"),
    [("1,32,128", "32,1,128", 0.0), ("4,32,128", "32,4,128", 1.0), ("4,32,128", "4,32,64", 0.0)],
)
def test_only_axes_that_change_places_move(first: str, result: str, moves: float) -> None:
    assert features("Transpose", first, result).fills[-1] == moves


def test_rows_of_experts_have_typed_columns(tmp_path: Path) -> None:
    row = {
        "Input Shapes": "2,1024;64,1024,512",
        "Input Data Types": "DT_BF16;DT_BF16",
        "Input Formats": "ND;ND",
        "Output Shapes": "2,512",
        "Output Data Types": "DT_BF16",
        "Output Formats": "ND",
        "Average Duration(us)": "5",
        "Status": "measured",
        "Run ID": RUN,
    }
    write_table(tmp_path, "GroupedMatmul", pd.DataFrame([row]))
    (line,) = opatlas.open(tmp_path).frame("GroupedMatmul").to_dict("records")
    assert (line["groups"], line["m"], line["n"], line["k"]) == (64, 2, 512, 1024)
    assert line["tflops"] == pytest.approx(2 * 2 * 512 * 1024 / 5e6)


@pytest.mark.parametrize(("queries", "keys", "before"), [(5, 5, 2), (3, 9, 4), (4, 9, 0), (2, 3, 7)])
def test_a_window_leaves_keys_unread(queries: int, keys: int, before: int) -> None:
    shapes = ";".join([f"{queries},4,16", f"{keys},2,16", f"{keys},2,16"])
    runtime = {"actual_seq_lengths_values": queries, "actual_seq_lengths_kv_values": keys, "sparse_mode": 4}
    cells = {f"Runtime {name}": str(value) for name, value in (runtime | {"pre_tokens": before}).items()}
    inputs, _ = row_slots("x", {"Input Shapes": shapes, "Input Data Types": "BF16;BF16;BF16"})
    found = attention_sizes("FusedInferAttentionScore", inputs, cells)
    own = [keys - queries + i for i in range(queries)]
    seen = {(i, j) for i in own for j in range(keys) if i - before <= j <= i}
    assert found is not None
    assert (found.pairs, found.keys) == (len(seen), len({j for _, j in seen}))


def test_values_that_are_parts_of_the_keys_are_read_once() -> None:
    latent = features(
        "FusedInferAttentionScore",
        ";".join(["64,32,512", "64,32,512", "64,32,512", *[""] * 21, "64,32,64"]),
        "64,32,512",
    )
    assert latent.work[0] == 2 * 64 * 32 * (576 + 576 + 512)
