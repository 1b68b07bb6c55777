"""Predicted steps against measured ones: the fit of what a step adds to its calls, and steps that were held out.

    python -m tests.benchmarks.bench_steps [DB]

Steps were measured on H200s: those in `steps/` of the database by OpAtlas, those in `measured_steps.csv` by plain torch
on another one, of which only whole steps are known. Rows are not left out: a quarter of the time of some steps is by
rows of their own device. `is_fitted` says which are fitted: a list that was committed before the
fit. Calls without a row are left out on both sides. The all_reduces of engines are those that are published, and what
those of torch's symmetric memory took longer in steps. None of the steps in `unseen_steps.csv` is fitted: rows
of other models hold for 0 to 16 % of the time of their products (Llama-3.2-1B 63 %, Llama-3-8B 40 %).

Printed: the constants of `opatlas/ask/query/step_time.py`; for each kind of steps the errors of the sum of calls and of
the prediction, and how many steps lie in its 90 % interval, told in three columns, each without what it tells in the
fit: other batches and contexts; a model left out; another machine. Then the worst steps, and what a call of each part
takes longer in place, and how far products that run for a second are off at the power cap. Exits with 1 where a goal is
missed.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

import opatlas
from opatlas.ask.query.database import OpenDatabase
from opatlas.ask.query.features import kernel_work
from opatlas.ask.query.model_cost import MISSING, ModelCost, PartCost
from opatlas.ask.query.step_time import StepConstants, step_time
from opatlas.row.communication import BY_KERNEL_TYPE
from opatlas.theory.model_step import Step, kind_of_layer

#: A note that a part of a step was run by another implementation than its kernel type.
_BY = re.compile(r"(\S+) by ([^\s:]+)[^:]*: ")
_LISTED = Path(__file__).with_name("measured_steps.csv")
#: Steps of models of whose products few have rows, by OpAtlas on two H200s; config.json of those without a name.
_UNSEEN, _UNSEEN_MODELS = (Path(__file__).with_name(f"unseen_{name}") for name in ("steps.csv", "models.json"))
#: Products of torch whose samples, 600 to 8000 one behind the other, throttled an H200.
_SUSTAINED = Path(__file__).with_name("sustained_rows.csv")
#: Devices, KiB, exchanges and microseconds of vLLM 0.20's own all_reduces in a CUDA graph on H200s: figures that
#: aiconfigurator publishes (custom_allreduce_perf of commit 77a06bf6).
_REDUCES = (
    *((2, 16, 1, 4.55), (2, 128, 1, 4.80), (2, 512, 1, 6.32), (2, 1024, 1, 8.35), (2, 4096, 1, 20.33)),
    *((4, 16, 1, 4.77), (4, 64, 1, 5.32), (4, 256, 1, 7.02), (4, 1024, 2, 11.99), (4, 4096, 2, 29.86)),
    *((8, 16, 1, 5.27), (8, 64, 1, 6.52), (8, 256, 2, 9.92), (8, 1024, 2, 14.08), (8, 4096, 2, 28.74)),
)
#: Microseconds that an all_reduce by torch's symmetric memory took longer in steps of four models on two and four H200s
#: than in a graph of nothing else, in the median of 44: its devices wait for each other.
_WAIT_US = 1.4
#: Microseconds of a copy of the queries of 4 to 128 sequences in a graph on an H200 (2.1 to 2.4).
_COPY_US = 2.23
#: The largest median and ninth decile of the errors of steps that were not fitted.
_GOALS = {"decode, dense": (0.02, 0.05), "decode, experts": (0.04, 0.10), "prefill": (0.04, 0.08)}
#: A device below this clock (MHz) runs at its power cap; a step that takes this much longer than its kernels waits for
#: the host.
_FREE_MHZ, _HOST_BOUND = 1950, 1.2
#: Nothing is added: what the parts of a step depend on is known without.
_NOTHING = StepConstants(*[0.0] * 14)


@dataclass(frozen=True)
class Measured:
    """A measured step, in microseconds, without calls that have no rows; and the cost of its calls.

    `in_place` has of each part the duration of its kernels, the gap before them, and its duration alone; of plain
    torch's steps nothing.
    """

    name: str
    machine: str
    us: float
    kernels_us: float | None
    mhz: float
    cost: ModelCost
    in_place: Mapping[str, tuple[float, float, float]]

    @property
    def kind(self) -> str:
        step = Step.read(self.name)
        phase = "prefill" if any(each.is_prompt for each in step.groups()) else "decode"
        phase = "eager" if step.is_eager else phase
        if step.group_size > 1:
            return f"{phase}, several devices"
        return f"{phase}, {'experts' if any(part.part == 'router' for part in self.cost.parts) else 'dense'}"

    @property
    def model(self) -> str:
        return Step.read(self.name).model

    @cached_property
    def kernels(self) -> int:
        return sum(part.calls * part.kernels for part in self.cost.parts)

    @property
    def placed(self) -> list[PartCost]:
        """The calls whose places are fitted: grouped products are less certain than theirs."""
        own = [part for part in self.cost.parts if part.kernel_type not in BY_KERNEL_TYPE]
        return [part for part in own if "Grouped" not in part.kernel_type] if self.in_place else own

    @property
    def messages(self) -> list[PartCost]:
        return [part for part in self.cost.parts if part.kernel_type in BY_KERNEL_TYPE]

    @property
    def later_us(self) -> float:
        """How much longer the kernels of `placed` are than alone."""
        if not self.in_place:
            return (self.kernels_us or 0.0) - self.cost.us
        return sum((self.in_place[part.part][0] - (part.us_per_call or 0.0)) * part.calls for part in self.placed)

    def is_fitted(self) -> bool:
        """Says whether a step is on the list of those that are fitted; the others are held out."""
        step = Step.read(self.name)
        prompts = ("phase=prefill", "1x2048@2048")
        if any(text in self.name for text in prompts):
            return (step.batch, step.context) in ((1, 2048), (0, 0))
        return (step.batch, step.context) in ((1, 4096), (64, 4096), (256, 4096), (128, 1024))

    def error(self, constants: StepConstants) -> float:
        time = step_time(self.cost, constants)
        assert time is not None
        return time.us / self.us - 1

    def is_inside(self, constants: StepConstants) -> bool:
        time = step_time(self.cost, constants)
        return time is not None and time.interval_us[0] <= self.us <= time.interval_us[1]


def of_layers(cost: ModelCost, layers: str) -> ModelCost:
    """Returns the cost of the layers of a cell of Step Layers alone; of one device without collectives."""
    parts = []
    for text in layers.split("+"):
        count, _, kind = text.strip().partition(" ")
        for part in cost.parts:
            of_kind = kind_of_layer(part.part) in ("", kind or kind_of_layer(part.part))
            is_first_norm = part.part == "attention_norm" and part.kernel_type == "RmsNorm"
            is_left_out = part.kernel_type in BY_KERNEL_TYPE and cost.step.group_size == 1
            if part.layers and of_kind and not is_first_norm and not is_left_out:
                parts.append(replace(part, calls=part.calls // part.layers * int(count)))
    return replace(cost, parts=parts)


def without(cost: ModelCost, parts: Sequence[str]) -> ModelCost:
    return replace(cost, parts=[part for part in cost.parts if part.part not in parts])


def listed(db: OpenDatabase) -> Iterator[Measured]:
    """Yields the steps of `measured_steps.csv`, of a layer each."""
    with _LISTED.open(newline="") as file:
        for row in csv.DictReader(file):
            cost = cost_of(db, row["Step"], f"1 {row['layer']}".rstrip())
            us, left_out, mhz = (float(row[name] or 0) for name in ("step(us)", "left out(us)", "sm_clock(MHz)"))
            cost = without(cost, row["left out"].split())
            kernels = float(row["kernels(us)"]) if row["kernels(us)"] else None
            # With their gaps.
            lost, own = int(row["left out kernels"] or 0), sum(part.calls * part.kernels for part in cost.parts)
            us -= left_out + (0.0 if kernels is None else (us - kernels) * lost / (lost + own))
            kernels = None if kernels is None else kernels - left_out
            yield Measured(row["Step"], "plain torch", us, kernels, mhz, cost, {})


def stored(db: OpenDatabase) -> Iterator[Measured]:
    """Yields the steps of the database's `steps/`."""
    for path in sorted((db.path / "steps").glob("*.csv")):
        for row in csv.DictReader(path.read_text().splitlines()):
            if row["Status"] == "measured":
                yield measured(db, row)


