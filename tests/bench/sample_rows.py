"""Rows of every kernel type: small and odd sizes, in the forms that real captures hold.

A type without rows here has the first row of the type that it is another name of (`AddAiCore` is Add), or else the
smallest rows of its line in shapes/catalog.yaml.

Each kernel type's first row is the one that wrong formulas are planted on. A row is written as
`replaying.cells_of` reads it: `shapes | dtypes [| formats] -> shapes | dtypes [| formats]`, inputs before outputs.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from opatlas.row.columns import BASE, INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.row.slots import base_type
from opatlas.run.registry import replays_of_bench

#: So many rows of each form of a pattern are taken from the catalog, where a kernel type has none here.
CATALOG_ROWS = 3

BINARY = (
    "33,17;33,17 | FLOAT;FLOAT -> 33,17 | FLOAT",
    "64; | FLOAT;FLOAT -> 64 | FLOAT",
    "; | FLOAT;FLOAT -> | FLOAT",
    "17,1;5 | DT_BF16;DT_BF16 -> 17,5 | DT_BF16",
    "6,4,1,8;6,4,1,8 | FLOAT16;FLOAT16 | NCHW;NCHW -> 6,4,1,8 | FLOAT16",
    "5,7 | DT_BF16 | NCL -> 5,7 | DT_BF16",
    "0,8;0,8 | FLOAT;FLOAT -> 0,8 | FLOAT",
)
MIXED = ("31,9;31,9 | FLOAT;DT_BF16 -> 31,9 | FLOAT", "16; | INT64;INT64 -> 16 | INT64")
COMPARISON = (
    "5,32;5,32 | INT64;INT64 -> 5,32 | BOOL",
    "4,33; | FLOAT;FLOAT -> 4,33 | BOOL",
    "; | FLOAT;FLOAT -> | BOOL",
    "7,3;7,1 | DT_BF16;DT_BF16 -> 7,3 | BOOL",
    "9;9 | BOOL;BOOL -> 9 | BOOL",
    "9;9 | INT8;INT8 -> 9 | BOOL",
)
UNARY = (
    "4,1,1,33 | FLOAT | NCHW -> 4,1,1,33 | FLOAT",
    " | FLOAT | ND -> | FLOAT",
    "3,129 | DT_BF16 -> 3,129 | DT_BF16",
    "70 | FLOAT16 -> 70 | FLOAT16",
    "70 | DOUBLE -> 70 | DOUBLE",
)
INTEGERS = ("40 | INT32 -> 40 | INT32",)
FLOOR = (
    "33,17;33,17 | INT32;INT32 -> 33,17 | INT32",
    "33,17;33,17 | FLOAT;FLOAT -> 33,17 | FLOAT",
    "40;40 | DT_BF16;DT_BF16 -> 40 | DT_BF16",
    "16; | INT64;INT64 -> 16 | INT64",
    "16 | UINT8 -> 16 | UINT8",
)
MATMUL = (
    "24,40;72,40 | DT_BF16;DT_BF16 -> 24,72 | DT_BF16",
    "24,40;40,72 | FLOAT16;FLOAT16 -> 24,72 | FLOAT16",
    "40,24;40,72 | FLOAT;FLOAT -> 24,72 | FLOAT",
    "40,24;72,40 | FLOAT;FLOAT -> 24,72 | FLOAT",
    "16,16;16,16 | FLOAT;FLOAT -> 16,16 | FLOAT",
    "32,40;100,40;100 | FLOAT;FLOAT;FLOAT -> 32,100 | FLOAT",
    "32,40;100,40;100 | DT_BF16;DT_BF16;FLOAT -> 32,100 | DT_BF16",
    "7,32;2,5,16,16 | DT_BF16;DT_BF16 | ND;FRACTAL_NZ -> 7,80 | DT_BF16",
    "7,80;2,5,16,16 | DT_BF16;DT_BF16 -> 7,32 | DT_BF16",
    "3,40;72,40;72 | DT_BF16;DT_BF16;FLOAT -> 3,72 | DT_BF16",
    "1,7;1,7 | FLOAT;FLOAT -> 1,1 | FLOAT",
    "4,3,16,16;2,3,16,16 | DT_BF16;DT_BF16 | FRACTAL_NZ;FRACTAL_NZ -> 2,4,16,16 | DT_BF16 | FRACTAL_NZ",
    "33,48;2,3,16,16 | FLOAT16;FLOAT16 -> 33,32 | FLOAT16",
)

ROWS: dict[str, tuple[str, ...]] = {
    "MatMulV2": MATMUL,
    "MatMulV3": MATMUL[:2],
    "MatMul": (*MATMUL[:4], MATMUL[-2]),
    "MatMulCommon": MATMUL[:2],
    "BatchMatMulV2": (
        "6,5,16;6,16,33 | DT_BF16;DT_BF16 -> 6,5,33 | DT_BF16",
        "6,16,5;6,16,33 | FLOAT;FLOAT -> 6,5,33 | FLOAT",
        "2,3,5,16;2,3,33,16 | FLOAT16;FLOAT16 -> 2,3,5,33 | FLOAT16",
        "2,3,5,16;1,3,16,33 | FLOAT;FLOAT -> 2,3,5,33 | FLOAT",
        "2,3,5,16;16,33 | FLOAT;FLOAT -> 2,3,5,33 | FLOAT",
        "3,5,32;3,2,5,16,16 | DT_BF16;DT_BF16 | ND;FRACTAL_NZ -> 3,5,80 | DT_BF16",
        "3,4,2,16,16;3,2,4,16,16 | FLOAT16;FLOAT16 | FRACTAL_NZ;FRACTAL_NZ -> 3,2,2,16,16 | FLOAT16 | FRACTAL_NZ",
    ),
    "BatchMatMulV3": ("6,5,16;6,16,33 | DT_BF16;DT_BF16 -> 6,5,33 | DT_BF16",),
    "BatchMatMul": (
        "6,5,16;6,16,33 | FLOAT16;FLOAT16 -> 6,5,33 | FLOAT16",
        "3,4,2,16,16;3,2,4,16,16 | FLOAT16;FLOAT16 | FRACTAL_NZ;FRACTAL_NZ -> 3,2,2,16,16 | FLOAT16 | FRACTAL_NZ",
    ),
    "Add": BINARY + MIXED + ("7;7 | UINT8;UINT8 -> 7 | UINT8",),
    "Mul": (*BINARY, *MIXED, "41,1;6 | FLOAT;FLOAT -> 41,6 | FLOAT"),
    "Muls": ("1,40,10 | DT_BF16 | NCL -> 1,40,10 | DT_BF16",),
    "Sub": BINARY + MIXED + ("7;7 | UINT8;UINT8 -> 7 | UINT8",),
    "RealDiv": (*BINARY, "11,151;11,1 | FLOAT;FLOAT -> 11,151 | FLOAT"),
    "FloorDiv": FLOOR,
    "FloorMod": FLOOR,
    "Pows": ("33,17; | FLOAT;FLOAT -> 33,17 | FLOAT", *BINARY, "16; | INT64;INT64 -> 16 | INT64"),
    "Neg": UNARY + INTEGERS,
    "Abs": UNARY + INTEGERS,
    "Relu": UNARY + INTEGERS,
    "Log": UNARY,
    "Sin": UNARY,
    "Cos": UNARY,
    "Exp": UNARY,
    "Reciprocal": UNARY,
    "Rsqrt": UNARY,
    "Square": UNARY + INTEGERS,
    "ClipByValueV2": (
        "33,17;; | FLOAT;FLOAT;FLOAT -> 33,17 | FLOAT",
        "64;1;1 | DT_BF16;DT_BF16;DT_BF16 -> 64 | DT_BF16",
        "40;; | INT64;INT64;INT64 -> 40 | INT64",
        "9,7;9,7;1,7 | FLOAT16;FLOAT16;FLOAT16 -> 9,7 | FLOAT16",
        "9,7;9,7;9,7 | INT32;INT32;INT32 -> 9,7 | INT32",
    ),
    "Cast": (
        "40 | FLOAT -> 40 | DT_BF16",
        "160 | BOOL -> 160 | FLOAT",
        "2,81 | INT64 -> 2,81 | INT32",
        " | INT32 -> | UINT64",
        "1,8 | DT_BF16 -> 1,8 | FLOAT",
        "33 | FLOAT -> 33 | INT8",
        "33 | FLOAT -> 33 | UINT16",
        "33 | INT32 -> 33 | BOOL",
        "33 | FLOAT -> 33 | FLOAT",
    ),
    "Equal": COMPARISON,
    "NotEqual": COMPARISON,
    "Greater": COMPARISON,
    "GreaterEqual": COMPARISON,
    "Less": COMPARISON,
    "LogicalAnd": ("2,81;2,81 | BOOL;BOOL -> 2,81 | BOOL", "9;9 | INT32;BOOL -> 9 | BOOL"),
    "LogicalOr": ("2,81;2,81 | BOOL;BOOL -> 2,81 | BOOL", "9;9 | FLOAT;BOOL -> 9 | BOOL"),
    "LogicalNot": ("2,81,1 | BOOL -> 2,81,1 | BOOL", "40 | FLOAT -> 40 | BOOL"),
    "SelectV2": (
        "4,33;4,33;4,33 | BOOL;FLOAT;FLOAT -> 4,33 | FLOAT",
        "4,33;4,1; | BOOL;DT_BF16;DT_BF16 -> 4,33 | DT_BF16",
        "9;9;9 | BOOL;INT64;INT64 -> 9 | INT64",
    ),
    "Fill": (
        "1; | INT64;FLOAT -> 9 | FLOAT",
        "1; | INT64;FLOAT -> 1 | FLOAT",
        "2; | INT64;DT_BF16 -> 3,5 | DT_BF16",
        "1; | INT64;BOOL -> 7 | BOOL",
        "1; | INT64;INT32 -> 7 | INT32",
    ),
    "ZerosLike": ("4,24 | FLOAT -> 4,24 | FLOAT", "4,1,16,8 | DT_BF16 | NCHW -> 4,1,16,8 | DT_BF16"),
    "OnesLike": ("4,24 | FLOAT -> 4,24 | FLOAT", "1 | INT32 -> 1 | INT32"),
    "Range": (
        ";; | DOUBLE;DOUBLE;DOUBLE -> 409 | FLOAT",
        ";; | INT64;INT64;INT64 -> 33 | INT64",
        ";; | FLOAT;FLOAT;FLOAT -> 1 | DT_BF16",
    ),
    "StridedSlice": (
        "8,6,51;3;3;3 | DT_BF16;INT64;INT64;INT64 -> 4,6,12 | DT_BF16",
        "2,129;2;2;2 | INT64;INT32;INT32;INT32 -> 2,128 | INT64",
        "64;1;1;1 | FLOAT;INT64;INT64;INT64 -> 32 | FLOAT",
    ),
    "StridedSliceD": ("8,6,51 | FLOAT16 -> 4,6,12 | FLOAT16", "4,8 | BOOL -> 4,8 | BOOL"),
    "Pack": (
        "5,7;5,7;5,7 | FLOAT;FLOAT;FLOAT -> 5,3,7 | FLOAT",
        "33;33 | INT64;INT64 -> 2,33 | INT64",
        ";; | FLOAT;FLOAT;FLOAT -> 3 | FLOAT",
        "3,3;3,3;3,3 | DT_BF16;DT_BF16;DT_BF16 -> 3,3,3 | DT_BF16",
    ),
    "RepeatInterleave": (
        "9;9 | INT32;INT32 -> 33 | INT32",
        "6,5,4;5 | DT_BF16;INT64 -> 6,17,4 | DT_BF16",
        "6,5;1 | FLOAT;INT64 -> 18,5 | FLOAT",
        "6,5;6 | FLOAT;INT64 -> 6,5 | FLOAT",
        "40; | INT64;INT64 -> 160 | INT64",
    ),
    "TensorMove": (
        "4,1,8,16 | DT_BF16 | NCHW -> 4,1,8,16 | DT_BF16",
        "33 | FLOAT -> 33 | FLOAT",
        " | FLOAT -> | FLOAT",
        "33 | UINT64 -> 33 | UINT64",
        "33 | BOOL -> 33 | BOOL",
    ),
    "Slice": (
        "40,8,51;3;3 | DT_BF16;INT64;INT64 | NCHW;ND;ND -> 40,8,12 | DT_BF16",
        "4,24;2;2 | FLOAT;INT64;INT64 -> 4,1 | FLOAT",
        "5,6;2;2 | INT32;INT64;INT64 -> 5,6 | INT32",
        # As msmodeling's shape grid has it.
        "8,24;2;2;2;2 | DT_BF16;INT64;INT64;INT64;INT64 -> 4,24 | DT_BF16",
        "8,24;2;2;2;2 | DT_BF16;INT64;INT64 -> 4,24 | DT_BF16",
    ),
    "Transpose": (
        "3,1,4,4,25;5 | FLOAT;INT64 -> 3,25,1,4,4 | FLOAT",
        "1,6,6,81;4 | FLOAT;INT64 | NCHW;ND -> 81,1,6,6 | FLOAT",
        "32,5;2 | INT64;INT64 -> 5,32 | INT64",
        "16,5,51;3 | DT_BF16;INT64 -> 5,16,51 | DT_BF16",
        "6,6 | FLOAT -> 6,6 | FLOAT",
    ),
    "ConcatD": (
        "41,1,8,25;41,1,8,12;41,1,8,13 | DT_BF16;DT_BF16;DT_BF16 | NCHW;NCHW;NCHW -> 41,1,8,50 | DT_BF16",
        "40,6;40,6 | FLOAT;FLOAT -> 40,12 | FLOAT",
        "4,6;9,6 | FLOAT;FLOAT -> 13,6 | FLOAT",
        "4,6 | FLOAT -> 4,6 | FLOAT",
    ),
    "BroadcastTo": (
        "10,1,6;3 | DT_BF16;INT64 -> 10,7,6 | DT_BF16",
        "1,32;2 | INT64;INT64 -> 5,32 | INT64",
        "1;1 | INT32;INT64 -> 1 | INT32",
        "6;2 | FLOAT;INT64 -> 3,6 | FLOAT",
        ";1 | FLOAT;INT64 -> 4 | FLOAT",
    ),
    "Tile": (
        "5,6;2 | FLOAT;INT64 -> 10,18 | FLOAT",
        "6;2 | DT_BF16;INT64 -> 3,12 | DT_BF16",
        "3;1 | INT64;INT64 -> 3 | INT64",
    ),
    "PadV3": (
        "5,13;4; | FLOAT;INT64;FLOAT -> 5,16 | FLOAT",
        "2,3,4;6 | DT_BF16;INT64 -> 3,3,8 | DT_BF16",
        "5,13 | FLOAT -> 5,13 | FLOAT",
    ),
    "GatherV2": (
        "151,10;1,40;1 | DT_BF16;INT64;INT64 -> 1,40,10 | DT_BF16",
        "64,5;2,81;1 | DT_BF16;INT32;INT64 -> 2,81,5 | DT_BF16",
        "64,5;7;1 | FLOAT;INT32;INT64 -> 7,5 | FLOAT",
    ),
    "Index": (
        "16,51;1;2;11 | DT_BF16;INT64;INT64;INT32 -> 11,51 | DT_BF16",
        "5;1;1;4 | INT32;INT64;INT64;INT64 -> 4 | INT32",
        "16,51;2;2;11 | DT_BF16;INT64;INT64;INT64 -> 16,11 | DT_BF16",
        "6,5,4;2;3;7,1;3 | FLOAT;INT64;INT64;INT64;INT64 -> 7,3,4 | FLOAT",
        # The next three as msmodeling's shape grid has them; the last is one row by captured slots.
        "16,51;1;11;1 | DT_BF16;INT64;INT64;INT64 -> 11,51 | DT_BF16",
        "16,51;1;2;1 | DT_BF16;INT64;INT64;INT64 -> 2,51 | DT_BF16",
        "16,51;1;1;1 | DT_BF16;INT64;INT64;INT64 -> 1,51 | DT_BF16",
        "16,51;1;2;1 | DT_BF16;INT64;INT64;INT64 -> 1,51 | DT_BF16",
        "64,100;2;1;64;64 | DT_BF16;INT64;INT64;INT64;INT64 -> 64 | DT_BF16",
    ),
    "MaskedFill": (
        "2,129;2,129; | FLOAT;BOOL;FLOAT -> 2,129 | FLOAT",
        "8,71;8,1; | DT_BF16;BOOL;DT_BF16 -> 8,71 | DT_BF16",
        "8,71;8,71 | FLOAT;BOOL -> 8,71 | FLOAT",
    ),
    "Sort": (
        "409 | FLOAT -> 409;409 | FLOAT;INT32",
        "7,151 | DT_BF16 -> 7,151;7,151 | DT_BF16;INT32",
        "5,40 | INT32 -> 5,40;5,40 | INT32;INT64",
    ),
    "ArgMaxV2": (
        "11,151; | FLOAT;INT64 -> 11 | INT32",
        "11,151; | DT_BF16;INT64 -> 11 | INT64",
        "40 | FLOAT -> | INT32",
    ),
    "ArgMaxWithValue": (
        "11,151 | FLOAT -> 11;11 | INT32;FLOAT",
        "3,4,33 | DT_BF16 -> 3,4,1;3,4,1 | INT32;DT_BF16",
        "40 | FLOAT16 -> ; | INT32;FLOAT16",
    ),
    "IndexFill": (
        "33,17;5; | FLOAT;INT64;FLOAT -> 33,17 | FLOAT",
        "64;64;1 | INT64;INT64;INT64 -> 64 | INT64",
        "3,5;7;1 | BOOL;INT32;BOOL -> 3,5 | BOOL",
    ),
    "FastGelu": UNARY[:1] + UNARY[2:4],
    "Swish": UNARY[:1] + UNARY[2:4],
    "ScaledMaskedSoftmax": (
        "2,3,33,32;1,1,33,32 | FLOAT;BOOL -> 2,3,33,32 | FLOAT",
        "2,2,32,64;2,1,32,64 | FLOAT16;BOOL -> 2,2,32,64 | FLOAT16",
        "4,2,64,96;4,2,64,96 | DT_BF16;BOOL -> 4,2,64,96 | DT_BF16",
        "2,3,2,2,16,16;2,1,32,32 | FLOAT16;BOOL | FRACTAL_NZ;ND -> 2,3,2,2,16,16 | FLOAT16 | FRACTAL_NZ",
    ),
    "ScaledMaskedSoftmaxV2": ("2,3,33,32;1,1,33,32 | FLOAT;BOOL -> 2,3,33,32 | FLOAT",),
    "SoftmaxV2": (
        "11,151 | FLOAT -> 11,151 | FLOAT",
        "3,4,33 | DT_BF16 -> 3,4,33 | DT_BF16",
        "33 | FLOAT16 -> 33 | FLOAT16",
    ),
    "ReduceSum": (
        "32,19,72;2 | FLOAT;INT64 -> 19 | FLOAT",
        "160;1 | FLOAT;INT64 -> 1 | FLOAT",
        "32,100;1 | FLOAT;INT64 -> 1,100 | FLOAT",
        "6,7;2 | FLOAT;INT64 -> | FLOAT",
        "6,7;1 | DT_BF16;INT64 -> 6 | FLOAT",
        "6,7 | DT_BF16 -> 6,1 | DT_BF16",
        "6,7;1 | INT32;INT64 -> 7 | INT32",
    ),
    "ReduceSumD": ("32,19,72 | FLOAT -> 19 | FLOAT", "160 | FLOAT16 -> 1 | FLOAT16"),
    "ReduceMean": (
        "32,19,72;2 | FLOAT;INT64 -> 19 | FLOAT",
        "7,150;1 | DT_BF16;INT64 -> 7,1 | DT_BF16",
        "6,7;2 | FLOAT16;INT32 -> | FLOAT16",
        "6,7;1 | INT64;INT64 -> 6 | FLOAT",
    ),
    "ReduceMeanD": ("7,150 | FLOAT16 -> 7,1 | FLOAT16",),
    "Cumsum": (
        "3,70; | FLOAT;INT64 -> 3,70 | FLOAT",
        "3,70;1 | DT_BF16;INT32 -> 3,70 | DT_BF16",
        "2,3,9 | INT64 -> 2,3,9 | INT64",
    ),
    "RmsNorm": (
        "41,1,16,12;12 | DT_BF16;DT_BF16 -> 41,1,16,12;41,1,16,1 | DT_BF16;FLOAT",
        "515,15;15 | FLOAT;FLOAT -> 515,15;515,1 | FLOAT;FLOAT",
        "1,15;15 | FLOAT16;FLOAT16 -> 1,15;1,1 | FLOAT16;FLOAT",
        "3,15;15 | DT_BF16;FLOAT -> 3,15;3,1 | DT_BF16;FLOAT",
    ),
    "SwiGlu": (
        "40,62 | DT_BF16 -> 40,31 | DT_BF16",
        "2,3,8 | FLOAT -> 2,3,4 | FLOAT",
    ),
}

# The families that have a file of their own next to this one.
for path in sorted(Path(__file__).parent.glob("sample_rows_*.py")):
    family = import_module(path.stem).ROWS
    assert not ROWS.keys() & family.keys(), f"{path.name}: {ROWS.keys() & family.keys()} have rows elsewhere"
    ROWS |= family


def catalog_rows(kernel_type: str) -> tuple[str, ...]:
    """Returns the smallest rows that a kernel type's line in shapes/catalog.yaml spans, some for each form."""
    # Here, because these modules import pandas.
    from opatlas.theory.catalog import built_in_catalog
    from opatlas.theory.sources import resolve_targets
    from opatlas.theory.space import GB, Space

    kernel = built_in_catalog().kernels.get(kernel_type)
    found: list[str] = []
    for pattern in kernel.patterns if kernel is not None else ():
        for batch in Space(kernel_type, pattern, pattern.forms, resolve_targets([]), GB).batches():
            smallest = batch.frame.iloc[batch.bytes.argsort(kind="stable")[:CATALOG_ROWS]]
            found += map(_text, smallest.to_dict("records"))
    return tuple(found)


def _text(cells: dict[str, str]) -> str:
    slots = [" | ".join(cells[column] for column in columns) for columns in (INPUT_SLOTS, OUTPUT_SLOTS)]
    more = [f"@ {column} = {cell}" for column, cell in cells.items() if column not in BASE]
    return " ".join([slots[0], "->", slots[1], *more])


def _derived(kernel_type: str) -> tuple[str, ...]:
    """Returns the first row of the type that this one is another name of, or else rows of the catalog."""
    return ROWS[other][:1] if (other := base_type(kernel_type)) in ROWS else catalog_rows(kernel_type)


ROWS |= {name: _derived(name) for name in replays_of_bench() if name not in ROWS}
