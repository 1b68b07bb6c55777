"""The results that a task's Model has, in float64 and in the dtypes of the task."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

import torch

from opatlas.outer.judging.compare import compare_results
from opatlas.outer.judging.judged_replay import ReferenceFailed
from opatlas.outer.judging.results import FlatResults, plain_results
from opatlas.outer.judging.trial import CALL_SEED
from opatlas.outer.tasks.inputs import as_arrays, as_tensors, cloned, drop_gradients, in_float64, set_seeds
from opatlas.outer.tasks.modules import init_inputs, model_class
from opatlas.outer.tasks.task import Task, TaskKind
from opatlas.text import exception_line


class Reference:
    """The results of a task's Model: in float64 for the check, and in the task's own dtypes for the form.

    Attributes:
        native: the results for the first inputs in the task's own dtypes.
        own_error: the largest error of `native`, as a share of the tolerance.
        checks_dtypes: whether a candidate must have the dtypes of `native`.
        has_gradients: whether calls run with gradients.
    """

    def __init__(self, module: ModuleType, task: Task, seed: int, device: torch.device, notes: list[str]) -> None:
        self.native: FlatResults = ()
        self.own_error = 0.0
        self.checks_dtypes = task.kind is not TaskKind.NUMPY
        self.has_gradients = False
        self._module, self._task, self._seed, self._device, self._notes = module, task, seed, device, notes
        self._model: Any = None
        self._has_float64 = True

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments of Model, by position and by name. Raises ReferenceFailed."""
        set_seeds(self._seed)
        try:
            return init_inputs(self._module, self._task)
        except Exception as error:
            raise ReferenceFailed(f"get_init_inputs of the task fails: {exception_line(error)}") from error

    def make(self) -> Any:
        """Returns a new Model on the device; the same seed gives the same weights. Raises ReferenceFailed."""
        positional, named = self.arguments()
        set_seeds(self._seed)
        try:
            model = model_class(self._module)(*positional, **named)
            return model.to(self._device) if isinstance(model, torch.nn.Module) else model
        except Exception as error:
            raise ReferenceFailed(f"Model of the task cannot be made: {exception_line(error)}") from error

    def gives_weights_to(self, candidate: torch.nn.Module) -> bool:
        """Copies Model's weights to a candidate where all names and shapes agree; returns whether they do."""
        model = self.make()
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

    def __call__(self, arguments: list[Any], weights: dict[str, torch.Tensor]) -> FlatResults:
        """Returns the results in float64; in the task's own dtypes, with a note, where float64 fails.

        Raises:
            ReferenceFailed: Model fails in both.
        """
        if not self.native:
            self._run_first(arguments, weights)
        if self._has_float64:
            try:
                return self._run(self._double(), in_float64(arguments), weights)
            except Exception as error:
                self._has_float64 = False
                self._model = None
                self._notes.append(
                    f"checked with Model in its own dtypes, since float64 fails: {exception_line(error)}"
                )
        if self._model is None:
            self._model = self.make()
        return self._run(self._model, arguments, weights)

    def run_natively(self, arguments: list[Any], weights: dict[str, torch.Tensor]) -> FlatResults:
        """Returns the results of a new Model in the task's own dtypes. Raises ReferenceFailed."""
        try:
            return self._run(self.make(), arguments, weights)
        except Exception as error:
            raise ReferenceFailed(f"Model of the task fails: {exception_line(error)}") from error

    def _run_first(self, arguments: list[Any], weights: dict[str, torch.Tensor]) -> None:
        self.native = self.run_natively(cloned(arguments), weights)
        with contextlib.suppress(Exception):
            expected = self._run(self._double(), in_float64(cloned(arguments)), weights)
            self.own_error = compare_results(self.native, expected).finite_error or 0.0
            if self.own_error > 1:
                self._notes.append(f"Model itself is off by {self.own_error:.3g} tolerances in its own dtypes")

    def _double(self) -> Any:
        if self._model is None:
            model = self.make()
            if isinstance(model, torch.nn.Module):
                model.double()
                # `double` leaves complex numbers as they are.
                for tensor in (*model.parameters(), *model.buffers()):
                    tensor.data = in_float64(tensor.data)
            self._model = model
        return self._model

    def _run(self, model: Any, arguments: list[Any], weights: dict[str, torch.Tensor]) -> FlatResults:
        # Dropout draws the same numbers as for the candidate.
        set_seeds(CALL_SEED)
        if not isinstance(model, torch.nn.Module):
            return plain_results(as_tensors(model(*as_arrays(arguments)), self._device))
        if weights:
            model.load_state_dict(weights, strict=False)
        drop_gradients(list(model.parameters()))
        with torch.set_grad_enabled(self.has_gradients):
            return plain_results(model(*arguments))
