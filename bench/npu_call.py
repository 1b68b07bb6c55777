"""An NPU call by its name."""

from __future__ import annotations

import importlib
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
        found: Any = importlib.import_module(package)
        for part in path:
            found = getattr(found, part)
    except (ModuleNotFoundError, AttributeError) as error:
        raise Unsupported(f"{name} is not there: {error}") from None
    return found  # type: ignore[no-any-return]
