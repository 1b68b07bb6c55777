"""An NPU call by its name."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable
from typing import Any

from bench.errors import Unsupported


def npu_call(name: str) -> Callable[..., Any]:
    """The function that a replay's `npu` names, such as "torch_npu.npu_rms_norm".

    Raises:
        Unsupported: nothing of that name is there; a custom operator is not registered, for instance.
    """
    package, *path = name.split(".")
    try:
        call: Callable[..., Any] = operator.attrgetter(".".join(path))(importlib.import_module(package))
    except (ModuleNotFoundError, AttributeError) as error:
        raise Unsupported(f"{name} is not there: {error}") from None
    return call
