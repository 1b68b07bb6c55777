"""The figures of a rival, for any rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from compared import call, lost_call
from hypothesis import given, strategies as st

from opatlas.ask.compare.calls import RowCall
from opatlas.ask.compare.comparison import FAST, DatabaseComparison, RivalFigures, compare_row
from opatlas.ask.compare.databases import ComparedDatabase
from opatlas.row.rounds import Mean, PairVerdict
from opatlas.row.status import Status

COMPOSITION = "composition of 2 torch operators (pow, mean)"
calls = st.one_of(
    st.builds(
        call,
        st.floats(0.1, 1e6),
        noise=st.floats(0, 0.3),
        samples=st.integers(1, 50),
        cache=st.sampled_from(["cold", "warm"]),
        stand_in=st.sampled_from(["", COMPOSITION]),
    ),
    st.just(RowCall()),
    st.sampled_from([lost_call(each.value) for each in Status if each != "measured"]),
)
pairs_of_calls = st.lists(st.tuples(calls, calls), max_size=12)


def comparison_of(rows: list[tuple[RowCall, RowCall]]) -> DatabaseComparison:
    one, other = ComparedDatabase("a", Path("a")), ComparedDatabase("b", Path("a", "implementations", "b-1"))
    compared = [
        compare_row("Sort", f"{number},1|BF16||{number},1|BF16", {"a": ours, "b": theirs}, "a")
        for number, (ours, theirs) in enumerate(rows)
    ]
    return DatabaseComparison(one, [other], compared)


def figures_of(rows: list[tuple[RowCall, RowCall]]) -> RivalFigures:
    return comparison_of(rows).total("b")


def as_kernel(call: RowCall) -> RowCall:
    assert call.duration is not None
    return replace(call, duration=call.duration._replace(composed=False))


@given(pairs_of_calls)
def test_every_row_counts_once(rows: list[tuple[RowCall, RowCall]]) -> None:
    found = figures_of(rows)
    assert found.rows == len(rows)
    assert found.measured + found.unsupported + found.wrong + found.crashed + found.missing == len(rows)
    assert found.covered.rows <= sum(found.verdicts.values()) <= found.measured
    assert found.covered.rows <= found.deployed.rows <= len(rows)
    told = sum(count for verdict, count in found.verdicts.items() if PairVerdict(verdict).counts)
    assert found.covered.rows + found.composed.rows == told


@given(pairs_of_calls)
def test_a_dispatcher_is_between_the_rival_and_the_baseline(rows: list[tuple[RowCall, RowCall]]) -> None:
    found = figures_of(rows)
    for mean in (found.covered, found.deployed):
        assert (mean.ratio is None) == (mean.rows == 0)
    if found.deployed.ratio is not None:
        low, high = sorted((1.0, 1.0 if found.covered.ratio is None else found.covered.ratio))
        assert low * (1 - 1e-9) <= found.deployed.ratio <= high * (1 + 1e-9)


@given(pairs_of_calls)
def test_a_larger_speed_up_has_no_more_rows(rows: list[tuple[RowCall, RowCall]]) -> None:
    shares = [figures_of(rows).fast[p] for p in FAST]
    if not rows:
        assert shares == [None, None, None]
        return
    known = [share for share in shares if share is not None]
    assert 1 >= known[0] >= known[1] >= known[2] >= 0


@given(pairs_of_calls)
def test_the_means_leave_compositions_of_the_baseline_out(rows: list[tuple[RowCall, RowCall]]) -> None:
    kernels = [(ours, theirs) for ours, theirs in rows if not ours.is_composition]
    without, alone = figures_of(rows), figures_of(kernels)
    assert (without.covered, without.deployed) == (alone.covered, alone.deployed)
    composed = figures_of([(as_kernel(ours), theirs) for ours, theirs in rows if ours.is_composition])
    assert without.composed == composed.covered


@given(calls, calls)
def test_the_fastest_compares_with_the_baseline(ours: RowCall, theirs: RowCall) -> None:
    (row,) = comparison_of([(ours, theirs)]).rows
    if ours.sum_us is None or theirs.sum_us is None:
        assert row.fastest == ("a" if ours.sum_us is not None else "b" if theirs.sum_us is not None else "")
    else:
        verdict = row.pairs["b"].verdict
        assert row.fastest == ("b" if verdict is PairVerdict.FAST else "a" if verdict.counts else "")


def test_a_row_of_the_rival_alone_counts_in_no_mean() -> None:
    found = figures_of([(RowCall(), call(1.0))])
    assert (found.rows, found.measured, found.covered, found.deployed) == (1, 1, Mean(), Mean())


def test_the_fastest_has_the_largest_speed_up() -> None:
    """A rival of overlapping kernels against a host-bound baseline: the sums compare, and not the rival's span."""
    host_bound = call(10.0, span="30", kernels="3", noise=0.01, instrument="cupti")
    rival = call(8.5, span="11", kernels="2", noise=0.01, instrument="cupti")
    row = compare_row("Sort", "1|BF16||1|BF16", {"a": host_bound, "b": rival}, "a")
    assert row.pairs["b"].speed_up > 1
    assert row.fastest == "b"
