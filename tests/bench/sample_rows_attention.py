"""Rows of attention kernels: small and odd sizes, in the forms that real captures hold."""

from __future__ import annotations

#: The 31 input slots of FusedInferAttentionScore that are used.
FIA_SLOTS = {
    "query": 0,
    "key": 1,
    "value": 2,
    "mask": 4,
    "query_lengths": 5,
    "kv_lengths": 6,
    "table": 14,
    "query_rope": 24,
    "key_rope": 25,
}
_DTYPES = {"mask": "INT8", "query_lengths": "INT64", "kv_lengths": "INT64", "table": "INT32"}


def fia(output: str, *, dtype: str = "DT_BF16", lse: str = "", **slots: str) -> str:
    """A FusedInferAttentionScore row with all 31 slots; `value` is as `key` unless it is given."""
    slots = {"value": slots["key"], **slots}
    shapes, dtypes = [""] * 31, ["DT_UNDEFINED"] * 31
    for name, shape in slots.items():
        shapes[FIA_SLOTS[name]] = shape
        dtypes[FIA_SLOTS[name]] = _DTYPES.get(name, dtype)
    return f"{';'.join(shapes)} | {';'.join(dtypes)} -> {output};{lse} | {dtype};FLOAT"


MASK = "2048,2048"

PAGED = (
    fia("9,4,16", query="9,4,16", key="11,8,32", mask=MASK, query_lengths="4", kv_lengths="4", table="4,5"),
    fia("3,4,32", query="3,4,32", key="7,16,32", mask=MASK, query_lengths="3", kv_lengths="3", table="3,2"),
    fia("10,6,8", query="10,6,8", key="5,3,16,8", mask=MASK, query_lengths="2", kv_lengths="2", table="2,9"),
    fia(
        "7,4,16",
        lse="7,4,1",
        dtype="FLOAT16",
        query="7,4,16",
        key="5,4,16",
        mask=MASK,
        query_lengths="3",
        kv_lengths="3",
        table="3,3",
    ),
)
LATENT = (
    fia(
        "4,3,1,32",
        query="3,4,1,32",
        key="7,1,16,32",
        kv_lengths="3",
        table="3,6",
        query_rope="3,4,1,8",
        key_rope="7,1,16,8",
    ),
    fia(
        "6,2,3,16",
        lse="2,6,3,1",
        query="2,6,3,16",
        key="5,2,8,16",
        kv_lengths="2",
        table="2,6",
        query_rope="2,6,3,8",
        key_rope="5,2,8,8",
    ),
)
PACKED = (
    fia("23,4,16", query="23,4,16", key="23,2,16", mask=MASK, query_lengths="3", kv_lengths="3"),
    fia("23,4,16", query="23,4,16", key="31,1,16", query_lengths="3", kv_lengths="3"),
    fia("23,4,16", query="23,4,16", key="31,1,16", mask=MASK, query_lengths="3", kv_lengths="3"),
    fia("9,3,16", lse="9,3,1", query="9,3,16", key="13,3,16", mask=MASK, query_lengths="1", kv_lengths="1"),
    fia("9,4,16", lse="9,4,1", query="9,4,16", key="13,2,16", query_lengths="2", kv_lengths="2"),
    fia(
        "19,4,16",
        query="19,4,16",
        key="19,4,16",
        mask=MASK,
        query_lengths="2",
        kv_lengths="2",
        query_rope="19,4,8",
        key_rope="19,4,8",
    ),
)

_RING = "13,4,16;13,4,8;{k},4,16;{k},4,8;{k},4,16"
_RING_FIRST = f"{_RING.format(k=13)};512,512;;;;;;;;; | {';'.join(['{0}'] * 6 + ['DT_UNDEFINED'] * 9)}"
_RING_LATER = (
    f"{_RING.format(k=29)};;;;;;;;;13,4,16;4,13 | {';'.join(['{0}'] * 5 + ['DT_UNDEFINED'] * 8 + ['{0}', 'FLOAT'])}"
)
_RING_RESULT = "13,4,16;4,13 | {0};FLOAT"
RING_MLA = (
    f"{_RING_LATER} -> {_RING_RESULT}".format("DT_BF16"),
    f"{_RING_FIRST} -> {_RING_RESULT}".format("DT_BF16"),
    f"{_RING_FIRST} -> {_RING_RESULT}".format("FLOAT16"),
    "5,6,16;5,6,8;5,2,16;5,2,8;5,2,24;512,512 | FLOAT;FLOAT;FLOAT;FLOAT;FLOAT;FLOAT -> 5,6,24;6,5 | FLOAT;FLOAT",
)

