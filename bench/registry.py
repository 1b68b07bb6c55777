"""Which test function replays which kernel types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bench.groups.spec import GroupSpec

_ATTRIBUTE = "opatlas_replays"

Function = TypeVar("Function", bound=Callable[..., Any])
#: Gives the group that a row needs, from its cells and pytest's options. Raises ReplayError.
GroupOf = Callable[[Mapping[str, str], Any], GroupSpec]


@dataclass(frozen=True)
class ReplaySpec:
    """What `@replays` says of a test function.

    Attributes:
        kernel_types: types of the profiler whose rows the function replays.
        npu: dotted name of the call that is timed on an NPU ("torch_npu.npu_rms_norm"); it takes
            the arguments that the replay passes, by the same names, and returns as many results.
            "A or B": the first of them that is there. "bench.impl.NAME": what is timed elsewhere, too.
            None: the kernel has no call of its own there.
        group: what tells the group of devices that a row needs at once; its body runs on each rank of
            the group, and may ask for `group` (bench/groups/group.py). None: rows need one device.

    The tests in tests/npu make each call with the real torch_npu, with the rows' tensors on device
    "meta". These have no values, so a replay cannot read any: a number that the call takes comes from
    `row.number`, not from `tensor.item()`. A row that only the NPU's call does not do is `Unsupported`
    there.
    """

    kernel_types: tuple[str, ...]
    npu: str | None
    group: GroupOf | None = None


def replays(*kernel_types: str, npu: str | None, group: GroupOf | None = None) -> Callable[[Function], Function]:
    """Marks a test function as the replay of the rows of `kernel_types`."""
    if not kernel_types or not all(isinstance(name, str) for name in kernel_types):
        raise TypeError(f"@replays takes the kernel types as strings, got {kernel_types!r}")

    def mark(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, ReplaySpec(kernel_types, npu, group))
        return function

    return mark


def replay_spec(function: object) -> ReplaySpec | None:
    """What `@replays` said of `function`; None for any other function."""
    # Not getattr: asking a lazy package for an attribute would import all of it, and torch with it.
    spec = getattr(function, "__dict__", {}).get(_ATTRIBUTE)
    return spec if isinstance(spec, ReplaySpec) else None
