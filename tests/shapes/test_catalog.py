"""The catalog, and what a mistake in one says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests_of_shapes import catalog_of

from opatlas.engine.kernel_facts import replays_of_bench
from opatlas.errors import OpAtlasError
from opatlas.theory.catalog import PATH, CatalogError, built_in_catalog

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
    kernels:
      Scale: {pattern: scale, core: AI_CORE}
    """


def test_a_kernel_is_a_few_lines(tmp_path: Path) -> None:
    kernel = catalog_of(tmp_path, GOOD).kernel("Scale")
    (pattern,) = kernel.patterns
    assert [axis.name for axis in pattern.axes] == ["m", "width"]
    assert pattern.forms[0].core == "AI_CORE"
    assert pattern.inputs[1:] == ((), None)


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("[m, twice]", "[m, twiec]", "pattern 'scale', key 'inputs', expression 'twiec'", "did you mean twice?"),
        ("[m, h]]", "[m, d]]", "pattern 'scale', key 'outputs', expression 'd'", "there are h, m, twice"),
        ("2 * h", "h.bit_length()", "pattern 'scale', key 'let', expression 'h.bit_length()'", "is not arithmetic"),
        ("m < 100", "open(m)", "pattern 'scale', key 'where', expression 'open(m)'", "is not arithmetic"),
        ("width: hidden", "width: hiden", "pattern 'scale', axis 'width'", "did you mean hidden"),
        ("m: tokens", "m: toknes", "pattern 'scale', axis 'm'", "did you mean tokens"),
        ("pattern: scale", "pattern: scala", "kernel 'Scale', key 'pattern'", "did you mean scale"),
        ("core:", "cores:", "kernel 'Scale'", "there is no key 'cores' (did you mean core"),
        ("outputs:", "output:", "pattern 'scale'", "there is no key 'output' (did you mean outputs"),
        ("[1, 2, 4]", "[1, 4, 2]", "grid 'tokens'", "ascending"),
        ("[1, 2, 4]", "[1, 0.5]", "grid 'tokens'", "whole numbers above 0"),
        ("[1, 2, 4]", "[-1, 2]", "grid 'tokens'", "whole numbers above 0"),
        ("-> BF16]", "-> BF17]", "pattern 'scale', key 'forms', form", "'BF17' is no dtype"),
        (
            "BF16;FLOAT; -> BF16",
            "BF16;FLOAT -> BF16",
            "pattern 'scale', form",
            "do not stand for the slots of 'inputs'",
        ),
        ("BF16;FLOAT; -> BF16", "BF16;FLOAT;", "pattern 'scale', key 'forms', form", "no '->'"),
        ("twice: 2 * h", "m: 2 * h", "pattern 'scale', key 'let'", "'m' is there already"),
        ("m: tokens, width", "h: tokens, width", "pattern 'scale', key 'axes'", "two axes give the variable 'h'"),
        ("Scale:", "a/b:", "kernel 'a/b'", "cannot name a CSV file"),
        ("kernels:", "kernel:", "kernels", "there must be a mapping"),
        ("[m, twice], []", "{m: 1}, []", "pattern 'scale', key 'inputs'", "not a list of dimensions"),
        ("where: [m < 100]", "where: m < 100", "pattern 'scale', key 'where'", "must be a list"),
        ("2 * h", "h // (1 % -0)", "pattern 'scale', key 'let'", "divides by nothing"),
        ("2 * h", "h % (2 - 2)", "pattern 'scale', key 'let'", "divides by nothing"),
    ],
)
def test_a_mistake_is_named_by_place_and_expression(tmp_path: Path, old: str, new: str, place: str, words: str) -> None:
    assert old in GOOD
    with pytest.raises(CatalogError) as caught:
        catalog_of(tmp_path, GOOD.replace(old, new))
    assert f"catalog.yaml: {place}" in str(caught.value)
    assert words in str(caught.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("[m, twice]", "[m, twiec]").replace("core:", "cores:").replace("[1, 2, 4]", "[]")
    with pytest.raises(CatalogError) as caught:
        catalog_of(tmp_path, text)
    assert str(caught.value).count("catalog.yaml: ") == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not YAML"),
        ("grids: {}\ngrids: {}", "'grids' stands twice"),
        ("- 1", "there must be a mapping"),
        ("", "there must be a mapping"),
        ("!!python/object/apply:os.getcwd []", "is not YAML"),
        ("grids: {2026-11-22: [1]}", "line 1, column 9"),
        ("grids: {1: [1]}", "line 1, column 9"),
        ("[" * 100_000, "nested"),
        ("grids: &a [*a]", "holds itself"),
        ("\n".join(["l0: &l0 [1, 1]", *(f"l{n}: &l{n} [{f'*l{n - 1}, ' * 10}]" for n in range(1, 40))]), "words"),
        ("grids: {a: [" + "9" * 5000 + "]}", "is not YAML"),
        ("grids: !!bool maybe", "is not YAML"),
        ("grids: 2026-99-99", "is not YAML"),
    ],
    ids=range(13),
)
def test_files_that_are_no_catalog(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(CatalogError, match=words):
        catalog_of(tmp_path, text)


def test_a_kernel_type_that_is_not_there_is_told_with_those_like_it() -> None:
    with pytest.raises(OpAtlasError, match="no kernel type 'MatMulV4' \\(did you mean MatMulV"):
        built_in_catalog().kernel("MatMulV4")


def test_every_kernel_type_has_a_replay() -> None:
    assert set(built_in_catalog().kernels) <= set(replays_of_bench())


def test_every_pattern_is_used() -> None:
    used = {pattern.name for kernel in built_in_catalog().kernels.values() for pattern in kernel.patterns}
    text = PATH.read_text()
    for line in text[text.index("\npatterns:") : text.index("\nkernels:")].splitlines():
        if line.startswith("  ") and line[2].isalpha():
            assert line.strip(" :") in used