def unseen(db: OpenDatabase) -> Iterator[Measured]:
    """Yields steps that OpAtlas measured of models of whose products few have rows."""
    with TemporaryDirectory() as folder, _UNSEEN.open(newline="") as file:
        for name, config in json.loads(_UNSEEN_MODELS.read_text()).items():
            (Path(folder) / name).write_text(json.dumps(config))
        for row in csv.DictReader(file):
            own = (Path(folder) / row["Step"].split(",")[0]).exists()
            yield measured(db, {**row, "Step": f"{folder}/{row['Step']}" if own else row["Step"]})


def measured(db: OpenDatabase, row: Mapping[str, str]) -> Measured:
    """Returns a step that OpAtlas measured, and what the rows of the database say of it."""
    step = Step.read(row["Step"])
    if row["Step Launch"] == "eager":
        step = msgspec.structs.replace(step, launch="eager")
    cost = cost_of_stack(db, str(step), row)
    places = {part.part: _in_place(row, part.part) for part in cost.parts}
    lost = [(part.calls * places[part.part][0], part.calls * sum(places[part.part][:2])) for part in cost.missing]
    us = float(row["Average Duration(us)"]) - sum(each for _, each in lost)
    told = row.get("MicroBench kernels(us)")
    kernels = float(told) - sum(each for each, _ in lost) if told else None
    mhz = float(row["MicroBench sm_clock_mhz"])
    cost = without(cost, [part.part for part in cost.missing])
    return Measured(str(step), "OpAtlas", us, kernels, mhz, cost, places)


