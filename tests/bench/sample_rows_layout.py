"""Rows of kernels that lay data out anew, or that keep or find some of it by its place."""

ROWS: dict[str, tuple[str, ...]] = {
    "TransData": (
        "3,13,5,7 | FLOAT | NCHW -> 3,2,5,7,8 | FLOAT | NC1HWC0",
        "3,13,5,7 | FLOAT | NCHW -> 3,1,5,7,16 | FLOAT | NC1HWC0:1",
        "3,2,5,7,8 | FLOAT | NC1HWC0 -> 3,13,5,7 | FLOAT | NCHW",
        "3,1,5,7,16 | FLOAT16 | NC1HWC0 -> 3,16,5,7 | FLOAT16 | NCHW",
        "20,13,3,5 | FLOAT | NCHW -> 30,2,16,8 | FLOAT | FRACTAL_Z",
        "30,2,16,8 | FLOAT | FRACTAL_Z -> 20,13,3,5 | FLOAT | NCHW",
        "3,20,40 | DT_BF16 | ND -> 3,3,2,16,16 | DT_BF16 | FRACTAL_NZ",
        "3,2,16,16 | DT_BF16 | FRACTAL_NZ -> 20,40 | DT_BF16 | ND",
        "20,40 | INT8 | ND -> 2,2,16,32 | INT8 | FRACTAL_NZ",
        "2,2,3,16,16 | DT_BF16 -> 2,48,32 | DT_BF16",
    ),
    "AsStrided": (
        "1536;3;3;1 | DT_BF16;INT64;INT64;INT64 -> 2,4,64 | DT_BF16",
        "360;3;3;1 | FLOAT;INT64;INT64;INT64 -> 5,4,6 | FLOAT",
        "360;3;3;1 | DT_BF16;INT64;INT64;INT64 -> 5,4,18 | DT_BF16",
        "64;2;2;1 | FLOAT;INT64;INT64;INT64 -> 4,4 | FLOAT",
        "35;2;2;1 | INT64;INT64;INT64;INT64 -> 5,7 | INT64",
        "32,4,96;3;3; | FLOAT;INT64;INT64;INT64 -> 12,32,32 | FLOAT",
    ),
    "Tril": (
        "2,17,13 | FLOAT | FORMAT_ND -> 2,17,13 | FLOAT",
        "9,9 | BOOL -> 9,9 | BOOL",
        "4,7 | INT32 -> 4,7 | INT32",
        "4,7 | DT_BF16 -> 4,7 | DT_BF16",
    ),
    "Triu": (
        "2,17,13 | FLOAT -> 2,17,13 | FLOAT",
        "9,9 | BOOL -> 9,9 | BOOL",
        "4,7 | DT_BF16 -> 4,7 | DT_BF16",
    ),
    "NonZero": (
        "6,9 | BOOL -> 17,2 | INT64",
        "4 | BOOL | ND -> 1 | INT64",
        "16 | BOOL -> 1,16 | INT32",
        "3,4,5 | FLOAT -> 0,3 | INT64",
    ),
}
