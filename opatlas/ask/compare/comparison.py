"""The rows of several databases side by side, and the figures of each rival against the baseline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

from opatlas.ask.compare.calls import MISSING, Basis, CallPair, Controls, RowCall, compare_calls, controls_by_run
from opatlas.ask.compare.databases import ComparedDatabase
from opatlas.errors import UsageError, noted
from opatlas.grouping import grouped
from opatlas.progress import track
from opatlas.row.rounds import Mean, PairVerdict, mean_of
from opatlas.row.signature import kernel_types_meant, make_case_id
from opatlas.row.status import Status
from opatlas.text import suggest

#: fast_p is given for these p.
FAST = (1.0, 1.5, 2.0)
#: The call of a row that a database lacks.
_NO_CALL = RowCall()


@dataclass(frozen=True)
class RowComparison:
    """A row in all databases.

    Attributes:
        calls: the row in each database, by the database's name.
        pairs: each rival's call against the baseline's, by the rival's name; only rows that both measured.
        fastest: the name of the rival with the largest speed-up of those that are FAST, else of the baseline; with the
            shortest duration if the baseline has none; "" if no database measured the row, or all of its comparisons
            are AMBIGUOUS or NOT COMPARABLE.
        is_composition: whether the baseline timed a composition in place of the kernel.
    """

    kernel_type: str
    signature: str
    calls: Mapping[str, RowCall]
    pairs: Mapping[str, CallPair]
    fastest: str
    is_composition: bool

    @property
    def case_id(self) -> str:
        """The id of the row, as pytest and `opatlas history` name it."""
        return make_case_id(self.kernel_type, self.signature)

    def is_partial(self, baseline: str, rival: str) -> bool:
        """Whether one of the two has fewer outputs, or untimed conversions."""
        return self.calls[baseline].is_partial or self.calls[rival].is_partial


@dataclass(frozen=True)
class RivalFigures:
    """The figures of a rival over some rows.

    Attributes:
        kernel_type: the kernel type of the rows; "" for all.
        rows: their number.
        statuses: rows by the rival's status.
        verdicts: rows that both measured, by verdict.
        covered: mean of the speed-ups that are FAST, SLOW or SAME, where the baseline is no composition.
        deployed: the same mean, with 1.0 for each further row that the baseline alone measured.
        fast: by p the share of all rows in which the rival is right, at least p times as fast, and FAST, SLOW or SAME;
            None without rows.
        compositions: rows that both measured, and that count in neither mean, since the baseline is a composition.
        composed: the mean of these rows, where they are FAST, SLOW or SAME.
        lost: rows that only the baseline measured.
        new: rows that only the rival measured.
    """

    kernel_type: str
    rows: int
    statuses: Mapping[str, int]
    verdicts: Mapping[str, int]
    covered: Mean
    deployed: Mean
    fast: Mapping[float, float | None]
    compositions: int
    composed: Mean
    lost: int
    new: int

    def of_statuses(self, *statuses: Status | str) -> int:
        """Returns the number of rows with one of these statuses."""
        return sum(self.statuses.get(str(status), 0) for status in statuses)

    @property
    def measured(self) -> int:
        """Rows with a duration and a correct result."""
        return self.of_statuses(Status.MEASURED)

    @property
    def unsupported(self) -> int:
        """Rows that the rival does not claim to run."""
        return self.of_statuses(Status.UNSUPPORTED)

    @property
    def wrong(self) -> int:
        """Rows with an error or a wrong result."""
        return self.of_statuses(Status.FAILED, Status.INVALID)

    @property
    def crashed(self) -> int:
        """Rows that ended the process, met their deadline or did not fit into memory."""
        return self.of_statuses(Status.CRASHED, Status.TIMEOUT, Status.OOM, Status.DEVICE_ERROR)

    @property
    def missing(self) -> int:
        """Rows that the rival does not have, or has not finished."""
        return self.rows - self.measured - self.unsupported - self.wrong - self.crashed

    def told(self) -> Mapping[str, object]:
        """Returns the figures in types of JSON."""
        content = asdict(self)
        for name in ("covered", "deployed", "composed"):
            mean = content.pop(name)
            content |= {f"{name}_rows": mean["rows"], name: mean["ratio"]}
            content |= {f"{name}_{end}": mean[end] for end in ("low", "high")}
        return content | {
            name: getattr(self, name) for name in ("measured", "unsupported", "wrong", "crashed", "missing")
        }


@dataclass(frozen=True)
class Evidence:
    """What the comparisons of a rival rest on.

    Attributes:
        pairs: comparable rows by their basis.
        controls: of each run with rounds, in the order of the rows.
        spreads: the default spreads of a run that were assumed, ascending.
    """

    pairs: Mapping[Basis, int]
    controls: Sequence[Controls]
    spreads: Sequence[float]


@dataclass(frozen=True)
class DatabaseComparison:
    """A baseline and its rivals on the same rows.

    Attributes:
        baseline: the database that speed-ups refer to.
        rivals: the others.
        rows: the rows that any of them has, by kernel type.
        problems: sentences about files that cannot be read.
        controls: of each run with rounds, by run id.
    """

    baseline: ComparedDatabase
    rivals: Sequence[ComparedDatabase]
    rows: Sequence[RowComparison]
    problems: Sequence[str] = ()
    controls: Mapping[str, Controls] = field(default_factory=dict)

    @cached_property
    def by_kernel_type(self) -> Mapping[str, Sequence[RowComparison]]:
        """The rows of each kernel type."""
        return grouped((row.kernel_type, row) for row in self.rows)

    @property
    def fastest(self) -> Counter[str]:
        """The number of rows in which each database is the fastest; "" for rows of which nothing can be told."""
        return Counter(row.fastest for row in self.rows)

    @cached_property
    def without_common_rows(self) -> Sequence[ComparedDatabase]:
        """The rivals of other implementations that have none of the rows that the baseline has."""
        of_baseline = [row for row in self.rows if row.calls[self.baseline.name].status != MISSING]
        return [
            rival
            for rival in self.rivals
            if rival.name not in self._same_implementation
            and all(row.calls[rival.name].status == MISSING for row in of_baseline)
        ]

    def total(self, rival: str) -> RivalFigures:
        """Returns the figures of a rival over all rows."""
        return self._figures("", rival, self.rows)

    def figures(self, rival: str) -> list[RivalFigures]:
        """Returns the figures of a rival for each kernel type that it has rows of, the slowest first."""
        found = [self._figures(name, rival, rows) for name, rows in self.by_kernel_type.items()]
        with_rows = [each for each in found if each.of_statuses(MISSING) < each.rows]
        return sorted(with_rows, key=lambda each: math.inf if each.covered.ratio is None else each.covered.ratio)

    def _is_left_out(self, row: RowComparison, rival: str) -> bool:
        """Returns whether a row counts in no mean: the baseline is a composition, and not the same as the rival's."""
        composed_twice = rival in self._same_implementation and row.calls[rival].is_composition
        return row.is_composition and not composed_twice

    @cached_property
    def _same_implementation(self) -> frozenset[str]:
        return frozenset(each.name for each in self.rivals if each.runs_as(self.baseline))

    def _figures(self, kernel_type: str, rival: str, rows: Sequence[RowComparison]) -> RivalFigures:
        pairs = [pair for row in rows if (pair := row.pairs.get(rival))]
        told = [pair.speed_up for pair in pairs if pair.verdict.counts]
        ours = self.baseline.name
        measured = [(row.calls[ours].duration is not None, row.calls[rival].duration is not None) for row in rows]
        counted = [row for row in rows if not self._is_left_out(row, rival)]
        covered = [pair.speed_up for row in counted if (pair := row.pairs.get(rival)) and pair.verdict.counts]
        alone = sum(row.calls[ours].duration is not None and rival not in row.pairs for row in counted)
        left_out = [pair for row in rows if self._is_left_out(row, rival) and (pair := row.pairs.get(rival))]
        return RivalFigures(
            kernel_type,
            len(rows),
            dict(Counter(row.calls[rival].status for row in rows)),
            dict(Counter(pair.verdict.value for pair in pairs)),
            mean_of(covered),
            mean_of([*covered, *[1.0] * alone]),
            {p: sum(ratio >= p for ratio in told) / len(rows) if rows else None for p in FAST},
            len(left_out),
            mean_of([pair.speed_up for pair in left_out if pair.verdict.counts]),
            sum(of_baseline and not of_rival for of_baseline, of_rival in measured),
            sum(of_rival and not of_baseline for of_baseline, of_rival in measured),
        )

    def evidence(self, rival: str) -> Evidence:
        """Returns what the comparisons of a rival rest on."""
        pairs = [pair for row in self.rows if (pair := row.pairs.get(rival)) and pair.is_comparable]
        runs = dict.fromkeys(pair.run_id for pair in pairs if pair.basis is Basis.ROUNDS)
        spreads = {pair.spread for pair in pairs if pair.basis is Basis.DEFAULT and pair.spread is not None}
        return Evidence(
            Counter(pair.basis for pair in pairs),
            [self.controls.get(run_id, Controls(run_id)) for run_id in runs],
            sorted(spreads),
        )

    def slower_rows(self, rival: str, percent: float) -> list[tuple[RowComparison, CallPair]]:
        """Returns the SLOW rows of a rival whose whole interval is slower by more than `percent`, the worst first."""
        most = 1 / (1 + percent / 100)
        pairs = [(row, pair) for row in self.rows if (pair := row.pairs.get(rival))]
        found = [(row, pair) for row, pair in pairs if pair.verdict is PairVerdict.SLOW and pair.ratios.high < most]
        return sorted(found, key=lambda each: each[1].speed_up)


