"""Definitions and workloads of kernels in the schema of flashinfer-bench and SOL-ExecBench, as tasks.

definitions/{op_type}/{name}.json, workloads/{op_type}/{name}.jsonl    flashinfer-bench's data sets (flashinfer-trace)
{problem}/definition.json, {problem}/workload.jsonl                    SOL-ExecBench
solutions/**/{name}.json, solution.json                                kernels of both: candidates

A definition with its workloads is the text of a task: the reference, a Model that calls its `run`, and a list of inputs
for each workload.
Sources: docs/flashinfer-trace of flashinfer-bench (April 2026), docs/ of SOL-ExecBench (April 2026).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from opatlas.errors import OpAtlasError
from opatlas.files import read_file
from opatlas.theory.patterns import ExpressionError, parse_expression
from opatlas.typed_json import DecodeError, decode

T = TypeVar("T")
#: The file of a definition of SOL-ExecBench, and the folder with those of flashinfer-bench.
_DEFINITION, _DEFINITIONS = "definition.json", "definitions"
_LARGEST_BYTES = 4 << 20
#: The languages of solutions that are Python.
_LANGUAGES = ("python", "pytorch", "triton", "tilelang", "cute_dsl", "cutile", "cudnn_frontend")
#: Random whole numbers lie between these.
_LOW, _HIGH = -128, 128
#: The name of a task's workloads, of which each has inputs of its own.
WORKLOADS = "_OPATLAS_WORKLOADS"
#: The task of a definition; names that begin with `_opatlas` are no reference's.
_TASK = """\
{reference}


import torch as _opatlas_torch

from opatlas.outer.tasks.definitions import workload_inputs as _opatlas_inputs


class Model(_opatlas_torch.nn.Module):
    def forward(self, *inputs):
        return run(*inputs)


_OPATLAS_WORKLOADS = {workloads!r}


def get_inputs_dyn_list():
    return [_opatlas_inputs(globals(), number) for number in range(len(_OPATLAS_WORKLOADS))]
