"""The catalog: the patterns of the calls of each kernel type. Reads and checks catalog.yaml."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from opatlas.data.database import Database
from opatlas.data.op_mapping import read_mapping
from opatlas.errors import OpAtlasError
from opatlas.row.columns import is_file_name
from opatlas.row.signature import normalized_kernel_type
from opatlas.row.slots import MATMUL_FAMILY, known_dtype
from opatlas.text import suggest
from opatlas.theory.patterns import Axis, Expression, ExpressionError, Form, Lengths, Pattern, parse_expression
from opatlas.theory.sources import SOURCES
from opatlas.yaml_file import YamlError, parse_yaml

PATH = Path(import_module("opatlas.shapes").__path__[0], "catalog.yaml")


class CatalogError(OpAtlasError):
    """A catalog that cannot be read, or has a mistake.

    Attributes:
        place: the part of the file, such as "pattern 'matmul', key 'let'"; "" for the file as a whole.
        problem: the mistake, and the remedy.
    """

    def __init__(self, path: Path, place: str, problem: str) -> None:
        self.path, self.place, self.problem = path, place, problem
        super().__init__(f"{path}: {place}{': ' if place else ''}{problem}")


@dataclass(frozen=True)
class CatalogKernel:
    """A kernel type and the patterns of its calls, each with the forms of this kernel type."""

    kernel_type: str
    patterns: tuple[Pattern, ...]

    def pattern(self, name: str) -> Pattern:
        """Returns a pattern by its name. Raises KeyError."""
        return {pattern.name: pattern for pattern in self.patterns}[name]


@dataclass(frozen=True)
class Catalog:
    """All kernel types with theory rows, in the catalog's order."""

    kernels: Mapping[str, CatalogKernel]
    operators: Mapping[str, ServedOperator] = field(default_factory=dict)

    def kernel(self, kernel_type: str) -> CatalogKernel:
        """Returns a kernel type. Raises OpAtlasError with the closest names where the catalog lacks the kernel type."""
        if kernel_type not in self.kernels:
            raise OpAtlasError(
                f"the catalog has no kernel type {kernel_type!r}{suggest(kernel_type, self.kernels)}: "
                f"give one of its kernel types, or add an entry to {PATH}"
            )
        return self.kernels[kernel_type]


@cache
def built_in_catalog() -> Catalog:
    """Returns the catalog of OpAtlas. Raises CatalogError."""
    return read_catalog(PATH)


def read_catalog(path: Path) -> Catalog:
    """Reads a catalog.

    Raises:
        CatalogError: the file cannot be read, or has mistakes.
    """
    try:
        content = parse_yaml(path.read_bytes(), strict=True)
    except OSError as error:
        problem = f"cannot be read ({error.strerror}): check the path and its permissions"
        raise CatalogError(path, "", problem) from None
    except YamlError as error:
        raise CatalogError(path, "", f"not YAML: {error}") from None
    try:
        return _catalog(_typed("", content, _CatalogFile))
    except _Mistake as mistake:
        raise CatalogError(path, mistake.place, mistake.problem) from None


_Sizes = Annotated[tuple[Annotated[int, msgspec.Meta(gt=0)], ...], msgspec.Meta(min_length=1)]
_ExpressionText = str | int
_Names = Annotated[list[str], msgspec.Meta(min_length=1)]
_Slots = list[list[_ExpressionText] | None]


class _AxisSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"name": "from"}):
    name: str
    generic: dict[str, _Sizes] = {}


_AxisEntry = str | _Sizes | _AxisSource


class _CellEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fixed text; or, without one, lengths of sequences as those of `Lengths`."""

    text: str = ""
    count: _ExpressionText = ""
    each: _ExpressionText = ""
    sums: bool = False


class _PatternEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: Each of `axes` and `let` is decoded by itself, so that an error has its name.
    axes: Annotated[dict[str, Any], msgspec.Meta(min_length=1)]
    inputs: _Slots
    outputs: _Slots
    let: dict[str, Any] = {}
    where: list[_ExpressionText] = []
    forms: list[str] = []
    cells: dict[str, _ExpressionText | _CellEntry] = {}


class _KernelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: str | _Names
    core: str = ""
    forms: dict[str, str | list[str]] = {}


class OperatorRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row that stands for a call of an operator, where the conditions hold for its arguments.

    Attributes:
        sizes: expressions of arguments for each size of the pattern.
        dtypes: the arguments that are the dtype of the first input; all are equal.
    """

    kernel: str
    pattern: str
    sizes: dict[str, str]
    dtypes: tuple[str, ...]
    where: tuple[str, ...] = ()


