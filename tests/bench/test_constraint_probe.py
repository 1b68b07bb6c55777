"""Which shapes a kernel takes, by the rows that were run: with kernels that refuse some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from compared import write_tables
from hypothesis import given, settings, strategies as st

from opatlas.data import log
from opatlas.data.database import Database
from opatlas.data.journal import JournalHeader
from opatlas.outer.doctor.shape_probe import first_cases, further_cases, probe, row_cells
from opatlas.row.columns import CRASHES_IN_A_ROW, INPUT_SHAPES, STATUS
from opatlas.row.record import Record
from opatlas.row.signature import signature
from opatlas.row.status import Status
from opatlas.theory.refused_shapes import Constraints, MoeKernel, MoeShape, Trial, read_constraints, shape_of

KERNEL = MoeKernel(2, "DT_BF16")
START = MoeShape(m=8, h=64, n=32, experts=4, top_k=3)
TYPE = "DispatchFFNCombine"


def searched(takes: Callable[[MoeShape], bool], most: MoeShape, rounds: int = 10) -> Constraints:
    """What rows tell that are run, and followed by further ones."""
    units = {"n": 2}
    tried = {shape: takes(shape) for shape in first_cases(START, units, most)}
    for _ in range(rounds):
        tried |= {shape: takes(shape) for shape in further_cases(tried, START, units)}
    return Constraints(tuple(Trial(KERNEL, shape, taken) for shape, taken in tried.items()))


@settings(deadline=None, max_examples=30)
@given(
    step=st.sampled_from([1, 2, 16, 64]), high=st.integers(130, 1000), low=st.integers(1, 64), size=st.integers(1, 1000)
)
def test_steps_and_ends_of_a_size_are_found(step: int, high: int, low: int, size: int) -> None:
    def takes(shape: MoeShape) -> bool:
        return shape.h % step == 0 and low <= shape.h <= high

    constraints = searched(takes, MoeShape(8, 1000, 32, 4, 3))
    limit = constraints.limits(KERNEL)["h"]
    assert limit.step == step
    asked = replace(START, h=size)
    accepts = constraints.accepts(asked, ep_size=2, weights="DT_BF16")
    assert not accepts or takes(asked)
    if step == 1:
        # Halved often enough, the ends are exact.
        assert accepts == takes(asked)
    assert len(constraints.trials) < 150


def test_sizes_too_large_together_stay_so() -> None:
    constraints = searched(lambda shape: shape.m * shape.h <= 4096, MoeShape(64, 512, 32, 4, 3))
    for m, h, accepted in ((64, 64, True), (8, 512, True), (64, 512, False), (80, 600, False)):
        assert constraints.accepts(replace(START, m=m, h=h), ep_size=2, weights="DT_BF16") == accepted


def test_rows_with_another_status_or_other_slots_tell_nothing(tmp_path: Path) -> None:
    found = {
        "measured": START,
        "failed": replace(START, m=64),
        "skipped": replace(START, m=128),
        "timeout": replace(START, m=130),
        "device-error": replace(START, m=131),
    }
    rows = [row_cells(shape, KERNEL, "FRACTAL_NZ") | {STATUS: status} for status, shape in found.items()]
    again = replace(START, m=132)
    rows.append(row_cells(again, KERNEL, "ND") | {STATUS: "timeout", CRASHES_IN_A_ROW: "2"})
    rows += [
        row_cells(replace(START, m=256), KERNEL, "ND"),
        {**rows[0], INPUT_SHAPES: "8,64;1,64,32", STATUS: "failed"},
    ]
    trials = read_constraints(Database(write_tables(tmp_path, {TYPE: rows})).read(TYPE)).trials
    assert trials == (
        Trial(KERNEL, START, True),
        *(Trial(KERNEL, shape, False) for shape in (replace(START, m=64), again)),
    )


def test_a_device_error_counts_from_the_second_in_a_row(tmp_path: Path) -> None:
    cells = row_cells(replace(START, m=64), KERNEL, "ND")
    database = Database(write_tables(tmp_path, {TYPE: [{**cells, STATUS: "device-error"}]}))

    def ran(run: str, status: Status) -> None:
        record = Record(TYPE, signature(TYPE, cells), cells, status, "", run, 0.0)
        log.add(database, JournalHeader(run, "all", prune=False), [record])

    for day, (status, refused) in enumerate(
        [
            (Status.DEVICE_ERROR, False),
            (Status.FAILED, False),
            (Status.DEVICE_ERROR, False),
            (Status.SKIPPED, False),
            (Status.DEVICE_ERROR, True),
        ]
    ):
        ran(f"2025112{day}T120000-aaaaaa", status)
        assert bool(read_constraints(database.read(TYPE)).trials) == refused


def test_the_probe_goes_on_where_a_session_has_ended(tmp_path: Path) -> None:
    database = Database(tmp_path)

    def added() -> set[MoeShape]:
        probe(database_path=tmp_path, ep_size=2, weights="DT_BF16", weight_format="ND", start=START)
        return {shape_of(row[INPUT_SHAPES]) for row in database.read(TYPE).identities()}

    first = added()
    assert first == added() == set(first_cases(START, {"h": 1, "n": 2}))
    rows = [
        row_cells(shape, KERNEL, "ND") | {STATUS: "measured" if shape.m <= 40 else "crashed"}
        for shape in sorted(first, key=str)
    ]
    write_tables(tmp_path, {TYPE: rows})
    assert {shape.m for shape in added() - first if replace(shape, m=START.m) == START} == {56}
    with pytest.raises(Exception, match="--start"):
        probe(database_path=tmp_path, start=replace(START, h=65))
