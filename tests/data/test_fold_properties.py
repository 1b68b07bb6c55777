"""Properties of the fold, over drawn lives of databases (tests/support/drawn_lives.py)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from abs_rows import read, record, write
from drawn_lives import (
    FOREIGN,
    SIZES,
    DrawnRun,
    Event,
    Moving,
    bases,
    combined,
    live,
    lives,
    moving_cells,
    new_database,
)
from folding import csvs, differences, imported, joined, restored, row_of, session
from hypothesis import Phase, given, settings

from opatlas.data import log
from opatlas.row.columns import AVERAGE, INPUT_SHAPES, RUN_ID
from opatlas.row.quality import valid_duration

Rows = Sequence[dict[str, str]]
pytestmark = pytest.mark.usefixtures("no_sync")
#: Examples of a property: OPATLAS_FOLD_EXAMPLES=250 draws more, and others each time.
ASKED_EXAMPLES = os.environ.get("OPATLAS_FOLD_EXAMPLES")
EXAMPLES = int(ASKED_EXAMPLES or "10")


def property_of(*strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """A test of a property."""

    def decorate(test: Callable[..., None]) -> Any:
        def run(tmp_path_factory: pytest.TempPathFactory) -> None:
            # To make an example smaller takes minutes.
            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                derandomize=not ASKED_EXAMPLES,
                database=None,
                phases=[Phase.generate],
            )
            @given(st.tuples(*strategies))
            def check(drawn: tuple[Any, ...]) -> None:
                test(tmp_path_factory.mktemp("life"), *drawn)

            check()

        run.__doc__ = test.__doc__
        return run

    return decorate


def unlike(one: Moving, other: Moving) -> list[str]:
    """The cells that differ."""
    return [
        f"{' '.join(map(str, key))}: {column} {one.get(key, {}).get(column)!r} {other.get(key, {}).get(column)!r}"
        for key in one | other
        for column in one.get(key, {}) | other.get(key, {})
        if one.get(key, {}).get(column) != other.get(key, {}).get(column)
    ]


@property_of(bases(), lives())
def test_folding_again_changes_nothing(folder: Path, base: Rows, life: list[Event]) -> None:
    same = live(new_database(folder / "same", base), [event for event in life if isinstance(event, DrawnRun)])
    database = live(new_database(folder / "database", base), life)
    before = csvs(database)
    live(database, life)
    assert not differences(before, csvs(database))
    joined(database, same, pooled=True)
    before = csvs(database)
    joined(database, same, pooled=True)
    assert not differences(before, csvs(database))


@property_of(bases(), lives(), st.randoms(), st.booleans())
def test_groups_of_runs_give_what_all_runs_give(
    folder: Path, base: Rows, life: list[Event], random: Any, pooled: bool
) -> None:
    cut = random.randint(0, len(life))
    groups = [life[:cut], life[cut:]]
    random.shuffle(groups)
    one, other = combined(folder / "1", base, [[event] for event in life]), combined(folder / "2", base, groups)
    if pooled:
        joined(one, pooled=True)
        joined(other, pooled=True)
    assert not unlike(moving_cells(one), moving_cells(other))


@property_of(bases(), lives(), st.randoms())
def test_the_order_of_runs_decides_and_not_that_of_calls(
    folder: Path, base: Rows, life: list[Event], random: Any
) -> None:
    one = live(new_database(folder / "one", base), life)
    other = live(new_database(folder / "other", base), random.sample(life, len(life)))
    assert not unlike(moving_cells(one), moving_cells(other))


@property_of(bases(), lives(), lives(other=True), st.booleans())
def test_no_record_is_lost_and_none_counts_twice(
    folder: Path, base: Rows, ours: list[Event], theirs: list[Event], pooled: bool
) -> None:
    database = live(new_database(folder / "database", base), ours)
    bare = [{**row, AVERAGE: "", RUN_ID: ""} for row in base]
    joined(database, live(new_database(folder / "source", bare), theirs), pooled=pooled)
    restored(database)
    kept = Counter(each for run in log.runs(database) for each in map(str, log.read(database, run).records))
    drawn = {str(each) for event in (*ours, *theirs) if isinstance(event, DrawnRun) for each in event.records}
    assert set(kept) == drawn
    assert set(kept.values()) <= {1}
    durations = Counter((row[INPUT_SHAPES], row[RUN_ID], row[AVERAGE]) for row in base if valid_duration(row[AVERAGE]))
    explained = Counter((row[INPUT_SHAPES], row.get(RUN_ID, ""), row[AVERAGE]) for row in imported(database))
    assert explained <= durations
    there = {(row[INPUT_SHAPES], row[RUN_ID], row[AVERAGE]) for row in read(database)}
    assert set(durations) <= there | set(explained)


@property_of(bases(), lives(), st.booleans())
def test_a_row_without_a_record_keeps_its_cells(folder: Path, base: Rows, life: list[Event], pooled: bool) -> None:
    database = live(new_database(folder / "database", base), life)
    joined(database, live(new_database(folder / "source", base), life))
    if pooled:
        joined(database, pooled=True)
    restored(database)
    after = read(database)[: len(base)]
    assert [row[INPUT_SHAPES] for row in after] == [row[INPUT_SHAPES] for row in base]
    foreign = {f"{size},4" for size in FOREIGN}
    for before, row in zip(base, after, strict=True):
        kept = {name: cell for name, cell in row.items() if name in before or (cell and not name.startswith("Pooled"))}
        if row[INPUT_SHAPES] in foreign:
            assert kept == before
        assert row["Note"] == before["Note"]


@property_of(bases(), lives(most=2), st.sampled_from(SIZES), st.sampled_from([AVERAGE, "Cache State", "Status"]))
def test_what_somebody_typed_stays_until_a_run_measures_the_row(
    folder: Path, base: Rows, life: list[Event], size: int, column: str
) -> None:
    base = [row for number, row in enumerate(base) if row[INPUT_SHAPES] not in {r[INPUT_SHAPES] for r in base[:number]}]
    database = live(new_database(folder / "database", base), life)
    rows = read(database)
    for row in rows:
        if row[INPUT_SHAPES] == f"{size},4":
            row[column] = "0099.5"
    write(database, [{column: "", **row} for row in rows])
    typed = row_of(database, size)
    for number in range(10):
        run = f"2026010{number}T120000-aaaaaa"
        session(database, record(size % 3 + 1, 1.0 + number, run=run), record(NEW_ROW, 1.0, run=run))
    assert row_of(database, size) == typed
    session(database, record(size, 1.0, run="20260201T120000-aaaaaa"))
    assert row_of(database, size)[column] != typed[column]
    is_known = column != AVERAGE or any(
        (row[INPUT_SHAPES], row[AVERAGE]) == (f"{size},4", typed[AVERAGE]) for row in imported(database)
    )
    assert is_known


NEW_ROW = 5


@property_of(bases(), lives(), lives(other=True), st.sampled_from(["none", "combined", "pooled", "pooled before"]))
def test_any_life_is_made_again_to_the_letter(
    folder: Path, base: Rows, life: list[Event], later: list[Event], kind: str
) -> None:
    if kind == "pooled before":
        # What was pooled from a duration without a record, and replaced since, is not made again.
        base = [row if row[INPUT_SHAPES] != "1,4" else {**row, AVERAGE: ""} for row in base]
    database = live(new_database(folder / "database", base), life)
    if kind != "none":
        joined(database, live(new_database(folder / "source", base), later))
    if kind.startswith("pooled"):
        joined(database, pooled=True)
    if kind == "pooled before":
        run = "20260201T120000-aaaaaa"
        session(database, *(record(size, 1.0, run=run) for size in (1, NEW_ROW)))
    before = csvs(database)
    restored(database)
    assert not differences(before, csvs(database))
