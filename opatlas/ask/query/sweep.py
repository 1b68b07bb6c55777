"""Several steps side by side: their costs, and what servers took for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import expm1, log1p
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, NamedTuple, TypeAlias

import msgspec

from opatlas.ask.query.database import OpenDatabase
from opatlas.ask.query.implementation_answers import FASTEST
from opatlas.ask.query.model_cost import ModelCost, known_types
from opatlas.ask.query.step_time import StepTime, step_time
from opatlas.data.csv_files import read_text_csv
from opatlas.errors import OpAtlasError, TableError, UsageError
from opatlas.grouping import grouped
from opatlas.theory.model_calls import step_calls
from opatlas.theory.model_step import Step, step_memory
from opatlas.theory.models import ModelFacts, models_by_name
from opatlas.theory.sources import resolve_model

#: Above this share of the cache not all requests run at once.
_MOST_LOAD = 0.9
#: Below this mean duration of a call the host, or the launch of kernels, decides how long a step takes.
_HOST_BOUND_US = 6.0
#: Above this share of a step, compositions of torch's operators, which no engine runs, decide its time.
_MOST_COMPOSED = 0.1
_FP8 = "FLOAT8_E4M3FN"
_DTYPES = {"fp8": _FP8, "fp8_block": _FP8, "int8": "INT8", "bf16": "BF16", "": "", "fp16": "FLOAT16"}
_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_Count = Annotated[int, msgspec.Meta(ge=1)]
#: A step, its cost, and else why it has none: it does not fit the device, or the devices do not divide the model.
SweptStep: TypeAlias = tuple[Step, ModelCost | None, str]
#: Engines whose attention takes queries, keys and values as their product has them: TensorRT-LLM (gptAttention).
_TAKES_PRODUCT = ("trtllm",)
#: Of an engine and a model, the logarithms of the shares by which its points are later than predicted.
_Late: TypeAlias = dict[tuple[str, str], list[float]]
_PARTS = [number / 10 for number in range(11)]


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
            found.append((step, None, str(error).removeprefix(f"{step}: ")))
    return found


#: The axes of a grid of decode steps. Experts are divided among 1 or all devices.
BATCHES, CONTEXTS, DEVICES = (1, 2, 4, 8, 16, 32, 64, 128, 256), (1024, 4096, 16384), (1, 2, 4, 8)
#: The step by which models are judged, on as few devices as hold it.
_BATCH, _CONTEXT = 64, 4096


@dataclass(frozen=True)
class StepGrid:
    """The costs of decode steps of a model.

    Attributes:
        divisions: tp and ep of the devices.
        stacks: implementations, as for `OpenDatabase.model`, by a name.
        steps: by stack, division, context and batch, in this order.
    """

    divisions: Sequence[tuple[int, int]]
    stacks: Mapping[str, Sequence[str]]
    steps: Sequence[SweptStep]


def answered_steps(opened: OpenDatabase, most: int, tell: Callable[[str], object]) -> list[ModelCost]:
    """Returns the costs of a middling step of models of whose step nothing is missing, that with the most rows first.

    Args:
        most: the largest number of models.
        tell: as for `OpenDatabase.model`.
    """
    steps = [step for facts in dict.fromkeys(models_by_name().values()) if (step := _middling_step(opened, facts))]
    shares = {step: _stored_share(opened, step) for step in steps}
    found: list[ModelCost] = []
    for step in sorted((step for step in steps if shares[step]), key=lambda each: -shares[each]):
        # Rows of other dtypes may not answer.
        with suppress(OpAtlasError):
            cost = opened.model(**msgspec.structs.asdict(step), tell=tell)
            found += [] if cost.missing else [cost]
        if len(found) == most:
            break
    return found


def _middling_step(opened: OpenDatabase, facts: ModelFacts) -> Step | None:
    """Returns a decode step on as few devices as hold it; None if no number of devices does."""
    device = opened.answers.device_fact("memory_bytes")
    for step in (Step(facts.name, _BATCH, _CONTEXT, tp, ep) for tp, ep in _divisions(facts.name)):
        with suppress(UsageError):
            if step_memory(facts, step, device).fits:
                return step
    return None


def _stored_share(opened: OpenDatabase, step: Step) -> float:
    """Returns the share of the calls of a step that have a row, in any implementation."""
    try:
        calls = step_calls(resolve_model(step.model), step)
    except UsageError:
        return 0.0
    answers = opened.answers
    stored = [
        any(own in answers.stored_rows(name, by).by_signature for by in answers.implementations)
        for call in calls
        for own in [call.signature()]
        for name in known_types(call, answers)[:1]
    ]
    return sum(stored) / len(calls)


def _divisions(model: str) -> list[tuple[int, int]]:
    experts = resolve_model(model).experts is not None
    return [(tp, ep) for tp in DEVICES for ep in dict.fromkeys((1, tp if experts else 1))]


def step_grid(opened: OpenDatabase, first: ModelCost, tell: Callable[[str], object]) -> StepGrid:
    """Returns the costs of the steps of a model on a grid, for the stack of the database, torch alone and the fastest.

    Args:
        first: the cost of a step of this model.
        tell: as for `OpenDatabase.model`.
    """
    names = list(opened.implementations)
    stacks: dict[str, Sequence[str]] = {"of the database": ()}
    if len(names) > 1:
        stacks |= {names[0]: (names[0],), FASTEST: (FASTEST,)}
    divisions = _divisions(first.step.model)
    steps = [
        Step(first.step.model, batch, context, tp, ep)
        for tp, ep in divisions
        for context in CONTEXTS
        for batch in BATCHES
    ]
    # The calls of a step are the same in each stack.
    found = [[step_costs(opened, [step], stack, tell)[0] for stack in stacks.values()] for step in steps]
    return StepGrid(divisions, stacks, [cost for of_stack in zip(*found, strict=True) for cost in of_stack])


class _NoStep(UsageError):
    """A served time that is not that of a step alone."""


class ServedPoint(msgspec.Struct, frozen=True):
    """The time per output token of a server; a line of a CSV.

    Attributes:
        hf_id, gpu: the checkpoint, and the name of the device, such as H200.
        tp, ep, dp: how devices share the model; replicas of the attention have `concurrency` requests together.
        weights, kv: their dtypes: fp8, fp8_block, int8, bf16, fp16; others, such as mxfp4 and int4, have no rows.
        mean_context: the mean tokens of a sequence in a decode step.
        tpot_ms: the time per output token.
        kv_load: the share of the cache's memory that all requests need.
    """

    model: str
    hf_id: str
    engine: str
    gpu: str
    tp: _Count
    ep: _Count
    dp: _Count
    weights: str
    kv: str
    concurrency: _Count
    mean_context: _Positive
    tpot_ms: _Positive
    kv_load: float = 0

    def step(self) -> Step:
        """Returns the decode step of a replica. Raises UsageError if it is that of another model, or no whole step."""
        names = (self.hf_id, self.model, self.hf_id.removesuffix("-FP8"))
        model = next((name for name in names if name.lower() in models_by_name()), "")
        if not model:
            raise UsageError(f"{self.hf_id}: no model has this name")
        given = self.weights.casefold().rstrip("?"), self.kv.casefold()
        if unknown := [dtype for dtype in given if dtype not in _DTYPES]:
            raise UsageError(f"{unknown[0]}: no row has weights or a cache in it")
        weights, cache = (_DTYPES[dtype] for dtype in given)
        if self.kv_load > _MOST_LOAD:
            raise _NoStep("the cache does not hold all requests")
        batch, context = -(-self.concurrency // self.dp), round(self.mean_context)
        dp, devices, facts = self.dp if self.dp > 1 else 0, self.tp * self.dp, models_by_name()[model.lower()]
        # Engines do not divide an expert into parts of blocks: they divide the experts.
        in_parts = facts.experts is not None and facts.scales == "blocks" and facts.experts.width // devices % 128
        ep = devices if in_parts and self.ep == 1 else self.ep
        return Step(model, batch, context, self.tp, ep, dtype=weights, dp=dp, cache_dtype=cache or "BF16")


@dataclass(frozen=True)
class ComparedPoint:
    """A served point, and the cost of its step.

    Attributes:
        fitted_share: what the engine adds to the prediction, by its points of other models; None without such points.
    """

    point: ServedPoint
    cost: ModelCost
    fitted_share: float | None = None

    @property
    def model(self) -> str:
        """The model, however a checkpoint stores it; the labels of one model may differ."""
        return self.cost.model.removesuffix("-FP8")

    @property
    def told(self) -> StepTime | ModelCost:
        """The time of the step where that is known, else its kernels."""
        return step_time(self.cost, copies_queries=self.point.engine.casefold() not in _TAKES_PRODUCT) or self.cost

    @property
    def error(self) -> float:
        """The prediction's relative error; below 0 if it is too short."""
        return self.told.us / self.point.tpot_ms / 1000 - 1

    @property
    def fitted_error(self) -> float | None:
        """The same with what the engine adds."""
        return None if self.fitted_share is None else (1 + self.error) * (1 + self.fitted_share) - 1

    @property
    def covered(self) -> bool:
        """Whether the served time lies in the interval."""
        low, high = self.told.interval_us
        return low <= self.point.tpot_ms * 1000 <= high

    @property
    def added_us(self) -> float:
        """The microseconds a layer that the server takes beyond the prediction."""
        return (self.point.tpot_ms * 1000 - self.told.us) / self.cost.layers

    @property
    def figures(self) -> dict[str, object]:
        """What JSON has of the comparison beside the point."""
        told = {"us": self.told.us, "interval_us": self.told.interval_us, "error": self.error, "covered": self.covered}
        of_cost = {"missing_calls_share": self.cost.missing_calls_share, "differs": self.cost.differs}
        fitted = {"fitted_share": self.fitted_share, "fitted_error": self.fitted_error}
        return {**told, "added_us": self.added_us, **fitted, **of_cost}


