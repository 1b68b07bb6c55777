"""Small rows of real captures, measurements and reports, where these lie next to the checkout."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from replaying import runner

from opatlas.row.columns import INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.row.signature import digest
from tests.bench.account import MEASURED, NO_REPLAY, REFUSED, bytes_of, fate_of, problem_of, reason_for_no_replay
from tests.bench.real_rows import RealRow, sources

LARGEST_BYTES = 16 << 20
#: For the rows of a measured grid of sizes, whose larger sizes add nothing.
LARGEST_OF_GRID_BYTES = 2 << 20
#: Shapes lose their numbers, so that commas count the axes.
FORM_COLUMNS = (*INPUT_SLOTS, *OUTPUT_SLOTS)
#: So many rows of a form run by default, the smallest; the others are slow tests.
ROWS_OF_A_FORM = 2
#: Kernel types whose rows are refused before any tensor is made, however large.
REFUSED_AT_ONCE = ("GroupedMatmul", "_triton_rope")

#: Kernel type, words of the refusal, and why it is right.
EXPECTED_REFUSALS = (
    (
        "GroupedMatmul",
        "a whole mixture of experts",
        "they map hidden to hidden, without a list of groups: a fused mixture of experts, measured as one",
    ),
    (
        "FlashAttentionScore",
        "'DT_BF16' is not a dimension",
        "a line of the capture lacks a cell, so all further ones are in the wrong columns",
    ),
    (
        "_triton_rope",
        "is not a dtype that can be replayed",
        "the profiler wrote a number for the key's dtype, another one each time",
    ),
    (
        "_triton_rope",
        "captures of this Triton kernel hold meaningless dtypes there",
        "the key has the dtype of the query, and the same launches are on record with numbers in its place",
    ),
)

#: Distinct rows of all sources.
ROWS = list({(row.kernel_type, row.signature): row for source in sources() for row in source.rows}.values())


def is_small(row: RealRow) -> bool:
    limit = LARGEST_OF_GRID_BYTES if row.source.startswith("910b/") else LARGEST_BYTES
    return row.kernel_type in REFUSED_AT_ONCE or bytes_of(row) <= limit


def form_of(row: RealRow) -> tuple[str, ...]:
    """Returns the form of a row: kernel type, numbers of axes, dtypes and formats."""
    return row.kernel_type, *(re.sub(r"\d+(?=[,;]|$)", "", row.cells.get(column, "")) for column in FORM_COLUMNS)


pytestmark = pytest.mark.skipif(not ROWS, reason="no real rows next to the checkout")


def parameters() -> list[Any]:
    """Returns the small rows; `python -m tests.bench.account` replays the large ones."""
    forms: Counter[tuple[str, ...]] = Counter()
    found = []
    for row in sorted(filter(is_small, ROWS), key=bytes_of):
        forms[form_of(row)] += 1
        name = f"{row.source}-{row.kernel_type}-{digest(row.kernel_type, row.signature)}"
        found.append(pytest.param(row, id=name, marks=[pytest.mark.slow] * (forms[form_of(row)] > ROWS_OF_A_FORM)))
    return found


@pytest.mark.parametrize("row", parameters())
def test_real_row(row):
    fate = fate_of(row, bytes_of(row), runner())
    if fate.fate == REFUSED:
        assert _is_expected(fate), f"{row.cells}\n{fate.reason}"
    else:
        assert fate.fate in (MEASURED, NO_REPLAY), f"{row.cells}\n{fate.reason}"


def test_each_kernel_type_has_a_replay_or_a_reason_for_none():
    kernel_types = {row.kernel_type for row in ROWS} | {name for source in sources() for name in source.unrecorded}
    assert sorted(name for name in kernel_types if reason_for_no_replay(name) is None) == []


def test_each_expected_refusal_occurs():
    """Otherwise the list would be out of date."""
    seen = set()
    for row in ROWS:
        if row.kernel_type in {kernel_type for kernel_type, _, _ in EXPECTED_REFUSALS}:
            fate = fate_of(row, bytes_of(row), runner()) if is_small(row) else None
            seen |= {entry for entry in EXPECTED_REFUSALS if fate is not None and _matches(entry, fate)}
    assert [entry for entry in EXPECTED_REFUSALS if entry not in seen] == []


def test_reasons_of_a_kind_are_grouped():
    first = "column 'Output Shapes' is '1,2048': no product of (1, 2048) has this shape; correct it"
    second = "column 'Output Shapes' is '16,4': no product of (16, 4) has this shape; correct it"
    assert problem_of(first) == problem_of(second) != problem_of(first.replace("product", "sum"))


def _is_expected(fate) -> bool:
    return any(_matches(entry, fate) for entry in EXPECTED_REFUSALS)


def _matches(entry, fate) -> bool:
    kernel_type, words, _ = entry
    return fate.kernel_type == kernel_type and re.search(re.escape(words), fate.reason) is not None
