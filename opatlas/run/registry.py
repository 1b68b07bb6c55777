"""What registers itself: functions as replays (`@replays`), functions that are found by name, sources of rows.

Also facts of kernel types: why one has no replay, the proof of its NPU call, its GPU operators. Tests with torch_npu
and with a GPU write the JSON files in bench/facts (tests/support/written_facts.py). torch is imported with the function
of a job only.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import operator
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from opatlas.options import Scope
from opatlas.row.versions import Component, Versions
from opatlas.run.devices.npu_operators import OR
from opatlas.run.group import GroupSpec
from opatlas.run.job import Job, RowOutcome
from opatlas.text import exception_line, printable_lines, suggest

if TYPE_CHECKING:
    from opatlas.data.database import Database
    from opatlas.run.devices.device import Device
    from opatlas.run.group import Group
    from opatlas.run.instruments.instrument import Instrument, MeasureSettings


_ATTRIBUTE = "opatlas_replays"

Function = TypeVar("Function", bound=Callable[..., Any])
#: Returns the group that a row needs from its cells and pytest's options. Raises ReplayError.
GroupOf = Callable[[Mapping[str, str], Any], GroupSpec]


class RowReplay:
    """The `replay` of one row, which the body of a replay function calls.

    Attributes:
        outcome: the outcome of the row; None before the call.
    """

    def __init__(self, device: Device) -> None:
        self.outcome: RowOutcome | None = None
        self._device = device

    def expect_memory(self) -> None:
        """Raises OutOfMemory if the device cannot hold the row, before anything is allocated, where that is known."""

    def bounded_memory(self) -> AbstractContextManager[None]:
        """Returns a context in which the row can take no more memory than the device has left."""
        return self._device.bounded_memory()


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
            the replay, by the same names, and returns as many results. "A or B": the first that exists and takes them.
            "opatlas.bench.implementations.torch.NAME": the function that is timed on other devices.
            None: the kernel has no call on an NPU.
        group: returns the group of devices that a row needs. The body runs on each rank of the group, and may ask for
            `group` (opatlas/run/group.py). None: rows need one device.
        binding: what makes `row` and `replay` of the function in the device process (`Binding`): "module:function".
            "": rows are calls of a kernel (ReplayRow, Replay).
        judge: what runs a row with a kernel in a user's file: "module:function", called with what runs a job, the job,
            and the language that the kernel must have. "": kernels are not judged.

    tests/npu makes each call with the real torch_npu on tensors on device "meta". These tensors have no values: a
    replay gets a number from `row.number`, not from `tensor.item()`. The body raises `Unsupported` for a row that only
    the NPU call does not support.
    """

    kernel_types: tuple[str, ...]
    npu: str | None
    group: GroupOf | None = None
    binding: str = ""
    column: str = ""
    judge: str = ""


