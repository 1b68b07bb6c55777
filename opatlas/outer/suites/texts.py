"""Texts: names of torch's operators, arguments of calls, and traces of models. Imports no torch.

An overload is `add.Tensor`, and its folder, kernel type and CSV are `add__Tensor`. The text of arguments is as traces
of models have it: `((T([512, 768], f16), 1.0), {'dim': 0})`. `T(shape, dtype)` is a contiguous tensor, `T(shape, dtype,
stride=(1, 512))` one with other strides. A trace has a line for each operator, then a line for each of its calls:

Operator: aten.add.Tensor
cnt: 156, ((T([1, 512, 768], f16), T([1, 512, 768], f16)), {})

`cnt` is how often the models make the call; 0 stands for a call that somebody made up. Nothing is ever evaluated.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.row import columns as col
from opatlas.row.slots import EMPTY_SHAPE, dtype_of_torch
from opatlas.text import shortened

#: A kernel type that is the folder of an overload: the operator, then two underscores, then the overload.
PATTERN = r"\w+__[A-Za-z]\w*"
_FOLDER = re.compile(PATTERN)
_OVERLOAD = re.compile(r"(?:aten[.:]+)?(?P<operator>\w+)(?:\.(?P<overload>\w+))?")
#: Overloads of old traces, and what torch calls them now.
_FORMER = {"sum.SymInt": "sum.dim_IntList"}


def is_folder(name: str) -> bool:
    """Returns whether a kernel type is the folder of an overload."""
    return _FOLDER.fullmatch(name) is not None


def folder_of(overload: str) -> str:
    """Returns the folder of an overload: `add___Tensor` for `add_.Tensor`."""
    return overload.replace(".", "__")


def overload_of(folder: str) -> str:
    """Returns the overload of a folder: `add_.Tensor` for `add___Tensor`. The last pair of underscores is the dot.

    Raises:
        OpAtlasError: the name is that of no overload.
    """
    if not is_folder(folder):
        raise OpAtlasError(f"{folder}: is not the folder of an overload of torch, such as add__Tensor")
    # An overload has no name that begins with an underscore, so a third underscore belongs to the operator.
    place = max(match.start() for match in re.finditer(r"__(?=[A-Za-z])", folder))
    return f"{folder[:place]}.{folder[place + 2 :]}"


def read_overload(text: str) -> str:
    """Returns the overload in `aten.add.Tensor`, `aten::add.Tensor`, `add.Tensor` or `relu` (`relu.default`).

    Raises:
        OpAtlasError: the text names no overload.
    """
    found = _OVERLOAD.fullmatch(text.strip())
    if found is None:
        raise OpAtlasError(f"{text.strip()!r}: is not an overload of torch, such as aten.add.Tensor")
    overload = f"{found['operator']}.{found['overload'] or 'default'}"
    return _FORMER.get(overload, overload)


#: Dtypes of torch by their abbreviations.
DTYPES: Mapping[str, str] = {
    "b8": "bool",
    "bf16": "bfloat16",
    **{f"c{bits}": f"complex{bits}" for bits in (32, 64, 128)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    "u8": "uint8",
}
ABBREVIATIONS = {name: abbreviation for abbreviation, name in DTYPES.items()}
_BYTES = {"bool": 1, "complex32": 4, "complex64": 8, "complex128": 16}
_NUMBERS = {"inf": math.inf, "nan": math.nan}
#: Attributes of torch that an argument may be, besides dtypes.
_CONSTANTS = frozenset(
    ("strided", "sparse_coo", "sparse_csr", "contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
)
_SHOWN = 60
#: Larger shapes are no shapes of tensors: their number of bytes is beyond any memory.
_MOST_ELEMENTS = 1 << 48


@dataclass(frozen=True, repr=False)
class TensorText:
    """A tensor of a text.

    Attributes:
        shape, stride: sizes and strides; an empty `stride` of a tensor with axes means contiguous.
        dtype: the name of the dtype in torch.
    """

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...] | None = None

    @property
    def extent(self) -> int:
        """The number of elements of the memory behind the tensor."""
        if self.stride is None or 0 in self.shape:
            return math.prod(self.shape)
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    @property
    def bytes(self) -> int:
        """The size of the memory behind the tensor."""
        digits = "".join(filter(str.isdigit, self.dtype))
        return self.extent * (_BYTES.get(self.dtype) or int(digits) // 8)

    def __repr__(self) -> str:
        stride = "" if self.stride is None else f", stride={self.stride}"
        return f"T({list(self.shape)}, {TorchConstant(self.dtype)}{stride})"


@dataclass(frozen=True, repr=False)
class TorchConstant:
    """A dtype, layout or memory format of torch by its name ("float16", "strided")."""

    name: str

    def __repr__(self) -> str:
        return ABBREVIATIONS.get(self.name, f"torch.{self.name}")


@dataclass(frozen=True)
class ArgumentsText:
    """The arguments of a call: tensors are TensorText, dtypes TorchConstant, devices strings; the rest are literals."""

    positional: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def tensors(self) -> Iterator[TensorText]:
        """Yields the tensors in the order of the arguments, those of lists included."""
        yield from _tensors([*self.positional, *self.keywords.values()])

    def __str__(self) -> str:
        return repr((tuple(self.positional), dict(self.keywords)))


def read_arguments(text: str) -> ArgumentsText:
    """Reads the text of a call's arguments.

    Raises:
        OpAtlasError: the text is no pair of a tuple and a dictionary, or holds anything but tensors, dtypes, devices
            and literals.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise OpAtlasError(f"{_short(text)}: is not the text of arguments ({error})") from None
    try:
        positional, keywords = _value(tree) if isinstance(tree, ast.Tuple) else (None, None)
    except (TypeError, ValueError) as error:
        raise OpAtlasError(f"{_short(text)}: {error}") from None
    except RecursionError:
        raise OpAtlasError(f"{_short(text)}: has too many brackets") from None
    if not isinstance(positional, tuple) or not isinstance(keywords, dict):
        raise OpAtlasError(f"{_short(text)}: is not a pair such as ((T([2], f32),), {{}})")
    return ArgumentsText(positional, keywords)


