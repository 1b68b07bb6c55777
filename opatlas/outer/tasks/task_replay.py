"""`row` and `replay` of a task: its file as a module, its Model as the reference, and the call of a candidate."""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from opatlas.errors import OpAtlasError
from opatlas.outer.judging.court import Referee
from opatlas.outer.judging.failures import Phase
from opatlas.outer.judging.judged_replay import JudgedReplay
from opatlas.outer.judging.judgement import ReferenceFailed
from opatlas.outer.judging.memory import CALL_SEED
from opatlas.outer.judging.results import Compared, FlatResults, compare_results, flat_results
from opatlas.outer.judging.trial import Constructed, LiveInputs
from opatlas.outer.tasks.definitions import WORKLOADS, workload_inputs, workload_outputs
from opatlas.outer.tasks.task import GET_INIT_INPUTS, GET_INPUTS, GET_INPUTS_LIST, MODEL, Task, TaskKind
from opatlas.row.columns import TASK_INPUTS
from opatlas.row.errors import MissingPrecondition, Unsupported
from opatlas.run.devices.device import Device
from opatlas.run.group import Group
from opatlas.run.instruments.instrument import Instrument, MeasureSettings
from opatlas.run.job import Job
from opatlas.run.registry import ReplaySpec
from opatlas.text import exception_line

_NAME = "opatlas_task"


class TaskModule:
    """A task file that has run as a module.

    Attributes:
        task: the task.
    """

    def __init__(self, task: Task) -> None:
        """Runs the file, with its folder on the path of imports meanwhile.

        Raises:
            OpAtlasError: the file has changed since the session began.
            Exception: whatever the file raises.
        """
        self.task = task
        module = ModuleType(_NAME)
        module.__file__ = str(task.path)
        code = compile(task.source, str(task.path), "exec", dont_inherit=True)
        # Classes look their module up by its name.
        sys.modules[_NAME] = module
        folder = str(task.path.parent)
        sys.path.insert(0, folder)
        try:
            exec(code, module.__dict__)
        finally:
            if folder in sys.path:
                sys.path.remove(folder)
        self._names = module.__dict__

    def input_lists(self) -> list[Sequence[Any]]:
        """Returns the lists of inputs: the one of `get_inputs`, or all of `get_inputs_dyn_list`.

        Raises:
            OpAtlasError: the functions return no list.
            Exception: whatever the functions raise.
        """
        found = list(self._names[GET_INPUTS_LIST]()) if self.task.is_dynamic else [self._names[GET_INPUTS]()]
        found = [[each] if hasattr(each, "shape") else each for each in found]
        if not found or not all(isinstance(each, (list, tuple)) for each in found):
            raise OpAtlasError(f"{self.task.path}: the inputs are not a list: return a list of tensors and numbers")
        return found

    def inputs(self, number: int, seed: int, device: torch.device) -> list[Any]:
        """Returns a list of inputs on a device, the same for equal seeds. Raises ReferenceFailed."""
        set_seeds(seed)
        try:
            try:
                # Large inputs are made on the device itself: a host takes seconds for each GiB of random numbers.
                with device:
                    found = self._input_list(number)
            except (RuntimeError, TypeError):
                set_seeds(seed)
                found = self._input_list(number)
            return [as_tensors(value, device) for value in found]
        except Exception as error:
            raise ReferenceFailed(f"the inputs of the task cannot be made: {exception_line(error)}") from error

    def _input_list(self, number: int) -> Sequence[Any]:
        """Returns a list of inputs; of a definition it alone is made."""
        return workload_inputs(self._names, number) if WORKLOADS in self._names else self.input_lists()[number]

    def outputs(self, number: int, device: torch.device) -> list[torch.Tensor]:
        """Returns memory for the results of a list of inputs of a definition. Raises OpAtlasError."""
        return workload_outputs(self._names, number, device)

    def make(self, seed: int, device: torch.device) -> Any:
        """Returns a new Model on a device; the same seed gives the same weights. Raises ReferenceFailed."""
        positional, named = self.arguments(seed)
        set_seeds(seed)
        try:
            model = self._names[MODEL](*positional, **named)
            return model.to(device) if isinstance(model, torch.nn.Module) else model
        except Exception as error:
            raise ReferenceFailed(f"Model of the task cannot be made: {exception_line(error)}") from error

    def arguments(self, seed: int) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments of Model, by position and by name. Raises ReferenceFailed."""
        set_seeds(seed)
        try:
            found = self._names.get(GET_INIT_INPUTS, list)()
            return ([], found) if isinstance(found, dict) else (list(found or []), {})
        except Exception as error:
            raise ReferenceFailed(f"{GET_INIT_INPUTS} of the task fails: {exception_line(error)}") from error


def set_seeds(seed: int) -> None:
    """Seeds the random numbers of torch on all devices, of numpy and of Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a value with its tensors and arrays of numpy changed by a function, also in lists and mappings."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return change(value)
    if isinstance(value, Mapping):
        return {name: mapped(each, change) for name, each in value.items()}
    return [mapped(each, change) for each in value] if isinstance(value, (list, tuple)) else value


