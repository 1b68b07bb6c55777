"""The catalog: the patterns of the calls of each kernel type. Reads and checks catalog.yaml."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from opatlas.errors import OpAtlasError
from opatlas.model.schema import is_file_name
from opatlas.model.signature import normalized_kernel_type
from opatlas.model.slots import known_dtype
from opatlas.store.database import Database
from opatlas.store.op_mapping import read_mapping
from opatlas.text import suggest
from opatlas.theory.patterns import (
    Axis,
    Expression,
    ExpressionError,
    Form,
    Lengths,
    Pattern,
    Template,
    parse_expression,
)
from opatlas.theory.sources import SOURCES
from opatlas.yaml_file import YamlError, parse_yaml

PATH = Path(import_module("opatlas.shapes").__path__[0], "catalog.yaml")
#: The patterns of shapes/patterns.py, whose slots share sizes in ways that are easier to write in Python.
_IN_PYTHON: Mapping[str, Mapping[str, Any]] = import_module("opatlas.shapes.patterns").PATTERNS

_PATTERN_KEYS = ("axes", "let", "where", "inputs", "outputs", "forms", "cells")
_KERNEL_KEYS = ("pattern", "core", "forms")


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


class _CatalogReader:
    """Reads the parts of a catalog and collects all mistakes, so that one error lists them."""

    def __init__(self) -> None:
        self.mistakes: list[CatalogMistake] = []
        self.grids: dict[str, tuple[int, ...]] = {}

    def problem(self, place: str, text: str) -> None:
        self.mistakes.append(CatalogMistake(place, text))

    def catalog(self, content: Any) -> Catalog:
        parts: dict[str, dict[Any, Any]] = {}
        for name in ("grids", "patterns", "kernels"):
            part = content.get(name) if isinstance(content, dict) else None
            if not isinstance(part, dict):
                self.problem(name, "missing: add a mapping of this name at the top level")
                return Catalog({})
            parts[name] = part
        self.keys("the top level", content, ("grids", "patterns", "kernels"))
        for name, sizes in parts["grids"].items():
            self.grids[name] = self.sizes(f"grid {name!r}", sizes)
        for name in _IN_PYTHON.keys() & parts["patterns"].keys():
            self.problem(f"pattern {name!r}", "shapes/patterns.py has a pattern of this name: rename this one")
        used = {name for spec in parts["kernels"].values() for name in _pattern_names(spec)}
        specs = {**parts["patterns"], **{name: spec for name, spec in _IN_PYTHON.items() if name in used}}
        read = {name: self.pattern(name, spec) for name, spec in specs.items()}
        patterns = {name: pattern for name, pattern in read.items() if pattern is not None}
        kernels = {name: self.kernel(str(name), spec, patterns, read) for name, spec in parts["kernels"].items()}
        return Catalog(kernels)

    def kernel(
        self, name: str, spec: Any, patterns: Mapping[str, Pattern], named: Mapping[str, Pattern | None]
    ) -> CatalogKernel:
        place = f"kernel {name!r}"
        if not is_file_name(name):
            self.problem(place, "not a valid file name: give the profiler's kernel type")
        spec = {"pattern": spec} if isinstance(spec, (str, list)) else spec
        if not isinstance(spec, dict):
            self.problem(place, "give the name of a pattern, or a mapping with the key 'pattern'")
            return CatalogKernel(name, ())
        self.keys(place, spec, _KERNEL_KEYS)
        wanted = _pattern_names(spec)
        if not wanted:
            self.problem(f"{place}, key 'pattern'", "give the name of a pattern, or a list of names")
            return CatalogKernel(name, ())
        core = spec.get("core", "")
        if not isinstance(core, str):
            self.problem(f"{place}, key 'core'", f"{core!r} is not a name")
        forms = spec.get("forms", {})
        if not isinstance(forms, dict):
            self.problem(f"{place}, key 'forms'", "give a mapping of pattern names to forms")
            forms = {}
        for other in forms.keys() - set(wanted):
            self.problem(f"{place}, key 'forms'", f"{other!r} is not one of its patterns")
        found = []
        for pattern_name in wanted:
            pattern = patterns.get(pattern_name)
            if pattern is None:
                if pattern_name not in named:
                    self.problem(
                        f"{place}, key 'pattern'",
                        f"there is no pattern {pattern_name!r}{suggest(str(pattern_name), named)}",
                    )
                continue
            own = self.forms(f"{place}, key 'forms'", forms[pattern_name]) if pattern_name in forms else pattern.forms
            self.fit(f"{place}, pattern {pattern_name!r}", pattern, own)
            found.append(replace(pattern, forms=tuple(replace(form, core=str(core)) for form in own)))
        return CatalogKernel(name, tuple(found))

    def pattern(self, name: str, spec: Any) -> Pattern | None:
        place = f"pattern {name!r}"
        if not isinstance(spec, Mapping):
            self.problem(place, "it must be a mapping")
            return None
        before = len(self.mistakes)
        self.keys(place, spec, _PATTERN_KEYS)
        axes = [
            self.axis(f"{place}, axis {axis!r}", str(axis), value) for axis, value in self.mapping(place, spec, "axes")
        ]
        if not axes:
            self.problem(f"{place}, key 'axes'", "give at least one axis")
        known: set[str] = set()
        for axis in axes:
            for variable in SOURCES[axis.source].names if axis.source else (axis.name,):
                if variable in known:
                    self.problem(f"{place}, key 'axes'", f"two axes give the variable {variable!r}: rename one of them")
                known.add(variable)
        let = {}
        for variable, text in self.mapping(place, spec, "let"):
            if variable in known:
                self.problem(f"{place}, key 'let'", f"{variable!r} is defined already: rename this one")
            let[str(variable)] = self.expression(f"{place}, key 'let'", text, known)
            known.add(str(variable))
        where = tuple(
            self.expression(f"{place}, key 'where'", text, known) for text in self.listed(place, spec, "where", [])
        )
        inputs, outputs = (
            tuple(self.slot(f"{place}, key {key!r}", slot, known) for slot in self.listed(place, spec, key, None))
            for key in ("inputs", "outputs")
        )
        forms = self.forms(f"{place}, key 'forms'", self.listed(place, spec, "forms", []))
        cells = {}
        for column, value in self.mapping(place, spec, "cells"):
            expressions = [value.count, value.each] if isinstance(value, Lengths) else [value]
            for expression in expressions:
                if isinstance(expression, Expression):
                    self.known(f"{place}, cell {column!r}", expression, known)
            cells[str(column)] = value
        if len(self.mistakes) > before:
            return None
        pattern = Pattern(name, tuple(axes), inputs, outputs, forms, let, where, cells)
        self.fit(place, pattern, forms)
        return pattern

    def axis(self, place: str, name: str, value: Any) -> Axis:
        if isinstance(value, list):
            return Axis(name, self.sizes(place, value))
        if isinstance(value, str) and value in self.grids:
            return Axis(name, self.grids[value], between=True)
        source = value.get("from", "") if isinstance(value, dict) else value
        if not isinstance(source, str) or source not in SOURCES:
            known = [*self.grids, *SOURCES]
            self.problem(
                place, f"{source!r} is neither a grid nor a source of models' sizes{suggest(str(source), known)}"
            )
            return Axis(name, (1,))
        generic = value.get("generic", {}) if isinstance(value, dict) else {}
        names = SOURCES[source].names
        if isinstance(value, dict):
            self.keys(place, value, ("from", "generic"))
        if not isinstance(generic, dict) or (generic and set(generic) != set(names)):
            self.problem(f"{place}, key 'generic'", f"give sizes for {', '.join(names)}")
            return Axis(name, source=source)
        return Axis(name, source=source, generic={n: self.sizes(f"{place}, {n}", s) for n, s in generic.items()})

    def sizes(self, place: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or not value or not all(type(size) is int and size > 0 for size in value):
            self.problem(place, f"{_short(value)} is not a list of whole numbers above 0")
            return (1,)
        if sorted(set(value)) != value:
            self.problem(place, "give the sizes in ascending order, each once")
        return tuple(value)

    def slot(self, place: str, value: Any, known: set[str]) -> Template:
        if value is None:
            return None
        if not isinstance(value, list):
            self.problem(place, f"{value!r} is not a list of dimensions (null: an absent slot; []: a scalar)")
            return None
        return tuple(self.expression(place, dim, known) for dim in value)

    def expression(self, place: str, text: Any, known: set[str]) -> Expression:
        try:
            if not isinstance(text, (str, int)) or isinstance(text, bool):
                raise ExpressionError("neither text nor a whole number")
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

    def forms(self, place: str, texts: Any) -> tuple[Form, ...]:
        forms = []
        for text in texts if isinstance(texts, list) else [texts]:
            try:
                if not isinstance(text, str):
                    raise ValueError("not text such as BF16;BF16 -> BF16")
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

    def mapping(self, place: str, spec: Mapping[str, Any], key: str) -> Iterable[tuple[Any, Any]]:
        value = spec.get(key, {})
        if not isinstance(value, Mapping):
            self.problem(f"{place}, key {key!r}", "it must be a mapping")
            return ()
        return value.items()

    def listed(self, place: str, spec: Mapping[str, Any], key: str, default: list[Any] | None) -> list[Any]:
        value = spec.get(key, default)
        if not isinstance(value, list):
            self.problem(f"{place}, key {key!r}", "it must be a list")
            return []
        return value

    def keys(self, place: str, spec: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in spec:
            if key not in known:
                self.problem(place, f"there is no key {key!r}{suggest(str(key), known)}; there are {', '.join(known)}")


def _pattern_names(spec: Any) -> list[Any]:
    """Returns the pattern names of a kernel type's entry; none if the entry is malformed."""
    named = spec.get("pattern") if isinstance(spec, dict) else spec
    named = [named] if isinstance(named, str) else named
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


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
        if not operator.kernel_type or operator.is_communication or operator.is_free or operator.is_composite:
            continue
        for name in operator.alternates:
            if not name.lower().endswith(_AICORE):
                yield normalized_kernel_type(name), operator.kernel_type
        if operator.fields.get("query_mode") == "elementwise":
            yield operator.kernel_type, _ELEMENTWISE
