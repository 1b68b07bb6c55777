"""The catalog: the patterns of the calls of each kernel type. Reads and checks catalog.yaml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import msgspec

from opatlas.data.database import Database
from opatlas.data.op_mapping import read_mapping
from opatlas.errors import OpAtlasError
from opatlas.row.columns import is_file_name
from opatlas.row.signature import normalized_kernel_type
from opatlas.row.slots import known_dtype
from opatlas.text import suggest
from opatlas.theory.patterns import Axis, Expression, ExpressionError, Form, Lengths, Pattern, parse_expression
from opatlas.theory.sources import SOURCES
from opatlas.yaml_file import YamlError, parse_yaml

PATH = Path(import_module("opatlas.shapes").__path__[0], "catalog.yaml")
#: The patterns of shapes/patterns.py, whose slots share sizes in ways that are easier to write in Python.
_IN_PYTHON: Mapping[str, Mapping[str, Any]] = import_module("opatlas.shapes.patterns").PATTERNS


@dataclass(frozen=True)
class CatalogMistake:
    """One mistake of a catalog.

    Attributes:
        place: the part of the file, such as "pattern 'matmul', key 'let'"; "" for the file as a whole.
        problem: the mistake, and the remedy.
    """

    place: str
    problem: str


class CatalogError(OpAtlasError):
    """A catalog that cannot be read, or has mistakes. The message lists all mistakes."""

    def __init__(self, path: Path, mistakes: Sequence[CatalogMistake]) -> None:
        self.path = path
        self.mistakes = tuple(mistakes)
        super().__init__(
            "\n".join(
                f"{path}: {mistake.place}{': ' if mistake.place else ''}{mistake.problem}" for mistake in mistakes
            )
        )


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
        raise CatalogError(path, [CatalogMistake("", problem)]) from None
    except YamlError as error:
        raise CatalogError(path, [CatalogMistake("", f"not YAML: {error}")]) from None
    reader = _CatalogReader()
    catalog = reader.catalog(content)
    if reader.mistakes:
        raise CatalogError(path, reader.mistakes)
    return catalog


_Sizes = Annotated[tuple[Annotated[int, msgspec.Meta(gt=0)], ...], msgspec.Meta(min_length=1)]
_ExpressionText = str | int
_Names = Annotated[list[str], msgspec.Meta(min_length=1)]
_Slots = list[list[_ExpressionText] | None]


class _AxisSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"name": "from"}):
    name: str
    generic: dict[str, _Sizes] = {}


_AxisEntry = str | _Sizes | _AxisSource


class _PatternEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: Each of `axes` and `let` is decoded by itself, so that an error has its name.
    axes: Annotated[dict[str, Any], msgspec.Meta(min_length=1)]
    inputs: _Slots
    outputs: _Slots
    let: dict[str, Any] = {}
    where: list[_ExpressionText] = []
    forms: list[str] = []
    cells: dict[str, Any] = {}


class _KernelEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pattern: str | _Names
    core: str = ""
    forms: dict[str, str | list[str]] = {}


class _CatalogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: Each is decoded by itself, so that an error has its name.
    grids: dict[str, Any]
    patterns: dict[str, Any]
    kernels: dict[str, Any]


class _CatalogReader:
    """Reads the parts of a catalog and collects all mistakes, so that one error lists them."""

    def __init__(self) -> None:
        self.mistakes: list[CatalogMistake] = []
        self.grids: dict[str, tuple[int, ...]] = {}

    def problem(self, place: str, text: str) -> None:
        self.mistakes.append(CatalogMistake(place, text))

    def typed(self, place: str, value: Any, kind: Any) -> Any:
        """Returns the value as a type; None, and a mistake, if it is of another type."""
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            self.problem(place, str(error))
            return None

    def catalog(self, value: Any) -> Catalog:
        content: _CatalogFile | None = self.typed("", value, _CatalogFile)
        if content is None:
            return Catalog({})
        for name, grid in content.grids.items():
            self.grids[name] = self.sizes(f"grid {name!r}", self.typed(f"grid {name!r}", grid, _Sizes) or (1,))
        for name in _IN_PYTHON.keys() & content.patterns.keys():
            self.problem(f"pattern {name!r}", "shapes/patterns.py has a pattern of this name: rename this one")
        kernels = dict[str, _KernelEntry]()
        for name, each in content.kernels.items():
            spec = {"pattern": each} if isinstance(each, (str, list)) else each
            kernel: _KernelEntry | None = self.typed(f"kernel {name!r}", spec, _KernelEntry)
            if kernel is not None:
                kernels[name] = kernel
        used = {name for kernel in kernels.values() for name in _pattern_names(kernel)}
        specs = {**content.patterns, **{name: spec for name, spec in _IN_PYTHON.items() if name in used}}
        patterns = {name: self.pattern(name, spec) for name, spec in specs.items()}
        return Catalog({name: self.kernel(name, kernel, patterns) for name, kernel in kernels.items()})

    def kernel(self, name: str, spec: _KernelEntry, patterns: Mapping[str, Pattern | None]) -> CatalogKernel:
        place = f"kernel {name!r}"
        if not is_file_name(name):
            self.problem(place, "not a valid file name: give the profiler's kernel type")
        wanted = _pattern_names(spec)
        for other in spec.forms.keys() - set(wanted):
            self.problem(f"{place}, key 'forms'", f"{other!r} is not one of its patterns")
        found = []
        for pattern_name in wanted:
            if pattern_name not in patterns:
                self.problem(
                    f"{place}, key 'pattern'", f"there is no pattern {pattern_name!r}{suggest(pattern_name, patterns)}"
                )
            # One with mistakes was told.
            pattern = patterns.get(pattern_name)
            if pattern is not None:
                texts = spec.forms.get(pattern_name)
                own = pattern.forms if texts is None else self.forms(f"{place}, key 'forms'", texts)
                self.fit(f"{place}, pattern {pattern_name!r}", pattern, own)
                found.append(replace(pattern, forms=tuple(replace(form, core=spec.core) for form in own)))
        return CatalogKernel(name, tuple(found))

    def pattern(self, name: str, value: Any) -> Pattern | None:
        place, before = f"pattern {name!r}", len(self.mistakes)
        spec: _PatternEntry | None = self.typed(place, value, _PatternEntry)
        if spec is None:
            return None
        axes = [self.axis(f"{place}, axis {axis!r}", axis, of) for axis, of in spec.axes.items()]
        known: set[str] = set()
        for axis in axes:
            for variable in SOURCES[axis.source].names if axis.source else (axis.name,):
                if variable in known:
                    self.problem(f"{place}, key 'axes'", f"two axes give the variable {variable!r}: rename one of them")
                known.add(variable)
        let = {}
        for variable, text in spec.let.items():
            if variable in known:
                self.problem(f"{place}, key 'let'", f"{variable!r} is defined already: rename this one")
            typed = self.typed(f"{place}, key 'let', {variable!r}", text, _ExpressionText)
            let[variable] = self.expression(f"{place}, key 'let'", 1 if typed is None else typed, known)
            known.add(variable)
        where = tuple(self.expression(f"{place}, key 'where'", text, known) for text in spec.where)
        inputs, outputs = (
            tuple(
                None if slot is None else tuple(self.expression(f"{place}, key {key!r}", dim, known) for dim in slot)
                for slot in slots
            )
            for key, slots in (("inputs", spec.inputs), ("outputs", spec.outputs))
        )
        forms = self.forms(f"{place}, key 'forms'", spec.forms)
        for column, cell in spec.cells.items():
            for expression in [cell.count, cell.each] if isinstance(cell, Lengths) else [cell]:
                if isinstance(expression, Expression):
                    self.known(f"{place}, cell {column!r}", expression, known)
        if len(self.mistakes) > before:
            return None
        pattern = Pattern(name, tuple(axes), inputs, outputs, forms, let, where, spec.cells)
        self.fit(place, pattern, forms)
        return pattern

    def axis(self, place: str, name: str, entry: Any) -> Axis:
        value: str | tuple[int, ...] | _AxisSource | None = self.typed(place, entry, _AxisEntry)
        if value is None:
            return Axis(name, (1,))
        if isinstance(value, tuple):
            return Axis(name, self.sizes(place, value))
        if isinstance(value, str) and value in self.grids:
            return Axis(name, self.grids[value], between=True)
        spec = _AxisSource(value) if isinstance(value, str) else value
        if spec.name not in SOURCES:
            meant = suggest(spec.name, [*self.grids, *SOURCES])
            self.problem(place, f"{spec.name!r} is neither a grid nor a source of models' sizes{meant}")
            return Axis(name, (1,))
        names = SOURCES[spec.name].names
        if spec.generic and set(spec.generic) != set(names):
            self.problem(f"{place}, key 'generic'", f"give sizes for {', '.join(names)}")
        return Axis(
            name, source=spec.name, generic={n: self.sizes(f"{place}, {n}", s) for n, s in spec.generic.items()}
        )

    def sizes(self, place: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if list(sizes) != sorted(set(sizes)):
            self.problem(place, "give the sizes in ascending order, each once")
        return sizes

    def expression(self, place: str, text: _ExpressionText, known: set[str]) -> Expression:
        try:
            expression = parse_expression(text)
        except ExpressionError as error:
            self.problem(f"{place}, expression {text!r}", str(error))
            return parse_expression(1)
        self.known(place, expression, known)
        return expression

    def known(self, place: str, expression: Expression, known: set[str]) -> None:
        for name in sorted(expression.names - known):
            self.problem(
                f"{place}, expression {expression.text!r}",
                f"there is no variable {name!r}{suggest(name, known)}; there are {', '.join(sorted(known)) or 'none'}",
            )

    def forms(self, place: str, texts: str | list[str]) -> tuple[Form, ...]:
        forms = []
        for text in [texts] if isinstance(texts, str) else texts:
            try:
                form = Form.parse(text)
            except ValueError as error:
                self.problem(f"{place}, form {text!r}", str(error))
                continue
            for name in (*form.input_dtypes, *form.output_dtypes):
                if name and known_dtype(name) is None:
                    self.problem(f"{place}, form {text!r}", f"{name!r} is not a known dtype")
            forms.append(form)
        return tuple(forms)

    def fit(self, place: str, pattern: Pattern, forms: Sequence[Form]) -> None:
        """Reports forms whose dtypes do not match the slots of the pattern."""
        for form in forms:
            for key, templates, dtypes in (
                ("inputs", pattern.inputs, form.input_dtypes),
                ("outputs", pattern.outputs, form.output_dtypes),
            ):
                if [bool(dtype) for dtype in dtypes] != [template is not None for template in templates]:
                    self.problem(
                        f"{place}, form {str(form)!r}",
                        f"the dtypes do not match the slots of {key!r}: {len(templates)} slots, "
                        f"{sum(template is None for template in templates)} of them absent",
                    )


def _pattern_names(kernel: _KernelEntry) -> list[str]:
    return [kernel.pattern] if isinstance(kernel.pattern, str) else kernel.pattern


#: Profilers name some kernels with this suffix, after the function that launches them.
_AICORE = "aicore"
#: The kernel type whose patterns fit the kernel types that a mapping calls elementwise.
_ELEMENTWISE = "Add"


def database_kernels(database: Database, catalog: Catalog) -> dict[str, CatalogKernel]:
    """Returns the kernel types whose theory rows are added to a database.

    These are the kernel types of the catalog, AiCore variants with rows in the database, and alternates in its mapping.

    Raises:
        OpAtlasError: the mapping of the database cannot be read.
    """
    found = dict(catalog.kernels)
    for name in database.kernel_types():
        base = name[: -len(_AICORE)]
        if name.lower().endswith(_AICORE) and base in catalog.kernels:
            found.setdefault(name, CatalogKernel(name, catalog.kernels[base].patterns))
    for name, base in _mapped_kernel_types(database.path):
        if name not in found and base in catalog.kernels:
            found[name] = CatalogKernel(name, catalog.kernels[base].patterns)
    return found


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
