"""Names of torch's operators: an overload is `add.Tensor`, and its folder, kernel type and CSV are `add__Tensor`."""

from __future__ import annotations

import re

from opatlas.errors import OpAtlasError

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
