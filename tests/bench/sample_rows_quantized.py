"""Rows of quantization and of quantized products: small and odd sizes, and the forms of real captures."""

from __future__ import annotations

INT8 = "INT8;INT8"
E4M3 = "FLOAT8_E4M3FN;FLOAT8_E4M3FN"
E5M2 = "FLOAT8_E5M2;FLOAT8_E4M3FN"
QUANTIZE = (
    "6,72;72;72 | DT_BF16;DT_BF16;DT_BF16 -> 6,72 | INT8",
    "1,1536;1536;1536 | DT_BF16;DT_BF16;DT_BF16 -> 1,1536 | INT8",
    "2,3,40;40 | FLOAT16;FLOAT16 -> 2,3,40 | INT8",
    "5,33;1;1 | FLOAT;FLOAT;FLOAT -> 5,33 | INT8",
    "5,33;33;33 | FLOAT;FLOAT;INT32 -> 5,33 | UINT8",
    "5,40;40 | FLOAT;FLOAT -> 5,40 | INT4",
    "5,40;40;40 | DT_BF16;DT_BF16;DT_BF16 -> 5,5 | INT32",
)
DYNAMIC = (
    "6,73 | DT_BF16 -> 6,73;6 | INT8;FLOAT",
    "1,7168 | DT_BF16 -> 1,7168;1 | INT8;FLOAT",
    "3,5,33;33 | FLOAT16;FLOAT16 -> 3,5,33;3,5 | INT8;FLOAT",
    "4,64 | DT_BF16 -> 4,64;4 | INT4;FLOAT",
    "6,73 | DT_BF16 -> 6,73;6 | FLOAT8_E4M3FN;FLOAT",
    "3,5,33;33 | FLOAT16;FLOAT16 -> 3,5,33;3,5 | FLOAT8_E5M2;FLOAT",
)
DYNAMIC_BLOCKS = (
    "6,256 | DT_BF16 -> 6,256;6,2 | INT8;FLOAT",
    "2,3,200 | FLOAT16 -> 2,3,200;2,3,2 | FLOAT8_E5M2;FLOAT",
    "1,7168 | DT_BF16 -> 1,7168;1,56 | FLOAT8_E4M3FN;FLOAT",
)
ADD_RMS_NORM = (
    "6,72;6,72;72;72;72 | FLOAT;FLOAT;FLOAT;FLOAT;FLOAT -> 6,72;6,72;6,72;6;6 | INT8;INT8;FLOAT;FLOAT;FLOAT",
    "6,72;6,72;72 | DT_BF16;DT_BF16;DT_BF16 -> 6,72;1;6,72;6;1 | INT8;INT8;DT_BF16;FLOAT;FLOAT",
    "2,3,40;2,3,40;40;40 | FLOAT16;FLOAT16;FLOAT16;FLOAT16 -> 2,3,40;;2,3,40;2,3; | INT8;;FLOAT16;FLOAT;",
    "6,72;6,72;72;;;72 | DT_BF16;DT_BF16;DT_BF16;;;DT_BF16 -> 6,72;;6,72;6; | INT8;;DT_BF16;FLOAT;",
)

ROWS: dict[str, tuple[str, ...]] = {
    "QuantBatchMatmulV3": (
        # As eager and graph captures have them: weights in FRACTAL_NZ; a scale per token, a bias, neither.
        f"9,96;2,6,16,32;64;9 | {INT8};DT_BF16;FLOAT -> 9,64 | DT_BF16",
        f"1,96;2,6,16,32;64;1 | {INT8};DT_BF16;FLOAT -> 1,64 | DT_BF16",
        f"9,96;2,6,16,32;64;64 | {INT8};FLOAT;INT32 -> 9,64 | DT_BF16",
        f"9,96;2,6,16,32;64 | {INT8};FLOAT | ND;FRACTAL_NZ;ND -> 9,64 | DT_BF16",
        # Without a scale, the weight stored as (N, K).
        f"7,512;256,512 | {INT8} | ND;ND -> 7,256 | DT_BF16",
        f"3,40;40,72 | {INT8} -> 3,72 | FLOAT16",
        f"3,40;40,72;72 | {INT8};FLOAT -> 3,72 | INT32",
        f"7,1500;72,1500;72;72 | {INT8};UINT64;INT32 -> 7,72 | INT8",
        f"7,1500;72,1500;1 | {INT8};INT64 -> 7,72 | FLOAT16",
        f"5,40;40,72;72;72 | {INT8};FLOAT;FLOAT -> 5,72 | INT8",
        f"5,40;40,72;72;72 | {INT8};FLOAT;DT_BF16 -> 5,72 | DT_BF16",
        f"5,40;40,72;72;;72;5 | {INT8};FLOAT;;FLOAT16;FLOAT -> 5,72 | FLOAT16",
        f"5,40;40,72;72;;72;5 | {INT8};FLOAT;;INT32;FLOAT -> 5,72 | DT_BF16",
        f"2,5,40;2,40,72;72 | {INT8};FLOAT -> 2,5,72 | DT_BF16",
        # FP8: scales per token and per column, one scale, a bias, results in FP8.
        f"9,96;2,6,16,32;64;9 | {E4M3};FLOAT;FLOAT -> 9,64 | DT_BF16",
        f"9,96;64,96;64;9 | {E5M2};FLOAT;FLOAT -> 9,64 | DT_BF16",
        f"9,96;96,64;1 | {E4M3};FLOAT -> 9,64 | FLOAT16",
        f"9,96;96,64;64;64 | {E4M3};FLOAT;FLOAT -> 9,64 | DT_BF16",
        f"9,96;96,64;64;;64;9 | {E4M3};FLOAT;;DT_BF16;FLOAT -> 9,64 | DT_BF16",
        f"9,96;96,64;64 | {E4M3};INT64 -> 9,64 | FLOAT8_E4M3FN",
        f"2,5,40;2,40,72;72 | {E4M3};FLOAT -> 2,5,72 | FLOAT",
        # Scales of blocks of 128 x 128, and of 128 columns of a token: weights as (K, N), (N, K) and in FRACTAL_NZ.
        f"9,256;256,384;2,3;9,2 | {E4M3};FLOAT;FLOAT -> 9,384 | DT_BF16",
        f"1,208;336,208;3,2;1,2 | {E4M3};FLOAT;FLOAT -> 1,336 | DT_BF16",
        f"9,256;12,16,16,32;2,3;;384;9,2 | {E4M3};FLOAT;;FLOAT;FLOAT | ND;FRACTAL_NZ;ND;ND;ND;ND -> 9,384 | FLOAT",
    ),
    "AscendQuantV2": QUANTIZE,
    "AscendQuantV2Aicore": QUANTIZE[:1],
    "DynamicQuant": DYNAMIC,
    "DynamicBlockQuant": DYNAMIC_BLOCKS,
    "AddRmsNormDynamicQuant": ADD_RMS_NORM,
    "TransposeBatchMatMul": (
        "3,5,128;3,128,256 | DT_BF16;DT_BF16 -> 5,3,256 | DT_BF16",
        "16,1,512;16,512,128 | DT_BF16;DT_BF16 -> 1,16,128 | DT_BF16",
        "5,3,128;3,128,256 | FLOAT16;FLOAT16 -> 5,3,256 | FLOAT16",
        "3,5,128;3,256,128 | FLOAT;FLOAT -> 5,3,256 | FLOAT",
        "4,5,128;4,128,256 | DT_BF16;DT_BF16 -> 2,5,512 | DT_BF16",
    ),
}
