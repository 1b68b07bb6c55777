"""Two diagnoses side by side: durations, verdicts and counters of the kernels that both have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from opatlas.capture.capture_reader import DURATION, TYPE
from opatlas.outer.diagnosis.diagnosis import Diagnosis
from opatlas.outer.diagnosis.kernels import LAUNCHES, ROW
from opatlas.outer.diagnosis.rules import KernelVerdict
from opatlas.row.columns import BASE, INPUT_SHAPES

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

    @property
    def speed_up(self) -> float:
        """The former duration divided by the new one."""
        return self.old_us / self.new_us

    @property
    def changed_ratios(self) -> Mapping[str, tuple[float, float]]:
        """The counters that are ratios, and changed."""
        return {
            name: (old, new)
            for name, (old, new) in self.counters.items()
            if name.endswith(_RATIOS) and abs(new - old) >= _TELLING * (100 if name.endswith("(%)") else 1)
        }


@dataclass(frozen=True)
class DiagnosisChanges:
    """What changed between two diagnoses.

    Attributes:
        kernels: those in both, the largest change of time first.
        only_old, only_new: numbers of kernels that one of them has.
    """

    kernels: tuple[KernelChange, ...]
    only_old: int
    only_new: int


def compare_diagnoses(old: Diagnosis, new: Diagnosis) -> DiagnosisChanges:
    """Returns the kernels of both; they are the same where type, shapes, dtypes and formats are, or the row's id."""
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
            )
        )
    return DiagnosisChanges(tuple(kernels), len(before) - len(both), len(after) - len(both))


def _by_kernel(diagnosis: Diagnosis, keys: list[str], counters: list[str]) -> pd.DataFrame:
    """Returns a line for each kernel, without collectives: means, and the verdict of the longest launch."""
    frame = diagnosis.table.frame
    wanted = list(dict.fromkeys([*keys, TYPE, INPUT_SHAPES, DURATION, *counters]))
    own = {_VERDICT: diagnosis.verdicts.first, LAUNCHES: diagnosis.launches}
    lines = frame[wanted].assign(**own)[~diagnosis.verdicts.is_collective]
    grouped = lines.sort_values(DURATION, ascending=False, kind="stable").groupby(
        [lines[name] for name in keys], sort=False, dropna=False
    )
    found: pd.DataFrame = grouped[[TYPE, INPUT_SHAPES, _VERDICT]].first()
    found[[DURATION, *counters]] = grouped[[DURATION, *counters]].mean()
    found[LAUNCHES] = grouped[LAUNCHES].sum()
    return found
