"""Finds functions that a candidate has replaced: those that create, compare and time, and all of OpAtlas itself."""

from __future__ import annotations

import builtins
import inspect
import math
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any, NamedTuple

import torch

from opatlas.outer.candidates.judgement import CandidateRejected, ErrorClass

_PACKAGE = "opatlas"
#: Modules and classes besides those of OpAtlas whose functions are compared.
_OWNERS: tuple[Any, ...] = (
    builtins,
    math,
    statistics,
    time,
    torch,
    torch.Tensor,
    torch.nn.Module,
    torch.nn.functional,
    torch.testing,
    torch.cuda,
    torch.cuda.Event,
    torch.cuda.Stream,
)
_FUNCTIONS = (BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType, classmethod, staticmethod)
#: Maximum number of names in a message.
_NAMED = 5
#: torch's compiler replaces functions of torch when it is first used, by functions of these files.
_COMPILER = tuple(str(Path(torch.__file__).parent / name) for name in ("_dynamo/", "_compile.py"))


class _Known(NamedTuple):
    function: object
    code: CodeType | None
    defaults: object


class FunctionTable:
    """The functions of this process, as they are when the table is made."""

    def __init__(self) -> None:
        self._modules = {name: module for name, module in list(sys.modules.items()) if _is_own(name)}
        self._owners = {**self._modules, **{_name(owner): owner for owner in _OWNERS}}
        for name, module in self._modules.items():
            for attribute, value in list(vars(module).items()):
                if isinstance(value, type) and value.__module__ == name:
                    self._owners[f"{name}.{attribute}"] = value
        self._known = {name: dict(_functions(owner)) for name, owner in self._owners.items()}

    def replaced(self) -> list[str]:
        """Returns the names of functions that are others now, or have other code; new names do not count."""
        found = [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        for name, owner in self._owners.items():
            now = dict(_functions(owner))
            for attribute, known in self._known[name].items():
                if now.get(attribute) != known and not _is_of_compiler(owner, attribute):
                    found.append(f"{name}.{attribute}")
        return found

    def expect_same(self, step: str) -> None:
        """Raises CandidateRejected if a function was replaced.

        Args:
            step: the step of the candidate meanwhile ("its import").
        """
        if names := self.replaced():
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise CandidateRejected(
                ErrorClass.HACK,
                "patched",
                f"{step} replaced {', '.join(names[:_NAMED])}{more}: leave functions alone",
            )


def _is_of_compiler(owner: Any, attribute: str) -> bool:
    code = getattr(inspect.getattr_static(owner, attribute, None), "__code__", None)
    return code is not None and code.co_filename.startswith(_COMPILER) and _name(owner).startswith("torch")


def _is_own(name: str) -> bool:
    return name == _PACKAGE or name.startswith(f"{_PACKAGE}.")


def _name(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"


def _functions(owner: Any) -> Iterator[tuple[str, _Known]]:
    """Yields the functions and classes of a module, or the functions of a class and its bases."""
    attributes: Mapping[str, Any]
    if isinstance(owner, type):
        attributes = {name: value for base in reversed(owner.__mro__) for name, value in vars(base).items()}
    else:
        attributes = vars(owner)
    for name, value in list(attributes.items()):
        if isinstance(value, FunctionType):
            yield name, _Known(id(value), value.__code__, (value.__defaults__, id(value.__kwdefaults__)))
        elif isinstance(value, (*_FUNCTIONS, type, property)):
            yield name, _Known(id(value), None, None)