_FLASH = (
    "{q};{k};{k};;;;{mask};;;;;;;; | {0};{0};{0};{0};UINT8;{0};BOOL;INT64;INT64;INT64;INT64;INT64;FLOAT;FLOAT;FLOAT"
)
_FLASH_GRAD = (
    "{q};{k};{k};{q};{mask}{stats};{stats};;{q};;;;;; | {0};{0};{0};{0};{mask_dtype}FLOAT;FLOAT;{0};{0};"
    "INT64;FLOAT;FLOAT;FLOAT;FLOAT;FLOAT -> {q};{k};{k};;; | {0};{0};{0};{0};{0};{0}"
)


def flash(q: str, k: str, stats: str, mask: str = "", dtype: str = "DT_BF16") -> str:
    return f"{_FLASH.format(dtype, q=q, k=k, mask=mask)} -> {stats};{stats};;{q} | FLOAT;FLOAT;{dtype};{dtype}"


def flash_grad(q: str, k: str, stats: str, mask: str = "", dtype: str = "DT_BF16") -> str:
    masked = {"mask": f"{mask};", "mask_dtype": "BOOL;"} if mask else {"mask": "", "mask_dtype": ""}
    return _FLASH_GRAD.format(dtype, q=q, k=k, stats=stats, **masked)


_TRAINING = (
    {"q": "33,2,64", "k": "33,2,32", "stats": "2,4,33,8", "mask": MASK},
    {"q": "2,33,64", "k": "2,17,64", "stats": "2,4,33,8"},
    {"q": "2,21,4,16", "k": "2,21,1,16", "stats": "2,4,21,8", "mask": "21,21"},
    {"q": "2,4,21,16", "k": "2,2,21,16", "stats": "2,4,21,8", "mask": "1,1,21,21", "dtype": "FLOAT16"},
    {"q": "2,1,24", "k": "2,1,24", "stats": "1,3,2,8", "dtype": "FLOAT"},
)

_INDEXER = "{0};{0};{0};INT32;INT32;INT32"
INDEXER = (
    f"9,4,16;12,8,1,16;9,4;3;3;3,5 | {_INDEXER.format('DT_BF16')} -> 9,1,7 | INT32",
    f"9,4,16;12,8,1,16;9,4;3;3;3,5 | {_INDEXER.format('DT_BF16')} -> 9,1,7;9,1,7 | INT32;DT_BF16",
    f"11,2,16;2,8,1,16;11,2;1;1;1,2 | {_INDEXER.format('FLOAT16')} -> 11,1,64;0 | INT32;FLOAT16",
    f"11,2,16;5,8,1,16;11,2;2;2;2,2 | {_INDEXER.format('FLOAT')} -> 11,1,14;11,1,14 | INT32;FLOAT",
)
_SPARSE = "{0};{0};{0};INT32;INT32;INT32;INT32;{0};{0}"
_BF16 = _SPARSE.format("DT_BF16")
SPARSE = (
    f"9,4,16;12,8,1,16;12,8,1,16;9,1,7;3,5;3;3;9,4,8;12,8,1,8 | {_BF16} -> 9,4,16 | DT_BF16",
    f"5,2,16;2,4,1,16;2,4,1,16;5,1,20;1,2;1;1;5,2,8;2,4,1,8 | {_SPARSE.format('FLOAT16')} -> 5,2,16 | FLOAT16",
    # The sizes of DeepSeek, which are those that libraries have.
    f"3,64,512;6,16,1,512;6,16,1,512;3,1,64;1,6;1;1;3,64,64;6,16,1,64 | {_BF16} -> 3,64,512 | DT_BF16",
)
ROWS: dict[str, tuple[str, ...]] = {
    "AttentionUpdate": (
        "33;33;33,16;33,16 | FLOAT;FLOAT;FLOAT;FLOAT -> 33,16 | FLOAT",
        "41;41;41;41,128;41,128;41,128 | FLOAT;FLOAT;FLOAT;DT_BF16;DT_BF16;DT_BF16 -> 41,128;41 | DT_BF16;FLOAT",
        "7;7,8 | FLOAT;FLOAT16 -> 7,8 | FLOAT16",
    ),
    "FusedInferAttentionScore": PAGED + LATENT + PACKED,
    "RINGMLAPrefillBF16Kernel": RING_MLA,
    "FlashAttentionScore": tuple(flash(**row) for row in _TRAINING),
    "FlashAttentionScoreGrad": tuple(flash_grad(**row) for row in _TRAINING),
    "LightningIndexer": INDEXER,
    "LightningIndexerVllm": (INDEXER[0], INDEXER[3].partition(" -> ")[0] + " -> 11,1,14 | INT32"),
    "SparseFlashAttention": SPARSE,
}