def cost_of_stack(db: OpenDatabase, step: str, row: Mapping[str, str]) -> ModelCost:
    """Returns the cost of a stored step: each kernel type answered by what ran it, or missing."""
    ran = dict[str, str]()
    for text in filter(None, row["Step Stack"].split(";")):
        name, *kernel_types = text.split()
        ran = dict.fromkeys(kernel_types, name) | ran
    # The last note of a part names who ran it.
    matches = filter(None, map(_BY.match, row["Assumptions"].split("; ")))
    instead = {found[1]: found[2] for found in matches}
    names = dict.fromkeys([*ran.values(), *instead.values(), "torch"])
    by_name = {name: cost_of(db, step, row["Step Layers"], [name, "torch"]) for name in names}
    parts = []
    for place, part in enumerate(by_name["torch"].parts):
        name = instead.get(part.part) or ran.get(part.kernel_type, "torch")
        own = by_name[name].parts[place]
        is_own = part.kernel_type in BY_KERNEL_TYPE or own.implementation.startswith(name)
        parts.append(own if is_own else replace(own, us_per_call=None, how=MISSING))
    return replace(by_name["torch"], parts=parts)


def _in_place(row: Mapping[str, str], part: str) -> tuple[float, float, float]:
    own, gap, alone = (float(row.get(f"MicroBench {part}{suffix}(us)") or 0) for suffix in ("", " gap", " alone"))
    return own, gap, alone


def cost_of(db: OpenDatabase, step: str, layers: str, implementation: Sequence[str] = ()) -> ModelCost:
    found = db.model(any_memory=True, implementation=implementation, **msgspec.structs.asdict(Step.read(step)))
    return of_layers(found, layers)


