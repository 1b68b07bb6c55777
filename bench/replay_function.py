"""The body of a replay, a function that @replays marks: how it is found, and what it is given."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.job import Job

#: Fixtures without a value for the body of a replay.
_OF_PYTEST = ("custom_opp", "npu")


def load_function(job: Job) -> Callable[..., Any]:
    """The replay function of a job, imported by name, or from its file."""
    module = sys.modules.get(job.module) or _import(job.module, Path(job.module_path))
    function: Callable[..., Any] = operator.attrgetter(job.function)(module)
    return function


def arguments_of(function: Callable[..., Any], **available: Any) -> dict[str, Any]:
    """Those of `available` that `function` names. Raises TypeError for any other parameter.

    Fixtures that only see to it, in pytest, that a row can run (bench/conftest.py), are None here.
    """
    names = _parameters(function)
    available = {**dict.fromkeys(_OF_PYTEST), **available}
    unknown = [name for name in names if name not in available]
    if unknown:
        raise TypeError(
            f"{function.__name__} asks for {', '.join(unknown)}; a replay runs in the device process, "
            f"where only {', '.join(available)} exist"
        )
    return {name: available[name] for name in names}


@cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _import(name: str, path: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module {name} at {path}", name=name, path=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
