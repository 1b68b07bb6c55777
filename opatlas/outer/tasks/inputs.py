"""Makes the inputs of a task on a device: equal seeds give equal inputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from opatlas.outer.tasks.modules import input_lists
from opatlas.outer.tasks.task import Task


def set_seeds(seed: int) -> None:
    """Seeds the random numbers of torch on all devices, of numpy and of Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def make_inputs(module: ModuleType, task: Task, number: int, seed: int, device: torch.device) -> list[Any]:
    """Returns a list of inputs of a task; arrays of numpy become tensors.

    Args:
        module: the task file.
        number: which of the task's lists of inputs.
        seed: seed of the random numbers.

    Raises:
        Exception: whatever the task raises.
    """
    set_seeds(seed)
    try:
        # Large inputs are made on the device itself: a host takes seconds for each GiB of random numbers.
        with device:
            found = input_lists(module, task)
    except (RuntimeError, TypeError):
        set_seeds(seed)
        found = input_lists(module, task)
    return [as_tensors(value, device) for value in found[number]]


def as_tensors(value: Any, device: torch.device) -> Any:
    """Returns tensors and arrays of numpy as tensors on a device, also in lists, without their history.

    A tensor that requires gradients still does.
    """
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, torch.Tensor):
        plain = value.detach().to(device).resolve_conj().resolve_neg()
        return plain.requires_grad_(value.requires_grad)
    return mapped(value, lambda each: as_tensors(each, device))


def as_arrays(value: Any) -> Any:
    """Returns tensors as arrays of numpy, also in lists."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return mapped(value, as_arrays)


def in_float64(value: Any) -> Any:
    """Returns tensors of real numbers in float64 and of complex ones in complex128, also in lists; others unchanged."""
    if isinstance(value, torch.Tensor):
        wide = torch.complex128 if value.is_complex() else torch.float64 if value.is_floating_point() else value.dtype
        return value.detach().to(wide).requires_grad_(value.requires_grad)
    return mapped(value, in_float64)


def cloned(value: Any) -> Any:
    """Returns clones of tensors, also in lists."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return mapped(value, cloned)


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Returns a list, tuple or mapping with a function applied to its values; any other value unchanged."""
    if isinstance(value, Mapping):
        return {name: function(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [function(each) for each in value]
    return value


def needs_gradients(inputs: Any) -> bool:
    """Returns whether a tensor in inputs requires gradients: the task calls autograd."""
    return any(isinstance(each, torch.Tensor) and each.requires_grad for each in tree_leaves(inputs))


def drop_gradients(*tensors: Any) -> None:
    """Drops the gradients that an earlier call has accumulated in `grad`."""
    for tensor in tree_leaves(tensors):
        # The property of another class could be code of a candidate.
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.is_leaf:
            tensor.grad = None


def needed_bytes(inputs: Sequence[Any]) -> int:
    """Returns the bytes of the tensors in inputs."""
    total = 0
    for value in inputs:
        if isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, (list, tuple)):
            total += needed_bytes(value)
    return total
