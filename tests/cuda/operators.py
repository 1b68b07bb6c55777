"""Which of torch's operators a function calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from opatlas import Prepared

_LAUNCHES_NOTHING = re.compile(r"::(new_)?empty|::_unsafe_view$")


def operators_of(function: Callable[..., Any], report: Callable[[list[str]], object]) -> Callable[..., Any]:
    """`function`, which reports the operators of torch of its first call. Operators without a launch are left out."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not operator.is_view and not _LAUNCHES_NOTHING.search(operator._schema.name):
                seen.setdefault(operator._schema.name.replace("::", "."))
            return operator(*args, **(kwargs or {}))

    seen: dict[str, None] = {}
    reported = False

    def call(*arguments: Any, **keywords: Any) -> Any:
        nonlocal reported
        if reported:
            return function(*arguments, **keywords)
        try:
            with Watch():
                result = function(*arguments, **keywords)
        except RuntimeError as error:
            if "Creating a new Tensor subclass" not in str(error):
                raise
            # torch's causal bias, which cannot be made while anybody watches: another row of the kernel type reports.
            reported = True
            return function(*arguments, **keywords)
        reported = True
        if isinstance(result, Prepared):
            # The set-up is not timed.
            return replace(result, call=operators_of(result.call, report))
        report(list(seen))
        return result

    return call
