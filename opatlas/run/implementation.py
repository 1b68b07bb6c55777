"""What an implementation is: its name and version, the function of each kernel type, and the import of a function."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from opatlas.row.errors import ReplayError, Unsupported
from opatlas.row.location import implementation_label
from opatlas.row.versions import Kind, kinds

if TYPE_CHECKING:
    import torch


#: What is measured without --implementation on devices of a user's own kind.
TORCH = Kind.implementation


def default_name(kind: str) -> str:
    """Returns the name of what is measured on devices of a kind without --implementation."""
    return kinds()[kind].implementation if kind in kinds() else TORCH


def default_devices() -> Mapping[str, tuple[str, ...]]:
    """Returns the kinds of devices of each default, apart from a user's own kind."""
    found: dict[str, tuple[str, ...]] = {TORCH: ()}
    for name, kind in kinds().items():
        found[kind.implementation] = (*found.get(kind.implementation, ()), name)
    return found


@dataclass(frozen=True)
class Implementation:
    """An implementation of kernel types.

    Attributes:
        name: part of the path of its databases, of case ids, and a value of --implementation.
        version: the version of its library, or a digest of its files; "" for the default and without the library.
        about: what it is, in a line.
        sources: the function of each marked kernel type.
        wrap: the function for kernel types without a mark; None if there is none.
        devices: the kinds of devices on which it runs; () for all.
        missing: why it cannot run here ("not installed (pip install ...)"); "" if it can.
        notes: what the user should know of its files.
        counts_missing: whether rows of kernel types without a function are cases too, with a status that says so.
    """

    name: str
    version: str = ""
    about: str = ""
    sources: Mapping[str, KernelSource] = field(default_factory=dict)
    wrap: KernelSource | None = None
    devices: tuple[str, ...] = ()
    missing: str = ""
    notes: tuple[str, ...] = ()
    counts_missing: bool = False

    @property
    def is_default(self) -> bool:
        """Whether rows are measured so without --implementation: with torch, or on an NPU with its own calls."""
        return self.name in default_devices()

    @property
    def label(self) -> str:
        """The name and the version: `flashinfer 0.5.3`."""
        return implementation_label(self.name, self.version)

    @property
    def suffix(self) -> str:
        """The end of the ids of its cases; "" for the default."""
        return "" if self.is_default else f"-{self.name}"

    def source(self, kernel_type: str) -> KernelSource | None:
        """Returns the function of a kernel type; None if there is none, and for the default."""
        return self.sources.get(kernel_type, self.wrap)

    def implements(self, kernel_type: str) -> bool:
        """Returns whether rows of a kernel type are cases: there is a function, or missing ones count."""
        return self.is_default or self.counts_missing or self.source(kernel_type) is not None


_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Prepared:
    """A call that is ready to be timed. Everything before a function returns it is set-up, and is not timed.

    Attributes:
        call: launches the kernel; takes nothing, and returns the results in the order of the torch function, with None
            for a result that the kernel does not compute. The first result is never None.
        changes: the tensors that the call changes. They are restored before each call, outside the measured time.
        results: converts the return value of `call` to the shapes and dtypes of the row, outside the measured time;
            None: the results have them.
        converted: what the set-up or `results` converted, a phrase for each ("weight to (E, N, K)"). The column
            Conversions shows the phrases.
    """

    call: Callable[[], Any]
    changes: Sequence[torch.Tensor] = ()
    results: Callable[[Any], Any] | None = None
    converted: Sequence[str] = ()


def implements(*kernel_types: str) -> Callable[[_Function], _Function]:
    """Marks a function as the implementation of `kernel_types`.

    The function takes the arguments that the replay passes to the torch function, by the same names. It is the kernel
    and returns the results, or it returns `Prepared`. It raises `Unsupported` for a row that the library cannot run.

    OpAtlas reads the marks from the file without importing it, so the kernel types must be written as strings.

    Raises:
        TypeError: a kernel type is not a string, or none is given.
    """
    if not kernel_types or not all(isinstance(name, str) for name in kernel_types):
        raise TypeError(f"@implements takes kernel types as strings, got {kernel_types!r}")
    return lambda function: function


def content_digest(paths: Iterable[Path | str]) -> str:
    """Returns the sha256 of the contents of files, in their order. Raises OSError if a file cannot be read."""
    return digest_of_digests(sha256(Path(path).read_bytes()).digest() for path in paths)


def digest_of_digests(digests: Iterable[bytes]) -> str:
    """Returns `content_digest` of files whose sha256 digests are known, in their order."""
    return sha256(b"".join(digests)).hexdigest()


