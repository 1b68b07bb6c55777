"""`row` and `replay` of a task: calls a candidate, or the task's own Model, and measures it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from opatlas.outer.judging.court import Referee
from opatlas.outer.judging.failures import Phase
from opatlas.outer.judging.judged_replay import JudgedReplay
from opatlas.outer.judging.judgement import ReferenceFailed
from opatlas.outer.judging.trial import Constructed, LiveInputs
from opatlas.outer.tasks.model import (
    TaskModule,
    TaskReferee,
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


@dataclass
class _Row:
    """A row of a task: the `row` in the body of the replay."""

    task: Task
    number: int


def _number(job: Job) -> int:
    """Returns the number of the row's list of inputs."""
    return int(job.cells.get(TASK_INPUTS, "0") or 0)


def bind(job: Job, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group) -> Any:
    """Returns `row` and `replay` of a task. Raises MissingPrecondition if the session does not name the task."""
    if not isinstance(job.subject, Task):
        raise MissingPrecondition("a row of a task runs with --tasks, which names the task's file or folder")
    row = _Row(job.subject, _number(job))
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
        self._module: TaskModule

    def _prepare(self) -> None:
        try:
            self._module = TaskModule(self._row.task)
        except ImportError as error:
            raise MissingPrecondition(f"the task cannot be imported ({error}): install its packages") from error
        except Exception as error:
            raise ReferenceFailed(f"the task cannot be imported: {exception_line(error)}") from error

    def _referee(self, seed: int) -> Referee:
        return TaskReferee(self._module, self._row.number, seed, self._device.torch_device)

    def _arguments(self) -> list[Any]:
        return self._module.inputs(self._row.number, 0, self._device.torch_device)

    def _import(self, weights_seed: int) -> Callable[..., Any]:
        source, make = self._job.source, partial(self._module.make, weights_seed, self._device.torch_device)
        return make if source is None else self._load(make if source.wraps else _nothing)

    def _construct(self, function: Callable[..., Any], inputs: LiveInputs, weights_seed: int) -> Constructed:
        self._step(Phase.CONSTRUCTION)
        candidate, weights = self._made(function, weights_seed)
        self._examine("its construction")
        if not needs_gradients(inputs.leaves):
            return Constructed(candidate, weights)
        parameters = list(candidate.parameters()) if isinstance(candidate, torch.nn.Module) else []
        return Constructed(_with_gradients(candidate), weights, partial(drop_gradients, parameters))

    def _own_call(self, arguments: list[Any], weights_seed: int) -> Callable[[], object] | None:
        model = self._module.make(weights_seed, self._device.torch_device)
        if not isinstance(model, torch.nn.Module):
            return None
        return partial(_with_gradients(model) if needs_gradients(arguments) else model, *arguments)

    def _made(
        self, function: Callable[..., Any], weights_seed: int
    ) -> tuple[Callable[..., Any], dict[str, torch.Tensor]]:
        """Returns the function that is called with the inputs, and its weights by the names of Model's.

        The weights are Model's where names and shapes agree; else both are made with the same seed.
        """
        source, module, device = self._job.source, self._module, self._device.torch_device
        if source is None:
            model = function()
        elif isinstance(function, type):
            positional, named = module.arguments(weights_seed)
            set_seeds(weights_seed)
            model = function(*positional, **named)
        else:
            call = _with_init_inputs(function, *module.arguments(weights_seed))
            return (self._on_arrays(call) if source.function.endswith("_numpy") else call), {}
        if not isinstance(model, torch.nn.Module):
            return (self._on_arrays(model) if self._row.task.kind is TaskKind.NUMPY else model), {}
        model = model.to(device)
        if source is not None and not self._gives_weights_to(model, weights_seed):
            return model, {}
        return model, {name: parameter.data for name, parameter in model.named_parameters()}

    def _gives_weights_to(self, candidate: torch.nn.Module, weights_seed: int) -> bool:
        """Copies Model's weights to a candidate where all names and shapes agree; returns whether they do."""
        model = self._module.make(weights_seed, self._device.torch_device)
        if not isinstance(model, torch.nn.Module):
            return False
        own, other = model.state_dict(), candidate.state_dict()
        shapes = {name: tensor.shape for name, tensor in own.items()}
        if shapes != {name: tensor.shape for name, tensor in other.items()}:
            if shapes:
                self._notes.append("its weights have other names or shapes than Model's: both were made with one seed")
            return False
        candidate.load_state_dict(own)
        return True

    def _on_arrays(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a call of a model of numpy with tensors. Raises Unsupported unless the device is the host."""
        device = self._device.torch_device
        if device.type != "cpu":
            raise Unsupported(f"numpy computes on the host, and rows are measured on {device}")

        def call(*arguments: Any) -> Any:
            return as_tensors(model(*as_arrays(list(arguments))), device)

        return call


def _nothing() -> None:
    """Replaces the function of torch where an implementation wraps none."""


def _with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a call with gradients, which costs the host about a microsecond more."""

    def call(*arguments: Any) -> Any:
        with torch.enable_grad():
            return function(*arguments)

    return call


def referee(job: Job, device: torch.device, seed: int) -> TaskReferee:
    """Returns the referee of a row of a task, for the process of the court. Raises the errors of the task."""
    assert isinstance(job.subject, Task)
    return TaskReferee(TaskModule(job.subject), _number(job), seed, device)


def _with_init_inputs(function: Callable[..., Any], positional: list[Any], named: dict[str, Any]) -> Callable[..., Any]:
    """Returns a function that takes the inputs; one with more parameters gets the arguments of Model after them."""
    code = getattr(function, "__code__", None)
    if code is None or not positional or named:
        return function
    names = code.co_varnames[: code.co_argcount]
    required = len(names) - len(getattr(function, "__defaults__", None) or ())

    def call(*arguments: Any) -> Any:
        return function(*arguments, *positional[: max(0, required - len(arguments))])

    return call
