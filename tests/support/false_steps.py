"""How often `opatlas history` lists rows without a step, and how often it finds planted ones, by simulation.

`python -m tests.support.false_steps` prints the figures of docs/compare.md, and more lines.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opatlas.ask.compare.steps import search
from opatlas.formats import percent

_ROWS, _DATABASES = 1000, 5
_PLANTED = 50
Values = npt.NDArray[np.float64]


def listed(values: Values) -> list[bool]:
    """Returns for each row whether a step is listed; `values` are logarithms by row and run."""
    rows = {each.row for each in search(values).changes}
    return [row in rows for row in range(len(values))]


def draw(kind: str, deviation: float, rows: int, runs: int, seed: int) -> Values:
    """Returns rows without steps.

    Args:
        kind: "normal"; "rows differ": deviations with a log-normal factor of 0.8; "outliers": Student's t of 3 degrees
            of freedom; "wander": each run has half of the error of the run before.
        deviation: the standard deviation of a run.
    """
    drawn = np.random.default_rng(seed)
    if kind == "outliers":
        return drawn.standard_t(3, (rows, runs)) / np.sqrt(3) * deviation
    errors = drawn.normal(0, deviation, (rows, runs))
    if kind == "rows differ":
        return errors * np.exp(drawn.normal(0, 0.8, (rows, 1)))
    if kind == "wander":
        for run in range(1, runs):
            errors[:, run] = 0.5 * errors[:, run - 1] + np.sqrt(0.75) * errors[:, run]
    return errors


def main() -> None:
    """Prints both tables in Markdown."""
    counts = (6, 10, 20, 40)
    print("| errors | " + " | ".join(f"{runs} runs" for runs in counts) + " |")
    print("| --- |" + " --- |" * len(counts))
    for kind in ("normal", "rows differ", "outliers", "wander"):
        for deviation in (0.01, 0.03, 0.1):
            cells = []
            for runs in counts:
                found = [sum(listed(draw(kind, deviation, _ROWS, runs, seed))) for seed in range(_DATABASES)]
                cells.append(f"{sum(found) / _DATABASES:.1f}")
            print(f"| {kind}, {percent(deviation, 0)} | " + " | ".join(cells) + " |")
    plans = ((6, 3), (10, 3), (10, 5), (20, 3), (20, 10))
    print("\n| step | " + " | ".join(f"{after} of {runs} runs" for runs, after in plans) + " |")
    print("| --- |" + " --- |" * len(plans))
    for deviation in (0.01, 0.02, 0.05):
        for size in (0.1, 0.2, 0.4):
            cells = []
            for runs, after in plans:
                values = draw("normal", deviation, _ROWS, runs, 1)
                values[:_PLANTED, runs - after :] += np.log1p(size)
                cells.append(percent(sum(listed(values)[:_PLANTED]) / _PLANTED, 0))
            print(f"| {size * 100:+.0f} %, errors of {percent(deviation, 0)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