def replays(
    *kernel_types: str,
    npu: str | None,
    group: GroupOf | None = None,
    binding: str = "",
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
    return operator.attrgetter(job.function)(module)


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
        raise TypeError(f"{function.__name__} takes {', '.join(unknown)}; a replay has {', '.join(available)}")
    return {name: available[name] for name in names}


@cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _import(name: str, path: Path) -> ModuleType:
    try:
        return import_module(name)
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
        fallbacks: dotted names of modules and classes that are searched last, such as "torch.nn.functional".

    Raises (when called):
        AttributeError: the name is not found, two modules define it, or it is the name of a module.
    """

    @cache
    def modules() -> list[ModuleType]:
        return [import_module(f"{package}.{info.name}") for info in pkgutil.iter_modules(search_path)]

    @cache
    def find(name: str) -> Any:
        if name.startswith("_"):
            # pytest asks every object of a test module for private attributes, to find fixtures.
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if any(module.__name__ == f"{package}.{name}" for module in modules()):
            raise AttributeError(f"{package}.{name} is a module, not a function: rename the function")
        holders = [module for module in modules() if name in vars(module)]
        if len({id(vars(module)[name]) for module in holders}) > 1:
            names = " and ".join(module.__name__ for module in holders)
            raise AttributeError(f"{package}.{name} is defined twice: in {names}")
        others = [pkgutil.resolve_name(each) for each in fallbacks]
        for module in [*holders, *others]:
            if hasattr(module, name):
                # Found without this function from now on: it takes 17 us after a flush of the caches.
                setattr(sys.modules[package], name, getattr(module, name))
                return getattr(module, name)
        known = {each for module in [*modules(), *others] for each in vars(module) if not each.startswith("_")}
        places = ", ".join([package, *fallbacks])
        raise AttributeError(f"there is no function {name} in {places}{suggest(name, known)}")

    return find


@cache
def replays_of_bench() -> dict[str, Callable[..., Any]]:
    """Returns the functions of `bench/test_*.py` by the kernel types that they replay. Does not import torch.

    Those with a binding are excluded: their rows are no calls of kernels. A file that cannot be imported is named and
    left out.
    """
    found: dict[str, Callable[..., Any]] = {}
    for module_info in pkgutil.iter_modules(import_module("opatlas.bench").__path__):
        if module_info.name.startswith("test_"):
            try:
                module = import_module(f"opatlas.bench.{module_info.name}")
            except Exception as error:
                path = Path(import_module("opatlas.bench").__path__[0], f"{module_info.name}.py")
                said = (
                    f"{path} cannot be imported ({exception_line(error)}): its kernel types count as without a replay"
                )
                print(printable_lines(said), file=sys.stderr)
                continue
            for function in vars(module).values():
                spec = replay_spec(function)
                if spec is not None and not spec.binding:
                    found |= dict.fromkeys(spec.kernel_types, function)
    return found


#: The cells of rows, by kernel type.
Rows = Mapping[str, Sequence[Mapping[str, str]]]


@dataclass(frozen=True)
class RowSource:
    """The rows of a session, and what follows from where they come from.

    A source registers itself as an entry point (`extensions.ROW_SOURCES`) under the name of its option: a function of
    pytest's options and the devices of the session, which returns a RowSource and raises OpAtlasError.

    Attributes:
        options: the options of pytest, with the grid that collectives use; they choose the group of a row.
        naming: returns the software whose versions name a database, by the kind of the device.
        default_database: returns the folder of the CSVs by device and versions. Raises OpAtlasError if one of these is
            unknown.
        scope: the kind of session.
        unit, verb: the noun for a row, and the verb for what happens to it.
        rows: returns the rows that options list, given a database that may have them, and notes; None: the rows of
            the database. Raises OpAtlasError.
        starter: fills a database without rows, and returns the number of rows; None: it stays empty.
        is_listed: whether the rows are written into a database that is made for them.
        counts_missing: whether rows without a function of an implementation are run, with a status that says so.
        subfolder: the folder of this machine in the database: all nodes of a group may see the same disk.
        ops: returns the kernel types to run, from the names of --ops; empty: all.
        subjects: what a row is about and its cells do not hold (`Job.subject`), by kernel type.
        asked: what models are asked to write a kernel for, by kernel type.
        find: finds the candidates for these among the files of a folder (`read_directory`).
        scores: returns figures for the end of a session, given the implementations and their databases.
        notes: lines that tell the user what was chosen.
    """

    options: argparse.Namespace
    naming: Callable[[str], Sequence[Component]]
    default_database: Callable[[str, Versions], Path]
    scope: Scope = Scope.KERNELS
    unit: str = "row"
    verb: str = "replay"
    rows: Callable[[Database], tuple[Rows, Sequence[str]]] | None = None
    starter: Callable[[Database], int] | None = None
    is_listed: bool = False
    counts_missing: bool = False
    subfolder: str = ""
    ops: Callable[[Sequence[str]], frozenset[str]] = frozenset
    subjects: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    find: Callable[..., Any] | None = None
    scores: Callable[[Sequence[tuple[Any, Path]]], list[Any]] = lambda targets: []
    notes: Sequence[str] = ()

    @property
    def needs_database(self) -> bool:
        """Whether the rows are those of a database, which must exist where it is named."""
        return not self.is_listed and self.scope is not Scope.COLLECTIVES


_COLLECTIVE = "a collective of several devices: its row records no shapes"
_RANDOM = "its results are random, so no formula can check them"
_OWN_KERNEL = "a user's own kernel: its name and shapes do not define its result"
_MLA = "it depends on quantization modes that its row does not record"

#: Reasons without a replay, by kernel type: clauses that follow the name of the type.
WITHOUT_REPLAY: dict[str, str] = {
    "0": "the profiler did not resolve the kernel's type, and recorded no shapes",
    "DSAGenBitMask": _RANDOM,
    "DSARandomNormal": _RANDOM,
    "DSAStatelessGenBitMask": _RANDOM,
    "MemSet": "it clears the outputs of other kernels, and its row records no shapes",
    "_narrow_copy_flat_kernel": _OWN_KERNEL,
    "hcom_allGather_": _COLLECTIVE,
    "hcom_allReduce_": _COLLECTIVE,
    "hcom_batchSendRecv_": _COLLECTIVE,
    "hcom_broadcast_": _COLLECTIVE,
    "hcom_reduceScatter_": _COLLECTIVE,
    "main_kernel": _OWN_KERNEL,
    "matmul_bias_activation_kernel": _OWN_KERNEL,
    "mla_preprocess_0_mix_aic": _MLA,
    "mla_preprocess": _MLA,
}


def similar_replays(kernel_type: str, known: Iterable[str], *, least: float = 0.85) -> str:
    """Returns ` (did you mean ...?)` for a misspelt kernel type; "" if it is known why this type has no replay."""
    return "" if kernel_type in WITHOUT_REPLAY else suggest(kernel_type, known, least=least)


_FACTS = Path(import_module("opatlas.bench").__path__[0], "facts")
#: The operators of the GPU timings by kernel type, in the order of their first call.
CALLS = _FACTS / "gpu_calls.json"
#: The keys of KINDS by NPU call, as `@replays` names it, for the calls that tests with torch_npu proved.
PROOFS = _FACTS / "npu_proofs.json"
#: The devices that sample rows were checked on, by implementation and kernel type, if they ran.
IMPLEMENTATION_PROOFS = _FACTS / "implementation_proofs.json"

#: Proofs that an NPU call takes the arguments of its replay, from the strongest to the weakest.
KINDS = {
    "torch": "the call consists of torch's own operators; torch computed the results' shapes and dtypes",
    "meta kernel": "torch_npu took the arguments and computed the results' shapes and dtypes",
    "schema": "the operator's schema took the names and types of the arguments, and has as many results",
    "custom schema": "as schema, with the schema of the operator's own package: torch_npu does not have the operator",
    "none": "there is no call on an NPU",
}
_TORCH = "torch"
#: Prefixes of the names of calls that sample rows run on a CPU, where the results are checked.
_RUNS_ON_CPU = ("torch.", "opatlas.bench.implementations.")


def runs_on_cpu(call: str) -> bool:
    """Returns whether an NPU call is torch's own or the project's: neither torch_npu's nor a custom operator."""
    return all(
        name.startswith(_RUNS_ON_CPU) and (not name.startswith("torch.ops.") or name.startswith("torch.ops.aten."))
        for name in call.split(OR)
    )


def proof_of(call: str) -> str:
    """Returns the proof of an NPU call, a key of KINDS; "" for a call without a proof."""
    return read_facts(PROOFS).get(call) or (_TORCH if runs_on_cpu(call) else "")


def read_facts(path: Path) -> dict[str, Any]:
    """Returns the facts of CALLS, PROOFS or IMPLEMENTATION_PROOFS."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
