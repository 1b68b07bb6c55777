"""Reads the marks of an implementation from its source, without importing it: foreign code does not run in pytest."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.files import parse_python, read_safely

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
