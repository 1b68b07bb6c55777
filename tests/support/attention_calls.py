"""Records of calls of attention, and the shapes of the rows that they belong to."""

from __future__ import annotations

from captures import DECODE_RECORD, DECODE_SHAPES, launch

ATTENTION = "FusedInferAttentionScore"

#: The operator takes 31 inputs.
DECODE = ";".join([*DECODE_SHAPES, *[""] * 16])
PACKED = ";".join(["23,4,128", "31,4,128", "31,4,128", "", "", "2", "2", *[""] * 24])


def decode(kv=(300, 128, 7), **changes):
    """A record of a call of DECODE's shapes."""
    lengths = {
        "actual_seq_lengths_kv": None if kv is None else list(kv),
        "block_table_valid_blocks": None if kv is None else [-(-length // 128) for length in kv],
    }
    return {**DECODE_RECORD, **lengths, **changes}


def packed(**changes):
    """A record of a call of PACKED's shapes."""
    record = {
        "query_shape": [23, 4, 128],
        "key_shape": [31, 4, 128],
        "value_shape": [31, 4, 128],
        "atten_mask_shape": None,
        "block_table_shape": None,
        "actual_seq_lengths": [11, 23],
        "actual_seq_lengths_kv": [10, 31],
        "block_table_valid_blocks": None,
        "num_heads": 4,
        "num_key_value_heads": 0,
        "sparse_mode": 0,
        "input_layout": "TND",
        "block_size": 0,
    }
    return {**record, **changes}


SHAPES = ";".join(
    ["128,4,128", "99,128,128", "99,128,128", "", "2048,2048", "128", "64", *[""] * 7, "128,512", *[""] * 16]
)
DTYPES = ["DT_BF16"] * 3 + ["DT_UNDEFINED", "INT8", "INT64", "INT64", *["DT_UNDEFINED"] * 7, "INT32"]


def attention(shapes=SHAPES, **cells):
    dtypes = ";".join(DTYPES + ["DT_UNDEFINED"] * 16)
    formats = ";".join("NULL" if dtype == "DT_UNDEFINED" else "ND" for dtype in dtypes.split(";"))
    return launch(type=ATTENTION, shapes=shapes, dtypes=dtypes, formats=formats, out="128,4,128;", **cells)
