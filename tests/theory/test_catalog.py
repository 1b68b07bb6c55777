"""The catalog, and the places of mistakes in a catalog."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests_of_shapes import catalog_of

from opatlas.run.registry import replays_of_bench
from opatlas.theory.catalog import PATH, CatalogError, built_in_catalog
from opatlas.theory.patterns import ExpressionError, parse_expression

GOOD = """
    grids:
      tokens: [1, 2, 4]
    patterns:
      scale:
        axes: {m: tokens, width: hidden}
        let: {twice: 2 * h}
        where: [m < 100]
        inputs: [[m, twice], [], null]
        outputs: [[m, h]]
        forms: [BF16;FLOAT; -> BF16]
        cells: {Tokens: m, Name: {text: scale}, Lengths: {count: m, each: h}}
    kernels:
      Scale: {pattern: scale, core: AI_CORE}
    """


#: A change of GOOD that makes a mistake, and the place that the error names.
MISTAKES = [
    ("[m, twice]", "[m, twiec]", "pattern 'scale', key 'inputs', expression 'twiec'"),
    ("[m, h]]", "[m, d]]", "pattern 'scale', key 'outputs', expression 'd'"),
    ("2 * h", "h.bit_length()", "pattern 'scale', key 'let', expression 'h.bit_length()'"),
    ("2 * h", "h // (1 % -0)", "pattern 'scale', key 'let', expression 'h // (1 % -0)'"),
    ("2 * h", "h % (2 - 2)", "pattern 'scale', key 'let', expression 'h % (2 - 2)'"),
    ("twice: 2 * h", "m: 2 * h", "pattern 'scale', key 'let'"),
    ("m < 100", "open(m)", "pattern 'scale', key 'where', expression 'open(m)'"),
    ("width: hidden", "width: hiden", "pattern 'scale', axis 'width'"),
    ("m: tokens", "m: toknes", "pattern 'scale', axis 'm'"),
    ("m: tokens, width", "h: tokens, width", "pattern 'scale', key 'axes'"),
    ("-> BF16]", "-> BF17]", "pattern 'scale', key 'forms', form 'BF16;FLOAT; -> BF17'"),
    ("BF16;FLOAT; -> BF16", "BF16;FLOAT;", "pattern 'scale', key 'forms', form 'BF16;FLOAT;'"),
    ("BF16;FLOAT; -> BF16", "BF16;FLOAT -> BF16", "pattern 'scale', form 'BF16;FLOAT -> BF16'"),
    ("Tokens: m", "Tokens: n", "pattern 'scale', cell 'Tokens', expression 'n'"),
    ("each: h", "each: w", "pattern 'scale', cell 'Lengths', expression 'w'"),
    ("{count: m, each: h}", "{count: m}", "pattern 'scale', cell 'Lengths', expression ''"),
    ("[1, 2, 4]", "[1, 4, 2]", "grid 'tokens'"),
    ("pattern: scale", "pattern: scala", "kernel 'Scale', key 'pattern'"),
    ("Scale:", "a/b:", "kernel 'a/b'"),
]
#: A change that makes a value of a wrong type, the place, and the key or the value that the error names.
WRONG_TYPES = [
    ("where: [m < 100]", "where: m < 100", "pattern 'scale'", "$.where"),
    ("[m, twice], []", "{m: 1}, []", "pattern 'scale'", "$.inputs[0]"),
    ("outputs:", "output:", "pattern 'scale'", "output"),
    ("axes: {m: tokens, width: hidden}", "axes: {}", "pattern 'scale'", "$.axes"),
    ("width: hidden", "width: {form: hidden}", "pattern 'scale', axis 'width'", "form"),
    ("width: hidden", "width: [0.5]", "pattern 'scale', axis 'width'", "$[0]"),
    ("2 * h", "true", "pattern 'scale', key 'let', 'twice'", "bool"),
    ("text: scale", "texts: scale", "pattern 'scale'", "texts"),
    ("pattern: scale", "pattern: []", "kernel 'Scale'", "$.pattern"),
    ("[1, 2, 4]", "[1, 0.5]", "grid 'tokens'", "float"),
    ("[1, 2, 4]", "[-1, 2]", "grid 'tokens'", ">= 1"),
    ("core:", "cores:", "kernel 'Scale'", "cores"),
    ("kernels:", "kernel:", "", "kernel"),
]


@pytest.mark.parametrize(("old", "new", "place"), MISTAKES)
def test_a_mistake_is_named_by_its_place(tmp_path: Path, old: str, new: str, place: str) -> None:
    assert old in GOOD
    with pytest.raises(CatalogError) as caught:
        catalog_of(tmp_path, GOOD.replace(old, new))
    assert (caught.value.place, caught.value.path.name) == (place, "catalog.yaml")


@pytest.mark.parametrize(("old", "new", "place", "key"), WRONG_TYPES)
def test_a_value_of_a_wrong_type_is_named(tmp_path: Path, old: str, new: str, place: str, key: str) -> None:
    assert old in GOOD
    with pytest.raises(CatalogError) as caught:
        catalog_of(tmp_path, GOOD.replace(old, new))
    assert caught.value.place == place
    assert key in caught.value.problem


@pytest.mark.parametrize(
    "text",
    [
        *("- 1", "", "a: [", "grids: {}\ngrids: {}", "!!python/object/apply:os.getcwd []", "grids: &a [*a]"),
        *("grids: {2026-11-22: [1]}", "grids: {1: [1]}", "grids: !!bool maybe", "grids: 2026-99-99"),
        *("[" * 100_000, "grids: {a: [" + "9" * 5000 + "]}"),
        "\n".join(["l0: &l0 [1, 1]", *(f"l{n}: &l{n} [{f'*l{n - 1}, ' * 10}]" for n in range(1, 40))]),
    ],
    ids=range(13),
)
def test_a_file_that_is_no_catalog_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CatalogError) as caught:
        catalog_of(tmp_path, text)
    assert caught.value.place == ""


def test_every_kernel_type_has_a_replay() -> None:
    assert set(built_in_catalog().kernels) <= set(replays_of_bench())


def test_every_pattern_is_used() -> None:
    used = {pattern.name for kernel in built_in_catalog().kernels.values() for pattern in kernel.patterns}
    text = PATH.read_text()
    for line in text[text.index("\npatterns:") : text.index("\nkernels:")].splitlines():
        if line.startswith("  ") and line[2].isalpha():
            assert line.split(":")[0].strip() in used


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        (7, 7),
        ("m * k + 2", 38),
        ("-m + 20", 8),
        ("k // 2 - k % 2", 0),
        ("min(m, k) + max(m, k)", 15),
        ("align(k, 8)", 8),
        ("align(16, 8)", 16),
        ("(m + k) * 2", 30),
        # A division by 0 gives 0, and so no size that a tensor may have.
        ("m // (k - k)", 0),
        ("m % (k - k)", 0),
        ("align(m, k - k)", 0),
        ("m >= 12", True),
        ("m < k", False),
        ("1 < k < m", True),
        ("m == 12 and k != 3", False),
    ],
)
def test_values_and_conditions(text: str | int, value: int | bool) -> None:
    assert parse_expression(text).value({"m": 12, "k": 3}) == value


@given(st.lists(st.integers(1, 10**5), min_size=1, max_size=20), st.integers(1, 10**5))
def test_many_at_once_equal_each_alone(values: list[int], k: int) -> None:
    for text in (
        "m * k",
        "align(m, k)",
        "min(m, k) - max(m, k)",
        "m // k + m % k",
        "m % (k - k)",
        "m >= k and m != 7",
        "1 < m < k",
    ):
        expression = parse_expression(text)
        at_once = expression.value({"m": np.array(values), "k": k})
        assert at_once.tolist() == [expression.value({"m": m, "k": k}) for m in values]


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os').system('true')", "m.real", "m[0]", "(lambda: 1)()", "[m for m in (1, 2)]", "f'{m}'"),
        *("(m := 3)", "import os", "m; k", "m in (1, 2)", "m if k else 1", "m or k", "align(value=m, multiple=2)"),
        *("2 ** 99999999", "m << 99", "'a' * 9", "1.5", "True", "m / k", "9999999999999999999", "m" * 300),
        *("min(m)", "min(m, k, 1)", "abs(m)", "m +", "", "m // 0", "k % 0"),
    ],
)
def test_other_text_than_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_expression(text)
