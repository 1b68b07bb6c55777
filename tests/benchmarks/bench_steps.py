"""Predicted steps against measured ones: the fit of what a step adds to its calls, and steps that were held out.

    python -m tests.benchmarks.bench_steps [DB]

`measured_steps.csv` has a layer each of steps that plain torch made on another H200 than the rows, in CUDA graphs.
Which of them are fitted, and which are held out, was committed before the first fit. Rows of `steps/` in the database
are told as "another machine": none of them is fitted. Small all_reduces are those of two H200s in a graph and alone.

Printed: the constants of `opatlas/ask/query/step_time.py`; for each role the errors of the sum of calls and of the
prediction, and how many steps lie in its 90 % interval; the ten worst steps. Exits with 1 where a goal is missed.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

import opatlas
from opatlas.ask.query.database import OpenDatabase
from opatlas.ask.query.model_cost import ModelCost
from opatlas.ask.query.step_time import StepConstants, step_time
from opatlas.row.communication import BY_KERNEL_TYPE
from opatlas.run.step_layer import kind_of_layer
from opatlas.theory.model_step import Step

_LISTED = Path(__file__).with_name("measured_steps.csv")
_FITTED, _ELSEWHERE = "fitted", "another machine"
#: Microseconds of all_reduces of 1 KiB, 64 KiB and 1 MiB on two H200s: in a CUDA graph, and as rows have them.
_MESSAGES = ((9.45, 5.47), (10.83, 7.14), (16.89, 13.95))
#: The largest median and ninth decile of the errors of steps that were not fitted.
_GOALS = {"decode, dense": (0.02, 0.05), "decode, experts": (0.04, 0.10), "prefill": (0.04, 0.08)}
#: Steps whose products reach this share of the peak run at the power cap.
_BUSY = 0.4


class Measured(NamedTuple):
    """A measured step and its kernels, in microseconds, without calls that have no rows; and the cost of its calls."""

    name: str
    role: str
    us: float
    kernels_us: float | None
    cost: ModelCost

    @property
    def calls(self) -> int:
        return sum(part.calls for part in self.cost.parts if part.us is not None)

    @property
    def has_experts(self) -> bool:
        return any(part.part == "router" for part in self.cost.parts)


def of_layers(cost: ModelCost, layers: str) -> ModelCost:
    """Returns the cost of the layers of a cell of Step Layers alone, without collectives."""
    parts = []
    for text in layers.split("+"):
        count, _, kind = text.strip().partition(" ")
        for part in cost.parts:
            of_kind = kind_of_layer(part.part) in ("", kind or kind_of_layer(part.part))
            is_first_norm = part.part == "attention_norm" and part.kernel_type == "RmsNorm"
            if part.layers and of_kind and not is_first_norm and part.kernel_type not in BY_KERNEL_TYPE:
                parts.append(replace(part, calls=part.calls // part.layers * int(count)))
    return replace(cost, parts=parts)


def listed(db: OpenDatabase) -> Iterator[Measured]:
    """Yields the steps of `measured_steps.csv`, of a layer each."""
    with _LISTED.open(newline="") as file:
        for row in csv.DictReader(file):
            cost = cost_of(db, row["Step"], f"1 {row['layer']}".rstrip())
            missing_us = float(row["missing(us)"] or 0)
            kernels = float(row["kernels(us)"]) - missing_us if row["kernels(us)"] else None
            yield Measured(row["Step"], row["role"], float(row["step(us)"]) - missing_us, kernels, cost)


def stored(db: OpenDatabase) -> Iterator[Measured]:
    """Yields the steps of the database's `steps/` that a graph launched."""
    path = db.path / "steps" / "Step.csv"
    with path.open(newline="") if path.is_file() else open(_LISTED) as file:
        for row in csv.DictReader(file) if path.is_file() else ():
            if row["Status"] == "measured" and row["Step Launch"] == "graph":
                kernels = row.get("MicroBench kernels(us)")
                cost = cost_of(db, row["Step"], row["Step Layers"])
                us = float(row["Average Duration(us)"])
                yield Measured(row["Step"], _ELSEWHERE, us, float(kernels) if kernels else None, cost)


def cost_of(db: OpenDatabase, step: str, layers: str) -> ModelCost:
    found = db.model(any_memory=True, **msgspec.structs.asdict(Step.read(step)))
    return of_layers(found, layers)