def _value(node: ast.expr) -> Any:
    """Returns the value of a node. Raises ValueError or TypeError for a node that no argument has."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Tuple(elts=elements):
            return tuple(map(_value, elements))
        case ast.List(elts=elements):
            return list(map(_value, elements))
        case ast.Dict(keys=keys, values=values):
            names = [key.value if isinstance(key, ast.Constant) else None for key in keys]
            if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
                raise ValueError("the names of keyword arguments are different strings")
            return dict(zip(names, map(_value, values), strict=True))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _value(operand)
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise ValueError(f"{_short(ast.unparse(node))} is no number")
            return -number
        case ast.Name(id=name) if name in DTYPES:
            return TorchConstant(DTYPES[name])
        case ast.Name(id=name) if name in _NUMBERS:
            return _NUMBERS[name]
        case ast.Attribute(value=ast.Name(id="torch" | "th"), attr=name) if name in (*ABBREVIATIONS, *_CONSTANTS):
            return TorchConstant(name)
        case ast.Call(func=ast.Name(id="T"), args=arguments, keywords=keywords):
            return _tensor([_value(each) for each in arguments], {each.arg: _value(each.value) for each in keywords})
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "th"), attr="device"), args=[device]):
            return str(_value(device))
    raise ValueError(f"{_short(ast.unparse(node))} is no tensor, dtype, device or literal")


def _tensor(arguments: list[Any], keywords: dict[str | None, Any]) -> TensorText:
    if not 2 <= len(arguments) <= 3 or keywords.keys() - {"stride"} or (len(arguments) == 3 and keywords):
        raise ValueError("a tensor is T(shape, dtype) or T(shape, dtype, stride=...)")
    shape, dtype, *rest = arguments
    stride = rest[0] if rest else keywords.get("stride")
    if not isinstance(dtype, TorchConstant) or dtype.name not in ABBREVIATIONS:
        raise ValueError(f"{dtype!r} is not a dtype ({', '.join(DTYPES)})")
    sizes = _sizes(shape, "shape")
    strides = None if stride is None else _sizes(stride, "stride")
    if strides is not None and len(strides) != len(sizes):
        raise ValueError(f"the shape has {len(sizes)} axes and the stride {len(strides)}")
    tensor = TensorText(sizes, dtype.name, strides)
    if max(tensor.extent, math.prod(sizes)) > _MOST_ELEMENTS:
        raise ValueError(f"{_short(str(tensor))} is larger than any memory")
    return tensor


def _sizes(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not all(type(size) is int and size >= 0 for size in value):
        raise ValueError(f"{_short(repr(value))} is not a {what}: whole numbers from 0 on")
    return tuple(value)


def _tensors(value: Any) -> Iterator[TensorText]:
    if isinstance(value, TensorText):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _short(text: str) -> str:
    return shortened(" ".join(text.split()), _SHOWN)


#: The largest file of the public sets has 2 MB.
LARGEST_BYTES = 64 << 20
_SUFFIX = ".txt"
_OPERATOR = "Operator:"
_CALL = re.compile(r"cnt:\s*(\d{1,15})\s*,\s*(.+)")


@dataclass(frozen=True)
class TracedCall:
    """A call of an operator.

    Attributes:
        overload: the operator and its overload ("add.Tensor").
        arguments: its arguments.
        count: how often the models of all files make the call.
    """

    overload: str
    arguments: ArgumentsText
    count: int


def read_traces(path: Path) -> list[TracedCall]:
    """Returns the calls in a file, or in the `*.txt` files of a folder and its subfolders, each call once.

    The counts of equal calls are added up. Calls are in the order of the names of the operators, and then of the files.

    Raises:
        OpAtlasError: there is no such file, a line is not one of a trace, or there is no call.
    """
    found: dict[tuple[str, str], TracedCall] = {}
    for file in trace_files(path):
        for call in _read_file(file):
            key = call.overload, str(call.arguments)
            known = found.get(key)
            found[key] = call if known is None else TracedCall(call.overload, known.arguments, known.count + call.count)
    if not found:
        raise OpAtlasError(f"{path}: has no call of an operator: name a file of traces, or a folder of {_SUFFIX} files")
    return sorted(found.values(), key=lambda call: call.overload)


def trace_files(path: Path) -> list[Path]:
    """Returns a file, or the files of a folder and its subfolders that may be traces."""
    return sorted(path.rglob(f"*{_SUFFIX}")) if path.is_dir() else [path]


def _read_file(path: Path) -> Iterator[TracedCall]:
    try:
        lines = read_safely(path, LARGEST_BYTES).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OpAtlasError(f"{path}: cannot be read ({error})") from None
    overload = ""
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        try:
            if text.startswith(_OPERATOR):
                overload = read_overload(text.removeprefix(_OPERATOR))
                continue
            call = _CALL.fullmatch(text)
            if call is None or not overload:
                raise OpAtlasError("is neither `Operator: NAME` nor, after such a line, `cnt: N, ((...), {...})`")
            yield TracedCall(overload, read_arguments(call[2]), int(call[1]))
        except OpAtlasError as error:
            raise OpAtlasError(f"{path}:{number}: {error}") from None


#: The suite of OpInfo, which begins the names of its samples, and what begins those of traces.
OPINFO, TRACE = "opinfo", "trace"
#: A tensor of a call: shape, and the name of the dtype in torch.
SlotText = tuple[Sequence[int], str]
#: Kernel type and cells of a case.
CaseRow = tuple[str, dict[str, str]]


def text_digest(text: str) -> str:
    """Returns the digest of a text. That of arguments is a part of the name of a sample."""
    return blake2b(text.encode(), digest_size=6).hexdigest()


def case_row(
    overload: str,
    functional: str,
    sample: str,
    arguments: str,
    inputs: Sequence[SlotText],
    outputs: Sequence[SlotText],
    count: int | None = None,
) -> CaseRow:
    """Returns kernel type and cells of a case.

    Args:
        overload: the operator ("add_.Tensor").
        functional: the functional operator of which `overload` is a variant; "" if `overload` is no variant.
        sample: the sample ("opinfo/add/float32/3"), or TRACE.
        arguments: the text of the arguments.
        inputs, outputs: the tensors.
        count: how often models make the call; None: unknown.
    """
    cells = {
        col.SAMPLE: f"{sample}/{text_digest(arguments)}",
        col.ARGUMENTS: arguments,
        col.FUNCTIONAL: functional and folder_of(functional),
        col.TRACE_COUNT: "" if count is None else str(count),
    }
    for slots, (shapes, dtypes, formats) in (
        (inputs, (col.INPUT_SHAPES, col.INPUT_DTYPES, col.INPUT_FORMATS)),
        (outputs, (col.OUTPUT_SHAPES, col.OUTPUT_DTYPES, col.OUTPUT_FORMATS)),
    ):
        joined = ";".join(",".join(map(str, shape)) for shape, _ in slots)
        cells[shapes] = joined or (EMPTY_SHAPE if slots else "")
        cells[dtypes] = ";".join(dtype_of_torch(dtype) for _, dtype in slots)
        cells[formats] = ";".join("ND" for _ in slots)
    return folder_of(overload), cells
