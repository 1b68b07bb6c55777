"""Queries, keys and values side by side, normalized head by head and turned, in one kernel.

The slots of the sizes hang together: the fused width is that of the queries and twice that of the keys.
"""

from __future__ import annotations

from typing import Any

#: Input: the fused product, a table of angles for each position, the positions; outputs: the three parts.
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

PATTERNS: dict[str, dict[str, Any]] = {"split_qkv": SPLIT_QKV}
