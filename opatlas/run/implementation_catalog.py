"""The implementations that a session can measure: those that ship with OpAtlas, and those in a user's folder.

`DIR/AddRmsNorm.py`                                        one function: a mark, `kernel`, or the only public function
`DIR/AddRmsNorm/fast.py`, `DIR/AddRmsNorm/small.py`        candidates: the implementations `DIR-fast` and `DIR-small`
`DIR/add__Tensor/add__Tensor_implementation_v1.py`         BackendBench's layout: the function `add__Tensor_kernel_impl`
`FILE.py`                                                  one file with marks

Other source files of the folder are helpers, which kernels import or compile. They belong to each implementation in it.
"""

from __future__ import annotations

import ast
import os
import pkgutil
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import import_module, metadata
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.files import parse_python, read_file
from opatlas.row.columns import is_file_name
from opatlas.row.location import implementation_label, public_version
from opatlas.run.implementation import (
    TORCH,
    Implementation,
    KernelSource,
    default_devices,
    default_name,
    digest_of_digests,
)
from opatlas.text import suggest

PACKAGE = "opatlas.bench.implementations"
#: Every shipped implementation that is installed and runs on the device.
ALL = "all"
_WRAP = "wrap"
_ABOUT_DEFAULT = "the calls that the replays name"


@cache
def shipped() -> Mapping[str, Implementation]:
    """Returns the implementations that ship with OpAtlas, without the defaults, by name."""
    found: dict[str, Implementation] = {}
    for info in pkgutil.iter_modules(import_module(PACKAGE).__path__):
        # As in a user's folder, a name with an underscore is a helper.
        if info.name != TORCH and not info.name.startswith("_"):
            module = f"{PACKAGE}.{info.name}"
            found[info.name] = _of_modules(info.name, _modules(module, info.ispkg))
    return found


def every_implementation() -> list[Implementation]:
    """Returns what is measured without --implementation on each kind of device, with its version, and all shipped."""
    defaults = []
    for name, kinds in default_devices().items():
        version, missing = installed((name,))
        defaults.append(Implementation(name, version, _ABOUT_DEFAULT, devices=kinds, missing=missing))
    return [*defaults, *shipped().values()]


def named_implementations(
    name: str, known: Mapping[str, Implementation] | None = None, find: Finder | None = None
) -> list[Implementation]:
    """Returns the implementation of a name, or those in a user's folder or file, on whatever device they run.

    Args:
        known: those with a name; None: all.
        find: as for `read_directory`.

    Raises:
        OpAtlasError: there is no such name, folder or file, or the folder is unusable or has the name of another.
    """
    if known is None:
        known = {each.name: each for each in every_implementation()}
    if name in known:
        return [known[name]]
    if not Path(name).exists():
        folder = Path(name).parent
        beside = [str(folder / each.name) for each in folder.glob("[!._]*")] if folder.is_dir() else []
        meant = suggest(name, [*known, ALL, *beside], least=0.6) or f" ({', '.join((*known, ALL))})"
        raise OpAtlasError(f"{name}: there is no such implementation, folder or file{meant}")
    found = read_directory(Path(name), find)
    taken = {ALL, *default_devices(), *shipped()}
    for each in found:
        if each.name in taken:
            raise OpAtlasError(f"{name}: {each.name} is the name of another implementation: rename the folder or file")
    return found


def find_implementations(names: Sequence[str], kind: str, find: Finder | None = None) -> list[Implementation]:
    """Returns the implementations that a user names, in this order, each once.

    Args:
        names: names, folders and files of a user, or "all"; empty: the default of the device.
        kind: the kind of the device.
        find: finds the kernels in folders and files of a user; None: those of kernel types.

    Raises:
        OpAtlasError: a name is unknown, an implementation does not run on the device, or a folder is unusable.
    """
    default = Implementation(default_name(kind), about=_ABOUT_DEFAULT)
    known = {default.name: default, **shipped()}
    fitting = [each for each in known.values() if kind in (each.devices or (kind,)) and not each.missing]
    found: dict[str, Implementation] = {}
    for name in names or (default.name,):
        for each in fitting if name == ALL else named_implementations(name, known, find):
            if kind not in (each.devices or (kind,)):
                kinds = ", ".join(each.devices)
                raise OpAtlasError(f"{name}: it runs on devices of kind {kinds}, and the device is {kind}")
            if found.setdefault(each.name, each) != each:
                raise OpAtlasError(f"--implementation: two of them are called {each.name}: rename a folder")
    return list(found.values())


