"""The call of a kernel for one row: makes its set-up, restores changed tensors, and gives the results."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

import torch

from opatlas.row.errors import ReplayError
from opatlas.run.implementations.implementation import KernelSource, Prepared, content_digest

#: Results of a kernel in the order of the torch function; None for a result that an implementation does not compute.
Results = tuple[torch.Tensor | None, ...]

#: The beginning of the names of modules of users' files.
_MODULE = "opatlas_implementation_"


class KernelCall:
    """A kernel with the arguments of one row.

    Attributes:
        inputs: the arguments by position or name.
        count: the number of calls so far.
        prepared: the `Prepared` that the kernel has returned; None if the kernel is called with the arguments.
        set_up_s: seconds from the start of the set-up to the end of the first call on the host, compilation included.
    """

    def __init__(
        self,
        kernel: Callable[..., Any],
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        *,
        mutates: Sequence[int | str] = (),
        overwrites: Sequence[int | str] = (),
        may_lack_results: bool = False,
    ) -> None:
        """
        Args:
            kernel: called with the arguments; may return `Prepared`.
            mutates, overwrites: positions or names of changed arguments, as for `Replay`.
            may_lack_results: whether a None in the return value means a result that the kernel does not compute.
        """
        #: Makes one call; it is timed, so it has nothing to decide.
        self._invoke: Callable[[], Any] = partial(kernel, *arguments, **keywords)
        self._arguments = arguments
        self._keywords = keywords
        self._may_lack_results = may_lack_results
        self.inputs: dict[int | str, Any] = dict(enumerate(arguments))
        self.inputs.update(keywords)
        self._declared = mutates or overwrites
        self._unmodified = {place: _clone(self.inputs[place]) for place in mutates}
        #: Tensors that a prepared call changes, with their values before the first call.
        self._changes: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._latest: Any = None
        self.count = 0
        self.prepared: Prepared | None = None
        self.set_up_s = 0.0

    def start(self) -> None:
        """Calls the kernel with the arguments: the set-up of a kernel that returns `Prepared`, else the first call."""
        start = perf_counter()
        latest = self._invoke()
        if isinstance(latest, Prepared):
            self.prepared, self._may_lack_results, self._invoke = latest, True, latest.call
            self._changes = [(tensor, tensor.clone()) for tensor in latest.changes]
        else:
            self.count += 1
            self._latest = latest
        self.set_up_s += perf_counter() - start

    def restart(self) -> None:
        """Does the same as `start`, with restored tensors."""
        self.restore()
        self.start()

    def launch(self) -> None:
        """Calls the kernel once. This method is timed: a call of the object itself would take 0.1 us more."""
        self.count += 1
        self._latest = self._invoke()

    def first_prepared(self) -> None:
        """Makes the first call of a kernel that has returned `Prepared`; compilation in this call is set-up."""
        start = perf_counter()
        self.launch()
        self.set_up_s += perf_counter() - start

    def repeat(self) -> None:
        """Restores the changed tensors, and calls the kernel once."""
        self.restore()
        self.launch()

    @property
    def changes_tensors(self) -> bool:
        """Whether tensors must be restored before each call."""
        return bool(self._unmodified or self._changes)

    def restore(self) -> None:
        """Gives the changed tensors the values that they had before the first call."""
        for place, value in self._unmodified.items():
            for changed, original in zip(flat_tensors(self.inputs[place]), flat_tensors(value), strict=True):
                changed.copy_(original)
        self._restore_changes()

    def _restore_changes(self) -> None:
        for changed, original in self._changes:
            changed.copy_(original)

    def results(self) -> Results:
        """Returns the results of the latest call in the layout of the row; () if there is none.

        A call that returns None has the declared changed arguments as results.
        """
        latest = self._latest
        if latest is not None and self.prepared is not None and self.prepared.results is not None:
            latest = self.prepared.results(latest)
        if latest is None:
            return flat_tensors([self.inputs[place] for place in self._declared])
        return _flat_results(latest) if self._may_lack_results else flat_tensors(latest)

    def originals(self) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments with their values before the first call, for a formula.

        Restores the tensors that a prepared call has changed: results that share their memory lose their values.
        """
        self._restore_changes()
        return (
            [self._unmodified.get(i, value) for i, value in enumerate(self._arguments)],
            {name: self._unmodified.get(name, value) for name, value in self._keywords.items()},
        )

    def kept_results(self) -> Results:
        """Returns the results, which `originals` leaves as they are."""
        results = self.results()
        if not self._changes:
            return results
        return tuple(None if result is None else result.clone() for result in results)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Returns the tensors of the arguments and of the latest return value."""
        return (*flat_tensors(list(self.inputs.values())), *flat_tensors(self._latest))


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
    wrapped: Callable[..., Any] = function(torch_function)
    return wrapped


def expect_parameters(
    name: str,
    kernel: Callable[..., Any],
    replaced: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> None:
    """Raises ReplayError if a kernel of an implementation cannot be called with the arguments of the replay.

    Args:
        name: the name of the kernel, for the message.
        replaced: the torch function of the replay, whose parameters name the arguments.
    """
    signature = _signature(kernel)
    if signature is None:
        return
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        parameters = _signature(replaced)
        names = list(parameters.parameters) if parameters is not None else []
        passed = [*(names + ["..."] * len(arguments))[: len(arguments)], *(f"{each}=" for each in keywords)]
        raise ReplayError(f"{name} takes {signature}, and the replay passes ({', '.join(passed)}): {error}") from None


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Returns the signature of a function without its annotations; None if it has none, as built-in ones."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    return found.replace(parameters=plain, return_annotation=inspect.Signature.empty)


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
    for name, path in _imported_files():
        # A helper of another folder may have the same name. Its folder is not on the path.
        if name.partition(".")[0] in names:
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
    for name, path in _imported_files():
        if path.is_relative_to(folder) and str(path) not in known and not name.startswith(_MODULE):
            del sys.modules[name]
            raise ReplayError(
                f"it imports {path}, a kernel that is not part of its version: move shared code to _NAME.py"
            )


def _imported_files() -> list[tuple[str, Path]]:
    """Returns the imported modules that have a file, with the path of the file."""
    modules = ((name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items()))
    return [(name, Path(file).absolute()) for name, file in modules if file]


def flat_tensors(value: Any) -> tuple[torch.Tensor, ...]:
    """Returns the tensors in a value, in order: a tensor, or nested lists and mappings of tensors and other values."""
    return tuple(tensor for tensor in _flat_results(value) if tensor is not None)


def _flat_results(value: Any) -> Results:
    """Returns the tensors and the Nones in a value, in order; other values are left out."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return tuple(result for item in value for result in _flat_results(item))
    return (value,) if value is None or isinstance(value, torch.Tensor) else ()


def _clone(value: Any) -> Any:
    return [tensor.clone() for tensor in value] if isinstance(value, (list, tuple)) else value.clone()