def as_tensors(value: Any, device: torch.device) -> Any:
    """Returns tensors and arrays as tensors on a device, without their history; they require gradients as before."""

    def tensor(each: Any) -> torch.Tensor:
        each = torch.from_numpy(np.ascontiguousarray(each)) if isinstance(each, np.ndarray) else each
        plain: torch.Tensor = each.detach().to(device).resolve_conj().resolve_neg()
        return plain.requires_grad_(each.requires_grad)

    return mapped(value, tensor)


def as_arrays(value: Any) -> Any:
    """Returns tensors as arrays of numpy."""
    return mapped(value, lambda each: each.detach().cpu().numpy())


def in_float64(value: Any) -> Any:
    """Returns copies of tensors, of real numbers in float64 and of complex ones in complex128."""

    def wide(each: torch.Tensor) -> torch.Tensor:
        dtype = torch.complex128 if each.is_complex() else torch.float64 if each.is_floating_point() else each.dtype
        return each.detach().to(dtype, copy=True).requires_grad_(each.requires_grad)

    return mapped(value, wide)


def cloned(value: Any) -> Any:
    """Returns clones of tensors."""
    return mapped(value, lambda each: each.detach().clone().requires_grad_(each.requires_grad))


def needs_gradients(inputs: Any) -> bool:
    """Returns whether a tensor in inputs requires gradients: the task calls autograd."""
    return any(isinstance(each, torch.Tensor) and each.requires_grad for each in tree_leaves(inputs))


def drop_gradients(*tensors: Any) -> None:
    """Drops the gradients that an earlier call has accumulated in `grad`."""
    for tensor in tree_leaves(tensors):
        # The property of another class could be code of a candidate.
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.is_leaf:
            tensor.grad = None


#: A candidate may be as far off as Model itself in the dtypes of the task, and this many times as far.
_OF_MODEL = 2.0


