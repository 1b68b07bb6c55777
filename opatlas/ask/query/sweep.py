"""Several steps of a model side by side: their costs, and a plot of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from opatlas.ask.query.database import OpenDatabase
from opatlas.ask.query.model_cost import ModelCost
from opatlas.data.csv_files import write_text
from opatlas.errors import UsageError
from opatlas.installation import require_extra
from opatlas.theory.model_step import Step

#: A step, its cost, and else why it has none: it does not fit the device, or the devices do not divide the model.
SweptStep: TypeAlias = tuple[Step, ModelCost | None, str]


def step_costs(
    opened: OpenDatabase, steps: Iterable[Step], implementation: Sequence[str], tell: Callable[[str], object]
) -> list[SweptStep]:
    """Returns the cost of each step, as `OpenDatabase.model`. Raises OpAtlasError."""
    found: list[SweptStep] = []
    for step in steps:
        settings = msgspec.structs.asdict(step)
        try:
            found.append((step, opened.model(**settings, implementation=implementation, tell=tell), ""))
        except UsageError as error:
            found.append((step, None, str(error).removeprefix(f"{step.told()}: ")))
    if len(found) == 1 and found[0][1] is None:
        raise UsageError(found[0][2])
    return found


def write_plot(path: Path, costs: Sequence[ModelCost]) -> None:
    """Writes an HTML page with step time and throughput over the sequences of a step. Raises OpAtlasError."""
    require_extra("report", "--plot", "bokeh")
    from bokeh.embed import file_html
    from bokeh.layouts import column
    from bokeh.palettes import Category10_10
    from bokeh.plotting import figure
    from bokeh.resources import INLINE

    lines: dict[str, list[tuple[int, float, float | None]]] = {}
    for cost in costs:
        step, count = cost.step, sum(group.n for group in cost.step.groups())
        name = f"tp {step.tp}, ep {step.ep}" + (f", context {step.context}" if step.context else "")
        lines.setdefault(name, []).append((count, (cost.in_graph or cost).us / 1000, cost.tokens_per_s))
    plots = []
    for place, title in ((1, "step (ms)"), (2, "tokens/s")):
        plot = figure(
            x_axis_type="log", y_axis_type="log", x_axis_label="sequences", y_axis_label=title, width=800, height=400
        )
        for i, (name, points) in enumerate(lines.items()):
            known = sorted((each[0], each[place]) for each in points if each[place] is not None)
            if known:
                x, y = zip(*known, strict=True)
                plot.line(x, y, legend_label=name, color=Category10_10[i % 10])
                plot.scatter(x, y, legend_label=name, color=Category10_10[i % 10])
        plots.append(plot)
    write_text(path, file_html(column(*plots), INLINE, title=costs[0].model if costs else "no steps"))
