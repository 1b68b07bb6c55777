"""Slots: what shape, dtype and format cells say about each tensor; and types that a call may launch for another."""

import pytest
from hypothesis import given, strategies as st

from opatlas.errors import CellError
from opatlas.row.slots import Slot, base_type, parse_slots, siblings, slot_words

COLUMNS = ("Input Shapes", "Input Data Types", "Input Formats")

dimensions = st.lists(st.integers(0, 10**6), min_size=1, max_size=5).map(tuple)
present = st.builds(
    Slot,
    shape=dimensions,
    dtype=st.sampled_from(["BF16", "FLOAT", "INT8", "INT64", "BOOL", "FLOAT8_E4M3FN", "FLOAT8_E5M2"]),
    format=st.sampled_from(["ND", "FRACTAL_NZ", "NCHW", "NC1HWC0:1"]),
)
scalar = st.builds(Slot, shape=st.just(()), dtype=st.just("INT32"), format=st.just("ND"))
absent = st.just(Slot((), "", ""))
slots = st.lists(st.one_of(present, scalar, absent), max_size=8).map(tuple)


def cells_of(slots, *, dtype_prefix="", format_prefix="", quote="", nothing=""):
    """The three cells of a capture that say this."""
    shapes = ";".join(",".join(map(str, slot.shape)) for slot in slots)
    dtypes = ";".join(dtype_prefix + slot.dtype if slot.dtype else nothing for slot in slots)
    formats = ";".join(format_prefix + slot.format if slot.format else nothing for slot in slots)
    return quote + shapes + quote, dtypes, formats


def without_trailing_absent(slots):
    slots = list(slots)
    while slots and slots[-1].absent:
        slots.pop()
    return tuple(slots)


def test_an_empty_slot_with_a_dtype_is_a_scalar():
    _, second = parse_slots("4;", "INT32;INT32", "ND;ND", COLUMNS)
    assert second == Slot((), "INT32", "ND")
    assert not second.absent
    assert parse_slots('""', "FLOAT", "ND", COLUMNS) == (Slot((), "FLOAT", "ND"),)


def test_an_empty_slot_without_a_dtype_is_absent_and_keeps_its_place():
    words = parse_slots("4;;8", "FLOAT;DT_UNDEFINED;FLOAT", "ND;NULL;ND", COLUMNS)
    assert [slot.absent for slot in words] == [False, True, False]


@pytest.mark.parametrize("nothing", ["N/A", "NA", "NULL", "None", "UNDEFINED", "DT_UNDEFINED", "()", "", '""'])
def test_words_for_nothing(nothing):
    assert slot_words(nothing, nothing, nothing) == ()


@pytest.mark.parametrize(
    "shape", ["-1,4", "4,x", "4,,4", "4.5", "1e3", "²", "\uff11\uff12", "1_000", "9" * 19, "9" * 5000]
)
def test_what_is_not_a_dimension(shape):
    with pytest.raises(CellError) as caught:
        parse_slots(shape, "FLOAT", "ND", COLUMNS)
    assert caught.value.column == COLUMNS[0]
    assert len(str(caught.value)) < 1000


def test_a_shape_without_a_dtype():
    with pytest.raises(CellError) as caught:
        parse_slots("4;8", "FLOAT", "ND;ND", COLUMNS)
    assert (caught.value.column, caught.value.value) == (COLUMNS[1], "FLOAT")


@given(slots)
def test_what_is_written_is_read(slots):
    assert parse_slots(*cells_of(slots), COLUMNS) == without_trailing_absent(slots)


@given(slots, st.sampled_from(["", "DT_"]), st.sampled_from(["", "FORMAT_"]), st.sampled_from(["", '"', "'", '"""']))
def test_spelling_does_not_matter(slots, dtype_prefix, format_prefix, quote):
    spelled = cells_of(slots, dtype_prefix=dtype_prefix, format_prefix=format_prefix, quote=quote, nothing="N/A")
    assert slot_words(*spelled) == slot_words(*cells_of(slots))


@given(st.text(), st.text(), st.text())
def test_no_text_breaks_the_words(shapes, dtypes, formats):
    slot_words(shapes, dtypes, formats)


@pytest.mark.parametrize(
    ("kernel_type", "first"),
    [
        ("Add", "AddAiCore"),
        ("AddAiCore", "Add"),
        ("AscendQuantV2Aicore", "AscendQuantV2"),
        ("MatMulV2", "MatMulV2AiCore"),
        ("GatherV2AiCore", "GatherV2"),
    ],
)
def test_the_same_kernel_under_another_name_comes_first(kernel_type: str, first: str) -> None:
    assert siblings(kernel_type)[0] == first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("MatMulV2", "MatMulCommon"),
        ("MatMul", "MatMulV3"),
        ("BatchMatMul", "BatchMatMulV2"),
        ("ReduceSumD", "ReduceSum"),
        ("GatherV2", "GatherV3"),
        ("GatherV2AiCore", "GatherV3"),
        ("Sort", "SortAicore"),
        ("ArangeAiCore", "Range"),
        ("BatchMatMulNd", "BatchMatMulV3"),
    ],
)
def test_each_is_the_others_sibling(one: str, other: str) -> None:
    assert other in siblings(one)
    assert one in siblings(other)
    assert one not in siblings(one)


def test_others_are_no_siblings() -> None:
    assert {base_type(name) for name in siblings("TransposeBatchMatMul")} == {"TransposeBatchMatMul"}
    assert {base_type(name) for name in siblings("MatMulV3")} == {"MatMul", "MatMulV2", "MatMulV3", "MatMulCommon"}
