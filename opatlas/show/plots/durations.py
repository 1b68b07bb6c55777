"""Plots of durations: of replays against captures, and of matrix products against M."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import median, quantiles
from typing import NamedTuple

import numpy as np

from opatlas.row.durations import Duration, Source
from opatlas.row.roofline import PRODUCTS
from opatlas.row.siblings import base_type
from opatlas.row.table import Row
from opatlas.show.plots.figure import Plot, color_map, escape_formulas, new_figure, use_decades, whole_decades
from opatlas.show.session_report import HIGHEST_RATIO, LOWEST_RATIO

_COMPARISON_INCHES = (8.0, 6.0)
_TYPES_SHOWN = 15
#: Fewer values have no meaningful 10th and 90th percentile.
_FEWEST_FOR_TENTHS = 10


@dataclass(frozen=True)
class Agreement:
    """Statistics of the ratios microbench / profiling.

    Attributes:
        p10, p50, p90: percentiles; p10 and p90 are None for few rows.
        within: the number of rows within 20 %.
    """

    rows: int
    p10: float | None
    p50: float
    p90: float | None
    within: int


def agreement(rows: Sequence[Row]) -> Agreement:
    """Returns the statistics of at least one row; all rows have both durations."""
    ratios = [replayed_us / captured_us for replayed_us, captured_us in map(_both_us, rows)]
    tenths = quantiles(ratios, n=10, method="inclusive") if len(ratios) >= _FEWEST_FOR_TENTHS else None
    return Agreement(
        rows=len(ratios),
        p10=tenths[0] if tenths else None,
        p50=median(ratios),
        p90=tenths[-1] if tenths else None,
        within=sum(LOWEST_RATIO <= ratio <= HIGHEST_RATIO for ratio in ratios),
    )


def _both_us(row: Row) -> tuple[float, float]:
    """Returns the replayed and the captured duration of a row that has both."""
    replayed, captured = row.replayed, row.captured
    assert replayed is not None
    assert captured is not None
    return replayed.us, captured.us


def comparison_plot(rows: Sequence[Row], title: str) -> Plot | None:
    """Plots replayed against captured durations, which all rows have; None without rows."""
    if not rows:
        return None
    found = agreement(rows)
    numbers = Counter(row.kernel_type for row in rows)
    types = [name for name, _ in numbers.most_common()]
    color = color_map(types[:_TYPES_SHOWN])
    figure, (axis,) = new_figure(*_COMPARISON_INCHES)
    for number, name in enumerate(types):
        replayed_us, captured_us = zip(*(_both_us(row) for row in rows if row.kernel_type == name), strict=True)
        label = f"{escape_formulas(name)} ({numbers[name]:,})" if number < _TYPES_SHOWN else ""
        if number == _TYPES_SHOWN:
            label = f"{len(types) - _TYPES_SHOWN} others"
        axis.scatter(
            captured_us,
            replayed_us,
            c=color(name),
            s=40,
            marker=".",
            linewidths=0,
            alpha=0.8,
            label=label,
        )
    durations = [us for row in rows for us in _both_us(row)]
    ends = whole_decades(min(durations), max(durations))
    axis.plot(ends, ends, color="black", linewidth=1, label="equal")
    axis.fill_between(
        ends,
        [LOWEST_RATIO * end for end in ends],
        [HIGHEST_RATIO * end for end in ends],
        color="0.5",
        alpha=0.2,
        linewidth=0,
        label=f"within 20 %: {found.within:,} of {found.rows:,}",
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
    use_decades(axis)
    figure.suptitle(escape_formulas(title))
    axis.set_xlabel("captured: Profiling Average Duration (us)")
    axis.set_ylabel("replayed: Average Duration (us)")
    figure.legend(loc="outside right center", fontsize="small", markerscale=1.5)
    return Plot(figure, found.rows)


_PRODUCTS_INCHES = (8.5, 4.8)
_LINE_STYLES = ("solid", "dashed", "dotted", "dashdot")
#: The lines of a figure that can still be told apart.
_LINES_SHOWN = 8


class ProductLine(NamedTuple):
    """What the products of a line have in common: "N x K" of the weight, its dtype, and how they were timed."""

    kernel_type: str
    weight: str
    dtype: str
    conditions: str


def product_lines(rows: Sequence[tuple[Row, Duration]]) -> Mapping[ProductLine, Sequence[tuple[int, Duration]]]:
    """Returns the matrix products of each weight (N, K) that was timed with several M; the longest line first.

    Returns:
        M and the duration of each product, by M.

    Raises:
        CellError: the tensors of a product cannot be read.
    """
    lines: dict[ProductLine, list[tuple[int, Duration]]] = {}
    for row, duration in rows:
        if base_type(row.kernel_type) not in PRODUCTS or len(inputs := row.tensors[0]) != 2:
            continue
        left, weight = (each.shape for each in inputs)
        if len(left) == len(weight) == 2 and left[1] == weight[1]:
            line = ProductLine(row.kernel_type, f"{weight[0]} x {weight[1]}", inputs[0].dtype, duration.conditions)
            lines.setdefault(line, []).append((left[0], duration))
    by_length = sorted(lines.items(), key=lambda line: -len(line[1]))
    return {line: sorted(own, key=itemgetter(0)) for line, own in by_length if len(own) > 1}


def products_plot(rows: Sequence[tuple[Row, Duration]], device: str) -> Plot | None:
    """Plots the durations of the matrix products of some weights against M; None without such products.

    The weights are those with the most products. A band reaches from the fastest sample of a replay to one standard
    deviation above the average.

    Raises:
        CellError: the tensors of a product cannot be read.
    """
    lines = dict(list(product_lines(rows).items())[:_LINES_SHOWN])
    if not lines:
        return None
    figure, (axis,) = new_figure(*_PRODUCTS_INCHES)
    # Colours stand for weights, line styles for how products were timed.
    color = color_map(list(dict.fromkeys(line.weight for line in lines)))
    ways = list(dict.fromkeys((line.kernel_type, line.dtype, line.conditions) for line in lines))
    for line, own in lines.items():
        sizes = [m for m, _ in own]
        durations_us, least_us = (np.array([getattr(each, name) for _, each in own]) for name in ("us", "least_us"))
        std_us = [each.std_us if each.source is Source.REPLAYED else 0.0 for _, each in own]
        way = ways.index((line.kernel_type, line.dtype, line.conditions))
        (drawn,) = axis.plot(
            sizes,
            durations_us,
            marker=".",
            color=color(line.weight),
            linestyle=_LINE_STYLES[way % len(_LINE_STYLES)],
            label=escape_formulas(f"{line.weight}: {line.kernel_type}, {line.dtype}, {line.conditions}"),
        )
        axis.fill_between(
            sizes,
            np.fmin(least_us, durations_us),
            durations_us + np.nan_to_num(std_us),
            color=drawn.get_color(),
            alpha=0.2,
            linewidth=0,
        )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(lambda m, _: f"{m:g}")
    axis.grid(alpha=0.3)
    figure.suptitle(escape_formulas(f"Matrix products: {device}" if device else "Matrix products"))
    axis.set_xlabel("rows M of the left operand")
    axis.set_ylabel("duration (us)")
    figure.legend(loc="outside right center", fontsize="small", title="weight N x K")
    return Plot(figure, sum(map(len, lines.values())))
