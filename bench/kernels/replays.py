"""Which kernel types have a replay, whatever a session collects."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any

import bench
from bench.registry import replay_spec
from database.communication import is_communication


@cache
def replays_of_bench() -> dict[str, Callable[..., Any]]:
    """The functions of `bench/test_*.py` by the kernel types that they replay. Does not import torch.

    Collectives, whose rows are messages and lie in databases of their own, are not among them.
    """
    found: dict[str, Callable[..., Any]] = {}
    for module_info in pkgutil.iter_modules(bench.__path__):
        if module_info.name.startswith("test_"):
            module = importlib.import_module(f"bench.{module_info.name}")
            for function in vars(module).values():
                spec = replay_spec(function)
                if spec is not None and not any(map(is_communication, spec.kernel_types)):
                    found |= dict.fromkeys(spec.kernel_types, function)
    return found
