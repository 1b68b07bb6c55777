"""Rows of real captures, measurements and reports, where these lie beside the checkout: the small ones."""

from __future__ import annotations

import re

import pytest
from replaying import runner

from opatlas.model.signature import digest
from tests.bench.account import MEASURED, NO_REPLAY, REFUSED, bytes_of, fate_of, problem_of, reason_for_no_replay
from tests.bench.real_rows import sources

LARGEST_BYTES = 16 << 20
#: Of a grid of sizes that somebody measured, where the larger sizes tell nothing new.
LARGEST_OF_GRID_BYTES = 2 << 20
#: Kernel types whose rows are refused before any tensor is made, however large.
REFUSED_AT_ONCE = ("GroupedMatmul", "_triton_rope")

#: Kernel type, what the refusal says, and why it is right.
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
        "captures hold meaningless dtypes there",
        "the key has the dtype of the query, and the same launches are on record with numbers in its place",
    ),
)

#: Those of several sources once.
ROWS = list({(row.kernel_type, row.signature): row for source in sources() for row in source.rows}.values())

pytestmark = pytest.mark.skipif(not ROWS, reason="no real rows beside the checkout")


def _parameter(row):
    return pytest.param(row, id=f"{row.source}-{row.kernel_type}-{digest(row.kernel_type, row.signature)}")


@pytest.mark.parametrize("row", [_parameter(row) for row in ROWS])
def test_real_row(row):
    limit = LARGEST_OF_GRID_BYTES if row.source.startswith("910b/") else LARGEST_BYTES
    if row.kernel_type not in REFUSED_AT_ONCE and bytes_of(row) > limit:
        pytest.skip(f"large: python -m tests.bench.account replays rows of more than {limit >> 20} MiB")
    fate = fate_of(row, bytes_of(row), runner())
    if fate.fate == REFUSED:
        assert _is_expected(fate), f"{row.cells}\n{fate.reason}"
    else:
        assert fate.fate in (MEASURED, NO_REPLAY), f"{row.cells}\n{fate.reason}"


def test_each_kernel_type_has_a_replay_or_a_reason_for_none():
    kernel_types = {row.kernel_type for row in ROWS} | {name for source in sources() for name in source.unrecorded}
    assert sorted(name for name in kernel_types if reason_for_no_replay(name) is None) == []


def test_each_expected_refusal_occurs():
    """The list says nothing that is not so any more."""
    seen = set()
    for row in ROWS:
        if row.kernel_type in {kernel_type for kernel_type, _, _ in EXPECTED_REFUSALS}:
            is_small = row.kernel_type in REFUSED_AT_ONCE or bytes_of(row) <= LARGEST_BYTES
            fate = fate_of(row, bytes_of(row), runner()) if is_small else None
            seen |= {entry for entry in EXPECTED_REFUSALS if fate is not None and _matches(entry, fate)}
    assert [entry for entry in EXPECTED_REFUSALS if entry not in seen] == []


def test_reasons_of_a_kind_are_grouped():
    first = "column 'Output Shapes' is '1,2048': no product of (1, 2048) has this shape; correct it"
    second = "column 'Output Shapes' is '16,4': no product of (16, 4) has this shape; correct it"
    assert problem_of(first) == problem_of(second) == "no product of (...) has this shape; correct it"


def _is_expected(fate) -> bool:
    return any(_matches(entry, fate) for entry in EXPECTED_REFUSALS)


def _matches(entry, fate) -> bool:
    kernel_type, words, _ = entry
    return fate.kernel_type == kernel_type and re.search(re.escape(words), fate.reason) is not None
