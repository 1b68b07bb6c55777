"""`opatlas export --output FOLDER`: measured kernel types as definitions of flashinfer-bench and SOL-ExecBench.

definitions/{family}/{name}.json     axes, and the function that a CPU and a GPU are timed with, as source
workloads/{family}/{name}.jsonl      the measured rows: traces without a solution, which are workloads, too

Calls of one function with the same numbers, names, ranks and dtypes are one definition. Two sizes are one axis where
they are equal in all of its rows; an axis of one value is constant. flashinfer-bench reads axes off the inputs, so rows
whose outputs have another size are a definition for each such size.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from opatlas.data.csv_files import write_text
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.grouping import grouped
from opatlas.outer.tasks.definitions import random_input
from opatlas.progress import track
from opatlas.row.columns import STATUS
from opatlas.row.errors import Unsupported
from opatlas.row.signature import signature
from opatlas.row.status import Status
from opatlas.run.kernel_call import flat_tensors
from opatlas.run.kernel_template import arguments_of_replay, parameters_of
from opatlas.run.registry import replays_of_bench
from opatlas.run.replay import RecordedCall
from opatlas.run.result_check import check
from opatlas.show.result import Result, Table
from opatlas.text import exception_line

_KERNELS = "opatlas.bench."
#: A few numbers may all lie in the domain of a logarithm: so many, about, are drawn.
_DRAWN = 64
#: The dtypes of both schemas. Whole numbers among the inputs are indices and counts, which random ones cannot replace.
_INPUTS = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool")
_RESULTS = (*_INPUTS, "int64", "int32", "int16", "int8")


class _Name(str):
    """The name of a tensor in the text of a call."""

    def __repr__(self) -> str:
        return str(self)


class _MeasuredCall(NamedTuple):
    """A measured row as a call.

    Attributes:
        uuid: stands for the row.
        passed: the call of its replay, with tensors without values.
        names: those of the inputs, by the ids of these tensors.
        text: the reference.
        tensors: dtype and shape of inputs and results, by name.
    """

    uuid: str
    passed: RecordedCall
    names: Mapping[int, str]
    text: str
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]

    def sizes(self, names: Iterable[str] = ()) -> list[int]:
        """Returns the sizes of these tensors, or of all."""
        return [size for name in names or self.tensors for size in self.tensors[name][1]]


def write_definitions(database: Path, _: None, output: Path) -> Result:
    """Writes the measured rows of kernel types as definitions with workloads. What cannot be written is named.

    Args:
        output: a new folder.

    Raises:
        OpAtlasError: no row can be written, or a file could not be read or written.
    """
    if output.exists():
        raise OpAtlasError(f"{output}: exists: name a new folder")
    source, lines, refused = Database(database), list[tuple[str, str, int]](), Counter[tuple[str, str]]()
    for kernel_type in track(source.kernel_types(), "export, kernel types"):
        calls = list[_MeasuredCall]()
        for row in source.read(kernel_type).rows():
            if Status.from_cell(row.get(STATUS, "")) is Status.MEASURED:
                try:
                    calls.append(_call(kernel_type, row))
                except Exception as error:
                    refused[kernel_type, exception_line(error)] += 1
        for own in _definitions(calls):
            try:
                smallest = min(own, key=lambda each: sum(each.sizes()))
                for _draw in range(1 + _DRAWN // max(sum(smallest.sizes()), 1)):
                    _expect_right(smallest)
            except Exception as error:
                refused[kernel_type, exception_line(error)] += len(own)
                continue
            lines.append((kernel_type, _write(output, kernel_type, own), len(own)))
    if not lines:
        raise OpAtlasError("; ".join([f"{database}: no row can be a definition", *map(": ".join, refused)]))
    written = Table(("kernel type", "definition", "workloads"), lines, title=str(output))
    rows = [(kernel_type, count, why) for (kernel_type, why), count in refused.items()]
    return Result([written, Table(("kernel type", "rows", "why"), rows, title="not written")])


def _call(kernel_type: str, cells: Mapping[str, str]) -> _MeasuredCall:
    """Returns a row as a call. Raises Unsupported for what a definition cannot have, and what its replay raises."""
    if kernel_type not in replays_of_bench():
        raise Unsupported("it has no replay")
    with FakeTensorMode():
        passed = arguments_of_replay(replays_of_bench()[kernel_type], kernel_type, cells)
        if any(passed.changed.values()):
            raise Unsupported("the kernel changes an argument")
        bound = inspect.Signature(parameters_of(passed)).bind(*passed.arguments, **passed.keywords)
        names, tensors = dict[int, str](), dict[str, torch.Tensor]()
        for name, value in bound.arguments.items():
            for number, leaf in enumerate(tree_leaves(value)):
                if isinstance(leaf, torch.Tensor):
                    own = names.setdefault(id(leaf), _Name(name if leaf is value else f"{name}_{number}"))
                    tensors[own] = leaf
            bound.arguments[name] = _replaced(value, names)
        arguments = [*map(repr, bound.args), *(f"{name}={value!r}" for name, value in bound.kwargs.items())]
        source, function = _source(passed.impl)
        call = f"{function}({', '.join(arguments)})"
        text = f"{source}\n\n\n@torch.no_grad()\ndef run({', '.join(tensors)}):\n    return {call}\n"
        tensors |= {f"result_{number}": each for number, each in enumerate(flat_tensors(_run(text)(*tensors.values())))}
    if not 0 < len(names) < len(tensors):
        raise Unsupported("no tensor goes in, or none comes out")
    specs = {name: (str(each.dtype).removeprefix("torch."), tuple(each.shape)) for name, each in tensors.items()}
    for name, (dtype, _) in specs.items():
        if dtype not in (_RESULTS if name.startswith("result_") else _INPUTS) or not tensors[name].is_contiguous():
            raise Unsupported(f"{name} is {dtype}{'' if tensors[name].is_contiguous() else ', with strides'}")
    uuid = sha256(f"{kernel_type}|{signature(kernel_type, cells)}".encode()).hexdigest()[:16]
    return _MeasuredCall(uuid, passed, names, text, specs)


def _replaced(value: Any, others: Mapping[int, Any]) -> Any:
    return tree_map(lambda leaf: others.get(id(leaf), leaf), value)


@cache
def _run(text: str) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "reference", "exec", dont_inherit=True), names)
    run: Callable[..., Any] = names["run"]
    return run


def _definitions(calls: Sequence[_MeasuredCall]) -> Iterator[list[_MeasuredCall]]:
    """Yields the calls of each definition."""

    def form(call: _MeasuredCall) -> object:
        return call.text, tuple((name, dtype, len(shape)) for name, (dtype, shape) in call.tensors.items())

    for own in grouped((form(call), call) for call in calls).values():
        columns = list(zip(*(call.sizes() for call in own), strict=True))
        of_inputs = columns[: len(own[0].sizes(own[0].names.values()))]
        free = [at for at, sizes in enumerate(columns) if sizes not in of_inputs and len(set(sizes)) > 1]
        yield from grouped((tuple(call.sizes()[at] for at in free), call) for call in own).values()


def _expect_right(call: _MeasuredCall) -> None:
    """Runs a reference on random inputs. Raises its errors, WrongResult, and Unsupported for infinities and NaN."""
    of_inputs = {name: call.tensors[name] for name in call.names.values()}
    drawn = {name: random_input(shape, dtype) for name, (dtype, shape) in of_inputs.items()}
    results = flat_tensors(_run(call.text)(*drawn.values()))
    if not all(each.float().isfinite().all() for each in results):
        raise Unsupported("random inputs have results that are not finite")
    passed = call.passed.arguments, call.passed.keywords
    arguments, keywords = _replaced(passed, {number: drawn[name] for number, name in call.names.items()})
    check(call.passed.expected, arguments, keywords, call.passed.results_of(results, {}), 0)


def _write(output: Path, kernel_type: str, own: Sequence[_MeasuredCall]) -> str:
    """Writes a definition and its workloads, and returns its name."""
    axes, columns = dict[tuple[int, ...], str](), zip(*(call.sizes() for call in own), strict=True)
    specs = {
        name: {
            "shape": [axes.setdefault(next(columns), f"{name}_axis{at}") for at in range(len(shape))],
            "dtype": dtype,
        }
        for name, (dtype, shape) in own[0].tensors.items()
    }
    inputs = {name: specs.pop(name) for name in own[0].names.values()}
    varying = {name: sizes for sizes, name in axes.items() if len(set(sizes)) > 1}
    const = {name: {"type": "const", "value": sizes[0]} for sizes, name in axes.items()}
    content = {
        "description": f"{kernel_type}, as OpAtlas times it on a CPU and a GPU",
        "axes": const | {name: {"type": "var"} for name in varying},
        "inputs": inputs,
        "outputs": specs,
        "reference": own[0].text,
    }
    family = replays_of_bench()[kernel_type].__module__.rpartition("test_")[2]
    name = f"{kernel_type.strip('_')}_{sha256(json.dumps(content).encode()).hexdigest()[:8]}"
    lines = []
    for number, call in enumerate(own):
        sizes = {axis: column[number] for axis, column in varying.items()}
        workload = {"uuid": call.uuid, "axes": sizes, "inputs": {key: {"type": "random"} for key in inputs}}
        # flashinfer-bench reads a trace here, SOL-ExecBench the workload itself.
        lines.append({"definition": name, "solution": None, "workload": workload, "evaluation": None, **workload})
    definition = json.dumps({"name": name, "op_type": family, **content}, indent=1)
    write_text(output / f"definitions/{family}/{name}.json", f"{definition}\n")
    write_text(output / f"workloads/{family}/{name}.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))
    return name


@cache
def _source(function: Callable[..., Any]) -> tuple[str, str]:
    """Returns the statements that a function needs, `import torch` among them, and the name to call it by."""
    name = getattr(function, "__name__", "")
    if not _module(function).startswith(_KERNELS):
        for place in ("torch", "torch.nn.functional", "torch.Tensor"):
            if getattr(resolve_name(place), name, None) is function:
                return "import torch", f"{place}.{name}"
        raise Unsupported(f"{name} is no function of torch")
    found: dict[str, tuple[Any, str]] = {"torch": (torch, "import torch")}
    _add(name, function, found)
    return "\n".join(["from __future__ import annotations", *(text for _, text in found.values())]), name


def _module(value: Any) -> str:
    return getattr(value, "__module__", None) or ""


def _add(name: str, value: Any, found: dict[str, tuple[Any, str]]) -> None:
    """Adds the statement that makes a name of a module of kernels, after what it needs. Raises Unsupported."""
    if name in found:
        if found[name][0] is not value:
            raise Unsupported(f"its function needs two things that are called {name}")
        return
    module, text = _module(value), f"{name} = {value!r}"
    if isinstance(value, ModuleType):
        text = f"import {value.__name__} as {name}"
    elif module.startswith(_KERNELS):
        text, names = inspect.getsource(value), vars(sys.modules[module])
        if text[0].isspace():
            raise Unsupported(f"{name} is made by a decorator, and has no source of its own")
        found[name] = value, ""
        for each in ast.walk(ast.parse(text)):
            if isinstance(each, ast.Name) and each.id in names:
                _add(each.id, names[each.id], found)
        # It stands after these: a decorator is called at once.
        del found[name]
        text = f"\n\n{text.rstrip()}"
    elif module.startswith("opatlas"):
        raise Unsupported(f"its function needs {module}")
    elif callable(value):
        text = f"from {module} import {value.__name__}" + (f" as {name}" if value.__name__ != name else "")
    found[name] = value, text
