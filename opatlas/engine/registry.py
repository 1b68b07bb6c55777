"""Finds replays by kernel type, implementations and formulas by name; torch is imported on the first use only."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from opatlas.engine.group_spec import GroupSpec
from opatlas.engine.job import Job, RowOutcome

if TYPE_CHECKING:
    from opatlas.devices.device import Device
    from opatlas.engine.group import Group
    from opatlas.instruments.instrument import Instrument, MeasureSettings

_ATTRIBUTE = "opatlas_replays"

Function = TypeVar("Function", bound=Callable[..., Any])
#: Gives the group that a row needs, from its cells and pytest's options. Raises ReplayError.
GroupOf = Callable[[Mapping[str, str], Any], GroupSpec]


class RowReplay(Protocol):
    """The `replay` of one row: the body of a replay function calls it, and it leaves an outcome."""

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
    """What `@replays` says of a test function.

    Attributes:
        kernel_types: types of the profiler whose rows the function replays.
        npu: dotted name of the call that is timed on an NPU ("torch_npu.npu_rms_norm"); it takes
            the arguments that the replay passes, by the same names, and returns as many results.
            "A or B": the first of them that is there. "opatlas.bench.implementations.torch.NAME": what is timed
            elsewhere, too.
            None: the kernel has no call of its own there.
        group: what tells the group of devices that a row needs at once; its body runs on each rank of
            the group, and may ask for `group` (opatlas/engine/group.py). None: rows need one device.
        binding: what makes `row` and `replay` of the function. None: rows are calls of a kernel (ReplayRow, Replay).

    The tests in tests/npu make each call with the real torch_npu, with the rows' tensors on device
    "meta". These have no values, so a replay cannot read any: a number that the call takes comes from
    `row.number`, not from `tensor.item()`. A row that only the NPU's call does not do is `Unsupported`
    there.
    """

    kernel_types: tuple[str, ...]
    npu: str | None
    group: GroupOf | None = None
    binding: Binding | None = None


def replays(
    *kernel_types: str, npu: str | None, group: GroupOf | None = None, binding: Binding | None = None
) -> Callable[[Function], Function]:
    """Marks a test function as the replay of the rows of `kernel_types`."""
    if not kernel_types or not all(isinstance(name, str) for name in kernel_types):
        raise TypeError(f"@replays takes the kernel types as strings, got {kernel_types!r}")

    def mark(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, ReplaySpec(kernel_types, npu, group, binding))
        return function

    return mark


def replay_spec(function: object) -> ReplaySpec | None:
    """What `@replays` said of `function`; None for any other function."""
    # Not getattr: asking a lazy package for an attribute would import all of it, and torch with it.
    spec = getattr(function, "__dict__", {}).get(_ATTRIBUTE)
    return spec if isinstance(spec, ReplaySpec) else None


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


def functions_of_modules(package: str, search_path: Iterable[str], *fallbacks: str) -> Callable[[str], Any]:
    """Returns a module `__getattr__` that finds a name in the package's modules, then in `fallbacks`.

    Args:
        fallbacks: dotted names of what is searched where no module has the name: "torch.nn.functional".

    Raises (when called):
        AttributeError: nothing has the name, two modules define it, or it is the name of a module.
    """

    @cache
    def modules() -> list[ModuleType]:
        return [importlib.import_module(f"{package}.{info.name}") for info in pkgutil.iter_modules(search_path)]

    @cache
    def find(name: str) -> Any:
        if name.startswith("_"):
            # pytest asks every object of a test module whether it is a fixture, by private names.
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if any(module.__name__ == f"{package}.{name}" for module in modules()):
            raise AttributeError(f"{package}.{name} is a module, not a function: give the function another name")
        holders = [module for module in modules() if name in vars(module)]
        if len({id(vars(module)[name]) for module in holders}) > 1:
            places = " and ".join(module.__name__ for module in holders)
            raise AttributeError(f"{package}.{name} is defined twice: in {places}")
        for place in [*holders, *map(pkgutil.resolve_name, fallbacks)]:
            if hasattr(place, name):
                return getattr(place, name)
        raise AttributeError(f"{package} has no function {name!r}: none of its modules defines {name}")

    return find