class ServedOperator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator of lists of served calls.

    Attributes:
        rows: the rows of a call, the first possible one of each list.
        defaults: values of arguments that a call may leave out.
        only: the values of arguments that a call with another one has no row for.
    """

    rows: list[list[OperatorRow]]
    defaults: dict[str, Any] = {}
    only: dict[str, Any] = {}


class _CatalogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: Each is decoded by itself, so that an error has its name.
    grids: dict[str, Any]
    patterns: dict[str, Any]
    kernels: dict[str, Any]
    operators: dict[str, Any] = {}


class _Mistake(Exception):
    def __init__(self, place: str, problem: str) -> None:
        self.place, self.problem = place, problem


T = TypeVar("T")


def _typed(place: str, value: Any, kind: type[T] | Any) -> T:
    """Returns the value as a type. Raises _Mistake, as all functions here."""
    try:
        found: T = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _Mistake(place, str(error)) from None
    return found


def _catalog(content: _CatalogFile) -> Catalog:
    grids = {
        name: _grid(f"grid {name!r}", _typed(f"grid {name!r}", each, _Sizes)) for name, each in content.grids.items()
    }
    kernels = dict[str, _KernelEntry]()
    for name, each in content.kernels.items():
        spec = {"pattern": each} if isinstance(each, (str, list)) else each
        kernels[name] = _typed(f"kernel {name!r}", spec, _KernelEntry)
    patterns = {
        name: _pattern(name, _typed(f"pattern {name!r}", spec, _PatternEntry), grids)
        for name, spec in content.patterns.items()
    }
    operators: dict[str, ServedOperator] = {
        name: _typed(f"operator {name!r}", each, ServedOperator) for name, each in content.operators.items()
    }
    return Catalog({name: _kernel(name, kernel, patterns) for name, kernel in kernels.items()}, operators)


def _kernel(name: str, spec: _KernelEntry, patterns: Mapping[str, Pattern]) -> CatalogKernel:
    place = f"kernel {name!r}"
    if not is_file_name(name):
        raise _Mistake(place, "not a valid file name: give the profiler's kernel type")
    wanted = [spec.pattern] if isinstance(spec.pattern, str) else spec.pattern
    for other in spec.forms.keys() - set(wanted):
        raise _Mistake(f"{place}, key 'forms'", f"{other!r} is not one of its patterns")
    found = []
    for each in wanted:
        if each not in patterns:
            raise _Mistake(f"{place}, key 'pattern'", f"there is no pattern {each!r}{suggest(each, patterns)}")
        pattern = patterns[each]
        own = _forms(f"{place}, key 'forms'", spec.forms[each]) if each in spec.forms else pattern.forms
        _expect_fit(f"{place}, pattern {each!r}", pattern, own)
        found.append(replace(pattern, forms=tuple(replace(form, core=spec.core) for form in own)))
    return CatalogKernel(name, tuple(found))


def _pattern(name: str, spec: _PatternEntry, grids: Mapping[str, tuple[int, ...]]) -> Pattern:
    place = f"pattern {name!r}"
    axes = [_axis(f"{place}, axis {axis!r}", axis, entry, grids) for axis, entry in spec.axes.items()]
    known: set[str] = set()
    for axis in axes:
        for variable in SOURCES[axis.source] if axis.source else (axis.name,):
            if variable in known:
                raise _Mistake(f"{place}, key 'axes'", f"two axes give the variable {variable!r}: rename one of them")
            known.add(variable)
    let = {}
    for variable, text in spec.let.items():
        if variable in known:
            raise _Mistake(f"{place}, key 'let'", f"{variable!r} is defined already: rename this one")
        typed: str | int = _typed(f"{place}, key 'let', {variable!r}", text, _ExpressionText)
        let[variable] = _expression(f"{place}, key 'let'", typed, known)
        known.add(variable)
    where = tuple(_expression(f"{place}, key 'where'", text, known) for text in spec.where)
    inputs, outputs = (
        tuple(
            None if slot is None else tuple(_expression(f"{place}, key {key!r}", dim, known) for dim in slot)
            for slot in slots
        )
        for key, slots in (("inputs", spec.inputs), ("outputs", spec.outputs))
    )
    cells = {column: _cell(f"{place}, cell {column!r}", cell, known) for column, cell in spec.cells.items()}
    forms = _forms(f"{place}, key 'forms'", spec.forms)
    pattern = Pattern(name, tuple(axes), inputs, outputs, forms, let, where, cells)
    _expect_fit(place, pattern, forms)
    return pattern


def _axis(place: str, name: str, entry: Any, grids: Mapping[str, tuple[int, ...]]) -> Axis:
    value: str | tuple[int, ...] | _AxisSource = _typed(place, entry, _AxisEntry)
    if isinstance(value, tuple):
        return Axis(name, _grid(place, value))
    if isinstance(value, str) and value in grids:
        return Axis(name, grids[value], between=True)
    spec = _AxisSource(value) if isinstance(value, str) else value
    if spec.name not in SOURCES:
        meant = suggest(spec.name, [*grids, *SOURCES])
        raise _Mistake(place, f"{spec.name!r} is neither a grid nor a source of models' sizes{meant}")
    names = SOURCES[spec.name]
    if spec.generic and set(spec.generic) != set(names):
        raise _Mistake(f"{place}, key 'generic'", f"give sizes for {', '.join(names)}")
    generic = {each: _grid(f"{place}, {each}", sizes) for each, sizes in spec.generic.items()}
    return Axis(name, source=spec.name, generic=generic)


def _grid(place: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    if list(sizes) != sorted(set(sizes)):
        raise _Mistake(place, "give the sizes in ascending order, each once")
    return sizes


def _expression(place: str, text: _ExpressionText, known: set[str]) -> Expression:
    try:
        expression = parse_expression(text)
    except ExpressionError as error:
        raise _Mistake(f"{place}, expression {text!r}", str(error)) from None
    for name in sorted(expression.names - known):
        there = ", ".join(sorted(known)) or "none"
        raise _Mistake(
            f"{place}, expression {expression.text!r}",
            f"there is no variable {name!r}{suggest(name, known)}; there are {there}",
        )
    return expression


def _cell(place: str, entry: _ExpressionText | _CellEntry, known: set[str]) -> str | Expression | Lengths:
    if not isinstance(entry, _CellEntry):
        return _expression(place, entry, known)
    if entry.text:
        return entry.text
    count, each = (_expression(place, text, known) for text in (entry.count, entry.each))
    return Lengths(count, each, entry.sums)


def _forms(place: str, texts: str | list[str]) -> tuple[Form, ...]:
    forms = []
    for text in [texts] if isinstance(texts, str) else texts:
        try:
            form = Form.parse(text)
        except ValueError as error:
            raise _Mistake(f"{place}, form {text!r}", str(error)) from None
        for name in (*form.input_dtypes, *form.output_dtypes):
            if name and known_dtype(name) is None:
                raise _Mistake(f"{place}, form {text!r}", f"{name!r} is not a known dtype")
        forms.append(form)
    return tuple(forms)


def _expect_fit(place: str, pattern: Pattern, forms: Sequence[Form]) -> None:
    """Checks that the dtypes of forms match the slots of the pattern."""
    for form in forms:
        for key, templates, dtypes in (
            ("inputs", pattern.inputs, form.input_dtypes),
            ("outputs", pattern.outputs, form.output_dtypes),
        ):
            if [bool(dtype) for dtype in dtypes] != [template is not None for template in templates]:
                raise _Mistake(
                    f"{place}, form {str(form)!r}",
                    f"the dtypes do not match the slots of {key!r}: {len(templates)} slots, "
                    f"{sum(template is None for template in templates)} of them absent",
                )


#: Profilers name some kernels with this suffix, after the function that launches them.
_AICORE = "aicore"
#: The kernel type whose patterns fit the kernel types that a mapping calls elementwise.
_ELEMENTWISE = "Add"


def database_kernels(database: Database, catalog: Catalog, named: Collection[str] = ()) -> dict[str, CatalogKernel]:
    """Returns the kernel types whose theory rows are added to a database.

    These are the kernel types of the catalog, AiCore variants with rows in the database, and alternates in its mapping.
    Of MatMulV2, MatMulV3 and MatMulCommon, which are one call, it is the type with the most durations, else the first,
    and those that are `named`.

    Raises:
        OpAtlasError: the mapping of the database, or a CSV of one of the three, cannot be read.
    """
    found = dict(catalog.kernels)
    for name in database.kernel_types():
        base = name[: -len(_AICORE)]
        if name.lower().endswith(_AICORE) and base in catalog.kernels:
            found.setdefault(name, CatalogKernel(name, catalog.kernels[base].patterns))
    for name, base in _mapped_kernel_types(database.path):
        if name not in found and base in catalog.kernels:
            found[name] = CatalogKernel(name, catalog.kernels[base].patterns)
    tables = {name: database.read_or_empty(name) for name in MATMUL_FAMILY if name in found}
    durations = {name: np.count_nonzero(each.captured.known | each.replayed.known) for name, each in tables.items()}
    drawn = max(durations, key=lambda name: durations[name], default="")
    return {name: kernel for name, kernel in found.items() if name in (drawn, *named) or name not in tables}


def _mapped_kernel_types(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields kernel types that the operator mapping of a database names, each with the kernel type whose patterns fit.

    Leaves out composites, operators without cost, collectives, and AiCore variants, which few versions of CANN have.
    """
    mapping = read_mapping(folder)
    for operator in mapping.operators if mapping is not None else ():
        if not operator.kernel_type or operator.is_communication or operator.is_free or operator.composite:
            continue
        for name in operator.alternate_kernel_types:
            if not name.lower().endswith(_AICORE):
                yield normalized_kernel_type(name), operator.kernel_type
        if operator.query_mode == "elementwise":
            yield operator.kernel_type, _ELEMENTWISE
