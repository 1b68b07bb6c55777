"""An NPU call by its name."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from typing import Any

from opatlas.engine.errors import Unsupported

#: Between names of which the first that is there is called.
OR = " or "


def npu_call(name: str) -> Callable[..., Any]:
    """The function that a replay's `npu` names, such as "torch_npu.npu_rms_norm"; of several the first that is there.

    Raises:
        Unsupported: nothing of that name is there; a custom operator is not registered, for instance.
    """
    first, _, others = name.partition(OR)
    if not others:
        return _function(name)
    try:
        return _function(first)
    except Unsupported:
        return npu_call(others)


def _function(name: str) -> Callable[..., Any]:
    import torch

    package, *path = name.split(".")
    try:
        call: Callable[..., Any] = operator.attrgetter(".".join(path))(importlib.import_module(package))
    except (ModuleNotFoundError, AttributeError) as error:
        raise Unsupported(f"{name} is not there: {error}") from None
    return _fitted(name, call) if isinstance(call, torch._ops.OpOverloadPacket) else call


def _fitted(name: str, operator: Any) -> Callable[..., Any]:
    """A custom operator, called as the installed version of it can be.

    Later versions take more, which replays pass by name; where there is nothing in it (no bias), an
    earlier one is called without.
    """
    schemas = [getattr(operator, overload)._schema for overload in operator.overloads()]
    known = {argument.name for schema in schemas for argument in schema.arguments}

    def call(*arguments: Any, **keywords: Any) -> Any:
        unknown = keywords.keys() - known
        wanted = sorted(word for word in unknown if keywords[word] is not None and not _is_empty_list(keywords[word]))
        if wanted:
            raise Unsupported(f"the installed {name} takes no {' and no '.join(wanted)}")
        return operator(*arguments, **{word: value for word, value in keywords.items() if word in known})

    call.__qualname__ = name
    return call


def _is_empty_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not value
