"""What the author of an implementation uses: `@implements` marks a function, which may return `Prepared`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

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
    folder: str = ""
    helpers: tuple[str, ...] = ()
    digest: str = ""
