"""Reads a user's folder of kernels as implementations.

`DIR/AddRmsNorm.py`                                        one function: a mark, `kernel`, or the only public function
`DIR/AddRmsNorm/fast.py`, `DIR/AddRmsNorm/small.py`        candidates: the implementations `DIR-fast` and `DIR-small`
`DIR/add__Tensor/add__Tensor_implementation_v1.py`         BackendBench's layout: the function `add__Tensor_kernel_impl`
`FILE.py`                                                  one file with marks

Other source files of the folder are helpers, which kernels import or compile. They belong to each implementation in it.
"""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.files import parse_python, read_safely
from opatlas.row.columns import is_file_name
from opatlas.row.location import implementation_label
from opatlas.run.implementations.implementation import Implementation, KernelSource, digest_of_digests

#: The function of a file that is named after a kernel type.
KERNEL = "kernel"
#: Characters of the digest that is the version of a folder.
_DIGITS = 8
_NAME = re.compile(r"[^A-Za-z0-9.+]+")
#: Suffixes of files that a kernel may import, compile or load.
_PYTHON, _C = (".py", ".pyx"), (".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".inc", ".inl")
_SOURCES = frozenset(
    (*_PYTHON, *_C, ".cu", ".cuh", ".hip", ".asc", ".cce", ".ptx", ".cubin", ".o", ".a", ".so", ".json")
)
#: Folders of build outputs, and those in a database.
_NO_SOURCES = frozenset(("__pycache__", "build", "implementations", "journal", "pruned", "reports", "runs"))
#: A folder of BackendBench is named after an overload of torch: `add__Tensor`.
_OVERLOAD = re.compile(r"\w+__\w+")
_CANDIDATE = re.compile(r"_implementation_?(\w*)$")
#: Kernel types whose replays pass the arguments of the overload, in its order and by its names. A replay may pass a
#: number for a tensor of an elementwise operator, as torch does. Overloads that fit only some rows are not here.
OVERLOADS: Mapping[str, tuple[str, ...]] = {
    "_adaptive_avg_pool3d__default": ("AdaptiveAvgPool3d", "AdaptiveAvgPool3dAiCore"),
    "_adaptive_avg_pool3d_backward__default": ("AdaptiveAvgPool3dGrad", "AdaptiveAvgPool3dGradAiCore"),
    "_foreach_add__List": ("ForeachAddList",),
    "_foreach_mul__Scalar": ("ForeachMulScalar",),
    "_log_softmax_backward_data__default": ("LogSoftmaxGrad",),
    "abs__default": ("Abs", "AbsAiCore"),
    "add__Tensor": ("Add", "AddAiCore"),
    "arange__start_step": ("ArangeAiCore", "Range"),
    "argmax__default": ("ArgMaxV2", "ArgMaxV2AiCore"),
    "broadcast_to__default": ("BroadcastTo", "BroadcastToAiCore"),
    "cat__default": ("ConcatD",),
    "conv2d__default": ("Conv2D",),
    "convolution_backward__default": ("Conv2DBackpropFilter", "Conv2DBackpropInput"),
    "cos__default": ("Cos", "CosAiCore"),
    "cumsum__default": ("Cumsum",),
    "div__Tensor": ("RealDiv", "RealDivAiCore"),
    "embedding__default": ("GatherV2", "GatherV2AiCore"),
    "embedding_dense_backward__default": ("EmbeddingDenseGradV2",),
    "eq__Tensor": ("Equal", "EqualAiCore"),
    "exp__default": ("Exp", "ExpAiCore"),
    "floor_divide__default": ("FloorDiv", "FloorDivAiCore"),
    "gather__default": ("GatherElements", "GatherElementsV2"),
    "ge__Tensor": ("GreaterEqual", "GreaterEqualAiCore"),
    "gt__Tensor": ("Greater", "GreaterAiCore"),
    "index__Tensor": ("Index", "IndexAiCore"),
    "index_select__default": ("Gather", "GatherV3", "GatherV3AiCore"),
    "log__default": ("Log", "LogAiCore"),
    "log_softmax__int": ("LogSoftmaxAiCore", "LogSoftmaxV2"),
    "logical_and__default": ("LogicalAnd", "LogicalAndAiCore"),
    "logical_not__default": ("LogicalNot", "LogicalNotAiCore"),
    "logical_or__default": ("LogicalOr", "LogicalOrAiCore"),
    "lt__Tensor": ("Less", "LessAiCore"),
    "matmul__default": ("BatchMatMul", "BatchMatMulNd", "BatchMatMulV2", "BatchMatMulV3"),
    "max__dim": ("ArgMaxWithValue",),
    "max_pool2d_with_indices__default": ("MaxPoolWithArgmaxV1", "MaxPoolWithArgmaxV1AiCore"),
    "max_pool2d_with_indices_backward__default": ("MaxPoolGradWithArgmaxV1", "MaxPoolGradWithArgmaxV1AiCore"),
    "mean__dim": ("ReduceMean", "ReduceMeanAiCore", "ReduceMeanD"),
    "mul__Scalar": ("Muls", "MulsAiCore"),
    "mul__Tensor": ("Mul", "MulAiCore"),
    "ne__Tensor": ("NotEqual", "NotEqualAiCore"),
    "neg__default": ("Neg", "NegAiCore"),
    "nonzero__default": ("NonZero", "NonzeroAiCore"),
    "ones_like__default": ("OnesLike", "OnesLikeAiCore"),
    "pad__default": ("PadV3", "PadV3AiCore"),
    "reciprocal__default": ("Reciprocal", "ReciprocalAiCore"),
    "relu__default": ("Relu", "ReluAiCore"),
    "repeat_interleave__self_Tensor": ("RepeatInterleave",),
    "rsqrt__default": ("Rsqrt", "RsqrtAiCore"),
    "silu__default": ("Swish",),
    "sin__default": ("Sin", "SinAiCore"),
    "softmax__int": ("SoftmaxAiCore", "SoftmaxV2"),
    "sort__default": ("Sort", "SortAiCore"),
    "square__default": ("Square", "SquareAiCore"),
    "stack__default": ("Pack", "PackAiCore"),
    "sub__Tensor": ("Sub", "SubAiCore"),
    "sum__dim_IntList": ("ReduceSum", "ReduceSumD", "ReduceSumOpAiCore"),
    "threshold_backward__default": ("ReluGrad",),
    "tile__default": ("Tile", "TileAiCore"),
    "to__dtype": ("Cast", "CastAiCore"),
    "topk__default": ("TopKV2", "TopKV2AiCore"),
    "tril__default": ("Tril",),
    "triu__default": ("Triu",),
    "where__self": ("SelectV2", "SelectV2AiCore"),
    "zeros_like__default": ("ZerosLike", "ZerosLikeAiCore"),
}


class BrokenFiles(Enum):
    """What becomes of a file that is not Python, or of a file of an operator of torch without its function."""

    REFUSED = "refused"  # the folder is unusable; a file without the function is a note
    LEFT_OUT = "left out"  # a note says why
    KEPT = "kept"  # that of an operator of torch is a kernel, whose rows fail


@dataclass(frozen=True)
class KernelInFile:
    """The function of one kernel type in a file; `candidate` is "" or the name of a candidate."""

    kernel_type: str
    candidate: str
    path: Path
    function: str


#: Finds the kernels in a folder or file, given the path and the Python files in it; yields these, and a note on each
#: file without one. Raises OpAtlasError where there is no kernel.
Finder = Callable[[Path, Sequence[Path]], Iterable[KernelInFile | str]]


def is_overload(name: str) -> bool:
    """Returns whether a kernel type is an operator of torch."""
    return _OVERLOAD.fullmatch(name) is not None


def read_directory(
    place: Path, find: Finder | None = None, *, broken: BrokenFiles = BrokenFiles.REFUSED
) -> list[Implementation]:
    """Returns the implementations in a folder, or in one file: one without a candidate's name, and one per candidate.

    The files are read and not run. The version of an implementation is a digest of its kernels and of the helpers.

    Args:
        find: finds the kernels, whose files need not be Python; None: those of kernel types.

    Raises:
        OpAtlasError: a file is not Python, no file has a kernel, or two files have the same one.
    """
    root = place.resolve()
    name = _NAME.sub("_", root.stem if root.is_file() else root.name).strip("_") or "kernels"
    notes: list[str] = []
    found: dict[str, list[KernelInFile]] = defaultdict(list)
    if find is not None:
        files = [root] if root.is_file() else [path for path in _source_files(root) if path.suffix == ".py"]
        kernels: Iterable[KernelInFile | str] = find(root, files)
    else:
        kernels = _of_file(root, "", notes) if root.is_file() else _of_folder(root, notes, broken)
    for kernel in kernels:
        if isinstance(kernel, str):
            notes.append(kernel)
        else:
            found[_candidate_name(kernel.candidate)].append(kernel)
    if not found:
        why = f" ({notes[0]})" if notes else ""
        raise OpAtlasError(f"{place}: holds no kernel{why}: add a file KernelType.py with a function {KERNEL}")
    of_kernels = {kernel.path for kernels in found.values() for kernel in kernels}
    helpers = [path for path in _source_files(root) if path not in of_kernels] if root.is_dir() else []
    return [_implementation(name, candidate, found[candidate], root, helpers, notes) for candidate in sorted(found)]


def _source_files(root: Path) -> Iterator[Path]:
    """Yields the source files of a folder in a fixed order, without hidden folders and those of a database."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NO_SOURCES)
        for name in sorted(files):
            path = Path(folder, name)
            if path.suffix in _SOURCES and not name.startswith(".") and path.is_file():
                yield path


def _implementation(
    name: str, candidate: str, kernels: list[KernelInFile], root: Path, helpers: Sequence[Path], notes: list[str]
) -> Implementation:
    own_name = f"{name}-{candidate}" if candidate else name
    digest, digests = sha256(), {}
    for path in [*sorted({kernel.path for kernel in kernels}), *helpers]:
        content = path.read_bytes()
        digests[path] = sha256(content).digest()
        digest.update(f"{path.relative_to(root.parent)}\0".encode())
        digest.update(content + b"\0")
    version = digest.hexdigest()[:_DIGITS]
    sources: dict[str, KernelSource] = {}
    for kernel in kernels:
        if kernel.kernel_type in sources:
            other = sources[kernel.kernel_type].path
            raise OpAtlasError(f"{kernel.path}: {kernel.kernel_type} is in {other} too: remove or rename one of them")
        sources[kernel.kernel_type] = KernelSource(
            implementation_label(own_name, version),
            "",
            str(kernel.path),
            kernel.function,
            folder=str(root) if root.is_dir() else "",
            helpers=tuple(map(str, helpers)),
            digest=digest_of_digests(digests[path] for path in (kernel.path, *helpers)),
        )
    return Implementation(own_name, version, f"kernels in {root}", sources, notes=tuple(notes))


def _of_folder(root: Path, notes: list[str], broken: BrokenFiles) -> Iterator[KernelInFile]:
    """Yields the kernels in the files of a folder, and of its folders of kernel types and of overloads of torch."""
    for entry in sorted(root.iterdir()):
        if entry.name.startswith((".", "_")) and not (entry.is_dir() and is_overload(entry.name)):
            continue
        if entry.is_dir():
            # The name of an operator may begin with an underscore, and so may that of its file.
            paths = sorted({*entry.glob("[!._]*.py"), *entry.glob(f"{entry.name}_implementation*.py")})
        else:
            paths = [entry] if entry.suffix == ".py" else []
        is_operator = entry.is_dir() and is_overload(entry.name)
        for path in paths:
            try:
                if is_operator:
                    yield from _of_operator(entry.name, path, notes, broken)
                else:
                    candidate, kernel_type = (_candidate_name(path.stem), entry.name) if entry.is_dir() else ("", "")
                    yield from _of_file(path, candidate, notes, kernel_type)
            except OpAtlasError as error:
                if broken is not BrokenFiles.LEFT_OUT:
                    raise
                notes.append(str(error))


def _of_operator(folder: str, path: Path, notes: list[str], broken: BrokenFiles) -> Iterator[KernelInFile]:
    """Yields the kernels of a file in a folder that is named after an overload of torch."""
    function, suffix = f"{folder}_kernel_impl", _CANDIDATE.search(path.stem)
    candidate = _candidate_name(suffix[1] if suffix else path.stem)
    try:
        problem = "" if function in read_marks(path).defined else f"{path}: has no function {function}"
    except OpAtlasError as error:
        if broken is not BrokenFiles.KEPT:
            raise
        problem = str(error)
    if problem:
        notes.append(problem)
    if not problem or broken is BrokenFiles.KEPT:
        # The folder is the kernel type of the operator's rows in a suite.
        for kernel_type in (folder, *(() if problem else OVERLOADS.get(folder, ()))):
            yield KernelInFile(kernel_type, candidate, path, function)


def _of_file(path: Path, candidate: str, notes: list[str], kernel_type: str = "") -> Iterator[KernelInFile]:
    """Yields the marked kernels of a file; without marks the file or its folder names the kernel type."""
    marks = read_marks(path)
    if marks.functions:
        for marked, function in marks.functions.items():
            yield KernelInFile(marked, candidate, path, function)
        return
    function = _only_function(marks)
    kernel_type = kernel_type or path.stem
    if not function or not is_file_name(kernel_type):
        public = ", ".join(marks.public) or "none"
        notes.append(f"{path}: has no mark, and no function {KERNEL} (its public functions: {public})")
        return
    yield KernelInFile(kernel_type, candidate, path, function)


def _only_function(marks: Marks) -> str:
    if KERNEL in marks.public:
        return KERNEL
    return marks.public[0] if len(marks.public) == 1 else ""


def _candidate_name(text: str) -> str:
    return _NAME.sub("_", text).strip("_")


_LARGEST_BYTES = 4 << 20
#: The decorator, and the function for kernel types without a mark.
_IMPLEMENTS, _WRAP = "implements", "wrap"
_DISTRIBUTIONS, _DEVICES = "DISTRIBUTIONS", "DEVICES"


@dataclass(frozen=True)
class Marks:
    """The marks of one file.

    Attributes:
        path: the file.
        about: the first line of the docstring; "" without one.
        functions: the marked function of each kernel type.
        defined: the names of the functions at the top of the file, in order.
        wraps: whether the file has a function `wrap` for kernel types without a mark.
        distributions: DISTRIBUTIONS of the file, names of installed packages; the first one gives the version.
        devices: DEVICES of the file, kinds of devices; () for all kinds.
    """

    path: Path
    about: str
    functions: Mapping[str, str]
    defined: tuple[str, ...]
    wraps: bool
    distributions: tuple[str, ...]
    devices: tuple[str, ...]

    @property
    def public(self) -> tuple[str, ...]:
        """The functions whose names do not begin with an underscore."""
        return tuple(name for name in self.defined if not name.startswith("_"))


def read_marks(path: Path) -> Marks:
    """Reads the marks of a file.

    Raises:
        OpAtlasError: the file cannot be read, is not Python, marks a kernel type twice, or has a kernel type, a
            distribution or a device that is not written as a string.
    """
    try:
        content = read_safely(path, _LARGEST_BYTES)
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror or error}): check its rights") from None
    tree = parse_python(path, content)
    functions: dict[str, str] = {}
    constants: dict[str, tuple[str, ...]] = {_DISTRIBUTIONS: (), _DEVICES: ()}
    defined: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            name, calls = node.name, node.decorator_list
            defined.append(name)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            # `name = implements(...)(function)` marks a function of the library itself.
            name, calls = node.targets[0].id, [node.value.func] if isinstance(node.value, ast.Call) else []
            if name in constants:
                constants[name] = _strings(node.value, path, name)
        else:
            continue
        for kernel_type in _marked(calls, path, node.lineno):
            if kernel_type in functions:
                raise OpAtlasError(f"{path}:{node.lineno}: {kernel_type} is marked twice: keep one function")
            functions[kernel_type] = name
    return Marks(
        path,
        (ast.get_docstring(tree) or "").partition("\n")[0],
        functions,
        tuple(defined),
        _WRAP in defined,
        constants[_DISTRIBUTIONS],
        constants[_DEVICES],
    )


def _marked(calls: Iterable[ast.expr], path: Path, line: int) -> Iterator[str]:
    """Yields the kernel types of each `implements(...)` among calls, as decorators are."""
    for call in calls:
        if isinstance(call, ast.Call):
            named = call.func
            name = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
            if name == _IMPLEMENTS:
                yield from _strings(ast.Tuple(call.args, ast.Load()), path, f"@{_IMPLEMENTS}", line)


def _strings(value: ast.expr, path: Path, what: str, line: int | None = None) -> tuple[str, ...]:
    """Returns the strings of a tuple or list that is written out. Raises OpAtlasError for anything else."""
    elements = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
    found = [element.value for element in elements if isinstance(element, ast.Constant)]
    strings = tuple(text for text in found if isinstance(text, str))
    if len(strings) != len(elements) or not strings:
        place = f"{path}:{line or value.lineno}"
        raise OpAtlasError(f"{place}: {what} takes strings that are written out, since the file is read and not run")
    return strings