def _modules(module: str, is_package: bool) -> list[tuple[str, Path]]:
    """Returns the dotted names and the files of a module, or of a package and the modules in it."""
    folder = Path(import_module(PACKAGE).__path__[0], module.rpartition(".")[2])
    if not is_package:
        return [(module, folder.with_suffix(".py"))]
    files = sorted(folder.glob("*.py"))
    return [(module if path.stem == "__init__" else f"{module}.{path.stem}", path) for path in files]


def _of_modules(name: str, modules: Sequence[tuple[str, Path]]) -> Implementation:
    marks = [(module, read_marks(path)) for module, path in modules]
    distributions = tuple(each for _, own in marks for each in own.distributions)
    version, missing = installed(distributions)
    label = implementation_label(name, version)
    sources: dict[str, KernelSource] = {}
    wrap: KernelSource | None = None
    for module, own in marks:
        for kernel_type, function in own.functions.items():
            if kernel_type in sources:
                raise OpAtlasError(f"{own.path}: {kernel_type} of {name} is marked in {sources[kernel_type].path} too")
            sources[kernel_type] = KernelSource(label, module, str(own.path), function)
        if own.wraps:
            wrap = KernelSource(label, module, str(own.path), _WRAP, wraps=True)
    devices = tuple(dict.fromkeys(kind for _, own in marks for kind in own.devices))
    about = next((own.about for _, own in marks if own.about), "")
    return Implementation(name, version, about, sources, wrap, devices, missing)


def installed(distributions: Sequence[str]) -> tuple[str, str]:
    """Returns the version of the first distribution, and why the implementation cannot run; "" if it can."""
    versions: list[str] = []
    for distribution in distributions:
        try:
            versions.append(public_version(metadata.version(distribution)))
        except metadata.PackageNotFoundError:
            return "", f"not installed (pip install {distribution})"
    return (versions[0] if versions else ""), ""


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
#: Folders of build outputs, those in a database, and those of models that were asked.
_NO_SOURCES = frozenset(
    ("__pycache__", "answers", "attempts", "build", "implementations", "journal", "pruned", "reports", "runs")
)
#: A folder of BackendBench is named after an overload of torch: `add__Tensor`.
_OVERLOAD = re.compile(r"\w+__\w+")
_CANDIDATE = re.compile(r"_implementation_?(\w*)$")


@dataclass(frozen=True)
class KernelInFile:
    """The function of one kernel type in a file.

    Attributes:
        candidate: "" or the name of a candidate.
        folder: a folder whose other files are the helpers of this kernel alone; None: it has those of its set.
        writes_outputs: see KernelSource.
    """

    kernel_type: str
    candidate: str
    path: Path
    function: str
    folder: Path | None = None
    writes_outputs: bool = False

    def helpers(self, of_set: Sequence[Path]) -> list[Path]:
        """Returns its helpers, given those of its set."""
        files = of_set if self.folder is None else sorted(self.folder.rglob("*"))
        return [each for each in files if each.is_file() and each != self.path]


#: Finds the kernels in a folder or file, given the path and its files of Python and JSON; yields these, and a note on
#: each file of Python without one. Raises OpAtlasError where there is no kernel.
Finder = Callable[[Path, Sequence[Path]], Iterable[KernelInFile | str]]


def is_overload(name: str) -> bool:
    """Returns whether a kernel type is an operator of torch."""
    return _OVERLOAD.fullmatch(name) is not None


