"""The patterns of attention, of mixtures of experts and of the fused split of queries, keys and values.

Their slots share many sizes, which is shorter in Python than in catalog.yaml. catalog.yaml names them like its own
patterns. The Runtime cells of attention rows give the lengths of sequences; all sequences of a row have the same
length. A decoding step has one query or a few for each sequence, a prefill has many. Tokens are spread evenly over the
experts of a device.
"""

from __future__ import annotations

from typing import Any

from opatlas.row.columns import EP_SIZE, RUNTIME_PREFIX
from opatlas.theory.patterns import Expression, Lengths, parse_expression

#: Tokens of a page of the cache in vLLM-Ascend.
BLOCK_SIZE = 128

#: Queries of each sequence: one, or a few with speculative decoding, in a decoding step; more in a prefill.
_DECODE_QUERIES = [1, 2, 4]
_QUERIES = [*_DECODE_QUERIES, 128, 512, 1024, 2048, 4096, 8192]
#: Grids of the catalog: sequences of a step, and keys of each sequence.
_SEQUENCES, _KEYS = "sequences", "key_lengths"

_GROUPED_HEADS = {"from": "attention", "generic": {"q": [4, 8, 16, 32], "kv": [1, 4], "d": [128]}}
_LATENT_HEADS = {
    "from": "latent",
    "generic": {"q": [4, 16, 32], "lora": [512], "nope": [128], "rope": [64], "v": [128]},
}
_PAGES = {"pages": f"(k + {BLOCK_SIZE - 1}) // {BLOCK_SIZE}", "blocks": "s * pages"}
#: Limits of a step: tokens as in the products, keys as in a cache, and pairs of queries and keys as in the last chunk
#: of the longest prompt. Engines divide prompts into chunks of 8192 tokens by default.
_BOUNDS = ["k >= t", "s * t <= 32768", "s * k <= 2097152", "s * t * k <= 8192 * 65536"]

#: The size of the mask that the kernel takes for any causal mask.
_MASK = [2048, 2048]
_FIA_SLOTS = 31
_QUERY, _KEY, _VALUE, _MASK_SLOT, _QUERY_LENGTHS, _KV_LENGTHS = 0, 1, 2, 4, 5, 6
_TABLE, _QUERY_ROPE, _KEY_ROPE = 14, 24, 25
_DTYPES = {_MASK_SLOT: "INT8", _QUERY_LENGTHS: "INT64", _KV_LENGTHS: "INT64", _TABLE: "INT32"}


def _runtime(**values: str | Expression | Lengths) -> dict[str, str | Expression | Lengths]:
    return {RUNTIME_PREFIX + name: value for name, value in values.items()}


def _causal(queries: str, keys: Lengths) -> dict[str, str | Expression | Lengths]:
    """Returns the Runtime cells of queries (tokens, heads, D) that see the keys up to their own position."""
    return _runtime(
        actual_seq_lengths_shape=parse_expression("s"),
        actual_seq_lengths_values=Lengths(parse_expression("s"), parse_expression(queries), sums=True),
        actual_seq_lengths_kv_shape=parse_expression("s"),
        actual_seq_lengths_kv_values=keys,
        avg_seq_len=parse_expression("k"),
        num_key_value_heads=parse_expression("kv"),
        sparse_mode="3",
        input_layout="TND",
    )


def _fused(
    slots: dict[int, list[Any]], output: list[str], cells: dict[str, str | Expression | Lengths], **more: Any
) -> dict[str, Any]:
    """Returns a pattern of FusedInferAttentionScore. Other slots and the second output, the log-sum-exp, are absent."""
    dtypes = [_DTYPES.get(slot, "BF16") if slot in slots else "" for slot in range(_FIA_SLOTS)]
    return {
        **more,
        "inputs": [slots.get(slot) for slot in range(_FIA_SLOTS)],
        "outputs": [output],
        "forms": [f"{';'.join(dtypes)} -> BF16"],
        "cells": {
            **cells,
            **_runtime(num_heads=parse_expression("q"), source_profile="theory", metadata_completeness="complete"),
        },
    }


