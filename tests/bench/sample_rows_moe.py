"""Rows of mixtures of experts: small and odd sizes, and the forms of real captures."""

from __future__ import annotations

#: x; weight; bias; scale; offset; two of weights alone in integers; group_list; scale per token.
QUANTIZED_GROUPS = "INT8;INT8;DT_UNDEFINED;FLOAT;DT_UNDEFINED;DT_UNDEFINED;DT_UNDEFINED;INT64;FLOAT"
FP8_GROUPS = QUANTIZED_GROUPS.replace("INT8", "FLOAT8_E4M3FN")
#: x; two weights; experts; two scales; the experts' weights.
LAYER = "DT_BF16;DT_BF16;DT_BF16;INT32;FLOAT;FLOAT;FLOAT"
LAYER_INT8 = "DT_BF16;INT8;INT8;INT32;FLOAT;FLOAT;FLOAT"
#: As vllm-ascend calls it: scales are the bits of float32 numbers.
LAYER_BITS = "DT_BF16;INT8;INT8;INT32;INT64;INT64;FLOAT"
#: With two experts, each of which has tensors of its own, and a mask of the tokens.
LISTED = "64,96;64,96;48,64;48,64"
LAYER_LISTS = "DT_BF16;INT8;INT8;INT8;INT8;INT32;INT64;INT64;INT64;INT64;FLOAT;BOOL"
#: Of a dispatch: scales of tokens; the indices for a combine; tokens of experts, and of experts and ranks.
TOLD = "FLOAT;INT32;INT64;INT32"
WITH_WEIGHTS = f"{TOLD};INT32;FLOAT"
#: Of a combine, after the tokens: experts; the indices of a dispatch; their weights.
BACK = "INT32;INT32;INT32;FLOAT"

