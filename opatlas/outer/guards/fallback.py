"""Calls a candidate without its kernels. A candidate that still gives results has a second way to compute them."""

from __future__ import annotations

import ctypes
import importlib.machinery
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_SUFFIXES = tuple(importlib.machinery.EXTENSION_SUFFIXES)
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class KernelRemoved(Exception):
    """A candidate used a kernel that was taken away."""


class _NoKernel:
    """Replaces a kernel, and raises KernelRemoved at every use."""

    def __getattr__(self, name: str) -> Any:
        raise KernelRemoved(name)

    def __getitem__(self, grid: Any) -> Any:
        raise KernelRemoved(str(grid))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        raise KernelRemoved("call")


def falls_back(module: ModuleType, call: Callable[[], object]) -> bool | None:
    """Returns whether a candidate gives a result without its kernels; None if its module has no kernel.

    Args:
        module: the module of the candidate.
        call: calls the candidate once.
    """
    with _without_kernels(module) as names:
        if not names:
            return None
        try:
            call()
        except Exception:
            # The candidate fails without its kernels, as it should. Any error will do.
            return False
    return True


@contextmanager
def _without_kernels(module: ModuleType) -> Iterator[list[str]]:
    """Takes the kernels away from a module: those of Triton, compiled extensions, and libraries of ctypes."""
    kernels = {name: value for name, value in vars(module).items() if _is_kernel(value)}
    for name in kernels:
        setattr(module, name, _NoKernel())
    try:
        yield list(kernels)
    finally:
        for name, value in kernels.items():
            setattr(module, name, value)


def _is_kernel(value: Any) -> bool:
    if isinstance(value, ctypes.CDLL):
        return True
    if isinstance(value, ModuleType):
        file = getattr(value, "__file__", None) or ""
        return file.endswith(_SUFFIXES) and not file.startswith(_INSTALLED)
    runtime = sys.modules.get("triton.runtime")
    kinds = tuple(vars(runtime)[name] for name in ("KernelInterface",) if name in vars(runtime)) if runtime else ()
    return bool(kinds) and isinstance(value, kinds)
