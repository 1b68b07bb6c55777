"""Mistakes in rows whose results are too large to be checked in full: the sample shows them too."""

from __future__ import annotations

import pytest
import torch
from opatlas.bench.implementations import torch as impl
from replaying import assert_mistake_is_caught, replay_row
from sample_rows_attention import MASK, fia

PAGED = fia("96,4,64", query="96,4,64", key="96,64,128", mask=MASK, query_lengths="6", kv_lengths="6", table="6,16")
PACKED = fia("1024,4,32", query="1024,4,32", key="1024,2,32", mask=MASK, query_lengths="3", kv_lengths="3")
CACHE = "16,2,64;16,2,64;200,32,2,64;200,32,2,64;16 | BF16;BF16;BF16;BF16;INT32 -> 200,32,2,64;200,32,2,64 | BF16;BF16"
GROUPS = "FLOAT16;FLOAT16;;;;;;INT64"
INT8_GROUPS = "INT8;INT8;INT32;FLOAT;;;;INT64"


def with_keywords(name, **changes):
    """The implementation with keyword arguments changed by functions of them."""
    right = getattr(impl, name)
    return lambda *arguments, **keywords: right(
        *arguments, **{**keywords, **{key: change(keywords[key]) for key, change in changes.items()}}
    )


def with_results(name, change):
    right = getattr(impl, name)
    return lambda *arguments, **keywords: change(right(*arguments, **keywords))


def one_line_of(other):
    """A table or a list of matrices whose fourth line is another's."""

    def change(lines):
        lines = lines.clone()
        lines[3] = lines[other]
        return lines

    return change


def every_query_sees_one_more(query, key, value, **keywords):
    """Of the keys of its sequence, in a packed call; the last one sees all anyway."""
    ends, outs = keywords["actual_seq_lengths"], []
    for start, end in zip([0, *ends], ends, strict=False):
        q, k, v = (x[start:end].transpose(0, 1) for x in (query, key, value))
        seen = torch.ones(end - start, end - start, dtype=torch.bool).tril(1)
        attention = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
        outs.append(attention.transpose(0, 1))
    return torch.cat(outs), query.new_empty(0)


def wrong_in_the_middle(y):
    y = y.clone()
    y[100:180] *= 1.2
    return y


right_cache = impl.reshape_and_cache


def without_the_last_token(key, value, key_cache, value_cache, places):
    right_cache(key[:-1], value[:-1], key_cache, value_cache, places[:-1])


def grouped_by(change):
    right = impl.grouped_matmul
    return lambda x, weight, **keywords: right(x, [change(weight[0])], **keywords)


#: The function of opatlas.bench.implementations.torch, its replacement, and a row.
MISTAKES = {
    "one sequence's pages": (
        "fused_infer_attention_score",
        with_keywords("fused_infer_attention_score", block_table=one_line_of(2)),
        "FusedInferAttentionScore",
        PAGED,
    ),
    "last page left out": (
        "fused_infer_attention_score",
        with_keywords("fused_infer_attention_score", actual_seq_lengths_kv=lambda own: [kv - 64 for kv in own]),
        "FusedInferAttentionScore",
        PAGED,
    ),
    "a scale 5 % off": (
        "fused_infer_attention_score",
        with_keywords("fused_infer_attention_score", scale=lambda scale: scale * 1.05),
        "FusedInferAttentionScore",
        PAGED,
    ),
    "a mask off by one": (
        "fused_infer_attention_score",
        every_query_sees_one_more,
        "FusedInferAttentionScore",
        PACKED,
    ),
    "rows in the middle": (
        "softmax",
        with_results("softmax", wrong_in_the_middle),
        "SoftmaxV2",
        "256,4096 | FLOAT -> 256,4096 | FLOAT",
    ),
    "a token not written": ("reshape_and_cache", without_the_last_token, "ReshapeAndCacheNdKernel", CACHE),
    "one group's matrix": (
        "grouped_matmul",
        grouped_by(one_line_of(2)),
        "GroupedMatmul",
        f"256,64;8,64,96;;;;;;8 | {GROUPS} -> 256,96 | FLOAT16",
    ),
    "bias of real numbers": (
        "linear",
        lambda a, weight, bias: a @ weight.mT,
        "MatMulV3",
        "96,4096;96,4096;96 | DT_BF16;DT_BF16;FLOAT -> 96,96 | DT_BF16",
    ),
    "bias of a convolution": (
        "conv2d",
        lambda image, weight, bias, *how: torch.conv2d(image, weight, None, *how),
        "Conv2D",
        "1,256,16,16;32,256,3,3;32 | DT_BF16;DT_BF16;FLOAT | NCHW;NCHW;ND -> 1,32,16,16 | DT_BF16 | NCHW",
    ),
    "bias of integers": (
        "quant_matmul",
        with_keywords("quant_matmul", bias=lambda bias: None),
        "QuantBatchMatmulV3",
        "96,4096;4096,96;96;96 | INT8;INT8;FLOAT;INT32 -> 96,96 | DT_BF16",
    ),
    "bias of a group": (
        "grouped_matmul",
        with_keywords("grouped_matmul", bias=lambda bias: None),
        "GroupedMatmul",
        f"96,2048;4,2048,96;4,96;4,96;;;;4 | {INT8_GROUPS} -> 96,96 | DT_BF16",
    ),
}


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=[f"{kernel_type}-{mistake}" for mistake, (_, _, kernel_type, _) in MISTAKES.items()]
)
def test_mistake_is_caught(monkeypatch, mistake):
    name, wrong, kernel_type, row = MISTAKES[mistake]
    measurement = replay_row(kernel_type, row).measurement
    assert measurement.checked_elements < measurement.total_elements
    assert_mistake_is_caught(monkeypatch, name, wrong, kernel_type, row)