class Served(NamedTuple):
    """Points of a CSV of served times.

    Attributes:
        points: with the costs of their steps.
        refused: those of which no row is, with the reason.
        dropped: those whose time is not that of a step: the host decides, or not all requests run at once.
    """

    points: list[ComparedPoint]
    refused: list[tuple[ServedPoint, str]]
    dropped: list[tuple[ServedPoint, str]]

    @property
    def figures(self) -> dict[str, object]:
        """What JSON has of them."""
        points = [msgspec.structs.asdict(each.point) | each.figures for each in self.points]
        refused, dropped = (
            [msgspec.structs.asdict(point) | {"why": why} for point, why in left]
            for left in (self.refused, self.dropped)
        )
        return {"points": points, "refused": refused, "dropped": dropped}


def served_costs(
    opened: OpenDatabase, path: Path, model: str, implementation: Sequence[str], tell: Callable[[str], object]
) -> Served:
    """Returns the points of a CSV of served times.

    Points whose host decides are told by the prediction alone, never by what the server took.

    Args:
        model: of the points; "all" for all.

    Raises:
        OpAtlasError: the file cannot be read, lacks a column, or has no point of the model.
    """
    found = Served([], [], [])
    names = dict[str, None]()
    for number, line in enumerate(read_text_csv(path).to_pylist(), start=2):
        given = {name: cell for name, cell in line.items() if cell or name in ("kv", "weights", "engine")}
        try:
            point = msgspec.convert(given, ServedPoint, strict=False)
        except msgspec.ValidationError as error:
            # It ends with the column: "Expected `float`, got `str` - at `$.tpot_ms`".
            problem, _, place = str(error).partition(" - at `$.")
            column, remedy = place.rstrip("`"), "Correct the line, or the header; between columns are commas"
            value = given.get(column, "")
            raise TableError(path, problem, remedy, line=number, column=column, value=value) from None
        names[point.model] = None
        if model.casefold() not in ("all", point.model.casefold(), point.hf_id.casefold()):
            continue
        try:
            if point.gpu.casefold() not in opened.answers.device.casefold():
                raise UsageError(f"on {point.gpu}, not on {opened.answers.device or 'a device that is known'}")
            settings = msgspec.structs.asdict(point.step())
            cost = opened.model(**settings, implementation=implementation, any_memory=True, tell=tell)
            calls = sum(part.calls for part in cost.parts if part.us is not None)
            if cost.us < _HOST_BOUND_US * calls:
                raise _NoStep(f"host-bound: calls of less than {_HOST_BOUND_US:g} us")
            if cost.composition_us > _MOST_COMPOSED * cost.us:
                raise UsageError(f"compositions of operators: {cost.composition_us / cost.us:.0%} of the step")
            found.points.append(ComparedPoint(point, cost))
        except UsageError as error:
            (found.dropped if isinstance(error, _NoStep) else found.refused).append((point, str(error)))
    if not any(found):
        raise OpAtlasError(f"{path}: no point of {model}: name one of {', '.join(names) or 'no points'}, or all")
    return found._replace(points=list(_fitted(found.points)))