def compare_databases(
    databases: Sequence[ComparedDatabase], *, baseline: str = "", kernel_types: Sequence[str] = ()
) -> DatabaseComparison:
    """Reads databases and compares their rows.

    Args:
        baseline: the name of the baseline; "": the default implementation, else the first database.
        kernel_types: the kernel types, or names of collectives, to compare; all if empty.

    Raises:
        UsageError: no database has the name or a kernel type.
    """
    chosen = _baseline(databases, baseline)
    rivals = [each for each in databases if each is not chosen]
    problems: list[str] = []
    wanted = _kernel_types(databases, kernel_types)
    tables: dict[str, dict[str, Mapping[str, RowCall]]] = {}
    for kernel_type in track(wanted, "compare, kernel types"):
        tables[kernel_type] = {each.name: _read(each, kernel_type, problems) for each in (chosen, *rivals)}
    calls = [call for of_type in tables.values() for table in of_type.values() for call in table.values()]
    if any(call.rounds for call in calls):
        # All rows of a run tell how much its controls spread.
        others = sorted({name for each in databases for name in each.calls.kernel_types} - {*wanted})
        calls += (call for name in others for each in databases for call in _read(each, name, problems).values())
    controls = controls_by_run(calls)
    rows: list[RowComparison] = []
    for kernel_type, of_type in tables.items():
        for signature in dict.fromkeys(signature for table in of_type.values() for signature in table):
            of_row = {name: table.get(signature, _NO_CALL) for name, table in of_type.items()}
            rows.append(compare_row(kernel_type, signature, of_row, chosen.name, controls))
    return DatabaseComparison(chosen, rivals, rows, problems, controls)


