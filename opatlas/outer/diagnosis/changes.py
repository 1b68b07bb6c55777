"""Two diagnoses side by side: durations, verdicts and counters of the kernels that both have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import pandas as pd

from opatlas.capture.capture_reader import DURATION, TYPE
from opatlas.formats import microseconds, ratio
from opatlas.row.columns import BASE, INPUT_SHAPES
from opatlas.show.result import Column, Fields, Part, Result, Table

from .diagnosis import Diagnosis
from .kernels import LAUNCHES, ROW
from .shown import SHAPES, SHOWN, chosen
from .verdicts import KernelVerdict

#: The least change of a ratio that is worth a look.
_TELLING = 0.05
_VERDICT = "verdict"
#: Counters that compare between calls of other durations.
_RATIOS = ("_ratio", "_rate", "(%)")


@dataclass(frozen=True)
class KernelChange:
    """One kernel in both diagnoses: equal launches of captures, or a row of databases.

    Attributes:
        rank: from 1, by how much time changed.
        old_us, new_us: mean duration of a launch.
        old_verdict, new_verdict: the verdicts to act on, of the longest launch; None if none holds.
        counters: mean of each counter in both, by its name; only those that both have.
        speed_up: the former duration divided by the new one.
    """

    rank: int
    kernel_type: str
    shapes: str
    launches: int
    old_us: float
    new_us: float
    old_verdict: KernelVerdict | None
    new_verdict: KernelVerdict | None
    counters: Mapping[str, tuple[float, float]]
    speed_up: float

    @property
    def changed_ratios(self) -> Mapping[str, tuple[float, float]]:
        """The counters that are ratios, and changed."""
        return {
            name: (old, new)
            for name, (old, new) in self.counters.items()
            if name.endswith(_RATIOS) and abs(new - old) >= _TELLING * (100 if name.endswith("(%)") else 1)
        }


def compare_diagnoses(old: Diagnosis, new: Diagnosis) -> tuple[list[KernelChange], int, int]:
    """Returns the kernels of both, the largest change of time first, and the numbers of those that one of them has.

    Kernels are the same where type, shapes, dtypes and formats are, or the row's id.
    """
    captured = new.table.is_capture or old.table.is_capture
    names = [name for name in (TYPE, *BASE[2:]) if all(name in each.table.frame for each in (old, new))]
    keys = names if captured else [ROW]
    counters = [name for name in new.table.counters if name in old.table.counters]
    before, after = (_by_kernel(each, keys, counters) for each in (old, new))
    both = after.index.intersection(before.index, sort=False)
    changed_us = (after.loc[both, DURATION] - before.loc[both, DURATION]).abs() * after.loc[both, LAUNCHES]
    kernels = []
    for rank, key in enumerate(changed_us.sort_values(ascending=False, kind="stable").index, 1):
        first, second = before.loc[key], after.loc[key]
        values = {name: (float(first[name]), float(second[name])) for name in counters}
        kernels.append(
            KernelChange(
                rank=rank,
                kernel_type=str(second[TYPE]),
                shapes=str(second[INPUT_SHAPES]),
                launches=int(second[LAUNCHES]),
                old_us=float(first[DURATION]),
                new_us=float(second[DURATION]),
                old_verdict=first[_VERDICT] or None,
                new_verdict=second[_VERDICT] or None,
                counters={name: each for name, each in values.items() if not any(map(math.isnan, each))},
                speed_up=float(first[DURATION] / second[DURATION]),
            )
        )
    return kernels, len(before) - len(both), len(after) - len(both)


def _by_kernel(diagnosis: Diagnosis, keys: list[str], counters: list[str]) -> pd.DataFrame:
    """Returns a line for each kernel, without collectives: means, and the verdict of the longest launch."""
    wanted = list(dict.fromkeys([*keys, TYPE, INPUT_SHAPES, DURATION, *counters]))
    own = {_VERDICT: diagnosis.verdicts.first, LAUNCHES: diagnosis.launches}
    lines = diagnosis.table.frame[wanted].assign(**own)[diagnosis.is_kernel]
    grouped = lines.sort_values(DURATION, ascending=False, kind="stable").groupby(
        [lines[name] for name in keys], sort=False, dropna=False
    )
    found: pd.DataFrame = grouped[[TYPE, INPUT_SHAPES, _VERDICT]].first()
    found[[DURATION, *counters]] = grouped[[DURATION, *counters]].mean()
    found[LAUNCHES] = grouped[LAUNCHES].sum()
    return found


def comparison_result(old: Diagnosis, new: Diagnosis, row: int | None) -> Result:
    """Returns what changed; with `row` all counters of one kernel. Raises UsageError for a kernel that is not there."""
    kernels, only_old, only_new = compare_diagnoses(old, new)
    problems = [*old.table.problems, *new.table.problems]
    content = {"only_old": only_old, "only_new": only_new, "kernels": [asdict(each) for each in kernels]}
    parts: Iterator[Part] = iter(())
    if row is not None:
        parts = _kernel_parts(chosen(kernels, row))
    else:
        of = Fields({"old": str(old.table.place), "new": str(new.table.place)})
        counts = {
            "kernels in both": len(kernels),
            "with another verdict": sum(each.old_verdict != each.new_verdict for each in kernels),
            "only in old": only_old,
            "only in new": only_new,
        }
        parts = iter([of, Fields(counts), *_tables(kernels)])
    return Result(list(parts), content, problems, status=1 if problems else 0)


def _tables(kernels: list[KernelChange]) -> Iterator[Table]:
    columns = (
        *("#", "kernel type", SHAPES, Column("old(us)", microseconds), Column("new(us)", microseconds)),
        *(Column("speed-up", ratio), "old verdict", "new verdict"),
    )
    rows = [
        (
            *(each.rank, each.kernel_type, each.shapes, each.old_us, each.new_us, each.speed_up),
            *(each.old_verdict, each.new_verdict),
        )
        for each in kernels
    ]
    yield Table(columns, rows[:SHOWN], title="largest changes", left_out=len(rows[SHOWN:]))
    ratios = [(each.rank, name, *both) for each in kernels[:SHOWN] for name, both in each.changed_ratios.items()]
    if ratios:
        yield Table(("#", "counter", "old", "new"), ratios, title="counters that changed")


def _kernel_parts(change: KernelChange) -> Iterator[Part]:
    verdicts = {"old verdict": change.old_verdict, "new verdict": change.new_verdict}
    yield Fields({"shapes": change.shapes, **verdicts}, title=f"{change.rank} {change.kernel_type}")
    values = {"Duration(us)": (change.old_us, change.new_us), **change.counters}
    rows = [(name, old, new, new / old if old else None) for name, (old, new) in values.items()]
    yield Table(("counter", "old", "new", Column("new / old", ratio)), rows)