def _fitted(points: Sequence[ComparedPoint]) -> Iterator[ComparedPoint]:
    """Yields points with the share that their engine adds: a part of the median of its other models.

    An engine adds more to some models than to others. So the part, from 0 to 1, is that with which the errors of all
    engines' models are least, if each is left out in turn. Nothing of a point's own model is in its share.
    """
    late: _Late = grouped(((each.point.engine, each.model), -log1p(each.error)) for each in points)
    parts = {name: min(_PARTS, key=partial(_error_of_others, late, name)) for _, name in late}
    for each in points:
        middle = _median_of_others(late, each.point.engine, {each.model})
        yield replace(each, fitted_share=None if middle is None else expm1(parts[each.model] * middle))


def _error_of_others(late: _Late, left_out: str, part: float) -> float:
    """Returns the mean error of the points of all other models, of which each is predicted without its own."""
    errors = []
    for (engine, name), values in late.items():
        middle = _median_of_others(late, engine, {name, left_out})
        if name != left_out and middle is not None:
            errors += [abs(expm1(part * middle - each)) for each in values]
    return fmean(errors or [0.0])


def _median_of_others(late: _Late, engine: str, left_out: Collection[str]) -> float | None:
    found = [median(values) for (of, name), values in late.items() if of == engine and name not in left_out]
    return median(found) if found else None