class TaskReferee(Referee):
    """A task's Model: in float64 for the check, and in the task's own dtypes for the form."""

    def __init__(self, module: TaskModule, number: int, seed: int, device: torch.device) -> None:
        """`number` is that of the list of inputs, `seed` that of the weights. Raises ReferenceFailed."""
        super().__init__()
        self.checks_dtypes = module.task.kind is not TaskKind.NUMPY
        self._module, self._number, self._seed, self._device = module, number, seed, device
        self._has_gradients = False
        #: The largest error of Model in the task's own dtypes, as a share of the tolerance; None before it is known.
        self._own_error: float | None = None
        self._model: Any = None
        self._has_float64 = True
        model = module.make(seed, device)
        named = model.named_parameters() if isinstance(model, torch.nn.Module) else ()
        self._weights = {name: parameter.data.clone() for name, parameter in named}

    def make(self, seed: int, number: int) -> list[Any]:
        inputs = self._module.inputs(self._number, seed, self._device)
        self._has_gradients = needs_gradients(inputs)
        return inputs

    def weights(self) -> Mapping[str, torch.Tensor]:
        return self._weights

    def native(self, arguments: list[Any], weights: dict[str, torch.Tensor]) -> FlatResults:
        try:
            return self._run(self._module.make(self._seed, self._device), arguments, weights)
        except Exception as error:
            raise ReferenceFailed(f"the task's own Model fails: {exception_line(error)}") from error

    def expected(self, arguments: list[Any], weights: dict[str, torch.Tensor]) -> FlatResults:
        """Returns the results in float64; in the task's own dtypes, with a note, where float64 fails."""
        if self._has_float64:
            try:
                expected = self._run(self._double(), in_float64(arguments), weights)
            except Exception as error:
                self._has_float64 = False
                self._model = None
                self.notes.append(f"checked with Model in its own dtypes, since float64 fails: {exception_line(error)}")
        if not self._has_float64:
            return self.native(arguments, weights)
        if self._own_error is None:
            self._own_error = 0.0
            native = self.native(cloned(arguments), weights)
            # Results that are no tensors may not compare.
            with contextlib.suppress(Exception):
                off = compare_results(native, expected).error
                self._own_error = off if math.isfinite(off) else 0.0
                if self._own_error > 1:
                    self.notes.append(f"Model itself is off by {self._own_error:.3g} tolerances in its own dtypes")
        return expected

    def compare(self, results: FlatResults, expected: FlatResults) -> Compared:
        return compare_results(results, expected, max(1.0, _OF_MODEL * (self._own_error or 0.0)))

    def _double(self) -> Any:
        if self._model is None:
            model = self._module.make(self._seed, self._device)
            if isinstance(model, torch.nn.Module):
                # `double` would leave complex numbers as they are.
                for tensor in (*model.parameters(), *model.buffers()):
                    tensor.data = in_float64(tensor.data)
            self._model = model
        return self._model

    def _run(self, model: Any, arguments: list[Any], weights: dict[str, torch.Tensor]) -> FlatResults:
        # Dropout draws the same numbers as for the candidate.
        set_seeds(CALL_SEED)
        if not isinstance(model, torch.nn.Module):
            return flat_results(as_tensors(model(*as_arrays(arguments)), self._device))
        if weights:
            model.load_state_dict(weights, strict=False)
        drop_gradients(list(model.parameters()))
        with torch.set_grad_enabled(self._has_gradients):
            return flat_results(model(*arguments))


@dataclass
class _Row:
    """A row of a task: the `row` in the body of the replay."""

    task: Task
    number: int


def _number(job: Job) -> int:
    """Returns the number of the row's list of inputs."""
    return int(job.cells.get(TASK_INPUTS, "0") or 0)


def bind_task(
    job: Job, spec: ReplaySpec, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
) -> tuple[_Row, TaskReplay]:
    """Makes `row` and `replay` of a task. Raises MissingPrecondition if the session does not name the task."""
    if not isinstance(job.subject, Task):
        raise MissingPrecondition("a row of a task runs with --tasks, which names the task's file or folder")
    row = _Row(job.subject, _number(job))
    return row, TaskReplay(row, job, device, instrument, settings, group)


class TaskReplay(JudgedReplay):
    """Judges the candidate of a row when it is called, or the task's Model, and leaves the result in `outcome`."""

    #: A candidate may do anything to its process. The thousands of cases of a suite share one until a guard objects.
    _is_alone = True
    _row: _Row
    _module: TaskModule

    def _prepare(self) -> None:
        self._file = self._file or str(self._row.task.path)
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
        if self._job.source is not None and self._job.source.writes_outputs:
            return _writing(candidate, partial(self._module.outputs, self._row.number, self._device.torch_device))
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


def _writing(function: Callable[..., Any], make: Callable[[], list[torch.Tensor]]) -> Constructed:
    """Returns a call whose results the function writes into memory that is made before each call."""
    outputs: list[torch.Tensor] = []

    def call(*arguments: Any) -> list[torch.Tensor]:
        function(*arguments, *outputs)
        return outputs

    def bind(*_: Any) -> None:
        outputs[:] = make()

    return Constructed(call, bind=bind)


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
