"""`row` and `replay` of a task: calls a candidate, or the task's own Model, judges its results and measures it.

The reference is computed after the last call of the candidate, so that its process holds no expected value before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from opatlas.outer.judging.failures import Phase
from opatlas.outer.judging.input_sets import InputSets
from opatlas.outer.judging.judged_replay import SETS, Constructed, JudgedReplay, ReferenceFailed, examine
from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass
from opatlas.outer.judging.process_guard import ProcessGuard
from opatlas.outer.judging.results import Compared, FlatResults, compare_results, interface_problem
from opatlas.outer.tasks.model import (
    Reference,
    TaskModule,
    as_arrays,
    as_tensors,
    drop_gradients,
    needs_gradients,
    set_seeds,
)
from opatlas.outer.tasks.task import Task, TaskKind
from opatlas.row.columns import TASK_INPUTS
from opatlas.row.errors import MissingPrecondition, Unsupported
from opatlas.run.devices.device import Device
from opatlas.run.group import Group
from opatlas.run.instruments.instrument import Instrument, MeasureSettings
from opatlas.run.job import Job
from opatlas.text import exception_line

#: Memory of a row relative to its inputs: three sets, float64, results and the memory of the candidate.
_MEMORY_FACTOR = 12.0
#: A candidate may be as far off as Model itself in the dtypes of the task, and this many times as far.
_OF_MODEL = 2.0


@dataclass
class _Row:
    """A row of a task: the `row` in the body of the replay."""

    task: Task
    number: int


def bind(job: Job, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group) -> Any:
    """Returns `row` and `replay` of a task. Raises MissingPrecondition if the session does not name the task."""
    if not isinstance(job.subject, Task):
        raise MissingPrecondition("a row of a task runs with --tasks, which names the task's file or folder")
    row = _Row(job.subject, int(job.cells.get(TASK_INPUTS, "0") or 0))
    return row, TaskReplay(row, job, device, instrument, settings, group)


class TaskReplay(JudgedReplay):
    """Judges the candidate of a row when it is called, or the task's Model, and leaves the result in `outcome`."""

    #: A candidate may do anything to its process. The thousands of cases of a suite share one until a guard objects.
    _is_alone = True

    def __init__(
        self,
        row: _Row,
        job: Job,
        device: Device,
        instrument: Instrument,
        settings: MeasureSettings,
        group: Group,
    ) -> None:
        super().__init__(job, device, instrument, settings, group)
        self._row = row
        self._file = self._file or str(row.task.path)
        self._reference: Reference

    def _prepare(self) -> None:
        try:
            module = TaskModule(self._row.task)
            self._reference = Reference(module, self._seed, self._device.torch_device, self._notes)
        except ImportError as error:
            raise MissingPrecondition(f"the task cannot be imported ({error}): install its packages") from error
        except Exception as error:
            raise ReferenceFailed(f"the task cannot be imported: {exception_line(error)}") from error

    def _make_guard(self) -> ProcessGuard | None:
        source = self._job.source
        if source is None:
            return None
        return ProcessGuard(self._device.torch_device, [self._row.task.path, Path(source.path)])

    def _import(self) -> Callable[..., Any]:
        source, make = self._job.source, self._reference.make
        return make if source is None else self._load(make if source.wraps else _nothing)

    def _construct(self, function: Callable[..., Any], guard: ProcessGuard | None) -> Constructed:
        self._step(Phase.CONSTRUCTION)
        candidate, weights = self._made(function)
        examine(guard, "its construction")
        inputs = self._inputs(weights)
        if not needs_gradients(inputs.arguments):
            return Constructed(candidate, inputs)
        self._reference.has_gradients = True
        parameters = list(candidate.parameters()) if isinstance(candidate, torch.nn.Module) else []
        return Constructed(_with_gradients(candidate), inputs, partial(drop_gradients, parameters))

    def _expected(self, arguments: list[Any], weights: dict[str, torch.Tensor]) -> FlatResults:
        return self._reference(arguments, weights)

    def _own_results(self, arguments: list[Any], weights: dict[str, torch.Tensor]) -> FlatResults:
        return self._reference.run_natively(arguments, weights)

    def _compare(self, results: FlatResults, expected: FlatResults) -> Compared:
        reference = self._reference
        sub_class, problem = interface_problem(
            results, reference.native, self._device.torch_device, reference.checks_dtypes
        )
        if problem:
            raise CandidateRejected(ErrorClass.INTERFACE, sub_class, problem)
        return compare_results(results, expected, max(1.0, _OF_MODEL * reference.own_error))

    def _own_call(self, arguments: list[Any]) -> Callable[[], object] | None:
        model = self._reference.make()
        if not isinstance(model, torch.nn.Module):
            return None
        return partial(_with_gradients(model) if self._reference.has_gradients else model, *arguments)

    def _made(self, function: Callable[..., Any]) -> tuple[Callable[..., Any], dict[str, torch.Tensor]]:
        """Returns the function that is called with the inputs, and its weights by the names of Model's.

        The weights are Model's where names and shapes agree; else both are made with the same seed.
        """
        source, reference, device = self._job.source, self._reference, self._device.torch_device
        if source is None:
            model = function()
        elif isinstance(function, type):
            positional, named = reference.arguments()
            set_seeds(self._seed)
            model = function(*positional, **named)
        else:
            call = _with_init_inputs(function, reference)
            return (self._on_arrays(call) if source.function.endswith("_numpy") else call), {}
        if not isinstance(model, torch.nn.Module):
            return (self._on_arrays(model) if self._row.task.kind is TaskKind.NUMPY else model), {}
        model = model.to(device)
        if source is not None and not reference.gives_weights_to(model):
            return model, {}
        return model, {name: parameter.data for name, parameter in model.named_parameters()}

    def _on_arrays(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a call of a model of numpy with tensors. Raises Unsupported unless the device is the host."""
        device = self._device.torch_device
        if device.type != "cpu":
            raise Unsupported(f"numpy computes on the host, and rows are measured on {device}")

        def call(*arguments: Any) -> Any:
            return as_tensors(model(*as_arrays(list(arguments))), device)

        return call

    def _inputs(self, weights: dict[str, torch.Tensor]) -> InputSets:
        def make(seed: int) -> list[Any]:
            return self._reference.module.inputs(self._row.number, seed, self._device.torch_device)

        try:
            first = sum(each.nbytes for each in tree_leaves(make(self._seed)) if isinstance(each, torch.Tensor))
        except Exception as error:
            raise ReferenceFailed(f"the inputs of the task cannot be made: {exception_line(error)}") from error
        self._sampling.expect_memory(_MEMORY_FACTOR * first)
        return InputSets(make, [self._seed + number for number in range(SETS)], weights)


def _nothing() -> None:
    """Replaces the function of torch where an implementation wraps none."""


def _with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a call with gradients, which costs the host about a microsecond more."""

    def call(*arguments: Any) -> Any:
        with torch.enable_grad():
            return function(*arguments)

    return call


def _with_init_inputs(function: Callable[..., Any], reference: Reference) -> Callable[..., Any]:
    """Returns a function that takes the inputs; one with more parameters gets the arguments of Model after them."""
    positional, named = reference.arguments()
    code = getattr(function, "__code__", None)
    if code is None or not positional or named:
        return function
    names = code.co_varnames[: code.co_argcount]
    required = len(names) - len(getattr(function, "__defaults__", None) or ())

    def call(*arguments: Any) -> Any:
        return function(*arguments, *positional[: max(0, required - len(arguments))])

    return call