def fit(steps: list[Measured], held_out: list[Measured]) -> StepConstants:
    """Returns the constants: medians over the fitted steps; the error is that which covers 90 % of those held out."""
    free = [each for each in steps if each.kernels_us is not None and not is_busy(each)]
    gap = median((each.us - (each.kernels_us or 0.0)) / each.calls for each in free)
    place = median(((each.kernels_us or 0.0) - each.cost.us) / each.calls for each in free)
    capped = median((each.us - (gap + place) * each.calls) / each.cost.us - 1 for each in steps if is_busy(each))
    message = median(graph - row for graph, row in _MESSAGES)
    gap, place, message, capped = (round(value, 3) for value in (gap, place, message, capped))
    found = StepConstants(gap, place, message, _BUSY, capped, 0.0, 0.0)
    errors = []
    for experts in (False, True):
        needed = sorted(error_needed(each, found) for each in held_out if each.has_experts is experts)
        errors.append(needed[int(0.9 * len(needed))])
    return replace(found, error=errors[0], experts_error=errors[1])


def is_busy(step: Measured) -> bool:
    """Returns whether the step runs at the power cap."""
    found = step_time(step.cost, StepConstants(0, 0, 0, _BUSY, 1.0, 0, 0))
    return found is not None and found.power_cap_us > 0


def error_needed(step: Measured, constants: StepConstants) -> float:
    """Returns the least error with which the interval of a prediction holds the step."""
    errors = (number / 1000 for number in range(1000))
    return next(error for error in errors if holds(step, replace(constants, error=error, experts_error=error)))


def holds(step: Measured, constants: StepConstants) -> bool:
    found = step_time(step.cost, constants)
    return found is not None and found.interval_us[0] <= step.us <= found.interval_us[1]


def tell(role: str, steps: list[Measured], constants: StepConstants) -> bool:
    """Prints the errors of calls and of predictions, and the steps in the interval; returns whether they are good."""
    sums = np.abs([each.cost.us / each.us - 1 for each in steps])
    found = [step_time(each.cost, constants) for each in steps]
    errors = np.abs([time.us / each.us - 1 for time, each in zip(found, steps, strict=True) if time is not None])
    inside = sum(holds(each, constants) for each in steps)
    before, after = (f"{np.median(each):.1%} / {np.quantile(each, 0.9):.1%}" for each in (sums, errors))
    goal = next((goal for kind, goal in _GOALS.items() if kind in role), (1.0, 1.0))
    is_good = bool(np.median(errors) <= goal[0] and np.quantile(errors, 0.9) <= goal[1])
    missed = "" if is_good else "  missed"
    print(f"{role:45} {len(steps):3}  calls {before:15}  step {after:15}  in the interval {inside}{missed}")
    return is_good


def tell_parts(db: OpenDatabase) -> None:
    """Prints of each part of stored steps what a call takes longer in place than cold and alone, and the gap before."""
    path = db.path / "steps" / "Step.csv"
    rows = list(csv.DictReader(path.open(newline=""))) if path.is_file() else []
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for column, cell in row.items():
            part = column.removeprefix("MicroBench ").removesuffix(" alone(us)")
            if part + " alone(us)" != column.removeprefix("MicroBench ") or row["Step Launch"] != "graph" or not cell:
                continue
            in_place, gap = (row.get(f"MicroBench {part}{suffix}(us)") or "nan" for suffix in ("", " gap"))
            found.setdefault(part, []).append((float(in_place) - float(cell), float(gap)))
    for part, values in found.items():
        place, gap = np.nanmedian(values, axis=0)
        print(f"{part:20} {len(values):3} steps  in place {place:+.2f} us  gap {gap:.2f} us")


def main() -> None:
    db = opatlas.open(*(sys.argv[1:] or ["NVIDIA_H200"]))
    steps = [*listed(db), *stored(db)]
    by_role: dict[str, list[Measured]] = {}
    for each in steps:
        kind = "prefill" if "phase=prefill" in each.name else "decode"
        what = "experts" if each.has_experts else "dense"
        by_role.setdefault(f"{each.role}, {kind}, {what}", []).append(each)
    fitted = [each for each in steps if each.role == _FITTED]
    held_out = [each for each in steps if each.role not in (_FITTED, _ELSEWHERE)]
    constants = fit(fitted, held_out)
    print(constants)
    good = [tell(role, own, constants) for role, own in by_role.items()]
    times = [(time.us / each.us - 1, each) for each in held_out if (time := step_time(each.cost, constants))]
    for error, each in sorted(times, key=lambda pair: -abs(pair[0]))[:10]:
        missing = ", ".join(dict.fromkeys(part.part for part in each.cost.missing))
        print(f"{error:+.1%} {each.name}{f' (without {missing})' if missing else ''}")
    tell_parts(db)
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