def _read(database: ComparedDatabase, kernel_type: str, problems: list[str]) -> Mapping[str, RowCall]:
    """Returns the calls of a kernel type by signature; none of a file that cannot be read, which becomes a problem."""
    with noted(problems):
        return database.calls.read(kernel_type)
    return {}


def compare_row(
    kernel_type: str,
    signature: str,
    calls: Mapping[str, RowCall],
    baseline: str,
    controls: Mapping[str, Controls] | None = None,
) -> RowComparison:
    """Returns the comparison of a row; `calls` and `baseline` by the names of the databases, `controls` by run id."""
    ours = calls[baseline]
    compared = ((name, compare_calls(ours, call, controls)) for name, call in calls.items() if name != baseline)
    pairs = {name: pair for name, pair in compared if pair is not None}
    if ours.duration is not None:
        # The durations of a pair are spans or sums, and may differ from those of another pair: speed-ups compare.
        faster = {name: pair.speed_up for name, pair in pairs.items() if pair.verdict is PairVerdict.FAST}
        open_ = pairs and not any(pair.verdict.counts for pair in pairs.values())
        fastest = max(faster, key=faster.__getitem__, default="" if open_ else baseline)
    else:
        durations = {name: us for name, call in calls.items() if (us := call.duration_us) is not None}
        fastest = min(durations, key=durations.__getitem__, default="")
    return RowComparison(kernel_type, signature, calls, pairs, fastest, ours.is_composition)


def _baseline(databases: Sequence[ComparedDatabase], name: str) -> ComparedDatabase:
    by_name = {each.name: each for each in databases}
    if name and name not in by_name:
        raise UsageError(f"--baseline {name}: not compared here{suggest(name, by_name)}: {', '.join(by_name)} are")
    return by_name[name] if name else next((each for each in databases if each.is_default), databases[0])


def _kernel_types(databases: Iterable[ComparedDatabase], named: Sequence[str]) -> list[str]:
    """Returns the kernel types to compare, sorted. Raises UsageError."""
    present: set[str] = set()
    for each in databases:
        present.update(each.calls.kernel_types)
    wanted = {meant for name in named for meant in kernel_types_meant(name, sorted(present))}
    if unknown := [name for name in wanted if name not in present]:
        raise UsageError(f"--ops {unknown[0]}: no database has this kernel type{suggest(unknown[0], present)}")
    return sorted(wanted or present)
