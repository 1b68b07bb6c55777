"""A row from which no call can be built says which cell is wrong, and what to do."""

from __future__ import annotations

import pytest
from replaying import (
    DTYPES,
    FORMATS,
    OUTPUT,
    OUTPUT_TYPES,
    SHAPES,
    assert_refused,
    job_of,
    replay_row,
    runner,
    types_of_replays,
)
from sample_rows import ROWS

from opatlas.engine.device_errors import outcome_from_error
from opatlas.engine.registry import replays
from opatlas.model.schema import Status

OF_TRAINING = "FLOAT;FLOAT;FLOAT;FLOAT"
#: Kernel type, row, the column that is named, words of the message.
CONTRADICTIONS = [
    ("MatMulV2", "4,8;9,7 | FLOAT;FLOAT -> 4,7 | FLOAT", SHAPES, "no product of the shape (4, 7)"),
    ("MatMulV2", "4,8;8,7 | FLOAT;FLOAT -> 28 | FLOAT", SHAPES, "no product of the shape (28,)"),
    ("MatMulV2", "4,8;8,7;6 | FLOAT;FLOAT;FLOAT -> 4,7 | FLOAT", SHAPES, "slot 2 (the bias) must have the shape 7"),
    ("MatMulV2", "4,8 | FLOAT -> 4,8 | FLOAT", SHAPES, "1 tensor, where MatMulV2 takes 2 or 3; restore"),
    ("MatMulV2", "4,8;8 | FLOAT;FLOAT -> 4,8 | FLOAT", SHAPES, "slot 1 has 1 axes"),
    ("MatMulV2", "4,32;2,5,16,16 | FLOAT;FLOAT | ND;NCHW -> 4,80 | FLOAT", FORMATS, "FRACTAL_NZ"),
    ("MatMulV2", "4,8;8,7 | FLOAT;FLOAT -> 4,7 | DT_BF16", OUTPUT_TYPES, "output 0 of MatMulV2 is torch.float32"),
    (
        "MatMulV2",
        "4,3,16,16;2,3,16,16 | DT_BF16;DT_BF16 | FRACTAL_NZ;FRACTAL_NZ -> 2,4,16,16 | FLOAT | FRACTAL_NZ",
        OUTPUT_TYPES,
        "the product has the dtype of its factors",
    ),
    ("MatMulV2", "48,64;48,32 | FLOAT;FLOAT -> 2,4,16,32 | FLOAT | FRACTAL_NZ", SHAPES, "no product of the shape"),
    ("BatchMatMulV2", "3,4,8;2,8,7 | FLOAT;FLOAT -> 3,4,7 | FLOAT", SHAPES, "no product of the shape (3, 4, 7)"),
    ("BatchMatMulV2", "8;8,7 | FLOAT;FLOAT -> 7 | FLOAT", SHAPES, "slot 0 has 1 axes"),
    ("Add", "4,8;3,8 | FLOAT;FLOAT -> 4,8 | FLOAT", SHAPES, "do not broadcast"),
    ("Add", "4,8;4,8 | FLOAT;FLOAT -> 4,9 | FLOAT", OUTPUT, "the inputs broadcast to 4,8"),
    ("Add", "4;4;4 | FLOAT;FLOAT;FLOAT -> 4 | FLOAT", SHAPES, "3 tensors, where Add takes 1 or 2; if slots from 2 on"),
    ("Add", "4;4 | FLOAT;FLOAT -> | ", OUTPUT, "output slot 0 is missing"),
    ("Add", "4;4 | FLOAT;FLOAT -> 4 | INT32", OUTPUT_TYPES, "output 0 of Add is torch.float32"),
    ("Add", "4;4 | FLOAT;65534 -> 4 | FLOAT", DTYPES, "'65534' is not a dtype"),
    ("Add", "4;4 | FLOAT;DT_BF17 -> 4 | FLOAT", DTYPES, "did you mean BF16?"),
    ("Add", "4;-4 | FLOAT;FLOAT -> 4 | FLOAT", SHAPES, "'-4' is not a dimension"),
    ("Add", "4;4 | FLOAT -> 4 | FLOAT", DTYPES, "slot 1 has the shape 4"),
    ("Equal", "4;4 | FLOAT;FLOAT -> 4 | FLOAT", OUTPUT_TYPES, "output 0 of Equal is torch.bool"),
    ("Neg", "4;4 | FLOAT;FLOAT -> 4 | FLOAT", SHAPES, "2 tensors, where Neg takes 1"),
    ("Neg", "4 | FLOAT -> 5 | FLOAT", OUTPUT, "output 0 of Neg is (4,)"),
    ("SelectV2", "4;4;4 | FLOAT;FLOAT;FLOAT -> 4 | FLOAT", DTYPES, "slot 0 must be BOOL"),
    ("SelectV2", "4;4;5 | BOOL;FLOAT;FLOAT -> 4 | FLOAT", SHAPES, "do not broadcast"),
    ("Fill", "2; | INT64;FLOAT -> 7 | FLOAT", SHAPES, "slot 0 lists the output's sizes"),
    ("Fill", "1;3 | INT64;FLOAT -> 7 | FLOAT", SHAPES, "slot 1 must be a scalar"),
    ("Range", ";;3 | DOUBLE;DOUBLE;DOUBLE -> 7 | FLOAT", SHAPES, "slot 2 must be a scalar"),
    ("Range", ";; | DOUBLE;DOUBLE;DOUBLE -> 7,2 | FLOAT", OUTPUT, "one axis"),
    ("TensorMove", "1 | FLOAT -> 4 | FLOAT", OUTPUT, "the shape of input slot 0"),
    ("TensorMove", "4 | FLOAT -> 4 | DT_BF16", OUTPUT_TYPES, "the dtype of input slot 0"),
    ("Slice", "4,8;2;2 | FLOAT;INT64;INT64 -> 5,8 | FLOAT", OUTPUT, "no block of the input (4, 8)"),
    ("Slice", "4,8;2;2 | FLOAT;INT64;INT64 -> 4 | FLOAT", OUTPUT, "no block of the input (4, 8)"),
    ("Slice", "4,8;3;3 | FLOAT;INT64;INT64 -> 4,2 | FLOAT", SHAPES, "slot 1 lists the offsets"),
    ("Transpose", "4,8;2 | FLOAT;INT64 -> 8,5 | FLOAT", OUTPUT, "not the axes of the input (4, 8)"),
    ("Transpose", "4,8;3 | FLOAT;INT64 -> 8,4 | FLOAT", SHAPES, "slot 1 lists the axes"),
    ("ConcatD", "4,8;4,9 | FLOAT;FLOAT -> 4,18 | FLOAT", SHAPES, "along no axis"),
    ("ConcatD", "4,8;5,9 | FLOAT;FLOAT -> 4,17 | FLOAT", SHAPES, "along no axis"),
    ("BroadcastTo", "3,8;2 | FLOAT;INT64 -> 4,8 | FLOAT", OUTPUT, "does not broadcast"),
    ("BroadcastTo", "1,8;3 | FLOAT;INT64 -> 4,8 | FLOAT", SHAPES, "slot 1 lists the output's sizes"),
    ("Tile", "3,8;2 | FLOAT;INT64 -> 4,8 | FLOAT", OUTPUT, "not multiples"),
    ("Tile", "3,8;1 | FLOAT;INT64 -> 6,8 | FLOAT", SHAPES, "slot 1 lists the repetitions"),
    ("PadV3", "4,8;4 | FLOAT;INT64 -> 4,7 | FLOAT", OUTPUT, "does not contain the input (4, 8)"),
    ("PadV3", "4,8;2 | FLOAT;INT64 -> 4,9 | FLOAT", SHAPES, "slot 1 lists what to add"),
    ("GatherV2", "16,8;3;1 | FLOAT;INT64;INT64 -> 4,8 | FLOAT", OUTPUT, "no axis of (16, 8)"),
    ("GatherV2", "16,8;3;1 | FLOAT;FLOAT;INT64 -> 3,8 | FLOAT", DTYPES, "indices, which are integers"),
    ("GatherV2", "0,8;3;1 | FLOAT;INT64;INT64 -> 3,8 | FLOAT", SHAPES, "a dimension of size 0"),
    ("Index", "16,8;1;2 | FLOAT;INT64;INT64 -> 3,8 | FLOAT", SHAPES, "input slot 3 is missing"),
    ("Index", "16,8;3;2;3 | FLOAT;INT64;INT64;INT64 -> 3,8 | FLOAT", SHAPES, "slot 1 must be a list"),
    ("Index", "16,8;1;3;3 | FLOAT;INT64;INT64;INT64 -> 3,8 | FLOAT", SHAPES, "slot 2 lists the steps"),
    ("Index", "16,8;1;2;3 | FLOAT;INT64;INT64;INT64 -> 4,8 | FLOAT", OUTPUT, "output 0 of Index is (3, 8)"),
    ("Index", "6,5,4;2;3;7;3 | FLOAT;INT64;INT64;INT64;INT64 -> 7,4 | FLOAT", SHAPES, "do not broadcast"),
    ("MaskedFill", "4,8;4,8; | FLOAT;FLOAT;FLOAT -> 4,8 | FLOAT", DTYPES, "slot 1 must be BOOL"),
    ("MaskedFill", "4,8;4,7; | FLOAT;BOOL;FLOAT -> 4,8 | FLOAT", SHAPES, "do not broadcast"),
    ("MaskedFill", "4,1;4,8; | FLOAT;BOOL;FLOAT -> 4,8 | FLOAT", OUTPUT, "the shape of input slot 0"),
    ("MaskedFill", "4,8;4,8;8 | FLOAT;BOOL;FLOAT -> 4,8 | FLOAT", SHAPES, "slot 2 must be a scalar"),
    ("Sort", "4,8 | FLOAT -> 4,8 | FLOAT", OUTPUT, "output slot 1 is missing"),
    ("ArgMaxV2", "4,0; | FLOAT;INT64 -> 4 | INT32", SHAPES, "no largest"),
    ("ArgMaxV2", "4,8; | FLOAT;INT64 -> 8 | INT32", OUTPUT, "output 0 of ArgMaxV2 is (4,)"),
    ("SoftmaxV2", "4,8 | FLOAT -> 4,7 | FLOAT", OUTPUT, "output 0 of SoftmaxV2 is (4, 8)"),
    ("ReduceSum", "4,8;1 | FLOAT;INT64 -> 5 | FLOAT", OUTPUT, "over 1 axes"),
    ("ReduceSum", "4,8;2 | FLOAT;INT64 -> 8 | FLOAT", OUTPUT, "over 2 axes"),
    ("Cumsum", "4,8; | FLOAT;INT64 -> 4,7 | FLOAT", OUTPUT, "output 0 of Cumsum is (4, 8)"),
    ("RmsNorm", "4,8;7 | FLOAT;FLOAT -> 4,8;4,1 | FLOAT;FLOAT", SHAPES, "slot 1 (gamma)"),
    ("ClipByValueV2", "4;5;4 | FLOAT;FLOAT;FLOAT -> 4 | FLOAT", SHAPES, "do not broadcast"),
    ("ClipByValueV2", "4;1,4;3,4 | FLOAT;FLOAT;FLOAT -> 3,4 | FLOAT", OUTPUT, "the shape of input slot 0"),
    ("ReduceMean", "4,8;1 | FLOAT;INT64 -> 5 | FLOAT", OUTPUT, "no mean of the input (4, 8) over 1 axes"),
    ("ReduceMean", "4,0;1 | FLOAT;INT64 -> 4 | FLOAT", SHAPES, "no mean of no elements"),
    ("Pack", "4;4 | FLOAT;BF16 -> 2,4 | FLOAT", DTYPES, "one dtype"),
    ("AttentionUpdate", "; | FLOAT;FLOAT -> | FLOAT", SHAPES, "has no axes"),
    ("ArgMaxWithValue", "4,0 | FLOAT -> 4;4 | INT32;FLOAT", SHAPES, "no largest"),
    ("ArgMaxWithValue", "4,8 | FLOAT -> 5;5 | INT32;FLOAT", OUTPUT, "output 1 of ArgMaxWithValue is (4,)"),
    ("IndexFill", "4,8;2,2; | FLOAT;INT64;FLOAT -> 4,8 | FLOAT", SHAPES, "slot 1 lists indices"),
    ("IndexFill", "4,8;2;2 | FLOAT;INT64;FLOAT -> 4,8 | FLOAT", SHAPES, "is one number"),
    ("IndexFill", "4,8;2; | FLOAT;FLOAT;FLOAT -> 4,8 | FLOAT", DTYPES, "indices, which are integers"),
    ("ScaledMaskedSoftmax", "4,8;3,8 | FLOAT;BOOL -> 4,8 | FLOAT", SHAPES, "slot 1 (mask) does not broadcast"),
    ("ScaledMaskedSoftmax", "4,8;4,8 | FLOAT;FLOAT -> 4,8 | FLOAT", DTYPES, "slot 1 must be BOOL"),
    ("Triu", "8 | FLOAT -> 8 | FLOAT", SHAPES, "a matrix has two axes"),
    ("StridedSlice", "4,8;2;2;2 | FLOAT;INT64;INT64;INT64 -> 5,8 | FLOAT", OUTPUT, "no part of the input (4, 8)"),
    ("StridedSlice", "4,8;2;2;3 | FLOAT;INT64;INT64;INT64 -> 4,4 | FLOAT", SHAPES, "slot 3 lists the steps"),
    ("Pack", "4,8;4,8 | FLOAT;FLOAT -> 3,4,8 | FLOAT", OUTPUT, "no new axis of 2"),
    ("RepeatInterleave", "4,8;4 | FLOAT;INT64 -> 9,9 | FLOAT", OUTPUT, "in more than one axis"),
    ("RepeatInterleave", "4,8;1 | FLOAT;INT64 -> 9,8 | FLOAT", SHAPES, "slot 1 (repetitions) must have the shape 4"),
    ("RepeatInterleave", "4,8;4 | FLOAT;FLOAT -> 9,8 | FLOAT", DTYPES, "indices, which are integers"),
    ("AttentionUpdate", "4;4;4,8 | FLOAT;FLOAT;FLOAT -> 4,8 | FLOAT", SHAPES, "as many sums as results"),
    ("AttentionUpdate", "4;5;4,8;4,8 | FLOAT;FLOAT;FLOAT;FLOAT -> 4,8 | FLOAT", SHAPES, "slot 1 (logarithms of sums)"),
    ("LpNormUpdateV2", "4 | FLOAT -> 5 | FLOAT", OUTPUT, "the shape of input slot 0"),
    ("LayerNormV3", "4,8;8;7 | FLOAT;FLOAT;FLOAT -> 4,8;4,1;4,1 | FLOAT;FLOAT;FLOAT", SHAPES, "slot 2 (beta)"),
    *(
        (
            "FlashAttentionScore",
            f"{query};{key};{key};;;;64,64 | FLOAT;FLOAT;FLOAT;;;;BOOL -> {stats};{stats};;{query} | {OF_TRAINING}",
            column,
            words,
        )
        for query, key, stats, column, words in (
            ("64,2,510", "64,2,510", "2,3,64,4", OUTPUT, "largest scores and their sums are"),
            ("64,2,511", "64,2,511", "2,3,64,8", SHAPES, "slots 0 to 2 are not queries, keys and values of 2 x 64"),
            ("64,2,512", "64,2,511", "2,4,64,8", SHAPES, "slots 0 to 2 are not queries, keys and values of 2 x 64"),
            ("64,2,512", "64,2,512", "2,4,32,8", SHAPES, "slots 0 to 2 are not queries, keys and values of 2 x 32"),
            ("2,64,4,16", "2,64,4,8", "2,4,64,8", SHAPES, "slots 0 to 2 are not queries, keys and values of 2 x 64"),
        )
    ),
    ("Swish", "4;4 | FLOAT;FLOAT -> 4 | FLOAT", SHAPES, "2 tensors, where Swish takes 1"),
    ("SwiGlu", "4,7 | FLOAT -> 4,3 | FLOAT", SHAPES, "no two halves"),
]


