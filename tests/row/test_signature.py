"""Signatures: equal for the same case, different for another."""

from hashlib import blake2b

import pandas as pd
import pytest
from hypothesis import given, strategies as st

from opatlas.row.columns import INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.row.signature import digest, kernel_types_meant, normalized_kernel_type, signature, signatures

SLOT_COLUMNS = (*INPUT_SLOTS, *OUTPUT_SLOTS)

shape = st.lists(st.integers(1, 10**5), min_size=1, max_size=4)
shapes = st.lists(shape, min_size=1, max_size=4)


def row(shapes="16,32;64,32", dtypes="BF16;BF16", formats="ND;ND", out="16,64", out_dtypes="BF16", out_formats="ND"):
    return dict(zip(SLOT_COLUMNS, (shapes, dtypes, formats, out, out_dtypes, out_formats), strict=True))


def row_of(inputs, dtype="FLOAT", form="ND"):
    count = len(inputs)
    text = ";".join(",".join(map(str, shape)) for shape in inputs)
    return row(text, ";".join([dtype] * count), ";".join([form] * count), text.partition(";")[0], dtype, form)


def same(kernel_type, one, other):
    return signature(kernel_type, one) == signature(kernel_type, other)


def test_dtype_and_format_of_an_absent_slot_do_not_count():
    assert same("X", row("4;", "FLOAT;DT_UNDEFINED", "ND;NULL"), row("4", "FLOAT", "ND"))
    assert not same("X", row("4;", "FLOAT;FLOAT", "ND;ND"), row("4", "FLOAT", "ND"))


def test_a_slot_of_attention_without_dimensions_is_absent_whatever_its_dtype():
    shapes, formats = "3,4,128;99,128,128;99,128,128;();;3", "ND;ND;ND;ND;ND;ND"
    with_dtypes = row(shapes, "BF16;BF16;BF16;BF16;UINT8;INT64", formats, "3,4,128;()", "BF16;FLOAT")
    without = row(shapes.replace("()", ""), "BF16;BF16;BF16;;;INT64", "ND;ND;ND;;;ND", "3,4,128", "BF16")
    for kernel_type in ("FusedInferAttentionScore", "FlashAttentionScore"):
        assert same(kernel_type, with_dtypes, without)
    assert not same("Add", with_dtypes, without)


@pytest.mark.parametrize("kernel_type", ["Slice", "SliceAiCore", "Transpose", "TransposeAiCore"])
def test_inputs_that_only_describe_the_call_do_not_count(kernel_type):
    assert same(kernel_type, row("4,8;2", "FLOAT;INT64"), row("4,8;3;3", "FLOAT;INT64;INT64"))
    assert not same(kernel_type, row("4,8;2", "FLOAT;INT64"), row("4,9;2", "FLOAT;INT64"))


def test_the_steps_of_the_axes_do_not_count_for_an_index():
    dtypes, formats = "BF16;INT64;INT64;INT64", "ND;ND;ND;ND"
    captured = row("16,5120;1;2;11", dtypes, formats, out="11,5120")
    assert same("Index", captured, row("16,5120;1;;11", "BF16;INT64;;INT64", formats, out="11,5120"))
    assert same("Index", captured, row("16,5120;1;11;1", dtypes, formats, out="11,5120"))
    one_row = row("16,5120;1;2;1", dtypes, formats, out="1,5120")
    assert same("Index", one_row, row("16,5120;1;1;1", dtypes, formats, out="1,5120"))
    assert not same("Index", one_row, row("16,5120;1;2;1", dtypes, formats, out="2,5120"))


def test_ep_size_belongs_to_dispatch_ffn_combine_only():
    eight, sixteen = {**row(), "EP Size": "8"}, {**row(), "EP Size": "16"}
    assert not same("DispatchFFNCombine", eight, sixteen)
    assert same("MatMulV3", eight, sixteen)


LOADS = st.one_of(
    st.just("random"),
    st.floats(0.1, 3).map("power law {:.2f}".format),
    st.lists(st.integers(0, 99), min_size=1).map(lambda rows: ",".join(map(str, rows))),
)


@given(one=LOADS, other=LOADS)
def test_an_expert_load_is_another_row_of_kernels_of_experts(one, other):
    plain, first, second = ({**row(), "Expert Load": load} for load in ("", one, other))
    for kernel_type in ("GroupedMatmul", "GroupedMatmulSwigluQuant", "DispatchFFNCombine", "MoeDistributeCombineV2"):
        assert same(kernel_type, plain, row())
        assert not same(kernel_type, plain, first)
        assert same(kernel_type, first, second) == (one == other)
    assert same("MatMulV3", first, second)