#: Queries (tokens, heads, D), keys and values in pages (blocks, block size, heads * D).
PAGED = _fused(
    {
        _QUERY: ["s * t", "q", "d"],
        _KEY: ["blocks", BLOCK_SIZE, "kv * d"],
        _VALUE: ["blocks", BLOCK_SIZE, "kv * d"],
        _MASK_SLOT: _MASK,
        _QUERY_LENGTHS: ["s"],
        _KV_LENGTHS: ["s"],
        _TABLE: ["s", "pages"],
    },
    ["s * t", "q", "d"],
    {
        **_causal(queries="t", keys=Lengths(parse_expression("s"), parse_expression("k"))),
        **_runtime(block_size=str(BLOCK_SIZE)),
    },
    axes={"s": _SEQUENCES, "t": _QUERIES, "k": _KEYS, "heads": _GROUPED_HEADS},
    let=_PAGES,
    where=_BOUNDS,
)

#: Queries and keys (tokens, heads, D), the sequences one after the other: prefill without a cache.
PACKED = _fused(
    {
        _QUERY: ["s * k", "q", "d"],
        _KEY: ["s * k", "kv", "d"],
        _VALUE: ["s * k", "kv", "d"],
        _MASK_SLOT: _MASK,
        _QUERY_LENGTHS: ["s"],
        _KV_LENGTHS: ["s"],
    },
    ["s * k", "q", "d"],
    _causal(queries="k", keys=Lengths(parse_expression("s"), parse_expression("k"), sums=True)),
    axes={"s": _SEQUENCES, "k": _KEYS, "heads": _GROUPED_HEADS},
    where=["s * k <= 32768", "s * k * k <= 8192 * 65536"],
)

#: Multi-head latent attention, absorbed: queries (sequences, heads, t, latent), results (heads, sequences, t,
#: latent), one cache of pages that is keys and values, and rope parts of both.
LATENT = _fused(
    {
        _QUERY: ["s", "q", "t", "lora"],
        _KEY: ["blocks", 1, BLOCK_SIZE, "lora"],
        _VALUE: ["blocks", 1, BLOCK_SIZE, "lora"],
        _KV_LENGTHS: ["s"],
        _TABLE: ["s", "pages"],
        _QUERY_ROPE: ["s", "q", "t", "rope"],
        _KEY_ROPE: ["blocks", 1, BLOCK_SIZE, "rope"],
    },
    ["q", "s", "t", "lora"],
    _runtime(
        actual_seq_lengths_kv_shape=parse_expression("s"),
        actual_seq_lengths_kv_values=Lengths(parse_expression("s"), parse_expression("k")),
        avg_seq_len=parse_expression("k"),
        num_key_value_heads="1",
        sparse_mode="0",
        input_layout="BNSD_NBSD",
        block_size=str(BLOCK_SIZE),
    ),
    axes={"s": _SEQUENCES, "t": _DECODE_QUERIES, "k": _KEYS, "heads": _LATENT_HEADS},
    let=_PAGES,
    where=_BOUNDS,
)


def _ring(keys: str, *, first: bool) -> dict[str, Any]:
    """Returns a step of latent attention's prefill: the first, causal one, or one that continues it (slots 13, 14)."""
    optional: list[Any] = [[512, 512], *[None] * 9] if first else [*[None] * 8, ["t", "q", "v"], ["q", "t"]]
    dtypes = ["BF16"] * 6 + [""] * 9 if first else ["BF16"] * 5 + [""] * 8 + ["BF16", "FLOAT"]
    return {
        "axes": {"t": "tokens", **({} if first else {"k": _KEYS}), "heads": _LATENT_HEADS},
        "where": ["t <= 8192", "t >= 16"] if first else ["t <= 8192", "t >= 16", "k <= 8192", "k >= 16"],
        "inputs": [
            *([tokens, "q", width] for tokens, width in (("t", "nope"), ("t", "rope"))),
            *([keys, "q", width] for width in ("nope", "rope", "v")),
            *optional,
        ],
        "outputs": [["t", "q", "v"], ["q", "t"]],
        "forms": [f"{';'.join(dtypes)} -> BF16;FLOAT"],
    }


