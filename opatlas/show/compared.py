"""The tables of a comparison: databases, figures of rivals and of kernel types, rows, and reasons of losses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opatlas.ask.compare.calls import MISSING, Basis, CallPair, captured_call
from opatlas.ask.compare.comparison import FAST, DatabaseComparison, RivalFigures, RowComparison
from opatlas.ask.compare.databases import ComparedDatabase
from opatlas.formats import percent, ratio
from opatlas.row.rounds import Mean, PairVerdict, RatioInterval
from opatlas.row.status import Status
from opatlas.show.result import Column, Part, Table
from opatlas.text import pluralize

_NAMES_SHOWN = 5
#: Of so few rows that two databases have all are told.
_FEW = 10
#: An end of an interval that is so many times the ratio says nothing.
_WIDE = 10
_REPEAT = "next: opatlas bench --where 'noise > 0.05' measures noisy rows again"

#: The remark of a row, by `CallPair.composition`.
_COMPOSED = {
    "baseline": "the baseline is a composition",
    "rival": "the rival is a composition",
    "both": "both are compositions",
}

_MEANS = ("covered", "deployed", "composed", "mean")
_COUNTS = ("rows", "measured", "unsupported", "wrong", "crashed", "missing", "lost", "new", "compositions")
_VERDICTS, _FAST = tuple(map(str, PairVerdict)), tuple(f">= {p:g}x" for p in FAST)
_OVER_TIME = ("rows", *_VERDICTS, "lost", "new", "mean")
_SPEED_UPS = ("in common", *_VERDICTS, "covered", "deployed")
_OTHERS = (*_COUNTS[:6], "compositions", "composed", *_FAST)
_OF_KERNEL_TYPE = (*_COUNTS[:5], str(PairVerdict.SLOW), str(PairVerdict.FAST), "covered")


def mean(found: Mean) -> str:
    """Returns `1.10x (1.02x to 1.19x)`; the mean of one row has no interval."""
    assert found.ratio is not None
    ends = "" if found.low is None or found.high is None else f" ({ratio(found.low)} to {ratio(found.high)})"
    return f"{ratio(found.ratio)}{ends}"


def _figures(
    what: Sequence[Column | str],
    figures: Mapping[tuple[str, ...], RivalFigures],
    names: Sequence[str],
    title: str,
    *,
    detail: bool = False,
) -> Table:
    """Returns a table of figures by their names; `what` has the columns that say whose they are."""
    columns = [Column(name, mean if name in _MEANS else percent if name in _FAST else str) for name in names]
    rows = []
    for whose, found in figures.items():
        means = {name: found.covered if name == "mean" else getattr(found, name) for name in _MEANS}
        cells = {
            **{name: getattr(found, name) or None for name in _COUNTS},
            "in common": sum(found.verdicts.values()),
            **found.verdicts,
            **{name: each if each.rows else None for name, each in means.items()},
            **dict(zip(_FAST, found.fast.values(), strict=True)),
        }
        rows.append((*whose, *map(cells.get, names)))
    return Table((*what, *columns), rows, title, detail=detail)


def parts(comparison: DatabaseComparison) -> Iterator[Part]:
    """Yields the tables for a person."""
    shown = [rival for rival in comparison.rivals if rival not in comparison.without_common_rows]
    over_time = all(rival.runs_as(comparison.baseline) for rival in comparison.rivals)
    yield figures_table(comparison, comparison.rivals)
    yield evidence(comparison, shown)
    yield _kernel_types(comparison, shown, over_time)
    yield rows_table(comparison, shown)
    if not over_time:
        yield _figures(("database",), _totals(comparison, shown), _OTHERS, "statuses", detail=True)
    yield _losses(comparison, shown)
    if any(_is_noise(comparison.total(rival.name)) for rival in shown):
        yield _REPEAT
    yield _databases(comparison, over_time)


def _is_noise(figures: RivalFigures) -> bool:
    """Returns whether half of the rows that compare, or more, are AMBIGUOUS."""
    ambiguous = figures.verdicts.get(PairVerdict.AMBIGUOUS.value, 0)
    told = sum(count for verdict, count in figures.verdicts.items() if PairVerdict(verdict).counts)
    return ambiguous > 0 and ambiguous >= told


def _totals(
    comparison: DatabaseComparison, rivals: Sequence[ComparedDatabase]
) -> Mapping[tuple[str, ...], RivalFigures]:
    return {(rival.label,): comparison.total(rival.name) for rival in rivals}


def evidence(comparison: DatabaseComparison, rivals: Sequence[ComparedDatabase]) -> Table:
    """Returns what the verdicts of rivals rest on: rounds and their controls, pooled runs, or defaults."""
    rows = list[tuple[Any, ...]]()
    for rival in rivals:
        found = comparison.evidence(rival.name)
        controls = "; ".join(
            pluralize(each.rows, "control")
            + ("" if each.spread is None else f" spread by {percent(each.spread)}")
            + f": differences from {percent(math.expm1(each.threshold))} on count"
            for each in found.controls[:_NAMES_SHOWN]
        )
        spreads = " or ".join(map(percent, found.spreads))
        details = {
            Basis.ROUNDS: controls,
            Basis.POOLED_RUNS: "other sessions: the spread between sessions is that of the pooled runs",
            Basis.DEFAULT: f"other sessions, or not in rounds: the spread between sessions is taken as {spreads}",
        }
        rows += ((rival.label, str(each), found.pairs[each], details[each]) for each in Basis if found.pairs.get(each))
    return Table(("database", "verdicts by", "rows", "which say"), rows, "verdicts", detail=len(rivals) > 1)


def figures_table(comparison: DatabaseComparison, rivals: Sequence[ComparedDatabase]) -> Table:
    """Returns the verdicts and means of rivals over all rows."""
    over_time = all(rival.runs_as(comparison.baseline) for rival in rivals)
    names, title = _OVER_TIME if over_time else _SPEED_UPS, f"speed-up over {comparison.baseline.label}"
    return _figures(("database",), _totals(comparison, rivals), names, title)


def rows_table(comparison: DatabaseComparison, rivals: Sequence[ComparedDatabase]) -> Table:
    """Returns the slower rows, the worst first, and the faster rows, the best first; of few rows the others, too."""
    pairs = [(rival, row, pair) for rival in rivals for row in comparison.rows if (pair := row.pairs.get(rival.name))]
    told = [each for each in pairs if each[2].verdict in (PairVerdict.SLOW, PairVerdict.FAST)]
    found = sorted(pairs if len(pairs) <= _FEW else told, key=lambda each: _order(each[2]))
    columns = (
        *("verdict", "baseline(us)", "rival(us)", Column("speed-up", ratio), Column("interval", _interval), "remark"),
        *(Column("database", wide=len(rivals) == 1), "row"),
    )
    rows = [_row(comparison, *each) for each in found]
    # The largest differences matter most, whichever is the faster one.
    return Table(columns, rows, "rows", weight=lambda row: abs(math.log(row[3])))


def _order(pair: CallPair) -> tuple[int, float]:
    order = (PairVerdict.SLOW, PairVerdict.FAST, PairVerdict.AMBIGUOUS, PairVerdict.SAME, PairVerdict.NOT_COMPARABLE)
    return order.index(pair.verdict), -pair.speed_up if pair.verdict is PairVerdict.FAST else pair.speed_up


def _databases(comparison: DatabaseComparison, over_time: bool) -> Table:
    rows = [
        (
            each.label,
            "baseline" if each is comparison.baseline else "rival",
            sum(row.calls[each.name].duration is not None for row in comparison.rows),
            None if over_time else comparison.fastest[each.name],
            each.place,
        )
        for each in (comparison.baseline, *comparison.rivals)
    ]
    return Table(("database", "role", "measured", "fastest", "folder"), rows, "databases", detail=True)


def _kernel_types(comparison: DatabaseComparison, rivals: Sequence[ComparedDatabase], over_time: bool) -> Table:
    """Returns the figures by kernel type; of one implementation those with another verdict than SAME."""
    found = {(each.kernel_type, rival.label): each for rival in rivals for each in comparison.figures(rival.name)}
    is_same = {PairVerdict.SAME.value}
    changed: dict[tuple[str, ...], RivalFigures]
    changed = {names: each for names, each in found.items() if not (over_time and each.verdicts.keys() == is_same)}
    title = "kernel types"
    if len(changed) < len(found):
        title += f" (others, all SAME: {len(found) - len(changed):,})"
    what = ("kernel type", Column("database", wide=len(rivals) == 1))
    return _figures(what, changed, _OVER_TIME if over_time else _OF_KERNEL_TYPE, title)


def _row(
    comparison: DatabaseComparison, rival: ComparedDatabase, row: RowComparison, pair: CallPair
) -> tuple[Any, ...]:
    remarks = {
        "partial": row.is_partial(comparison.baseline.name, rival.name),
        _COMPOSED.get(pair.composition, ""): bool(pair.composition),
        "host-bound": pair.host_bound,
        pair.reason: bool(pair.reason),
    }
    remark = ", ".join(name for name, holds in remarks.items() if holds)
    times = (pair.baseline_us, pair.rival_us, pair.speed_up, pair.ratios)
    return str(pair.verdict), *times, remark, rival.label, row.case_id


def _interval(ratios: RatioInterval) -> str:
    if ratios.high > _WIDE * ratios.ratio:
        return f"wider than {_WIDE}x"
    return f"{ratio(ratios.low)} to {ratio(ratios.high)}"


def _losses(comparison: DatabaseComparison, rivals: Sequence[ComparedDatabase]) -> Table:
    """Returns why rows that a database ran have no duration, and why pairs do not compare: the most frequent ones."""
    rows = list[tuple[Any, ...]]()
    for rival in rivals:
        calls = [row.calls[rival.name] for row in comparison.rows]
        reasons = Counter((call.status, call.reason) for call in calls if Status.from_cell(call.status))
        pairs = [pair for row in comparison.rows if (pair := row.pairs.get(rival.name))]
        reasons.update((str(pair.verdict), pair.reason) for pair in pairs if not pair.is_comparable)
        told = [(each, count) for each, count in reasons.most_common() if each[0] != Status.MEASURED.value]
        rows += ((rival.label, count, *each) for each, count in told)
        missing = Counter(
            f"captured, not replayed: {rival.path}@captures compares these"
            if call.row is not None and captured_call(call.row).duration is not None
            else "no such row, or it never ran"
            for call in calls
            if call.status == MISSING
        )
        rows += ((rival.label, count, MISSING, why) for why, count in missing.items())
    # Where no row compares, the reasons are the answer.
    compares = any(comparison.total(rival.name).covered.rows for rival in rivals)
    return Table(("database", "rows", "status", "reason"), rows, "rows without a speed-up", detail=compares)
