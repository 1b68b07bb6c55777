"""Rows of kernels of a training step."""

from sample_rows import UNARY

FOREACH = "5,3,2,2;7;4,6"

ROWS: dict[str, tuple[str, ...]] = {
    "SwiGluGrad": (
        "41,31;41,62 | FLOAT;FLOAT -> 41,62 | FLOAT",
        "40,16;40,32 | DT_BF16;DT_BF16 | ND;ND -> 40,32 | DT_BF16",
        "2,3,4;2,3,8 | FLOAT16;FLOAT16 -> 2,3,8 | FLOAT16",
    ),
    "ReluGrad": (
        "3,5,7,2;3,5,7,2 | FLOAT;FLOAT | NCHW;NCHW -> 3,5,7,2 | FLOAT | FORMAT_ND",
        "33;33 | DT_BF16;DT_BF16 -> 33 | DT_BF16",
    ),
    "LogSoftmaxV2": (UNARY[0], "11,151 | DT_BF16 -> 11,151 | DT_BF16", "33 | FLOAT16 -> 33 | FLOAT16"),
    "LogSoftmaxGrad": (
        "11,151;11,151 | FLOAT;FLOAT -> 11,151 | FLOAT",
        "3,4,33;3,4,33 | DT_BF16;DT_BF16 -> 3,4,33 | DT_BF16",
    ),
    "NLLLoss": (
        "32,100;32;100 | FLOAT;INT64;FLOAT -> ; | FLOAT;FLOAT",
        "32,100;32;100 | FLOAT;INT32;FLOAT -> ; | FLOAT;FLOAT",
        "1,2;1;2 | FLOAT;INT64;FLOAT -> ; | FLOAT;FLOAT",
    ),
    "NLLLossGrad": (
        "32,100;;32;100; | FLOAT;FLOAT;INT64;FLOAT;FLOAT -> 32,100 | FLOAT",
        "200,300;;200;300; | FLOAT;FLOAT;INT32;FLOAT;FLOAT -> 200,300 | FLOAT",
    ),
    "EmbeddingDenseGradV2": (
        "2,40,9;80;80 | FLOAT;INT32;INT32 | NCL;ND;ND -> 33,9 | FLOAT",
        "7,5;7;7 | FLOAT;INT64;INT32 -> 3000,5 | FLOAT",
        "1,1,5;1;1 | DT_BF16;INT32;INT32 -> 4,5 | DT_BF16",
    ),
    "DropOutDoMask": (
        "9,71;80;1 | FLOAT;UINT8;FLOAT -> 9,71 | FLOAT",
        "4,32;16;1 | DT_BF16;UINT8;DT_BF16 -> 4,32 | DT_BF16",
        "129;32; | FLOAT16;UINT8;FLOAT16 -> 129 | FLOAT16",
    ),
    "ApplyAdamWV2": (
        "333;333;333;333;1 | FLOAT;FLOAT;FLOAT;FLOAT;INT64 | ND;ND;ND;ND;ND -> N/A | N/A | N/A",
        "9,7;9,7;9,7;9,7; | FLOAT;FLOAT;FLOAT;FLOAT;FLOAT -> N/A | N/A",
        "40;40;40;40;1 | DT_BF16;DT_BF16;DT_BF16;DT_BF16;INT64 -> N/A | N/A",
    ),
    "ApplyAdamW": (
        f"9,7;9,7;9,7;;;;;;;;9,7 | {';'.join(['FLOAT'] * 11)} -> 9,7;9,7;9,7 | FLOAT;FLOAT;FLOAT",
        f"333;333;333;1;1;1;1;1;1;1;333; | {';'.join(['FLOAT'] * 11)};DT_UNDEFINED -> N/A | N/A",
        f"40;40;40;;;;;;;;40 | {';'.join(['FLOAT16'] * 11)} -> 40;40;40 | FLOAT16;FLOAT16;FLOAT16",
    ),
    "ForeachAddList": (
        f"{FOREACH};{FOREACH}; | FLOAT;FLOAT;FLOAT;FLOAT;FLOAT;FLOAT;FLOAT -> 60;7;24 | FLOAT;FLOAT;FLOAT",
        "4,5;4,5; | DT_BF16;DT_BF16;DT_BF16 -> 4,5 | DT_BF16",
    ),
    "ForeachMulScalar": (
        f"{FOREACH}; | FLOAT;FLOAT;FLOAT;FLOAT -> 60;7;24 | FLOAT;FLOAT;FLOAT",
        "4,5; | FLOAT16;FLOAT -> 20 | FLOAT16",
    ),
}
