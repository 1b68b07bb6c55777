"""Rows of kernels that gather and scatter."""

NAMED = (
    "11,6;5,1;5,6 | FLOAT;INT32;FLOAT -> 11,6 | FLOAT",
    "4096,128;102,1;102,128 | DT_BF16;INT32;DT_BF16 -> 4096,128 | DT_BF16",
    "7,4,2,6;3,5,2;3,5,2,6 | FLOAT16;INT64;FLOAT16 -> 7,4,2,6 | FLOAT16",
    "5,6;30,2;30 | INT32;INT64;INT32 -> 5,6 | INT32",
)
PUT = (
    "11,6;5,6;1;1;5 | FLOAT;FLOAT;INT64;INT64;INT64 -> 11,6 | FLOAT",
    "2000,8;;1;2;7 | DT_BF16;DT_BF16;INT64;INT64;INT64 -> 2000,8 | DT_BF16",
    "6,5,4;7,4;2;3;7;7 | FLOAT;FLOAT;INT64;INT64;INT64;INT64 -> 6,5,4 | FLOAT",
    "9,5,4;7,3,4;2;3;7,1;3 | FLOAT;FLOAT;INT64;INT64;INT64;INT64 -> 9,5,4 | FLOAT",
    "6,5,4;6,3,1;2;3;3 | INT32;INT32;INT64;INT64;INT64 -> 6,5,4 | INT32",
    "409;33;1;1;33 | INT64;INT64;INT64;INT64;INT32 -> 409 | INT64",
)
ELEMENTS = (
    "5,40;5,7 | FLOAT;INT64 -> 5,7 | FLOAT",
    "16,51;16,51 | DT_BF16;INT64 -> 16,51 | DT_BF16",
    "4,7,3;9,7,3 | INT32;INT32 -> 9,7,3 | INT32",
    "40;3 | FLOAT;INT64 -> 3 | FLOAT",
    "6,5;4,3 | FLOAT;INT64 -> 4,3 | FLOAT",
)
SELECT = (
    "51,6;40;1 | FLOAT;INT64;INT64 -> 40,6 | FLOAT",
    "8192,128;41;1 | DT_BF16;INT64;INT64 -> 41,128 | DT_BF16",
    "5,51,6;7; | FLOAT16;INT32;INT64 -> 5,7,6 | FLOAT16",
    "9;4 | INT64;INT64 -> 4 | INT64",
)

ROWS = {
    "ScatterNdUpdate": NAMED,
    "ScatterElementsV2": (
        "5,40;5,7;5,7 | FLOAT;INT64;FLOAT -> 5,40 | FLOAT",
        "16,515;16,515;16,515 | DT_BF16;INT64;DT_BF16 -> 16,515 | DT_BF16",
        "9,7,3;4,7,3;4,7,3 | INT32;INT32;INT32 -> 9,7,3 | INT32",
        "16,515;16,1; | BOOL;INT64;BOOL -> 16,515 | BOOL",
        "6,5;4,3;4,3 | FLOAT;INT64;FLOAT -> 6,5 | FLOAT",
    ),
    "IndexPutV2": PUT,
    "GatherElements": ELEMENTS,
    "GatherElementsV2": ELEMENTS[:1],
    "GatherV3": SELECT,
    "Gather": SELECT[-1:],
}