#: The selection of keys for each query: queries (tokens, heads, D), keys in pages, weights, lengths, block table.
LIGHTNING_INDEXER = {
    "axes": {
        "s": _SEQUENCES,
        "t": _QUERIES,
        "k": _KEYS,
        "index": {"from": "indexer", "generic": {"q": [32], "d": [128], "top": [2048]}},
    },
    "let": _PAGES,
    "where": _BOUNDS,
    "inputs": [["s * t", "q", "d"], ["blocks", BLOCK_SIZE, 1, "d"], ["s * t", "q"], ["s"], ["s"], ["s", "pages"]],
    "outputs": [["s * t", 1, "top"]],
    "forms": ["BF16;BF16;BF16;INT32;INT32;INT32 -> INT32"],
    "cells": _runtime(avg_seq_len=parse_expression("k")),
}

#: Latent attention to the selected keys: queries, the cache twice, indices, block table, lengths, rope parts.
SPARSE = {
    "axes": {
        "s": _SEQUENCES,
        "t": _QUERIES,
        "k": _KEYS,
        "heads": {"from": "sparse", "generic": {"q": [4, 16], "lora": [512], "rope": [64], "top": [2048]}},
    },
    "let": _PAGES,
    "where": _BOUNDS,
    "inputs": [
        ["s * t", "q", "lora"],
        ["blocks", BLOCK_SIZE, 1, "lora"],
        ["blocks", BLOCK_SIZE, 1, "lora"],
        ["s * t", 1, "top"],
        ["s", "pages"],
        ["s"],
        ["s"],
        ["s * t", "q", "rope"],
        ["blocks", BLOCK_SIZE, 1, "rope"],
    ],
    "outputs": [["s * t", "q", "lora"]],
    "forms": ["BF16;BF16;BF16;INT32;INT32;INT32;INT32;BF16;BF16 -> BF16"],
    "cells": _runtime(avg_seq_len=parse_expression("k")),
}


_EXPERTS = {"from": "experts", "generic": {"e": [8, 64], "w": [1024], "h": [2048], "top": [8], "ep": [1]}}
_ROUTER = {"from": "router", "generic": {"e": [64, 256], "top": [8], "h": [2048]}}


def _grouped(m: str, k: str, n: str, *, quantized: bool) -> dict[str, Any]:
    """Returns a grouped product of x (M, K) and weights (E, K, N), with group ends (slot 7), perhaps scales (3, 8)."""
    scales = [["e", n], None, None, None, ["e"], [m]] if quantized else [None, None, None, None, ["e"], None]
    forms = (
        [
            "INT8;INT8;;FLOAT;;;;INT64;FLOAT | ND;FRACTAL_NZ;;ND;;;;ND;ND -> BF16",
            "FLOAT8_E4M3FN;FLOAT8_E4M3FN;;FLOAT;;;;INT64;FLOAT | ND;FRACTAL_NZ;;ND;;;;ND;ND -> BF16",
        ]
        if quantized
        else ["BF16;BF16;;;;;;INT64; -> BF16"]
    )
    return {
        "axes": {"m": "tokens", "experts": _EXPERTS},
        "inputs": [[m, k], ["e", k, n], None, *scales],
        "outputs": [[m, n]],
        "forms": forms,
    }


def _grouped_blocks(m: str, k: str, n: str) -> dict[str, Any]:
    """Returns a grouped product in FP8 of x (M, K) and weights (E, N, K), with scales of blocks as in DeepSeek-V3."""
    rows, columns = f"({n} + 127) // 128", f"({k} + 127) // 128"
    return {
        "axes": {"m": "tokens", "experts": _EXPERTS},
        "inputs": [[m, k], ["e", n, k], None, ["e", rows, columns], None, None, None, ["e"], [m, columns]],
        "outputs": [[m, n]],
        "forms": ["FLOAT8_E4M3FN;FLOAT8_E4M3FN;;FLOAT;;;;INT64;FLOAT -> BF16"],
    }


#: A grouped product with the gate's activation; the result is quantized again.
GROUPED_SWIGLU_QUANTIZED = {
    "axes": {"m": "tokens", "experts": _EXPERTS},
    "inputs": [["m", "h"], ["e", "h", "2 * w"], ["e", "2 * w"], ["m"], ["e"]],
    "outputs": [["m", "w"], ["m"]],
    "forms": ["INT8;INT8;FLOAT;FLOAT;INT64 | ND;FRACTAL_NZ;ND;ND;ND -> INT8;FLOAT"],
}