def fit(steps: Iterable[Measured]) -> StepConstants:
    """Returns the constants that the fitted ones of some steps tell, but for those of the interval.

    Gaps and launches are medians of a kernel's; the others make the sums of squares of relative errors least: the
    places of kernels at a free clock, the power cap of steps below it.
    """
    steps = [each for each in steps if each.is_fitted()]
    graph = [each for each in steps if not each.cost.step.is_eager]
    # Before a collective there is another gap.
    alone = [each for each in graph if not each.messages]
    free = [each for each in alone if each.kernels_us is not None and each.mhz >= _FREE_MHZ]
    gap = median((each.us - (each.kernels_us or 0.0)) / each.kernels for each in free)
    host = [each for each in steps if each.cost.step.is_eager and each.us > _HOST_BOUND * each.cost.us]
    launch = median(each.us / each.kernels for each in host) if host else math.nan
    placed = [each for each in free if each.in_place or each.kind == "decode, dense"]
    terms = [[_place(each, number) for number in range(3)] for each in placed]
    place, product, attention = _least_squares(terms, [(each.later_us, each.us) for each in placed])
    waits = [
        sum(each.in_place[part.part][:2]) - (part.us_per_call or 0.0) - gap
        for each in graph
        for part in each.messages
        if any(each.in_place[part.part])
    ]
    message = median(waits) if waits else math.nan
    numbers = (gap, launch, place, product, attention, _COPY_US + gap, message, *_of_reduces(), 0.0, 0.0, 0.0, 0.0)
    found = StepConstants(*(round(value, 4) for value in numbers))
    capped = [each for each in graph if each.mhz < _FREE_MHZ]
    late = [(each.us * -each.error(found), each.us) for each in capped]
    at_peak, free_us = _least_squares([[_at_peak_us(each), -each.cost.us] for each in capped], late)
    return replace(found, capped=round(at_peak, 3), busy=round(free_us / (at_peak or 1.0), 3))


def _of_reduces() -> tuple[float, float, float]:
    """Returns what an all_reduce takes with one exchange, a second one for each other device, and the GB/s of both."""
    terms = [
        [1.0, (others := devices - 1) * (exchanges - 1), kib * 1.024 * others * (2 / devices if exchanges > 1 else 1)]
        for devices, kib, exchanges, _ in _REDUCES
    ]
    first, second, us_per_kb = _least_squares(terms, [(us, us) for *_, us in _REDUCES])
    return first + _WAIT_US, second, 1 / us_per_kb


def _place(step: Measured, number: int) -> float:
    """Returns how much a step has of what place_us, product and attention are a multiple of."""
    unit = replace(_NOTHING, **{("place_us", "product", "attention")[number]: 1.0})
    return sum(unit.later_us(part) * part.calls for part in step.placed)


def _at_peak_us(step: Measured) -> float:
    time = step_time(step.cost, replace(_NOTHING, capped=1.0))
    assert time is not None
    return time.power_cap_us


def _least_squares(terms: list[list[float]], left: list[tuple[float, float]]) -> list[float]:
    scale = np.array([us for _, us in left])
    found = np.linalg.lstsq(np.array(terms) / scale[:, None], np.array([each for each, _ in left]) / scale, rcond=None)
    return [max(float(value), 0.0) for value in found[0]]


def held_out(steps: list[Measured]) -> Iterator[tuple[str, list[Measured], StepConstants]]:
    """Yields what is told in each column: steps, and the constants that were fitted without them."""
    yield "other sizes", [each for each in steps if not each.is_fitted()], fit(steps)
    for name in dict.fromkeys(each.model for each in steps):
        own = [each for each in steps if each.model == name]
        yield "model left out", own, fit(each for each in steps if each.model != name)
    for name in dict.fromkeys(each.machine for each in steps):
        constants = fit(each for each in steps if each.machine != name)
        own = [each for each in steps if each.machine == name]
        # Without eager steps elsewhere nothing is known of a host, without collectives nothing of these.
        yield "another machine", [each for each in own if not math.isnan(each.error(constants))], constants


def errors_needed(columns: list[tuple[str, list[Measured], StepConstants]]) -> dict[str, float]:
    """Returns the least errors by which nine of ten steps of a model or machine that the fit left out are in their
    intervals."""
    needed: dict[str, list[float]] = {"error": [], "launch_error": []}
    for name, own, left in columns:
        for each in own if name != "other sizes" else ():
            errors = (number / 1000 for number in range(3000))
            enough = next(error for error in errors if each.is_inside(replace(left, error=error, launch_error=error)))
            needed["launch_error" if each.cost.step.is_eager else "error"].append(enough)
    return {name: round(float(np.quantile(values, 0.9)), 3) for name, values in needed.items()}


