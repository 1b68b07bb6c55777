"""Launches held against rows: what is the same case, what is taken and told, and what is another case."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from captures import cells

from opatlas.row.columns import BASE, INPUT_SHAPES
from opatlas.row.same_case import compare_launch
from opatlas.row.signature import normalized_kernel_type
from opatlas.row.slots import EMPTY_WORDS

DATA = Path(__file__).parents[3] / "shared" / "data"

NOTHING = dict.fromkeys(BASE, "N/A")


def row(inputs: str, outputs: str = "8,4 FLOAT ND") -> dict[str, str]:
    """`8,4 FLOAT ND; 1,4 FLOAT ND`: shape, dtype and format of each slot; `-` for an empty one."""
    written = dict(NOTHING)
    for side, text in (("Input", inputs), ("Output", outputs)):
        slots = [["" if word == "-" else word for word in slot.split()] for slot in text.split(";")]
        for column, words in zip(("Shapes", "Data Types", "Formats"), zip(*slots, strict=True), strict=True):
            written[f"{side} {column}"] = ";".join(words)
    return written


SAME = {
    "itself": ("8,4 FLOAT ND; 8,4 FLOAT ND", "8,4 FLOAT ND; 8,4 FLOAT ND"),
    "prefixes": ("8,4 DT_FLOAT FORMAT_ND; 8,4 FLOAT ND", "8,4 FLOAT ND; 8,4 DT_FLOAT ND"),
    "names of a dtype": ("8,4 FP32 ND", "8,4 FLOAT ND"),
    "the format of a storage": ("8,4 FLOAT NCHW; 8,4 FLOAT NCL", "8,4 FLOAT ND; 8,4 FLOAT ND"),
    "a scalar": ("8,4 FLOAT ND; - FLOAT ND", "8,4 FLOAT ND; 1 FLOAT ND"),
    "absent slots at the end": ("8,4 FLOAT ND", "8,4 FLOAT ND; - DT_UNDEFINED NULL; - - -"),
    "formats that were not recorded": ("8,4 FLOAT -", "8,4 FLOAT FRACTAL_NZ"),
    "blocks and their matrix": ("20,36 FLOAT16 FRACTAL_NZ", "3,2,16,16 FLOAT16 FRACTAL_NZ"),
    "groups of a format": ("1,1,4,4,16 FLOAT16 NC1HWC0", "1,1,4,4,16 FLOAT16 NC1HWC0:1"),
    "packed scales": ("8,4 INT8 ND; 4 INT64 ND", "8,4 INT8 ND; 4 UINT64 ND"),
    "a dtype that has no name": ("8,4 65534 ND", "8,4 FLOAT ND"),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "ran"), SAME.values(), ids=SAME)
def test_the_same_case_however_it_is_written(wanted: str, ran: str) -> None:
    assert compare_launch("Add", row(wanted), row(ran)).difference == ""
    assert compare_launch("Add", row(wanted), row(ran)).assumptions == ()


OTHER = {
    "broadcast before the launch": ("8,4 FLOAT ND; 1,4 FLOAT ND", "8,4 FLOAT ND; 8,4 FLOAT ND", "input slot 1"),
    "cast to NZ ignored": ("8,4 FLOAT16 ND; 2,2,16,16 FLOAT16 FRACTAL_NZ", "8,4 FLOAT16 ND; 9,9 FLOAT16 ND", "slot 1"),
    "the same shape in NZ": ("8,4 FLOAT ND; 4,1,16,16 FLOAT FRACTAL_NZ", "8,4 FLOAT ND; 4,1,16,16 FLOAT ND", "slot 1"),
    "cast before the launch": ("8,4 FLOAT ND; 8,4 DT_BF16 ND", "8,4 FLOAT ND; 8,4 FLOAT ND", "input slot 1"),
    "another axis of size 1": ("8,1 FLOAT ND", "8 FLOAT ND", "input slot 0"),
    "another dtype of indices": ("8,4 FLOAT ND; 9 INT64 ND", "8,4 FLOAT ND; 9 INT32 ND", "input slot 1"),
    "transposed": ("8,4 FLOAT ND; 4,8 FLOAT ND", "8,4 FLOAT ND; 8,4 FLOAT ND", "input slot 1"),
    "a tensor that did not run": ("8,4 FLOAT ND; 4 FLOAT ND", "8,4 FLOAT ND", "input slot 1"),
    "a tensor where the row has none": ("8,4 FLOAT ND; - - -; 4 FLOAT ND", "8,4 FLOAT ND; 4 FLOAT ND; 4 FLOAT ND", "1"),
    "another tensor among absent ones": ("8,4 INT8 ND; 8 FLOAT ND", "8,4 INT8 ND; - - -; 8 INT32 ND", "slot 1"),
    "blocks of another matrix": ("20,36 FLOAT16 FRACTAL_NZ", "2,3,16,16 FLOAT16 FRACTAL_NZ", "input slot 0"),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "ran", "slot"), OTHER.values(), ids=OTHER)
def test_another_case_names_its_slot_and_both_forms(wanted: str, ran: str, slot: str) -> None:
    difference = compare_launch("Add", row(wanted), row(ran)).difference
    number = int(slot[-1])
    assert slot in difference
    for text in (wanted, ran):
        shape = [*text.split(";"), " - "][number].split()[0]
        assert (f"({shape})" if shape != "-" else "absent") in difference


def test_outputs_count() -> None:
    wanted = row("8,4 FLOAT ND", "8,4 FLOAT ND")
    for outputs in ("8,1 FLOAT ND", "8,4 FLOAT16 ND", "1,1,16,16 FLOAT FRACTAL_NZ"):
        assert "output slot 0" in compare_launch("Cast", wanted, row("8,4 FLOAT ND", outputs)).difference


def test_the_dtype_of_a_scalar_result_counts() -> None:
    """Of a sum of two numbers every tensor is without dimensions."""
    wanted, ran = (row(f"- {dtype} ND; - {dtype} ND", f"- {dtype} ND") for dtype in ("INT32", "INT64"))
    assert "output slot 0" in compare_launch("Add", wanted, ran).difference


def test_inputs_that_only_describe_the_call_do_not_count() -> None:
    wanted = row("8,4 FLOAT ND; 2 INT64 ND; 2 INT64 ND; 2 INT64 ND", "2,4 FLOAT ND")
    ran = row("8,4 FLOAT ND; 2 INT32 ND; 2 INT32 ND", "2,4 FLOAT ND")
    assert compare_launch("Slice", wanted, ran).difference == ""
    assert compare_launch("Slice", wanted, row("9,4 FLOAT ND; 2 INT32 ND", "2,4 FLOAT ND")).difference


@pytest.mark.parametrize(
    ("inputs", "outputs", "same"),
    [
        ("8192,6,6 FLOAT ND; 3 INT64 ND", "6,6,8192 FLOAT ND", True),
        ("8192,6,6 FLOAT ND; 3 INT64 ND", "6,8192,6 FLOAT ND", False),
        ("8192,36 FLOAT ND; 2 INT64 ND", "36,8192 FLOAT ND", False),
        ("8192,6,6 FLOAT16 ND; 3 INT64 ND", "6,6,8192 FLOAT16 ND", False),
    ],
)
def test_axes_of_size_1_are_not_transposed(inputs: str, outputs: str, same: bool) -> None:
    """CANN's contiguous copy leaves them out (ops-math, contiguous.cpp)."""
    wanted = row("8192,1,6,6 FLOAT NCHW; 4 INT64 ND", "1,6,6,8192 FLOAT ND")
    assert (not compare_launch("Transpose", wanted, row(inputs, outputs)).difference) == same