#: Conditions on the shapes of DispatchFFNCombine. The limits that a probe finds on a device are in the device's
#: database (opatlas/theory/refused_shapes.py).
DISPATCH_FFN_COMBINE_CONDITIONS: list[str] = ["top <= e * ep"]


def _dispatch(*, quantized: bool) -> dict[str, Any]:
    """Returns the pattern of DispatchFFNCombine: x, two weights, each token's experts, two scales, router weights."""
    form = (
        "BF16;INT8;INT8;INT32;FLOAT;FLOAT;FLOAT | ND;FRACTAL_NZ;FRACTAL_NZ;ND;ND;ND;ND -> BF16;INT32"
        if quantized
        else "BF16;BF16;BF16;INT32;FLOAT;FLOAT;FLOAT -> BF16;INT32"
    )
    return {
        "axes": {"m": "tokens", "experts": _EXPERTS},
        "where": DISPATCH_FFN_COMBINE_CONDITIONS,
        "inputs": [
            ["m", "h"],
            ["e", "h", "2 * w"],
            ["e", "w", "h"],
            ["m", "top"],
            ["e", "2 * w"],
            ["e", "h"],
            ["m", "top"],
        ],
        "outputs": [["m", "h"], ["e"]],
        "forms": [form],
        "cells": {EP_SIZE: parse_expression("ep")},
    }


MOE_GATING = {
    "axes": {"m": "tokens", "router": _ROUTER},
    "inputs": [["m", "e"], ["e"]],
    "outputs": [["m", "top"], ["m", "top"], ["m", "e"]],
    "forms": ["BF16;BF16 -> BF16;INT32;FLOAT"],
}
MOE_PERMUTE = {
    "axes": {"m": "tokens", "router": _ROUTER},
    "inputs": [["m", "h"], ["m", "top"]],
    "outputs": [["m * top", "h"], ["m * top"]],
    "forms": ["BF16;INT32 -> BF16;INT32"],
}
MOE_UNPERMUTE = {
    "axes": {"m": "tokens", "router": _ROUTER},
    "inputs": [["m * top", "h"], ["m * top"], ["m", "top"]],
    "outputs": [["m", "h"]],
    "forms": ["BF16;INT32;BF16 -> BF16"],
}


#: Queries, keys and values are split, normalized head by head and rotated. Inputs: the fused product, a table of
#: angles for each position, the positions; outputs: the three parts.
SPLIT_QKV = {
    "axes": {
        "m": "tokens",
        "positions": [40960, 81920],
        "heads": {"from": "attention", "generic": {"q": [4, 8, 32], "kv": [1, 4], "d": [128]}},
    },
    "let": {"queries": "q * d", "keys": "kv * d"},
    "inputs": [["m", "queries + 2 * keys"], ["positions", "d"], ["m"]],
    "outputs": [["m", "queries"], ["m", "keys"], ["m", "keys"]],
    "forms": ["BF16;BF16;INT64 -> BF16;BF16;BF16"],
}

PATTERNS: dict[str, dict[str, Any]] = {
    "paged_attention": PAGED,
    "packed_attention": PACKED,
    "latent_attention": LATENT,
    "ring_first": _ring("t", first=True),
    "ring_later": _ring("k", first=False),
    "lightning_indexer": LIGHTNING_INDEXER,
    "sparse_attention": SPARSE,
    "grouped_gate_up": _grouped("m", "h", "2 * w", quantized=False),
    "grouped_down": _grouped("m", "w", "h", quantized=False),
    "grouped_gate_up_quantized": _grouped("m", "h", "2 * w", quantized=True),
    "grouped_down_quantized": _grouped("m", "w", "h", quantized=True),
    "grouped_gate_up_blocks": _grouped_blocks("m", "h", "2 * w"),
    "grouped_down_blocks": _grouped_blocks("m", "w", "h"),
    "grouped_swiglu_quantized": GROUPED_SWIGLU_QUANTIZED,
    "dispatch_ffn_combine": _dispatch(quantized=False),
    "dispatch_ffn_combine_quantized": _dispatch(quantized=True),
    "moe_gating": MOE_GATING,
    "moe_permute": MOE_PERMUTE,
    "moe_unpermute": MOE_UNPERMUTE,
    "split_qkv": SPLIT_QKV,
}
