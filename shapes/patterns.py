"""The patterns whose rows have further cells: of attention and of the fused layer of experts.

catalog.yaml names them like its own patterns. The Runtime cells of attention rows give the lengths of sequences; all
sequences of a row have the same length. A decoding step has one query or a few for each sequence, a prefill has many.
Tokens are spread evenly over the experts of a device.
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
_PAGES = {"pages": f"(k + {BLOCK_SIZE - 1}) // {BLOCK_SIZE}", "blocks": "s * pages"}
#: Limits of a step: tokens as in the products, keys as in a cache, and pairs of queries and keys as in the last chunk
#: of the longest prompt. Engines divide prompts into chunks of 8192 tokens by default.
_BOUNDS = ["k >= t", "s * t <= 32768", "s * k <= 2097152", "s * t * k <= 8192 * 65536"]

#: The size of the mask that the kernel takes for any causal mask.
_MASK = "2048,2048"
_FIA_SLOTS = 31
_QUERY, _KEY, _VALUE, _MASK_SLOT, _QUERY_LENGTHS, _KV_LENGTHS = 0, 1, 2, 4, 5, 6
_TABLE, _QUERY_ROPE, _KEY_ROPE = 14, 24, 25
_DTYPES = {_MASK_SLOT: "INT8", _QUERY_LENGTHS: "INT64", _KV_LENGTHS: "INT64", _TABLE: "INT32"}


def _slots(shapes: str) -> list[list[str] | None]:
    """Returns the dimensions of each slot from the notation of cells: `m,h;;e` is two slots and an absent one."""
    return [word.split(",") if word else None for word in shapes.split(";")]


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
    output: str, cells: dict[str, str | Expression | Lengths], slots: dict[int, str], **more: Any
) -> dict[str, Any]:
    """Returns a pattern of FusedInferAttentionScore. Other slots and the second output, the log-sum-exp, are absent."""
    dtypes = [_DTYPES.get(slot, "BF16") if slot in slots else "" for slot in range(_FIA_SLOTS)]
    return {
        **more,
        "inputs": _slots(";".join(slots.get(slot, "") for slot in range(_FIA_SLOTS))),
        "outputs": _slots(output),
        "forms": [f"{';'.join(dtypes)} -> BF16"],
        "cells": {
            **cells,
            **_runtime(num_heads=parse_expression("q"), source_profile="theory", metadata_completeness="complete"),
        },
    }


#: Queries (tokens, heads, D), keys and values in pages (blocks, block size, heads * D).
PAGED = _fused(
    "s * t,q,d",
    {
        **_causal(queries="t", keys=Lengths(parse_expression("s"), parse_expression("k"))),
        **_runtime(block_size=str(BLOCK_SIZE)),
    },
    {_QUERY: "s * t,q,d", _MASK_SLOT: _MASK, _QUERY_LENGTHS: "s", _KV_LENGTHS: "s", _TABLE: "s,pages"}
    | dict.fromkeys((_KEY, _VALUE), f"blocks,{BLOCK_SIZE},kv * d"),
    axes={"s": _SEQUENCES, "t": _QUERIES, "k": _KEYS, "heads": _GROUPED_HEADS},
    let=_PAGES,
    where=_BOUNDS,
)

#: Queries and keys (tokens, heads, D), the sequences one after the other: prefill without a cache.
PACKED = _fused(
    "s * k,q,d",
    _causal(queries="k", keys=Lengths(parse_expression("s"), parse_expression("k"), sums=True)),
    {_QUERY: "s * k,q,d", _MASK_SLOT: _MASK, _QUERY_LENGTHS: "s", _KV_LENGTHS: "s"}
    | dict.fromkeys((_KEY, _VALUE), "s * k,kv,d"),
    axes={"s": _SEQUENCES, "k": _KEYS, "heads": _GROUPED_HEADS},
    where=["s * k <= 32768", "s * k * k <= 8192 * 65536"],
)

#: Multi-head latent attention, absorbed: queries (sequences, heads, t, latent), results (heads, sequences, t,
#: latent), one cache of pages that is keys and values, and rope parts of both.
LATENT = _fused(
    "q,s,t,lora",
    _runtime(
        actual_seq_lengths_kv_shape=parse_expression("s"),
        actual_seq_lengths_kv_values=Lengths(parse_expression("s"), parse_expression("k")),
        avg_seq_len=parse_expression("k"),
        num_key_value_heads="1",
        sparse_mode="0",
        input_layout="BNSD_NBSD",
        block_size=str(BLOCK_SIZE),
    ),
    {_QUERY: "s,q,t,lora", _QUERY_ROPE: "s,q,t,rope", _KV_LENGTHS: "s", _TABLE: "s,pages"}
    | {_KEY_ROPE: f"blocks,1,{BLOCK_SIZE},rope"}
    | dict.fromkeys((_KEY, _VALUE), f"blocks,1,{BLOCK_SIZE},lora"),
    axes={
        "s": _SEQUENCES,
        "t": _DECODE_QUERIES,
        "k": _KEYS,
        "heads": {
            "from": "latent",
            "generic": {"q": [1, 2, 4, 8, 16, 32], "lora": [512], "nope": [128], "rope": [64], "v": [128]},
        },
    },
    let=_PAGES,
    where=_BOUNDS,
)


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
    "inputs": _slots(f"s * t,q,d;blocks,{BLOCK_SIZE},1,d;s * t,q;s;s;s,pages"),
    "outputs": _slots("s * t,1,top"),
    "forms": ["BF16;BF16;BF16;INT32;INT32;INT32 -> INT32"],
    "cells": _runtime(avg_seq_len=parse_expression("k")),
}

#: Latent attention to the selected keys: queries, the cache twice, indices, block table, lengths, rope parts.
_SPARSE_CACHE = f"blocks,{BLOCK_SIZE},1,"
SPARSE = {
    "axes": {
        "s": _SEQUENCES,
        "t": _QUERIES,
        "k": _KEYS,
        "heads": {"from": "sparse", "generic": {"q": [1, 2, 4, 8, 16], "lora": [512], "rope": [64], "top": [2048]}},
    },
    "let": _PAGES,
    "where": _BOUNDS,
    "inputs": _slots(
        f"s * t,q,lora;{_SPARSE_CACHE}lora;{_SPARSE_CACHE}lora;s * t,1,top;s,pages;s;s;s * t,q,rope;{_SPARSE_CACHE}rope"
    ),
    "outputs": _slots("s * t,q,lora"),
    "forms": ["BF16;BF16;BF16;INT32;INT32;INT32;INT32;BF16;BF16 -> BF16"],
    "cells": _runtime(avg_seq_len=parse_expression("k")),
}


#: Conditions on the shapes of DispatchFFNCombine. The limits that a probe finds on a device are in the device's
#: database (opatlas/theory/refused_shapes.py).
DISPATCH_FFN_COMBINE_CONDITIONS: list[str] = ["top <= e * ep"]


def _dispatch(*, quantized: bool) -> dict[str, Any]:
    """Returns the pattern of DispatchFFNCombine: x, two weights, each token's experts, two scales, router weights."""
    weight, formats = ("INT8", " | ND;FRACTAL_NZ;FRACTAL_NZ;ND;ND;ND;ND") if quantized else ("BF16", "")
    experts = {"from": "experts", "generic": {"e": [8, 64], "w": [1024], "h": [2048], "top": [8], "ep": [1]}}
    return {
        "axes": {"m": "tokens", "experts": experts},
        "inputs": _slots("m,h;e,h,2 * w;e,w,h;m,top;e,2 * w;e,h;m,top"),
        "outputs": _slots("m,h;e"),
        "forms": [f"BF16;{weight};{weight};INT32;FLOAT;FLOAT;FLOAT{formats} -> BF16;INT32"],
        "where": DISPATCH_FFN_COMBINE_CONDITIONS,
        "cells": {EP_SIZE: parse_expression("ep")},
    }


PATTERNS: dict[str, dict[str, Any]] = {
    "paged_attention": PAGED,
    "packed_attention": PACKED,
    "latent_attention": LATENT,
    "lightning_indexer": LIGHTNING_INDEXER,
    "sparse_attention": SPARSE,
    "dispatch_ffn_combine": _dispatch(quantized=False),
    "dispatch_ffn_combine_quantized": _dispatch(quantized=True),
}
