"""Replayed durations against captured ones of the same rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from opatlas.model.roofline import Peak
from opatlas.report.plots.figure import (
    Plot,
    colors_of,
    decades,
    new_figure,
    plain,
    whole_decades,
)
from opatlas.report.plots.timed_rows import TimedRow
from opatlas.report.session_files import HIGHEST_RATIO, LOWEST_RATIO
from opatlas.text import counted

NAME = "microbench_against_profiling"
NEEDS = "rows with a replayed and a captured duration"

_INCHES = (8.0, 6.0)
_TYPES_SHOWN = 15
#: Of fewer values the tenth and the ninetieth hundredth are made up by interpolation.
_FEWEST_FOR_TENTHS = 10


@dataclass(frozen=True)
class Agreement:
    """Of the ratios microbench / profiling.

    Attributes:
        p10, p90: None of few rows.
        within: how many rows are within 20 %.
    """

    rows: int
    p10: float | None
    p50: float
    p90: float | None
    within: int


def agreement(rows: Sequence[TimedRow]) -> Agreement:
    """Of at least one row; all have both durations."""
    ratios = [row.microbench_us / row.profiling_us for row in rows if row.microbench_us and row.profiling_us]
    tenths = quantiles(ratios, n=10, method="inclusive") if len(ratios) >= _FEWEST_FOR_TENTHS else None
    return Agreement(
        rows=len(ratios),
        p10=tenths[0] if tenths else None,
        p50=median(ratios),
        p90=tenths[-1] if tenths else None,
        within=sum(LOWEST_RATIO <= ratio <= HIGHEST_RATIO for ratio in ratios),
    )


def plots(rows: Sequence[TimedRow], title: str, peak: Peak) -> list[Plot]:
    """One figure of rows that have both durations, or none. Raises OpAtlasError without matplotlib."""
    if not rows:
        return []
    found = agreement(rows)
    numbers = Counter(row.kernel_type for row in rows)
    types = [name for name, _ in numbers.most_common()]
    color = colors_of(types[:_TYPES_SHOWN])
    figure, (axis,) = new_figure(*_INCHES)
    for place, name in enumerate(types):
        shown = [row for row in rows if row.kernel_type == name]
        label = f"{plain(name)} ({numbers[name]:,})" if place < _TYPES_SHOWN else ""
        if place == _TYPES_SHOWN:
            label = f"{len(types) - _TYPES_SHOWN} others"
        axis.scatter(
            [row.profiling_us for row in shown],
            [row.microbench_us for row in shown],
            c=color(name),
            s=40,
            marker=".",
            linewidths=0,
            alpha=0.8,
            label=label,
        )
    durations = [us for row in rows for us in (row.microbench_us, row.profiling_us) if us]
    ends = whole_decades(min(durations), max(durations))
    axis.plot(ends, ends, color="black", linewidth=1, label="equal")
    axis.fill_between(
        ends,
        [LOWEST_RATIO * end for end in ends],
        [HIGHEST_RATIO * end for end in ends],
        color="0.5",
        alpha=0.2,
        linewidth=0,
        label="within 20 %",
    )
    for ratio, words, style in (
        (found.p10, "10th percentile", "dotted"),
        (found.p50, "median", "dashed"),
        (found.p90, "90th percentile", "dotted"),
    ):
        if ratio is not None:
            label = f"{words}: {ratio:,.2f} x"
            axis.plot(ends, [ratio * end for end in ends], color="red", linewidth=1, linestyle=style, label=label)
    axis.set_xlim(*ends)
    axis.set_ylim(*ends)
    decades(axis)
    figure.suptitle(plain(title))
    axis.set_xlabel("captured: Profiling Average Duration (us)")
    axis.set_ylabel("replayed: Average Duration (us)")
    figure.legend(loc="outside right center", fontsize="small", markerscale=1.5)
    return [
        Plot(NAME, figure, f"{counted(found.rows, 'row')}, {found.within:,} within 20 %, median {found.p50:,.2f} x")
    ]
