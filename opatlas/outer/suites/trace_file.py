"""Reads files with the calls of models: a line for each operator, then a line for each of its calls.

Operator: aten.add.Tensor
cnt: 156, ((T([1, 512, 768], f16), T([1, 512, 768], f16)), {})

`cnt` is how often the models make the call; 0 stands for a call that somebody made up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.outer.suites.arguments import ArgumentsText, read_arguments
from opatlas.outer.suites.overload import read_overload

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