def tell(title: str, told: list[tuple[Measured, StepConstants]]) -> bool:
    """Prints the errors of calls and of predictions, and the steps in the interval; returns whether they are good."""
    sums = np.abs([each.cost.us / each.us - 1 for each, _ in told])
    errors = np.abs([each.error(constants) for each, constants in told])
    inside = sum(each.is_inside(constants) for each, constants in told)
    before, after = (f"{np.median(each):.1%} / {np.quantile(each, 0.9):.1%}" for each in (sums, errors))
    goal = next((goal for kind, goal in _GOALS.items() if kind in title), (1.0, 1.0))
    is_good = bool(np.median(errors) <= goal[0] and np.quantile(errors, 0.9) <= goal[1])
    missed = "" if is_good else "  missed"
    print(f"{title:40} {len(told):3}  calls {before:15}  step {after:15}  in the interval {inside}{missed}")
    return is_good


def tell_parts(steps: Iterable[Measured]) -> None:
    """Prints of each part of steps in a graph what a call takes longer in place than alone, and than its row says; the
    gap before it; and how much of the step its row is too short, in the median and at most."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for each in steps:
        for part in each.cost.parts if each.in_place and not each.cost.step.is_eager else ():
            own, gap, alone = each.in_place[part.part]
            late = own - (part.us_per_call or 0.0)
            found.setdefault(part.part, []).append((own - alone, late, gap, late * part.calls / each.us))
    for name, values in found.items():
        place, late, gap, share = np.nanmedian(values, axis=0)
        most = max((value[3] for value in values), key=abs)
        told = f"in place {place:+.2f} us, over its row {late:+.2f} us, gap {gap:.2f} us"
        print(f"{name:20} {len(values):3} parts  {told}  {share:+.1%} of the step, at most {most:+.1%}")


def tell_sustained(db: OpenDatabase, cost: ModelCost, constants: StepConstants) -> None:
    """Prints how far the power cap of steps is off for products that run one behind the other for a second.

    Args:
        cost: of any step, whose calls each product takes the place of.
    """
    errors = []
    with _SUSTAINED.open(newline="") as file:
        for row in csv.DictReader(file):
            kernel_type, sustained_us = row["Kernel Type"], float(row["sustained(us)"])
            alone, work = db.query_row(kernel_type, row, implementation="torch"), kernel_work(kernel_type, row)
            assert work is not None
            assert work.operations is not None
            us, rate = alone.duration_us, work.operations / alone.duration_us / 1e6
            part = PartCost("", kernel_type, 1, 1, "", us, alone.interval_us, device=alone.device, tera_ops=rate)
            time = step_time(replace(cost, parts=[part], dtype=work.dtype), constants)
            assert time is not None
            errors.append((us / sustained_us - 1, (us + time.power_cap_us) / sustained_us - 1))
    before, after = (f"{np.median(each):.1%} / {np.quantile(each, 0.9):.1%}" for each in np.abs(errors).T)
    print(f"sustained products {len(errors)}  alone {before}  at the power cap {after}")


def main() -> None:
    db = opatlas.open(*(sys.argv[1:] or ["NVIDIA_H200"]))
    steps = [*stored(db), *listed(db)]
    columns = list(held_out(steps))
    errors = errors_needed(columns)
    print(replace(columns[0][2], **errors))
    told: dict[str, list[tuple[Measured, StepConstants]]] = {}
    for name, own, constants in columns:
        wide = replace(constants, **errors)
        for each in own:
            told.setdefault(f"{name}, {each.kind}", []).append((each, wide))
            if not each.cost.step.is_eager:
                told.setdefault(f"{name}, all in a graph", []).append((each, wide))
    for each in unseen(db):
        told.setdefault(f"new model, {each.kind}", []).append((each, replace(columns[0][2], **errors)))
    good = [tell(title, own) for title, own in sorted(told.items())]
    worst = [(each.error(constants), name, each) for name, own, constants in columns for each in own]
    for error, name, each in sorted(worst, key=lambda found: -abs(found[0]))[:10]:
        print(f"{error:+.1%} {name}: {each.name} ({each.machine})")
    tell_parts(steps)
    tell_sustained(db, steps[0].cost, columns[0][2])
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
