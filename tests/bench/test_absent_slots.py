"""Optional inputs that a call leaves out: no dimensions, and no dtype or (CANN 8.5) the default dtype of the slot."""

from __future__ import annotations

import re

import pytest
from replaying import cells_of, replay_row

from opatlas.row.signature import signature
from opatlas.row.status import Status
from opatlas.run.inputs.row_slots import RowSlots

#: Rows as CANN 8.5 writes them: absent slots have a dtype, and ND as format.
ROWS = [
    ("GroupedMatmul", "8,4;2,4,6;;;;;;2 | BF16;BF16;FLOAT;UINT64;FLOAT;FLOAT16;FLOAT16;INT64 -> 8,6 | BF16"),
    ("GroupedMatmul", "8,4;2,4,6;2,6;;;;;2; | BF16;BF16;BF16;UINT64;FLOAT;BF16;BF16;INT64;FLOAT -> 8,6 | BF16"),
    ("GroupedMatmulSwigluQuant", "9,8;5,8,6;;;5,6;9;5 | INT8;INT8;FLOAT;FLOAT;FLOAT;FLOAT;INT64 -> 9,3;9 | INT8;FLOAT"),
    ("QuantBatchMatmulV3", "4,8;8,6;6;;; | INT8;INT8;FLOAT;FLOAT;INT32;FLOAT -> 4,6 | BF16"),
    ("QuantBatchMatmulV3", "4,8;8,6;6;;;4 | INT8;INT8;FLOAT;FLOAT;INT32;FLOAT -> 4,6 | BF16"),
    ("MatMulV3", "4,8;8,6;; | BF16;BF16;FLOAT;INT8 -> 4,6 | BF16"),
    ("MatMulV2", "4,8;8,6;6; | FLOAT;FLOAT;FLOAT;INT8 -> 4,6 | FLOAT"),
    ("BatchMatMulV3", "2,4,8;2,8,6;; | FLOAT16;FLOAT16;FLOAT16;INT8 -> 2,4,6 | FLOAT16"),
    ("TransposeBatchMatMul", "3,2,128;3,128,128;; | BF16;BF16;BF16;UINT64 -> 2,3,128 | BF16"),
    ("Conv2D", "1,2,5,5;3,2,3,3;; | FLOAT;FLOAT;FLOAT;INT8 | NCHW;NCHW;ND;ND -> 1,3,3,3 | FLOAT | NCHW"),
    ("AddRmsNormBias", "4,8;4,8;8; | BF16;BF16;BF16;BF16 -> 4,8;4,1;4,8 | BF16;FLOAT;BF16"),
    (
        "AddRmsNormDynamicQuant",
        "4,8;4,8;8;;;8 | BF16;BF16;BF16;BF16;BF16;BF16 -> 4,8;4,8;4,8;4;4 | INT8;INT8;BF16;FLOAT;FLOAT",
    ),
    ("DynamicQuant", "4,8;; | BF16;BF16;INT32 -> 4,8;4 | INT8;FLOAT"),
    ("AscendQuantV2", "4,8;8; | BF16;BF16;BF16 -> 4,8 | INT8"),
    ("MoeGatingTopK", "4,8; | BF16;BF16 -> 4,2;4,2;4,8 | BF16;INT32;FLOAT"),
    ("MoeTokenUnpermute", "4,8;4; | BF16;INT32;BF16 -> 4,8 | BF16"),
]
#: Rows that a group of devices runs.
OF_GROUPS = [
    (
        "MoeDistributeDispatch",
        "7,64;7,2;;; | BF16;INT32;FLOAT;BOOL;FLOAT -> 14,64;14;14;5;5; | BF16;FLOAT;INT32;INT64;INT32;INT32",
    ),
    (
        "MoeDistributeCombineV2",
        "14,64;7,2;1792;5;7,2;;7;;; | BF16;INT32;INT32;INT32;FLOAT;INT32;BOOL;FLOAT;FLOAT;INT64 -> 7,64 | BF16",
    ),
    (
        "DispatchFFNCombineBF16",
        "7,64;3,64,96;3,48,64;7,2;;;7,2 | BF16;BF16;BF16;INT32;INT64;INT64;FLOAT -> 7,64 | BF16 @ EP Size = 1",
    ),
]


def _undefined(row: str) -> str:
    """The same row with DT_UNDEFINED in slots without dimensions, as CANN before 8.5 writes it."""

    def words(match: re.Match[str]) -> str:
        shapes, dtypes = match[1].strip(), match[2].strip()
        pairs = zip(shapes.split(";"), dtypes.split(";"), strict=True)
        return f"{shapes} | {';'.join(dtype if shape else 'DT_UNDEFINED' for shape, dtype in pairs)}"

    return " -> ".join(re.sub(r"([^|]*)\|([^|@]*)", words, part, count=1) for part in row.split("->"))


@pytest.mark.parametrize(("kernel_type", "row"), ROWS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(ROWS)])
def test_both_spellings_of_an_absent_slot_are_one_call(kernel_type: str, row: str) -> None:
    older = _undefined(row)
    assert cells_of(row) != cells_of(older)
    for spelled in (row, older):
        outcome = replay_row(kernel_type, spelled)
        assert outcome.status is Status.MEASURED, outcome
    assert signature(kernel_type, cells_of(row)) == signature(kernel_type, cells_of(older))


@pytest.mark.parametrize(("kernel_type", "row"), OF_GROUPS)
def test_both_spellings_are_one_call_of_a_group(kernel_type: str, row: str) -> None:
    newer, older = (RowSlots(kernel_type, cells_of(spelled)) for spelled in (row, _undefined(row)))
    assert (newer.input_slots, newer.output_slots) == (older.input_slots, older.output_slots)
    assert signature(kernel_type, newer.cells) == signature(kernel_type, older.cells)


@pytest.mark.parametrize(
    ("kernel_type", "row"),
    [
        ("Add", "4; | FLOAT;FLOAT -> 4 | FLOAT"),
        ("MaskedFill", "4,8;4,8; | BF16;BOOL;BF16 -> 4,8 | BF16"),
        ("ArgMaxV2", "4,8; | FLOAT;INT64 -> 4 | INT32"),
        ("Pows", "; | FLOAT;FLOAT -> | FLOAT"),
    ],
)
def test_a_slot_of_other_kernels_is_a_scalar(kernel_type: str, row: str) -> None:
    assert replay_row(kernel_type, row).status is Status.MEASURED
    assert signature(kernel_type, cells_of(row)) != signature(kernel_type, cells_of(_undefined(row)))