def test_attention_rows_that_differ_in_sequence_lengths_only():
    short, long = ({**row(), "Runtime actual_seq_lengths_kv_values": f"[{n}, {n}]"} for n in (128, 4096))
    assert not same("FusedInferAttentionScore", short, long)


@pytest.mark.parametrize("column", ["Runtime avg_seq_len", "avg_seq_len", "Runtime block_table_valid_blocks"])
@pytest.mark.parametrize("kernel_type", ["FusedInferAttentionScore", "LightningIndexer", "SparseFlashAttention"])
def test_the_mean_length_counts_where_the_lengths_are_not_known(kernel_type, column):
    short, long = {**row(), column: "2"}, {**row(), column: "32"}
    assert not same(kernel_type, short, long)
    assert not same(kernel_type, short, row())
    lengths = {"Runtime actual_seq_lengths_kv_values": "128,4096"}
    assert same(kernel_type, {**short, **lengths}, {**long, **lengths})
    assert same("Add", short, long)


@pytest.mark.parametrize("average", ["4096", "4096.0", " 4095.7 "])
def test_a_mean_length_counts_as_a_replay_takes_it(average):
    attention = "FusedInferAttentionScore"
    assert same(attention, {**row(), "avg_seq_len": "4096"}, {**row(), "Runtime avg_seq_len": average})
    # Older tools write -1 for a length that is not known.
    assert same(attention, row(), {**row(), "avg_seq_len": "-1"})


@pytest.mark.parametrize(
    ("name", "normalized"),
    [
        ("split_qkv_rmsnorm_rope_kernel_0", "split_qkv_rmsnorm_rope_kernel"),
        ("muls_add_kernel_1", "muls_add_kernel"),
        ("MatMulV2", "MatMulV2"),
        ("hcom_broadcast__483_0", "hcom_broadcast__483_0"),
        (" Add ", "Add"),
    ],
)
def test_launch_variants_of_triton_kernels_are_one_type(name, normalized):
    assert normalized_kernel_type(name) == normalized
    assert normalized_kernel_type(normalized) == normalized


@given(shapes)
def test_spelling_does_not_matter(inputs):
    plain = row_of(inputs)
    spelled = {
        column: f'"{cell}"' if "Shapes" in column else cell.replace("FLOAT", "DT_FLOAT").replace("ND", "FORMAT_ND")
        for column, cell in plain.items()
    }
    assert same("Add", plain, spelled)


@given(shapes, st.data())
def test_every_dimension_matters(inputs, data):
    which = data.draw(st.integers(0, len(inputs) - 1))
    at = data.draw(st.integers(0, len(inputs[which]) - 1))
    changed = [list(shape) for shape in inputs]
    changed[which][at] += 1
    assert not same("Add", row_of(inputs), {**row_of(changed), "Output Shapes": row_of(inputs)["Output Shapes"]})


@given(shapes, st.data())
def test_every_dtype_matters(inputs, data):
    which = data.draw(st.integers(0, len(inputs) - 1))
    plain = row_of(inputs)
    dtypes = plain["Input Data Types"].split(";")
    dtypes[which] = "INT8"
    assert not same("Add", plain, {**plain, "Input Data Types": ";".join(dtypes)})


@given(st.lists(shapes, min_size=1, max_size=5))
def test_a_table_gets_the_signatures_of_its_rows(tables):
    rows = [row_of(inputs) for inputs in tables]
    assert signatures("Slice", pd.DataFrame(rows)) == [signature("Slice", row) for row in rows]