@pytest.mark.parametrize(("kernel_type", "row", "column", "words"), CONTRADICTIONS)
def test_contradiction_is_refused(kernel_type, row, column, words):
    assert_refused(kernel_type, row, column, words)


@pytest.mark.parametrize("kernel_type", types_of_replays().values(), ids=types_of_replays())
def test_a_slot_too_many_is_not_overlooked(kernel_type):
    """Of a shape that no kernel's optional slot would have: a call without it would be another one than the row's."""
    inputs, _, outputs = ROWS[kernel_type][0].partition("->")
    shapes, dtypes, *formats = (cell.strip() for cell in inputs.split("|"))
    cells = [f"{shapes};3,1,1,1,1,1,3", f"{dtypes};FLOAT", *(f"{cell};ND" for cell in formats if cell)]
    outcome = replay_row(kernel_type, f"{' | '.join(cells)} ->{outputs}")
    assert outcome.status in (Status.INVALID, Status.UNSUPPORTED), f"{outcome.reason}\n{outcome.detail}"


@pytest.mark.parametrize(
    ("kernel_type", "row", "words"),
    [
        # A capture has it in FLOAT, whatever the inputs are: a function that gives another would be wrong, not the row.
        (
            "RmsNorm",
            "4,8;8 | DT_BF16;DT_BF16 -> 4,8;4,1 | DT_BF16;DT_BF16",
            "output 1 of RmsNorm is torch.float32 from opatlas.bench.implementations.torch.norm.rms_norm for these inputs; correct the cell",  # noqa: E501
        ),
        ("Neg", "4 | FLOAT -> 4 | DT_BF16", "output 0 of Neg is torch.float32 from torch's neg for these inputs; "),
    ],
)
def test_results_that_the_row_does_not_have_name_the_function_that_gave_them(kernel_type, row, words):
    assert_refused(kernel_type, row, OUTPUT_TYPES, words)