def read_directory(place: Path, find: Finder | None = None) -> list[Implementation]:
    """Returns the implementations in a folder, or in one file: one without a candidate's name, and one per candidate.

    The files are read and not run. The version of an implementation is a digest of its kernels and of the helpers. A
    file that is not Python is left out with a note; that of an operator of torch is a kernel, whose rows fail.

    Args:
        find: finds the kernels, whose files need not be Python; None: those of kernel types.

    Raises:
        OpAtlasError: no file has a kernel, or two files have the same one.
    """
    root = place.resolve()
    name = _NAME.sub("_", root.stem if root.is_file() else root.name).strip("_") or "kernels"
    notes: list[str] = []
    found: dict[str, list[KernelInFile]] = defaultdict(list)
    files = [root] if root.is_file() else [path for path in _source_files(root) if path.suffix in (".py", ".json")]
    for kernel in find(root, files) if find is not None else _kernels(root):
        if isinstance(kernel, str):
            notes.append(kernel)
        else:
            found[candidate_name(kernel.candidate)].append(kernel)
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
    folders = {kernel.path: kernel.folder or root for kernel in sorted(kernels, key=lambda each: each.path)}
    folders |= {helper: kernel.folder or root for kernel in kernels for helper in kernel.helpers(helpers)}
    for path, folder in folders.items():
        content = path.read_bytes()
        digests[path] = sha256(content).digest()
        digest.update(f"{path.relative_to(folder.parent)}\0".encode())
        digest.update(content + b"\0")
    version = digest.hexdigest()[:_DIGITS]
    sources: dict[str, KernelSource] = {}
    for kernel in kernels:
        if kernel.kernel_type in sources:
            other = sources[kernel.kernel_type].path
            raise OpAtlasError(f"{kernel.path}: {kernel.kernel_type} is in {other} too: remove or rename one of them")
        own = kernel.helpers(helpers)
        sources[kernel.kernel_type] = KernelSource(
            implementation_label(own_name, version),
            "",
            str(kernel.path),
            kernel.function,
            folder=str(kernel.folder or root) if kernel.folder or root.is_dir() else "",
            helpers=tuple(map(str, own)),
            writes_outputs=kernel.writes_outputs,
            digest=digest_of_digests(digests[path] for path in (kernel.path, *own)),
        )
    return Implementation(own_name, version, f"kernels in {root}", sources, notes=tuple(notes))


def _kernels(root: Path) -> Iterator[KernelInFile | str]:
    """Yields the kernels of kernel types in a file, or in a folder and its folders, and a note on each other file."""
    entries = [root] if root.is_file() else sorted(root.iterdir())
    for entry in entries:
        is_operator = entry.is_dir() and is_overload(entry.name)
        if entry.name.startswith((".", "_")) and not is_operator:
            continue
        if not entry.is_dir():
            yield from _of_file(entry, "", entry.stem) if entry.suffix == ".py" else ()
            continue
        # The name of an operator may begin with an underscore, and so may that of its file.
        for path in sorted({*entry.glob("[!._]*.py"), *entry.glob(f"{entry.name}_implementation*.py")}):
            if is_operator:
                yield from _of_operator(path, entry.name)
            else:
                yield from _of_file(path, candidate_name(path.stem), entry.name)


def _of_operator(path: Path, folder: str) -> Iterator[KernelInFile | str]:
    """Yields the kernel of a file in a folder that is named after an overload of torch."""
    function, suffix = f"{folder}_kernel_impl", _CANDIDATE.search(path.stem)
    try:
        if function not in read_marks(path).defined:
            yield f"{path}: has no function {function}"
    except OpAtlasError as error:
        yield str(error)
    # The folder is the kernel type of the operator's rows in a suite.
    yield KernelInFile(folder, candidate_name(suffix[1] if suffix else path.stem), path, function)


def _of_file(path: Path, candidate: str, kernel_type: str) -> Iterator[KernelInFile | str]:
    """Yields the marked kernels of a file; without marks the file or its folder names the kernel type."""
    try:
        marks = read_marks(path)
    except OpAtlasError as error:
        yield str(error)
        return
    for marked, function in marks.functions.items():
        yield KernelInFile(marked, candidate, path, function)
    if marks.functions:
        return
    if (KERNEL in marks.public or len(marks.public) == 1) and is_file_name(kernel_type):
        yield KernelInFile(kernel_type, candidate, path, KERNEL if KERNEL in marks.public else marks.public[0])
    else:
        public = ", ".join(marks.public) or "none"
        yield f"{path}: has no mark, and no function {KERNEL} (its public functions: {public})"


def candidate_name(text: str) -> str:
    """Returns what an implementation has of the name of a candidate: no hyphen."""
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
    tree = parse_python(path, read_file(path, _LARGEST_BYTES, "check its rights"))
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
