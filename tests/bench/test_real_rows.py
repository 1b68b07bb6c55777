"""Small rows of real captures and measurements, where these lie next to the checkout."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import torch
from replaying import replay_of, runner

from opatlas.row.columns import INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.row.errors import ReplayError
from opatlas.row.signature import digest
from opatlas.row.status import Status
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.job import Job, RowOutcome
from opatlas.run.registry import WITHOUT_REPLAY, replays_of_bench
from tests.bench.real_rows import RealRow, sources

LARGEST_BYTES = 16 << 20
#: For the rows of a measured grid of sizes, whose larger sizes add nothing.
LARGEST_OF_GRID_BYTES = 2 << 20
#: Shapes lose their numbers, so that commas count the axes.
FORM_COLUMNS = (*INPUT_SLOTS, *OUTPUT_SLOTS)
#: So many rows of a form run by default, the smallest; the others are slow tests.
ROWS_OF_A_FORM = 2
#: Kernel types whose rows are refused before any tensor is made, however large.
REFUSED_AT_ONCE = ("GroupedMatmul",)

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


def bytes_of(row: RealRow) -> int:
    """Of all tensors of a row; 0 where its slots leave it open, and the replay has to say so."""
    try:
        return ReplayRow(row.kernel_type, row.cells, torch.device("cpu")).bytes()
    except ReplayError:
        return 0


def outcome_of(row: RealRow) -> RowOutcome:
    module, _, name = replay_of(row.kernel_type).rpartition(".")
    return runner().run(Job(module, "", name, row.kernel_type, row.cells, timeout_s=600))


def parameters() -> list[Any]:
    """Returns the small rows of kernel types that have a replay."""
    forms: Counter[tuple[str, ...]] = Counter()
    found = []
    with_replay = (row for row in ROWS if row.kernel_type in replays_of_bench() and is_small(row))
    for row in sorted(with_replay, key=bytes_of):
        forms[form_of(row)] += 1
        name = f"{row.source}-{row.kernel_type}-{digest(row.kernel_type, row.signature)}"
        found.append(pytest.param(row, id=name, marks=[pytest.mark.slow] * (forms[form_of(row)] > ROWS_OF_A_FORM)))
    return found


@pytest.mark.parametrize("row", parameters())
def test_real_row(row):
    outcome = outcome_of(row)
    if outcome.status in (Status.INVALID, Status.UNSUPPORTED):
        assert any(_matches(entry, row, outcome) for entry in EXPECTED_REFUSALS), f"{row.cells}\n{outcome.reason}"
    else:
        assert outcome.status is Status.MEASURED, f"{row.cells}\n{outcome.reason}"


def test_each_kernel_type_has_a_replay_or_a_reason_for_none():
    kernel_types = {row.kernel_type for row in ROWS} | {name for source in sources() for name in source.unrecorded}
    assert kernel_types - {""} <= set(replays_of_bench()) | set(WITHOUT_REPLAY)


def test_each_expected_refusal_occurs():
    """Otherwise the list would be out of date."""
    refusing = {kernel_type for kernel_type, _, _ in EXPECTED_REFUSALS}
    outcomes = [(row, outcome_of(row)) for row in ROWS if row.kernel_type in refusing and is_small(row)]
    assert all(any(_matches(entry, *pair) for pair in outcomes) for entry in EXPECTED_REFUSALS)


def _matches(entry: tuple[str, str, str], row: RealRow, outcome: RowOutcome) -> bool:
    kernel_type, words, _ = entry
    return row.kernel_type == kernel_type and words in outcome.reason