def test_results_of_an_npu_call_name_that(monkeypatch):
    """On a device that makes it in the place of opatlas.bench.implementations.torch's function."""
    monkeypatch.setattr(runner()._device, "kernel", lambda impl, npu: lambda *inputs, **keywords: inputs[0])
    row = "4,8;8 | FLOAT;FLOAT -> 4,8 | DT_BF16"
    assert_refused("RmsNorm", row, OUTPUT_TYPES, "is torch.float32 from torch_npu.npu_rms_norm for these inputs")


@pytest.mark.parametrize(
    ("kernel_type", "row"),
    [
        ("Add", "4;4 | UINT16;UINT16 -> 4 | UINT16"),
        ("FloorDiv", "4;4 | UINT64;UINT64 -> 4 | UINT64"),
        ("SoftmaxV2", "4 | INT8 -> 4 | INT8"),
        ("Sub", "4;4 | BOOL;BOOL -> 4 | BOOL"),
        ("Neg", "4 | BOOL -> 4 | BOOL"),
        ("ArgMaxV2", "4,5 | BOOL -> 4 | INT32"),
        ("MatMulV2", "4,8;8,7 | INT8;INT8 -> 4,7 | INT32"),
        (
            "FlashAttentionScore",
            f"2,4,64,16;2,4,64,16;2,4,64,8 | FLOAT;FLOAT;FLOAT -> 2,4,64,8;2,4,64,8;;2,4,64,8 | {OF_TRAINING}",
        ),
        (
            "FlashAttentionScore",
            f"64,2,64;64,2,64;64,2,64;;1024 | FLOAT;FLOAT;FLOAT;;UINT8 -> 2,4,64,8;2,4,64,8;;64,2,64 | {OF_TRAINING}",
        ),
        (
            "FlashAttentionScoreGrad",
            f"8,2,64;8,2,64;8,2,64;8,2,64;33;2,4,8,8;2,4,8,8;8,2,64 | {OF_TRAINING};UINT8;FLOAT;FLOAT;FLOAT -> |",
        ),
        ("ReduceMean", "4,8;1 | INT32;INT64 -> 4 | INT32"),
        ("ArgMaxWithValue", "4,8 | FLOAT -> 8;8 | INT32;FLOAT"),
        ("StridedSlice", "4,8;2;2;2 | FLOAT;INT64;INT64;INT64 -> 4 | FLOAT"),
        ("Cast", "4 | FLOAT -> 4 | COMPLEX64"),
        ("Sort", "4 | COMPLEX64 -> 4;4 | COMPLEX64;INT32"),
        ("GatherV2", "4,9,8;3;1 | FLOAT;INT64;INT64 -> 3,9,8 | FLOAT"),
    ],
)
def test_what_torch_lacks_is_unsupported(kernel_type, row):
    assert replay_row(kernel_type, row).status is Status.UNSUPPORTED


@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError])
def test_missing_dtype_is_unsupported_whatever_torch_raises(error):
    assert outcome_from_error(error("\"add_stub\" not implemented for 'UInt16'")).status is Status.UNSUPPORTED


def test_other_errors_of_torch_are_failures():
    assert outcome_from_error(RuntimeError("shape mismatch")).status is Status.FAILED


@replays("Silent", npu=None)
def silent(row, replay):
    pass


def test_replay_that_measures_nothing_fails():
    outcome = runner().run(job_of("Silent", "4 | FLOAT -> 4 | FLOAT", f"{__name__}.silent"))
    assert outcome.status is Status.FAILED
    assert "without having called replay" in outcome.reason


def test_a_size_of_more_digits_than_python_converts_is_invalid():
    outcome = replay_row("Add", f"4;{'9' * 5000} | FLOAT;FLOAT -> 4 | FLOAT")
    assert outcome.status is Status.INVALID
    assert "Input Shapes" in outcome.reason
    assert len(outcome.reason) < 1000