ROWS: dict[str, tuple[str, ...]] = {
    "MoeGatingTopK": (
        "13,256;256 | FLOAT;FLOAT -> 13,8;13,8;13,256 | FLOAT;INT32;FLOAT",
        "1,256;256 | DT_BF16;DT_BF16 -> 1,8;1,8 | DT_BF16;INT32",
        "7,256;256 | DT_BF16;DT_BF16 -> 7,8;7,8;7,256 | DT_BF16;INT32;FLOAT",
        "7,64;64 | FLOAT16;FLOAT16 -> 7,6;7,6 | FLOAT16;INT32",
        "7,60 | FLOAT -> 7,4;7,4 | FLOAT;INT32",
    ),
    "MoeTokenPermute": (
        "13,40;13,6 | DT_BF16;INT64 -> 78,40;78 | DT_BF16;INT32",
        "13,40;13 | FLOAT;INT32 -> 13,40;13 | FLOAT;INT32",
        "13,40;13,6 | DT_BF16;INT32 -> 60,40;78 | DT_BF16;INT32",
    ),
    "MoeTokenUnpermute": (
        "78,40;78;13,6 | DT_BF16;INT32;DT_BF16 -> 13,40 | DT_BF16",
        "78,40;78;13,6 | FLOAT;INT32;FLOAT -> 13,40 | FLOAT",
        "13,40;13 | DT_BF16;INT32 -> 13,40 | DT_BF16",
    ),
    "GroupedMatmul": (
        f"19,96;5,3,6,16,32;;5,96;;;;5;19 | {QUANTIZED_GROUPS} -> 19,96 | DT_BF16",
        f"19,96;5,96,64;;5,64;;;;5;19 | {QUANTIZED_GROUPS} -> 19,64 | FLOAT16",
        f"3,96;5,64,96;;5,64;;;;5;3 | {QUANTIZED_GROUPS} -> 3,64 | DT_BF16",
        "19,48;5,48,40;5,40;;;;;5 | INT8;INT8;INT32;;;;;INT64 -> 19,40 | INT32",
        "19,48;5,48,40;5,40;5,40;;;;5 | INT8;INT8;INT32;UINT64;;;;INT64 -> 19,40 | INT8",
        "19,48;5,48,40;;;;;;5 | DT_BF16;DT_BF16;;;;;;INT64 -> 19,40 | DT_BF16",
        "19,48;5,48,40;5,40;;;;;5 | FLOAT16;FLOAT16;FLOAT16;;;;;INT64 -> 19,40 | FLOAT16",
        "19,48;5,5,3,16,16;;;;;;5 | DT_BF16;DT_BF16;;;;;;INT64 -> 19,80 | DT_BF16",
        "19,48;5,48,40;;;;;;5 | INT8;INT8;;;;;;INT64 -> 19,40 | DT_BF16",
        f"19,96;5,3,6,16,32;;5,96;;;;5;19 | {FP8_GROUPS} -> 19,96 | DT_BF16",
        f"3,96;5,64,96;;5,64;;;;5;3 | {FP8_GROUPS} -> 3,64 | FLOAT16",
        f"19,256;5,256,384;;5,2,3;;;;5;19,2 | {FP8_GROUPS} -> 19,384 | DT_BF16",
        f"19,208;5,336,208;;5,3,2;;;;5;19,2 | {FP8_GROUPS} -> 19,336 | DT_BF16",
        "19,48;5,48,40;5,40;5,40;;;;5 | FLOAT8_E5M2;FLOAT8_E4M3FN;FLOAT;FLOAT;;;;INT64 -> 19,40 | DT_BF16",
    ),
    "GroupedMatmulSwigluQuant": (
        "19,96;5,4,6,16,32;5,128;19;5 | INT8;INT8;FLOAT;FLOAT;INT64 -> 19,64;19 | INT8;FLOAT",
        "3,40;5,40,48;;;5,48;3;5 | INT8;INT8;;;FLOAT;FLOAT;INT64 -> 3,24;3; | INT8;FLOAT;FLOAT",
        "19,40;5,48,40;5,48;19;5 | INT8;INT8;FLOAT;FLOAT;INT64 -> 19,24;19 | INT8;FLOAT",
    ),
    "DispatchFFNCombine": (
        f"11,40;6,40,48;6,24,40;11,3;6,48;6,40;11,3 | {LAYER} -> 11,40;6 | DT_BF16;INT32 @ EP Size = 1",
        f"9,256;6,8,16,16,32;6,8,8,16,32;9,3;6,256;6,256;9,3 | {LAYER_INT8} -> 9,256;6 | DT_BF16;INT32 @ EP Size = 1",
        f"5,256;6,256,320;6,160,256;5,6;6,320;6,256;5,6 | {LAYER_INT8} -> 5,256;6 | DT_BF16;INT32 @ EP Size = 1",
        f"9,256;6,8,16,16,32;6,8,8,16,32;9,3;6,256;6,256;9,3 | {LAYER_BITS} -> 9,256;1,6 | DT_BF16;INT32 @ EP Size = 1",
        f"9,256;6,256,320;6,160,256;9,3;6,320;6,256;9,3 | {LAYER_BITS} -> 9,256 | DT_BF16 @ EP Size = 1",
        f"9,256;6,256,320;6,160,256;9,3;6,320;6,256;9,3;9 | {LAYER_BITS};BOOL -> 9,256;6 | DT_BF16;INT32 @ EP Size = 1",
        f"7,64;{LISTED};7,2;96;96;64;64;7,2;7 | {LAYER_LISTS} -> 7,64;1,2 | DT_BF16;INT32 @ EP Size = 1",
    ),
    "DispatchFFNCombineBF16": (
        f"7,64;3,64,96;3,48,64;7,2;3,96;3,64;7,2 | {LAYER} -> 7,64;1,3 | DT_BF16;INT32 @ EP Size = 1",
        "7,64;3,64,96;3,48,64;7,2;;;7,2 | FLOAT16;FLOAT16;FLOAT16;INT32;;;FLOAT -> 7,64 | FLOAT16 @ EP Size = 1",
    ),
    # One rank, 7 tokens of width 64, 2 of 5 experts: 14 copies.
    "MoeDistributeDispatch": (
        f"7,64;7,2 | DT_BF16;INT32 -> 14,64;14;14;5;5 | DT_BF16;{TOLD} @ EP Size = 1",
        f"7,64;7,2;5,64 | FLOAT16;INT32;FLOAT -> 14,64;14;14;5;5;1 | INT8;{TOLD};INT32",
        f"7,64;7,2;;;7,2 | DT_BF16;INT32;;;FLOAT -> 14,64;14;14;5;5;0;14 | INT8;{WITH_WEIGHTS}",
    ),
    "MoeDistributeDispatchV2": (
        f"7,64;7,2;;7 | DT_BF16;INT32;;BOOL -> 14,64;14;1792;5;5;1;0 | DT_BF16;{TOLD};INT32;FLOAT @ EP Size = 1",
        f"7,64;7,2 | DT_BF16;INT32 -> 14,64;14;1792;5;5;1 | INT8;{TOLD};INT32",
        f"7,64;7,2;;7,2 | DT_BF16;INT32;;BOOL -> 14,64;14;1792;5;5 | DT_BF16;{TOLD}",
    ),
    "MoeDistributeCombine": (
        f"14,64;7,2;14;5;7,2 | DT_BF16;{BACK} -> 7,64 | DT_BF16 @ EP Size = 1",
        f"28,64;7,2;14;5;7,2;;;;;;28 | FLOAT16;{BACK};;;;;;FLOAT -> 7,64 | FLOAT16 @ EP Size = 1",
    ),
    "MoeDistributeCombineV2": (
        f"14,64;7,2;1792;5;7,2;1;7 | DT_BF16;{BACK};INT32;BOOL -> 7,64 | DT_BF16 @ EP Size = 1",
        f"14,64;7,2;1792;5;7,2 | FLOAT16;{BACK} -> 7,64 | FLOAT16 @ EP Size = 1",
        f"14,64;7,2;1792;5;7,2;;7,2 | FLOAT16;{BACK};;BOOL -> 7,64 | FLOAT16 @ EP Size = 1",
    ),
    "TopKV2": (
        "32,100; | FLOAT;INT32 -> 32,5;32,5 | FLOAT;INT32",
        "7,33 | DT_BF16 -> 7,33;7,33 | DT_BF16;INT64",
        "40; | FLOAT;INT32 -> 3;3 | FLOAT;INT32",
    ),
    "ApplyTopKTopPCustom": (
        "3,700;3,700;3;3 | FLOAT;INT32;FLOAT;INT32 -> 3,700 | FLOAT",
        "2,1500;2,1500;2;2 | DT_BF16;INT32;DT_BF16;INT32 -> 2,1500 | DT_BF16",
        "3,700;3,700;3 | FLOAT;INT32;FLOAT -> 3,700 | FLOAT",
        "3,700;3,700;;3 | FLOAT;INT32;;INT32 -> 3,700 | FLOAT",
    ),
}
