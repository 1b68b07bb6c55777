"""The texts of suites: names of operators, arguments, traces, and the list of operators that are left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from opatlas.errors import OpAtlasError
from opatlas.outer.suites.texts import (
    DTYPES,
    ArgumentsText,
    TensorText,
    TorchConstant,
    folder_of,
    is_folder,
    overload_of,
    read_arguments,
    read_overload,
    read_traces,
)

_TRACE = """\
Operator: aten.add.Tensor
cnt: 156, ((T([1, 512, 768], f16), T([1, 512, 768], f16)), {})
cnt: 1, ((T([2, 3], bf16, stride=(1, 2)), -1.5), {'alpha': 2})
Operator: aten.sum.SymInt
cnt: 0, ((T([], f32), [0, -1], True), {'dtype': torch.float16, 'device': 'cuda'})
"""


@pytest.mark.parametrize("name", ["add.Tensor", "add_.Tensor", "_softmax.default", "__and__.Tensor", "sum.dim_IntList"])
def test_an_overload_is_read_from_its_folder(name: str) -> None:
    assert is_folder(folder_of(name))
    assert overload_of(folder_of(name)) == name
    assert read_overload(f"aten.{name}") == read_overload(f"aten::{name}") == name


@pytest.mark.parametrize("name", ["add", "", "add.Tensor", "Add"])
def test_another_name_is_no_folder(name: str) -> None:
    with pytest.raises(OpAtlasError, match=name or "overload"):
        overload_of(name)


_TENSORS = st.builds(
    lambda shape, dtype, strided: TensorText(tuple(shape), dtype, tuple(range(len(shape))) if strided else None),
    st.lists(st.integers(0, 9), max_size=4),
    st.sampled_from(sorted(DTYPES.values())),
    st.booleans(),
)
_VALUES = st.recursive(
    st.one_of(
        _TENSORS,
        st.sampled_from([TorchConstant("float16"), TorchConstant("strided"), None, True, "cuda", "it's"]),
        st.integers(-(10**9), 10**9),
        st.floats(allow_nan=False),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple)),
    max_leaves=6,
)


@given(st.lists(_VALUES, max_size=3), st.dictionaries(st.sampled_from(["dim", "dtype", "out"]), _VALUES))
def test_arguments_are_read_as_they_were_written(positional: list[object], keywords: dict[str, object]) -> None:
    arguments = ArgumentsText(tuple(positional), keywords)
    assert read_arguments(str(arguments)) == arguments


@pytest.mark.parametrize(
    "text",
    [
        "((__import__('os').system('true'),), {})",
        "((T([2], f32).numel(),), {})",
        "((torch.load('x'),), {})",
        "((T([2], f99),), {})",
        "((T([2, 3], f32, stride=(1,)),), {})",
        "((T([-1], f32),), {})",
        "((T([1000000, 1000000, 1000000], f32),), {})",
        "((1,), {2: 3})",
        "(T([2], f32), {})",
        "((1,),)",
        "[i for i in ()]",
        "((1,), {}",
        "(" * 3000,
    ],
)
def test_a_text_that_is_no_arguments_is_refused_and_not_run(text: str) -> None:
    with pytest.raises(OpAtlasError):
        read_arguments(text)


def test_a_trace_is_read_with_its_counts(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(_TRACE)
    (tmp_path / "two.txt").write_text(_TRACE)
    calls = read_traces(tmp_path)
    assert [(call.overload, call.count) for call in calls] == [
        ("add.Tensor", 312),
        ("add.Tensor", 2),
        ("sum.dim_IntList", 0),
    ]
    strided, scalar = next(iter(calls[1].arguments.tensors())), calls[2].arguments
    assert (strided.shape, strided.dtype, strided.stride, strided.extent) == ((2, 3), "bfloat16", (1, 2), 6)
    assert scalar.keywords["dtype"] == TorchConstant("float16")
    assert read_traces(tmp_path / "one.txt")[0].count == 156


@pytest.mark.parametrize(
    ("text", "line"),
    [("cnt: 1, ((1,), {})", 1), ("Operator: aten.add.Tensor\ncnt: x, ((), {})", 2), ("Operator: a b", 1)],
)
def test_a_line_of_no_trace_is_named(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(OpAtlasError, match=f"{path.name}:{line}"):
        read_traces(path)


def test_the_public_traces_are_read() -> None:
    place = Path(os.environ.get("OPATLAS_PUBLIC_SETS", ""), "meta-pytorch+tritonbench/tritonbench/data/input_configs")
    if not place.is_dir():
        pytest.skip("OPATLAS_PUBLIC_SETS names no folder with tritonbench")
    calls = read_traces(place)
    # One of the 180 names is an older name of another one.
    assert (len(calls), len({call.overload for call in calls})) == (18208, 179)
