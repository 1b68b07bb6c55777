"""`opatlas.use`: torch's operators run a folder's kernels, until the override is undone."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from opatlas.errors import OpAtlasError
from opatlas.outer.suites.operators import Call, computed_by, derive, find_overload, name_of, variants_of
from opatlas.outer.suites.texts import is_folder, overload_of
from opatlas.row.errors import ReplayError, Unsupported
from opatlas.run.devices.device import device_kinds, kind_named
from opatlas.run.implementation import Implementation, KernelSource, Prepared, load_kernel
from opatlas.run.implementation_catalog import read_directory
from opatlas.run.kernel_call import flat_tensors

#: Overrides that are not undone. Kept here, because torch drops an override that has no reference.
_ACTIVE: set[use] = set()
#: The first torch that gives the kernel that an override replaces.
_LEAST_TORCH = "2.9"


class use:  # noqa: N801
    """Overrides torch's operators by the kernels of a folder, from the call on.

    `with opatlas.use("my_kernels"):` ends with the block, `override = opatlas.use("my_kernels")` with
    `override.undo()`. An operator without a kernel stays torch's. A folder with the kernel of a functional operator
    (`add__Tensor`) overrides its in-place and out variants, too, unless it has kernels of these.

    Torch's operators that a kernel calls are torch's own, so that a kernel can call the operator that it overrides. A
    call that a kernel refuses (`Unsupported`) is torch's own as well.

    Attributes:
        overloads: the operators that are overridden ("add.Tensor").
    """

    def __init__(self, folder: Path | str, *, device: str | None = None, candidate: str = "") -> None:
        """Overrides the operators.

        Args:
            folder: a folder as `--suite` takes it.
            device: the kind of device on whose tensors the kernels run: cpu, cuda or npu. None: a GPU or NPU where
                torch has one, else the CPU.
            candidate: the candidate ("v1"), where the folder has several of them.

        Raises:
            OpAtlasError: the folder has no kernel of an operator, or several candidates; a file cannot be imported; or
                an operator is overridden already.
        """
        if not hasattr(torch.library, "get_kernel"):
            raise OpAtlasError(f"opatlas.use: needs torch {_LEAST_TORCH} or newer, here is {torch.__version__}")
        present = (name for name in device_kinds() if (own := getattr(torch, name, None)) and own.is_available())
        key = kind_named(device or next(present, "cpu")).dispatch_key
        if not key:
            raise OpAtlasError(f"opatlas.use: device {device!r}: give one of {', '.join(device_kinds())}")
        kernels = dict(_kernels(_implementation(Path(folder), candidate)))
        if not kernels:
            raise OpAtlasError(f"opatlas.use: {folder} has no kernel of an operator, such as add__Tensor/")
        taken = sorted(kernels.keys() & {name for each in _ACTIVE if each._key == key for name in each.overloads})
        if taken:
            raise OpAtlasError(
                f"opatlas.use: {folder}: {taken[0]} is overridden already: undo the other override first"
            )
        self.overloads: tuple[str, ...] = tuple(sorted(kernels))
        self._key: str = key
        self._library: torch.library.Library | None = torch.library.Library("aten", "IMPL", key)
        inside = threading.local()
        try:
            with warnings.catch_warnings():
                # torch warns that an operator is overridden, as it is meant to be.
                warnings.simplefilter("ignore", UserWarning)
                for name, kernel in kernels.items():
                    self._library.impl(
                        find_overload(name), _overriding(name, kernel, key, inside), key, with_keyset=True
                    )
        except BaseException:
            self.undo()
            raise
        _ACTIVE.add(self)

    def undo(self) -> None:
        """Gives torch its operators back. A second call does nothing."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
            _ACTIVE.discard(self)

    def __enter__(self) -> use:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def _implementation(folder: Path, candidate: str) -> Implementation:
    """Returns the implementation in a folder. Raises OpAtlasError where the choice is not clear."""
    if not folder.exists():
        raise OpAtlasError(f"opatlas.use: {folder}: there is no such folder or file")
    found = read_directory(folder)
    names = {each.name.rpartition("-")[2] if "-" in each.name else "": each for each in found}
    if candidate in names:
        return names[candidate]
    if candidate or len(found) > 1:
        raise OpAtlasError(
            f"opatlas.use: {folder} has the candidates {', '.join(sorted(names))}: give one as candidate"
        )
    return found[0]


def _kernels(implementation: Implementation) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the operators of an implementation with their kernels; a variant without a kernel gets a derived one."""
    sources: Mapping[str, KernelSource] = {
        overload_of(name): source for name, source in implementation.sources.items() if is_folder(name)
    }
    derived: dict[str, Callable[..., Any]] = {}
    for name, source in sources.items():
        overload = find_overload(name)
        if overload is None:
            raise OpAtlasError(f"opatlas.use: {source.path}: torch {torch.__version__} has no operator {name}")
        kernel = load_kernel(source, overload)
        yield name, kernel
        for variant in variants_of(overload):
            derived[name_of(variant)] = derive(variant, kernel)
    yield from ((name, kernel) for name, kernel in derived.items() if name not in sources)


def _overriding(name: str, kernel: Callable[..., Any], key: str, inside: threading.local) -> Callable[..., Any]:
    """Returns the function that torch calls: the kernel, or torch's own kernel within another kernel."""
    overload = find_overload(name)
    assert overload is not None
    own = torch.library.get_kernel(overload, key)
    schema = overload._schema
    written = [number for number, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write]
    returns_written = bool(written) and all(each.alias_info is not None for each in schema.returns)
    is_list = len(schema.returns) == 1 and str(schema.returns[0].type) != "Tensor"

    def torchs(keyset: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        call = Call(overload, arguments, keywords).bound()
        tensors = list(flat_tensors(list(call.values())))
        changed = [
            _as_tensor(value, tensors) if str(argument.type) == "Tensor" and isinstance(value, (int, float)) else value
            for argument, value in zip(schema.arguments, arguments, strict=False)
        ]
        return own.call_boxed(keyset, *changed, **keywords)

    def override(keyset: Any, *arguments: Any, **keywords: Any) -> Any:
        if getattr(inside, "kernel", False):
            return torchs(keyset, arguments, keywords)
        inside.kernel = True
        try:
            returned = kernel(*arguments, **keywords)
            if isinstance(returned, Prepared):
                returned = computed_by(returned)
        except Unsupported:
            return torchs(keyset, arguments, keywords)
        finally:
            inside.kernel = False
        if returns_written:
            values = Call(overload, arguments, keywords).bound()
            targets = tuple(values[schema.arguments[number].name] for number in written)
            return targets[0] if len(targets) == 1 else targets
        results = tuple(flat_tensors(returned))
        if is_list:
            return list(results)
        # With another number torch would crash.
        if len(results) != len(schema.returns):
            raise ReplayError(f"the kernel of {name} returned {len(results)} tensors, not {len(schema.returns)}")
        return results[0] if len(results) == 1 else results

    return override


def _as_tensor(number: float, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the tensor that torch makes of a number beside a tensor: it decides the dtype of no result with axes."""
    dtype = torch.result_type(tensors[0], number) if tensors else None
    if dtype is not None and dtype == tensors[0].dtype and tensors[0].dim():
        dtype = torch.float64 if isinstance(number, float) else None
    return torch.tensor(number, dtype=dtype)