def test_axes_of_size_1_count_where_nothing_is_transposed() -> None:
    assert compare_launch("Add", row("8,1,4 FLOAT ND"), row("8,4 FLOAT ND")).difference


TAKEN = {
    "no tensors recorded": ("8,4 FLOAT ND", dict(NOTHING)),
    "no outputs recorded": ("8,4 FLOAT ND", row("8,4 FLOAT ND", "N/A N/A N/A")),
    "absent slots left out": ("8,4 INT8 ND; 8 FLOAT ND", row("8,4 INT8 ND; - - -; - INT32 ND; 8 FLOAT ND")),
    "a scale that the row lacks": ("8,4 INT8 ND", row("8,4 INT8 ND; 4 FLOAT ND")),
    "leading axes of size 1": ("1,8,4 FLOAT NCL", row("8,4 FLOAT ND")),
    "another dtype of axes": ("8,4 FLOAT ND; 2 INT64 ND", row("8,4 FLOAT ND; 2 INT32 ND")),
    "another dtype of a scalar": ("8,4 FLOAT ND; - FLOAT ND", row("8,4 FLOAT ND; - DOUBLE ND")),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "ran"), TAKEN.values(), ids=TAKEN)
def test_what_is_not_told_is_taken_and_said(wanted: str, ran: dict[str, str]) -> None:
    found = compare_launch("MaskedFill", row(wanted), ran)
    assert found.difference == ""
    assert found.assumptions


CAPTURES = sorted((DATA / "ascend_profiler").glob("*_level[12]_rank0/kernel_details.csv"))


@pytest.mark.skipif(not CAPTURES, reason="no real captures beside the checkout")
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.parent.name)
def test_each_launch_of_a_real_capture_is_its_own_case_and_no_other_shapes(path: Path) -> None:
    with path.open(newline="", encoding="utf-8-sig") as file:
        launches = [(normalized_kernel_type(launch["Type"]), launch) for launch in csv.DictReader(file)]
    recorded = [
        (kernel_type, launch) for kernel_type, launch in launches if launch[INPUT_SHAPES].upper() not in EMPTY_WORDS
    ]
    assert recorded
    for kernel_type, launch in recorded:
        assert compare_launch(kernel_type, launch, launch) == compare_launch("Add", cells(), cells())
        first, *_ = launch[INPUT_SHAPES].strip('"').split(";")
        if first:
            other = {**launch, INPUT_SHAPES: launch[INPUT_SHAPES].replace(first, f"3,{first}", 1)}
            assert compare_launch(kernel_type, launch, other).difference
