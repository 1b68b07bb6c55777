"""Marks functions as replays with `@replays`, and imports the function of a job. torch is imported with a job only."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from opatlas.run.group_spec import GroupSpec
from opatlas.run.job import Job, RowOutcome

if TYPE_CHECKING:
    from opatlas.run.devices.device import Device
    from opatlas.run.group import Group
    from opatlas.run.instruments.instrument import Instrument, MeasureSettings

_ATTRIBUTE = "opatlas_replays"

Function = TypeVar("Function", bound=Callable[..., Any])
#: Returns the group that a row needs from its cells and pytest's options. Raises ReplayError.
GroupOf = Callable[[Mapping[str, str], Any], GroupSpec]


class RowReplay(Protocol):
    """The `replay` of one row, which the body of a replay function calls and which sets the outcome."""

    outcome: RowOutcome | None

    def expect_memory(self) -> None:
        """Raises OutOfMemory if the device cannot hold the row, before anything is allocated."""

    def bounded_memory(self) -> AbstractContextManager[None]:
        """Returns a context in which the row can take no more memory than is available."""


#: Makes `row` and `replay` of a job on an open device: called with the job, its spec, the device, the instrument, the
#: settings and the group. Raises InvalidRow.
Binding = Callable[["Job", "ReplaySpec", "Device", "Instrument", "MeasureSettings", "Group"], tuple[Any, RowReplay]]


@dataclass(frozen=True)
class ReplaySpec:
    """The arguments of `@replays` on a test function.

    Attributes:
        kernel_types: kernel types, as the profiler names them, whose rows the function replays.
        column: the function replays the rows of all tables with this column, whatever their kernel type; "": none.
        npu: dotted name of the call that is timed on an NPU ("torch_npu.npu_rms_norm"). The call takes the arguments of
            the replay, by the same names, and returns as many results. "A or B": the first call that exists.
            "opatlas.bench.implementations.torch.NAME": the function that is timed on other devices.
            None: the kernel has no call on an NPU.
        group: returns the group of devices that a row needs. The body runs on each rank of the group, and may ask for
            `group` (opatlas/run/group.py). None: rows need one device.
        binding: makes `row` and `replay` of the function. None: rows are calls of a kernel (ReplayRow, Replay).
        judge: what runs a row with a kernel in a user's file: "module:function", called with what runs a job, the job,
            and the language that the kernel must have. "": kernels are not judged.

    tests/npu makes each call with the real torch_npu on tensors on device "meta". These tensors have no values: a
    replay gets a number from `row.number`, not from `tensor.item()`. The body raises `Unsupported` for a row that only
    the NPU call does not support.
    """

    kernel_types: tuple[str, ...]
    npu: str | None
    group: GroupOf | None = None
    binding: Binding | None = None
    column: str = ""
    judge: str = ""


def replays(
    *kernel_types: str,
    npu: str | None,
    group: GroupOf | None = None,
    binding: Binding | None = None,
    column: str = "",
    judge: str = "",
) -> Callable[[Function], Function]:
    """Marks a test function as the replay of the rows of `kernel_types`, or of all rows with a column."""
    if bool(kernel_types) == bool(column) or not all(isinstance(name, str) for name in kernel_types):
        raise TypeError(f"@replays takes the kernel types as strings, or a column, got {kernel_types!r}, {column!r}")

    def mark(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, ReplaySpec(kernel_types, npu, group, binding, column, judge))
        return function

    return mark


def replay_spec(function: object) -> ReplaySpec | None:
    """Returns the arguments of `@replays` on `function`; None for any other function."""
    # Not getattr: an attribute of a lazy package would import the package, and torch.
    spec = getattr(function, "__dict__", {}).get(_ATTRIBUTE)
    return spec if isinstance(spec, ReplaySpec) else None


#: Fixtures that prepare in pytest what a row needs; the fixtures are None in the body of a replay.
_PYTEST_FIXTURES = ("custom_opp", "msprof")


def load_function(job: Job) -> Callable[..., Any]:
    """Imports the replay function of a job by name, or else from its file."""
    module = sys.modules.get(job.module) or _import(job.module, Path(job.module_path))
    function: Callable[..., Any] = operator.attrgetter(job.function)(module)
    return function


def select_arguments(function: Callable[..., Any], **available: Any) -> dict[str, Any]:
    """Returns the items of `available` that `function` has as parameters. Raises TypeError for other parameters.

    `npu` is the device of the row if it is an NPU, and None on other devices.
    """
    names = _parameters(function)
    device = getattr(available.get("row"), "device", None)
    npu = device if getattr(device, "type", "") == "npu" else None
    available = {**dict.fromkeys(_PYTEST_FIXTURES), "npu": npu, **available}
    unknown = [name for name in names if name not in available]
    if unknown:
        raise TypeError(
            f"{function.__name__} has the parameters {', '.join(unknown)}; a replay runs in the device process, "
            f"which has only {', '.join(available)}"
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
