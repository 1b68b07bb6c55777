"""Imports task files, and replaces packages that they name and that are not installed."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from opatlas.errors import OpAtlasError
from opatlas.outer.tasks.task import GET_INIT_INPUTS, GET_INPUTS, GET_INPUTS_LIST, MODEL, Task

_NAME = "opatlas_task"


def load_task(task: Task) -> ModuleType:
    """Runs a task file as a module, with its folder on the path of imports meanwhile.

    Raises:
        OpAtlasError: the file has changed since the session began.
        Exception: whatever the file raises.
    """
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
    return module


def input_lists(module: ModuleType, task: Task) -> list[Sequence[Any]]:
    """Returns the lists of inputs of a task: the one of `get_inputs`, or all of `get_inputs_dyn_list`.

    Raises:
        OpAtlasError: the functions return no list.
        Exception: whatever the functions raise.
    """
    if task.is_dynamic:
        found = list(getattr(module, GET_INPUTS_LIST)())
    else:
        found = [getattr(module, GET_INPUTS)(**_configured(task, "input", "shared"))]
    found = [[each] if hasattr(each, "shape") else each for each in found]
    if not found or not all(isinstance(each, (list, tuple)) for each in found):
        raise OpAtlasError(f"{task.path}: the inputs are not a list: return a list of tensors and numbers")
    return found


def init_inputs(module: ModuleType, task: Task) -> tuple[list[Any], dict[str, Any]]:
    """Returns the arguments of Model, by position and by name. Raises whatever `get_init_inputs` raises."""
    function = getattr(module, GET_INIT_INPUTS, None)
    if task.configuration is not None:
        return [], _configured(task, "init", "shared")
    found = function() if function is not None else []
    if isinstance(found, dict):
        return [], found
    return list(found or []), {}


def model_class(module: ModuleType) -> Any:
    """Returns the class Model of a task."""
    return getattr(module, MODEL)


def _configured(task: Task, *kinds: str) -> dict[str, Any]:
    """Returns the first single configuration of robust-kbench of each kind, joined; {} without a file."""
    if task.configuration is None:
        return {}
    values = json.loads(task.configuration.read_text(encoding="utf-8-sig"))
    found: dict[str, Any] = {}
    for kind in kinds:
        for configuration in values.get(f"single_{kind}_configs", [])[:1]:
            found.update(configuration)
    return found


@contextmanager
def stand_ins_for_missing_packages(task: Task) -> Iterator[None]:
    """Lets a task import packages that are not installed, so that its functions that do not need them can run.

    A name of a missing package is a class that takes any arguments and does nothing. mindspore's functions that make
    tensors make torch's.
    """
    imported = _imported_packages(task.source)
    finder = _Finder({name for name in imported if name not in sys.modules and importlib.util.find_spec(name) is None})
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _imported_packages(source: str) -> set[str]:
    """Returns the top-level packages that a file imports, anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found.update(alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.partition(".")[0])
            case _:
                pass
    return found


class _AnyType(type):
    """The type of stand-ins: an attribute of one is another."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyType(name, (StandIn,), {})


class StandIn(metaclass=_AnyType):
    """Replaces a class or a function of a package that is not installed."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Takes any arguments."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        # As a decorator it leaves the function as it is.
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else StandIn()


class _Package(ModuleType):
    """Replaces a package or a module that is not installed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _mindspore(name) if self.__name__ in ("mindspore", "mindspore.ops") else _AnyType(name, (StandIn,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of some packages."""

    def __init__(self, packages: Collection[str]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self._packages:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Returns a module that has every name."""
        return _Package(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module has every name."""


def _mindspore(name: str) -> Any:
    """Returns a name of mindspore: its functions that make tensors are torch's."""
    import torch

    # mindspore's tensors convert themselves under this name. Only a fork that reads shapes gets here.
    torch.Tensor.astype = torch.Tensor.to  # type: ignore[attr-defined]
    made = ("randn", "rand", "randint", "ones", "zeros", "tril", "triu", "full", "arange")
    if name in ("ops", "numpy", "mint"):
        functions = {each: getattr(torch, each) for each in made}
        return type(name, (), {each: staticmethod(function) for each, function in functions.items()})
    if name in made:
        return getattr(torch, name)
    if name == "Tensor":
        return lambda value, dtype=None: torch.as_tensor(value, dtype=dtype)
    dtype = getattr(torch, name, None)
    return dtype if isinstance(dtype, torch.dtype) else _AnyType(name, (StandIn,), {})