"""


class _Axis(msgspec.Struct):
    type: str
    value: int = 0
    expression: str = ""


class _Tensor(msgspec.Struct):
    """`shape` are names of axes; None for a number of Python."""

    dtype: str
    shape: list[str] | None = None


class _Definition(msgspec.Struct):
    reference: str
    axes: dict[str, _Axis]
    inputs: dict[str, _Tensor]
    outputs: dict[str, _Tensor] = {}
    name: str = ""
    custom_inputs_entrypoint: str | None = None


class _Given(msgspec.Struct):
    type: str
    value: int | float | bool | None = None
    path: str = ""
    tensor_key: str = ""


class _Workload(msgspec.Struct):
    """A line of a file of workloads: a workload, or a trace, which has one."""

    axes: dict[str, int] = {}
    inputs: dict[str, _Given] = {}
    uuid: str = ""
    workload: _Workload | None = None


class _Source(msgspec.Struct):
    path: str
    content: str


class _Build(msgspec.Struct):
    """flashinfer-bench has one `language`, SOL-ExecBench may have several."""

    entry_point: str
    language: str = ""
    languages: list[str] = []
    destination_passing_style: bool = True


class Solution(msgspec.Struct):
    """A kernel for a definition, whose sources are in the file."""

    name: str
    definition: str
    spec: _Build
    sources: list[_Source]


def read_solution(path: Path) -> Solution | None:
    """Reads a solution; None for other JSON. Raises OpAtlasError."""
    text = read_file(path, _LARGEST_BYTES, "correct the path or its rights")
    return _decoded(text, Solution, path) if b'"sources"' in text and b'"entry_point"' in text else None


def unpack_solution(path: Path, solution: Solution, folder: Path) -> tuple[Path, str]:
    """Writes the sources of a solution into a new folder, and returns the one that is called, and its function.

    Raises:
        OpAtlasError: it cannot be judged; the message names the field, its value and the remedy.
    """
    spec, (entry, _, function) = solution.spec, solution.spec.entry_point.partition("::")
    others = [word for word in spec.languages or [spec.language] if word not in _LANGUAGES]
    known = entry.endswith(".py") and entry in [source.path for source in solution.sources] and function.isidentifier()
    problems = {
        f"language {', '.join(others)}: only {', '.join(_LANGUAGES)} run here: compile it in Python": others,
        f"entry_point {spec.entry_point!r}: name a source and a function in it, as main.py::run": not known,
    }
    if problem := next((text for text, is_so in problems.items() if is_so), ""):
        raise OpAtlasError(f"{path}: spec.{problem}")
    for source in solution.sources:
        try:
            place = (folder / source.path).resolve()
            if folder not in place.parents or place.exists():
                raise ValueError("outside, or given twice")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(source.content, encoding="utf-8")
        except (OSError, ValueError) as error:
            problem = f"sources: path {source.path!r}: {error}: name a place in the folder of the solution"
            raise OpAtlasError(f"{path}: {problem}") from None
    return folder / entry, function


def is_definition(path: Path) -> bool:
    """Returns whether a file is a definition, by its name and folder."""
    return path.name == _DEFINITION or (path.suffix == ".json" and _DEFINITIONS in path.parts[:-1])


def place_of_definition(path: Path, root: Path) -> tuple[Path, Path]:
    """Returns the path that names the task of a definition, and the folder of its set.

    The path is without `definitions`, or the folder of the problem; `root` is what the user named.
    """
    if path.name == _DEFINITION:
        return path.parent, root if root in path.parent.parents else path.parent.parent
    place = len(path.parts) - 1 - path.parts[::-1].index(_DEFINITIONS)
    return Path(*path.parts[:place], *path.parts[place + 1 :]), Path(*path.parts[:place])


def definition_name(path: Path) -> str:
    """Returns the name of a definition; that of its folder if it has none."""
    return _read_definition(path).name or path.parent.name


def task_text(path: Path) -> bytes:
    """Returns the text of the task of a definition. Raises OpAtlasError if it, or its workloads, cannot be read."""
    definition = _read_definition(path)
    lines = [_decoded(line, _Workload, _workloads(path)) for line in workload_lines(path)]
    calls = [_call(path, definition, line.workload or line) for line in lines]
    return _TASK.format(reference=definition.reference, workloads=calls).encode()


def _read_definition(path: Path) -> _Definition:
    text = read_file(path, _LARGEST_BYTES, "correct the path or its rights")
    return _decoded(text, _Definition, path)


def _decoded(text: bytes, kind: type[T], path: Path) -> T:
    try:
        return decode(text, kind, str(path))
    except DecodeError as error:
        raise OpAtlasError(f"{error}: write it in the schema of flashinfer-bench or SOL-ExecBench") from None


def _workloads(path: Path) -> Path:
    """Returns the file of the workloads of a definition."""
    if path.name == _DEFINITION:
        return path.with_name("workload.jsonl")
    _, root = place_of_definition(path, path)
    return root / "workloads" / path.relative_to(root / _DEFINITIONS).with_suffix(".jsonl")


def workload_lines(path: Path) -> list[bytes]:
    """Returns the workloads of a definition, or traces with them, as JSON."""
    found = read_file(_workloads(path), _LARGEST_BYTES, "a definition has its workloads there, one a line").splitlines()
    return [line for line in found if line.strip()]


def _call(path: Path, definition: _Definition, workload: _Workload) -> dict[str, Any]:
    """Returns what `workload_inputs` makes the inputs of a workload of."""
    sizes = {name: axis.value for name, axis in definition.axes.items() if axis.type == "const"} | workload.axes
    for name, axis in definition.axes.items():
        if axis.type == "expr":
            sizes[name] = _size(path, name, axis.expression, sizes)

    def shape(tensor: _Tensor) -> list[int] | None:
        if lacking := [axis for axis in tensor.shape or () if not (axis.isdecimal() or axis in sizes)]:
            raise OpAtlasError(f"{_workloads(path)}: {workload.uuid}: axis {lacking[0]!r} has no value: add it")
        return None if tensor.shape is None else [sizes[axis] if axis in sizes else int(axis) for axis in tensor.shape]

    inputs = {}
    for name, tensor in definition.inputs.items():
        given = workload.inputs.get(name, _Given("random"))
        inputs[name] = (given.type, shape(tensor), tensor.dtype, given.value, given.path, given.tensor_key)
    outputs = [(shape(tensor) or [], tensor.dtype) for tensor in definition.outputs.values()]
    scalars = {name: each.value for name, each in workload.inputs.items() if each.type == "scalar"}
    made_by, known = definition.custom_inputs_entrypoint, {**sizes, **scalars}
    return {"inputs": inputs, "outputs": outputs, "custom": made_by, "known": known}


def _size(path: Path, name: str, expression: str, sizes: Mapping[str, int]) -> int:
    try:
        # A size over another is a whole number.
        return int(parse_expression(re.sub("/+", "//", expression)).value(sizes))
    except (ExpressionError, KeyError, ArithmeticError) as error:
        raise OpAtlasError(f"{path}: axis {name!r}: {expression!r}: {error}: give an expression of sizes") from None


def workload_inputs(module: Mapping[str, Any], number: int) -> list[Any]:
    """Returns the inputs of a workload, on torch's default device.

    Args:
        module: the names of the task, with what `task_text` wrote of the workloads, its `__file__`, and the function
            that makes inputs of the type `custom`.

    Raises:
        OpAtlasError: this torch has not the dtype, or a file is missing.
    """
    import torch

    call, made = module[WORKLOADS][number], {}
    if any(kind == "custom" for kind, *_ in call["inputs"].values()):
        made = module[call["custom"]](dict(call["known"]), torch.get_default_device())
    found: list[Any] = []
    for name, (kind, shape, dtype, value, path, key) in call["inputs"].items():
        if kind == "safetensors":
            found.append(_stored(Path(module["__file__"]), path, key))
        else:
            found.append(made[name] if kind == "custom" else value if kind == "scalar" else random_input(shape, dtype))
    return found


def workload_outputs(module: Mapping[str, Any], number: int, device: Any) -> list[Any]:
    """Returns memory for the outputs of a workload of a task. Raises OpAtlasError for a dtype."""
    import torch

    of_definition = module[WORKLOADS][number]["outputs"]
    return [torch.empty(shape, dtype=_dtype(name), device=device) for shape, name in of_definition]


def _dtype(name: str) -> Any:
    import torch

    found = getattr(torch, name, None)
    if found is None:
        raise OpAtlasError(f"dtype {name}: torch {torch.__version__} has not got it")
    return found


def random_input(shape: Sequence[int] | None, name: str) -> Any:
    """Returns a random tensor, normal or of whole numbers, in a dtype of a definition; a number if it has no shape."""
    import torch

    if shape is None:
        return random_input((), name).item()
    dtype = _dtype(name)
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.float32 if dtype.itemsize == 1 else dtype).to(dtype)
    low, high = (0, 2) if dtype is torch.bool else (_LOW, _HIGH)
    return torch.randint(low, high, shape, dtype=dtype)


def _stored(task: Path, path: str, key: str) -> Any:
    """Returns a tensor of a file whose path begins at a folder around the task."""
    import torch

    try:
        from safetensors import safe_open
    except ModuleNotFoundError:
        raise OpAtlasError(f"{path}: pip install safetensors, to read it") from None
    found = next((folder / path for folder in task.parents if (folder / path).is_file()), None)
    if found is None:
        raise OpAtlasError(f"{path}: no such file below {task.parents[-2]}: fetch the data set with its tensors")
    with safe_open(found, framework="pt") as tensors:
        return tensors.get_tensor(key).to(torch.get_default_device())