@pytest.mark.parametrize(
    ("kernel_type", "cells", "text"),
    [
        ("MatMulV3", row('"16,32;64,32"', "DT_BF16;BF16"), "16,32;64,32|BF16;BF16|ND;ND|16,64|BF16"),
        ("X", row("4;;5", "FLOAT;;INT8", "ND;ND;FORMAT_NZ"), "4;;5|FLOAT;;INT8|ND;;NZ|16,64|BF16"),
        ("X", row("X4", "FLOAT", "ND"), "X4|FLOAT|ND|16,64|BF16"),
        ("X", row("4;5", "FLOAT", "ND;ND"), "4;5|FLOAT;|ND;ND|16,64|BF16"),
        ("X", row("4", "FLOAT;INT8", "ND;ND"), "4;|FLOAT;INT8|ND;ND|16,64|BF16"),
        ("X", row("4;5", "FLOAT;INT8", "ND"), "4;5|FLOAT;INT8|ND;|16,64|BF16"),
        ("X", row(out="4;", out_dtypes="FLOAT;"), "16,32;64,32|BF16;BF16|ND;ND|4|FLOAT"),
        ("X", {"Our Note": "no tensors"}, "||||"),
        (
            "Index",
            row("16,5120;1;2;11", "BF16;INT64;INT64;INT64", "ND;ND;ND;ND", out="11,5120"),
            "16,5120;1;11|BF16;INT64;INT64|ND;ND;ND|11,5120|BF16",
        ),
        ("Index", row("16,5120", "BF16", out="", out_dtypes=""), "16,5120|BF16|ND||"),
        ("Index", row("", "", "", out="", out_dtypes=""), "||||"),
        (
            "TransData",
            row("32,32", "BF16", "ND", "2,2,16,16", out_formats="FRACTAL_NZ"),
            "32,32|BF16|ND|2,2,16,16|BF16|FRACTAL_NZ",
        ),
        (
            "FlashAttentionScore",
            row("4,8;;5;", "BF16;BF16;BF16;FLOAT", "ND;ND;ND;ND", "4,8;", "BF16;BF16"),
            "4,8;;5|BF16;;BF16|ND;;ND|4,8|BF16",
        ),
        ("Slice", row("4,8;2;2", "BF16;INT64;INT64", out="4,4"), "4,8|BF16|ND|4,4|BF16"),
        ("Slice", row("", "", "", out="4;5", out_dtypes="BF16;INT8"), "|||4;5|BF16;INT8"),
        ("DispatchFFNCombine", {**row(), "EP Size": " 8 "}, "16,32;64,32|BF16;BF16|ND;ND|16,64|BF16|8"),
        (
            "DispatchFFNCombine",
            {**row(), "EP Size": "8", "Expert Load": ""},
            "16,32;64,32|BF16;BF16|ND;ND|16,64|BF16|8",
        ),
        (
            "FusedInferAttentionScore",
            {**row(), "Runtime actual_seq_lengths_values": '"[1, 2]"', "Runtime input_layout": "'Xtnd'"},
            "16,32;64,32|BF16;BF16|ND;ND|16,64|BF16|[1,2]|||||XTND|",
        ),
        ("hcom_allReduce_", {"message_bytes": "1024.0", "num_devices": "2", "dtype": "DT_BF16"}, "1024|2|BF16|"),
        ("hcom_allReduce_", {"message_bytes": "1024", "num_devices": "2", "dtype": "DT_Q4"}, "1024|2|Q4|"),
    ],
)
def test_a_signature_is_written_as_it_always_was(kernel_type, cells, text):
    """Reports and the ids of cases hold it: those of earlier versions must find their rows."""
    assert signature(kernel_type, cells) == text
    assert signatures(kernel_type, pd.DataFrame([cells])) == [text]


def test_messages_of_msmodeling_are_those_of_opatlas():
    """Its bench writes DT_FP16, where profilers and OpAtlas write FLOAT16."""
    ours = {"message_bytes": "1024", "num_devices": "2", "dtype": "DT_FLOAT16", "topology_tier": "1"}
    assert signature("hcom_allGather_", {**ours, "dtype": "DT_FP16"}) == signature("hcom_allGather_", ours)


def test_a_digest_is_what_it_always_was():
    """Names of cases, and which shard a row is in, derive from it."""
    assert digest("Add", "x") == blake2b(b"Add|x", digest_size=6).hexdigest()


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("MatMulV2", ["MatMulV2"]),
        ("matmulv3", ["MatMulV3"]),
        ("mat_mul", ["MatMulV2", "MatMulV3"]),
        ("add", ["Add", "AddV2"]),
        ("Add", ["Add"]),
        ("Attention", ["FusedInferAttentionScore"]),
        ("AllReduce", ["hcom_allReduce_"]),
        ("all_gather", ["all_gather"]),
        ("Mat", ["Mat"]),
    ],
)
def test_words_of_users_mean_kernel_types(word, meant):
    known = ["Add", "AddV2", "FusedInferAttentionScore", "MatMulV2", "MatMulV3", "hcom_allReduce_"]
    assert kernel_types_meant(word, known) == meant