@dataclass(frozen=True)
class KernelSource:
    """The place of the function that runs a kernel type in an implementation.

    Attributes:
        implementation: name and version for the database ("flashinfer 0.5.3").
        module: dotted name of the module; "" for a file that belongs to no package.
        path: the file.
        function: name of the function in the module.
        wraps: whether the function takes the torch function of the replay and returns the kernel (`wrap`).
        is_functional: whether the function is that of a functional operator of torch, and the row's operator a variant
            that writes into an argument.
        writes_outputs: whether the function gets memory for its results as further arguments, and returns nothing.
        folder: a user's folder, whose files the function may import; "" for a module, and for a single file.
        helpers: the other files of a user's folder that belong to the implementation.
        digest: sha256 of the file and the helpers when the session began; "" for a module.
    """

    implementation: str
    module: str
    path: str
    function: str
    wraps: bool = False
    is_functional: bool = False
    writes_outputs: bool = False
    folder: str = ""
    helpers: tuple[str, ...] = ()
    digest: str = ""


@dataclass(frozen=True)
class Support:
    """The refusals of one library; `library` is its name in their reasons."""

    library: str

    def expect(self, holds: bool, found: str, supported: str) -> None:
        """Raises Unsupported unless `holds`: `found` is the value of the row, `supported` what the library has."""
        if not holds:
            raise Unsupported(f"{found}: {self.library} has {supported}")

    def expect_dtype(self, supported: Sequence[torch.dtype], **given: torch.Tensor | torch.dtype) -> None:
        """Raises Unsupported for a tensor, or a dtype, by its name in the reason, that is of no supported dtype."""
        for name, value in given.items():
            dtype = getattr(value, "dtype", value)
            own, *others = (str(each).removeprefix("torch.") for each in (dtype, *supported))
            self.expect(dtype in supported, f"{name} in {own}", " or ".join(others))


#: The beginning of the names of modules of users' files.
_MODULE = "opatlas_implementation_"


def load_kernel(source: KernelSource, torch_function: Callable[..., Any]) -> Callable[..., Any]:
    """Imports the function of an implementation; a `wrap` is called with the torch function.

    Raises:
        ReplayError: the module cannot be imported, or lacks the function.
        Unsupported: `wrap` refuses the torch function.
    """
    try:
        module = importlib.import_module(source.module) if source.module else _import_file(replace(source, function=""))
        function: Callable[..., Any] = getattr(module, source.function)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f":{frame.lineno}" for frame in reversed(frames) if frame.filename == source.path), "")
        raise ReplayError(
            f"{source.implementation} cannot be imported ({type(error).__name__}: {error}): see {source.path}{line}"
        ) from error
    if not source.wraps:
        return function
    return function(torch_function)


@cache
def _import_file(source: KernelSource) -> ModuleType:
    """Imports a file under a name of its own, so that it replaces no other module. Writes no bytecode next to it.

    Raises:
        ReplayError: the file or a helper has other contents than when the session began, so that its durations would
            count as those of the former file; or the file imports a kernel of the folder.
    """
    if source.digest and content_digest((source.path, *source.helpers)) != source.digest:
        raise ReplayError("a file of the folder was changed after the session had begun: run the session again")
    name = f"{_MODULE}{sha256(source.path.encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, Path(source.path))
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{source.path} is not a Python file", path=source.path)
    module = importlib.util.module_from_spec(spec)
    writes_bytecode = sys.dont_write_bytecode
    sys.modules[name], sys.dont_write_bytecode = module, True
    try:
        with _importable_helpers(source):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.dont_write_bytecode = writes_bytecode
    return module


@contextmanager
def _importable_helpers(source: KernelSource) -> Iterator[None]:
    """Makes the helpers next to a file, and in its folder, importable by their names while the file is imported.

    Raises:
        ReplayError: the file imported a module of the folder that is not a helper, and so not part of the version.
    """
    if not source.folder:
        yield
        return
    before, folder = sys.path[:], Path(source.folder)
    places = list(dict.fromkeys((str(Path(source.path).parent), source.folder)))
    helpers = [
        Path(helper).relative_to(place)
        for helper in source.helpers
        for place in places
        if helper.startswith(f"{place}/")
    ]
    names = {helper.parts[0].removesuffix(".py") for helper in helpers}
    for name, file in _imported_files():
        # A helper of another folder may have the same name. Its folder is not on the path.
        if name.partition(".")[0] in names:
            path = Path(file)
            place = path.parents[name.count(".") + (path.stem == "__init__")]
            if str(place) not in (*before, *places):
                del sys.modules[name]
    sys.path[:0] = places
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
    known = {source.path, *source.helpers}
    for name, file in _imported_files():
        if file.startswith(f"{folder}/") and file not in known and not name.startswith(_MODULE):
            del sys.modules[name]
            raise ReplayError(
                f"it imports {file}, a kernel that is not part of its version: move shared code to _NAME.py"
            )


def _imported_files() -> list[tuple[str, str]]:
    """Returns the imported modules that have a file, with the absolute path of the file."""
    modules = ((name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items()))
    here = os.getcwd()
    return [(name, os.path.join(here, file)) for name, file in modules if file]
