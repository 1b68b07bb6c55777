"""The steps of --step as rows: which layers are built, how they are launched, and who runs which kernel type."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opatlas.data.database import Database
from opatlas.errors import UsageError
from opatlas.grouping import grouped
from opatlas.options import at_least, one_of
from opatlas.row import columns as col
from opatlas.row.location import default_path
from opatlas.run.devices.device import DeviceKind, DeviceSpec, kind_named
from opatlas.run.implementation import Implementation
from opatlas.run.implementation_catalog import find_implementations
from opatlas.run.registry import RowSource

if TYPE_CHECKING:
    from opatlas.ask.query.implementation_answers import ImplementationAnswers
    from opatlas.theory.model_step import ModelCall, Step

#: The kernel types of steps of one device and of several, and the folder of their tables in that of the kernels.
STEP_TYPE, PARALLEL_TYPE, FOLDER = "Step", "ParallelStep", "steps"
#: The most layers that are built without `layers=`.
_LAYERS = 4
_LAUNCHES = ("graph", "eager")
_BUILDING = {"layers": at_least(1), "launch": one_of(_LAUNCHES)}


class StepChoice(NamedTuple):
    """A step of --step: how many layers are built, and how they are launched; None: as model and device allow."""

    step: Step
    layers: int | None = None
    launch: str | None = None


def read_choice(text: str) -> StepChoice:
    """Reads a step, perhaps with `layers=N` and `launch=eager`, as a reader of `opatlas.options`."""
    # The models take 50 ms to import, which other sessions do without.
    from opatlas.theory.model_step import Step

    built: dict[str, Any] = {}
    words = []
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        if name in _BUILDING:
            built[name] = _BUILDING[name](value)
        else:
            words.append(word)
    return StepChoice(Step.read(",".join(words)), **built)


def steps(option: argparse.Namespace, devices: Sequence[DeviceSpec]) -> RowSource:
    """Returns the steps that --step names. The implementations of the session are one stack."""
    kind = kind_named(devices[0].kind)

    def rows(database: Database) -> tuple[Mapping[str, Sequence[Mapping[str, str]]], Sequence[str]]:
        answers, names = _of_kernels(database.path.parent, kind.implementation)
        stack = find_implementations(option.implementation or names, kind.name)
        usable = [each for each in stack if not each.missing]
        tables = grouped(
            (PARALLEL_TYPE if choice.step.group_size > 1 else STEP_TYPE, _cells(choice, kind, usable, answers))
            for choice in option.step
        )
        return tables, [f"{each.name}: {each.missing}" for each in stack if each.missing]

    return RowSource(
        argparse.Namespace(**{**vars(option), "implementation": ()}),
        lambda name: kind_named(name).named_by,
        default_path,
        unit="step",
        verb="measure",
        rows=rows,
        is_listed=True,
        subfolder=FOLDER,
    )


def _of_kernels(path: Path, default: str) -> tuple[ImplementationAnswers | None, Sequence[str]]:
    """Returns what answers from a database of kernels, None if it is empty, and the stack that it names."""
    from opatlas.ask.query.implementation_answers import ImplementationAnswers
    from opatlas.ask.query.model_cost import default_stack

    if not Database(path).kernel_types():
        return None, (default,)
    answers = ImplementationAnswers(path)
    return answers, default_stack(answers)


def _cells(
    choice: StepChoice, kind: DeviceKind, stack: Sequence[Implementation], answers: ImplementationAnswers | None
) -> Mapping[str, str]:
    """Returns the row of a step. Raises UsageError."""
    from opatlas.theory.model_calls import step_calls
    from opatlas.theory.sources import resolve_model

    if choice.step.pp > 1:
        raise UsageError(f"--step {choice.step}: the layers of a stage are those of a step without pp: leave it out")
    calls = step_calls(resolve_model(choice.step.model), choice.step)
    own = {call.part: call for call in calls}
    dense, experts = (own[part].layers if part in own else 0 for part in ("down", "router"))
    count = min(choice.layers or _LAYERS, dense + experts)
    layers = f"1 dense + {count - 1} moe" if dense and experts and count > 1 else str(count)
    shape, dtype = (own["ffn_norm"].cells[column].split(";")[0] for column in (col.INPUT_SHAPES, col.INPUT_DTYPES))
    tensors = {col.INPUT_SHAPES: shape, col.INPUT_DTYPES: dtype, col.OUTPUT_SHAPES: shape, col.OUTPUT_DTYPES: dtype}
    tensors |= dict.fromkeys((col.INPUT_FORMATS, col.OUTPUT_FORMATS), "ND")
    return {
        **dict.fromkeys(col.BASE, ""),
        **tensors,
        col.STEP: str(choice.step),
        col.STEP_LAYERS: layers,
        col.STEP_LAUNCH: choice.launch or ("graph" if kind.has_graphs else "eager"),
        col.STEP_STACK: _stack_cell([call for call in calls if call.layers], stack, answers),
    }


def _stack_cell(
    calls: Sequence[ModelCall], stack: Sequence[Implementation], answers: ImplementationAnswers | None
) -> str:
    """Returns who runs which kernel types, without the default: `flashinfer AddRmsNorm SwiGlu; liger RmsNorm`.

    Those run a kernel type whose rows answer `opatlas model`; without rows those of the stack before the default.
    """
    from opatlas.ask.query.model_cost import part_costs

    measured = [each.name for each in stack if answers is not None and each.name in answers.implementations]
    answering: dict[str, list[str]] = {call.kernel_type: [] for call in calls}
    if answers is not None and measured:
        costs = part_costs(answers, measured, ((call, call) for call in calls), lambda _: None, {})
        for call, cost in zip(calls, costs, strict=True):
            answering[call.kernel_type] += cost.implementation.split()[:1]
    found: dict[str, list[str]] = {}
    before_default = True
    for each in stack:
        before_default &= not each.is_default
        for kernel_type, names in answering.items():
            is_chosen = each.name in names if names else before_default
            if is_chosen and not each.is_default and each.source(kernel_type) is not None:
                found.setdefault(each.name, []).append(kernel_type)
    return "; ".join(" ".join([name, *kernel_types]) for name, kernel_types in found.items())
