"""The rows of a database, matched with the patterns of the catalog.

Theory rows take dtypes and formats from captured rows where there are some, and from the catalog otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from opatlas.errors import TableError
from opatlas.row.columns import ACCELERATOR_CORE, INPUT_SLOTS, OP_STATE, OUTPUT_SLOTS
from opatlas.row.slots import SlotNumbers, known_dtype, optional_inputs, optional_outputs, slot_words
from opatlas.row.table import FIRST_LINE, RowTable
from opatlas.text import parse_whole
from opatlas.theory.catalog import CatalogKernel
from opatlas.theory.models import built_in_models
from opatlas.theory.patterns import NZ, Axis, Form, Pattern, Template
from opatlas.theory.sources import SOURCES, Shape, Targets, model_shapes

Dims = tuple[int, ...]
#: Dimensions, dtype and format of a slot.
Word = tuple[Dims, str, str]
#: The input and the output slots of a row.
Tensors = tuple[tuple[Word, ...], tuple[Word, ...]]
_ABSENT: Word = ((), "", "")


@dataclass(frozen=True)
class Match:
    """The result of matching a row with a pattern.

    Attributes:
        sizes: the variables that are a dimension by themselves.
        shapes: positions of the model shapes that the row may have; empty where no model has these sizes.
        on_axes: whether the other sizes lie on the axes of the pattern.
    """

    sizes: Mapping[str, int]
    shapes: tuple[int, ...]
    on_axes: bool


class Matcher:
    """Finds the model shapes that rows have. A pattern without a model's axes has one empty shape."""

    def __init__(self, pattern: Pattern, shapes: Sequence[Shape]) -> None:
        self.pattern = pattern
        dims = [dim for template in (*pattern.inputs, *pattern.outputs) for dim in template or ()]
        of_models = {name for axis in pattern.axes if axis.source for name in SOURCES[axis.source]}
        self._key = sorted(of_models & {dim.variable for dim in dims})
        self._computed = {dim.text: dim for dim in dims if dim.names and not dim.variable}
        self._shapes = shapes
        self._by_key: dict[tuple[int, ...], list[int]] = {}
        for number, shape in enumerate(shapes):
            self._by_key.setdefault(tuple(shape.values[name] for name in self._key), []).append(number)

    def match(self, row: Tensors) -> Match | None:
        """Returns how a row fits the pattern; None where slots, numbers of axes or sizes contradict the pattern."""
        sizes: dict[str, int] = {}
        computed: dict[str, int] = {}
        for templates, words in zip((self.pattern.inputs, self.pattern.outputs), row, strict=True):
            for template, (shape, dtype, name) in slot_pairs(templates, words):
                if template is None:
                    if shape:
                        return None
                    continue
                matrix = _matrix(template, shape, name)
                if matrix is None or not dtype:
                    return None
                for dim, size in zip(template, matrix, strict=True):
                    known = sizes if dim.variable else computed
                    if (known.setdefault(dim.text, size) if dim.names else dim.value({})) != size:
                        return None
        candidates = self._by_key.get(tuple(sizes[name] for name in self._key), [])
        shapes = tuple(number for number in candidates if self._agrees(number, sizes, computed))
        on_axes = all(_is_on(axis, sizes[axis.name]) for axis in self.pattern.axes if axis.name in sizes)
        return Match(sizes, shapes, on_axes)

    def _agrees(self, number: int, sizes: Mapping[str, int], computed: Mapping[str, int]) -> bool:
        """Returns whether the computed dimensions fit a shape. Dimensions with variables that the row lacks fit."""
        if not computed and not self.pattern.let:
            return True
        env = {**self._shapes[number].values, **sizes}
        for name, expression in self.pattern.let.items():
            if expression.names <= env.keys():
                value = expression.value(env)
                if env.setdefault(name, value) != value:
                    return False
        return all(
            self._computed[text].value(env) == size
            for text, size in computed.items()
            if self._computed[text].names <= env.keys()
        )


def slot_pairs(templates: Sequence[Template], words: Sequence[Word]) -> Iterator[tuple[Template, Word]]:
    """Yields the slots of a pattern with the slots of a row; the shorter side is filled with absent slots."""
    for i in range(max(len(templates), len(words))):
        yield templates[i] if i < len(templates) else None, words[i] if i < len(words) else _ABSENT


def is_blocked(template: Template, word: Word) -> bool:
    """Returns whether a slot is in FRACTAL_NZ. Some captures have no formats, so the number of axes decides."""
    shape, _, name = word
    return template is not None and len(template) >= 2 and len(shape) == len(template) + 2 and name in (NZ, "")


def read_tensors(table: RowTable) -> list[Tensors]:
    """Returns the tensors of each row. Raises TableError with the line of a dimension that is not a whole number."""
    halves = []
    for columns, optional in (
        (INPUT_SLOTS, optional_inputs(table.kernel_type)),
        (OUTPUT_SLOTS, optional_outputs(table.kernel_type)),
    ):
        words = []
        for position, cells in enumerate(zip(*map(table.cells, columns), strict=True)):
            try:
                words.append(_words(*cells, optional))
            except ValueError:
                raise TableError(
                    table.path,
                    f"column {columns[0]!r} is {cells[0][:200]!r}, and dimensions are whole numbers, 0 or more",
                    "Correct the cell, or ingest the capture again",
                    line=position + FIRST_LINE,
                ) from None
        halves.append(words)
    return list(zip(*halves, strict=True))


def _is_on(axis: Axis, size: int) -> bool:
    return axis.grid[0] <= size <= axis.grid[-1] if axis.between else size in axis.grid


def _matrix(template: Template, shape: Dims, name: str) -> Dims | None:
    """Returns the dimensions without FRACTAL_NZ blocks; None if the numbers of axes differ."""
    assert template is not None
    if len(shape) == len(template) and name != NZ:
        return shape
    if is_blocked(template, (shape, "", name)):
        *batch, a, b, c, d = shape
        return (*batch, b * c, a * d)
    return None


@lru_cache(maxsize=65536)
def _words(shapes: str, dtypes: str, formats: str, optional: SlotNumbers) -> tuple[Word, ...]:
    """Raises ValueError."""
    return tuple(
        (tuple(_dimension(text) for text in shape.split(",")) if shape else (), dtype, name)
        for shape, dtype, name in slot_words(shapes, dtypes, formats, optional)
    )


def _dimension(text: str) -> int:
    size = parse_whole(text)
    if size is None:
        raise ValueError(text)
    return size


class KnownRows:
    """The rows of a kernel type, matched with the patterns of the catalog."""

    def __init__(self, kernel: CatalogKernel, table: RowTable, targets: Targets) -> None:
        """Reads the rows and matches them.

        Args:
            targets: models whose shapes are known besides the shapes of the built-in models.

        Raises:
            TableError: a dimension is not a whole number; the message names the line.
        """
        self._tensors = read_tensors(table)
        #: The cells OP State and Accelerator Core of each row.
        self._places = [
            (state.strip(), core.strip())
            for state, core in zip(table.cells(OP_STATE), table.cells(ACCELERATOR_CORE), strict=True)
        ]
        known = table.captured.known
        self._captured = np.flatnonzero(known).tolist()
        everybody = replace(targets, models=(*built_in_models(), *targets.models), generic=True)
        #: The positions of the captured and of the other rows that match each pattern.
        self._captured_of: dict[str, list[int]] = {pattern.name: [] for pattern in kernel.patterns}
        self._others_of: dict[str, list[int]] = {pattern.name: [] for pattern in kernel.patterns}
        matchers = [Matcher(pattern, model_shapes(pattern, everybody)) for pattern in kernel.patterns]
        for at, row in enumerate(self._tensors):
            matches = {matcher.pattern.name: match for matcher in matchers if (match := matcher.match(row)) is not None}
            # If several patterns match, those with a model's shape and all axes count.
            owners = [name for name, match in matches.items() if match.shapes and match.on_axes]
            for name in owners or matches:
                (self._captured_of if known[at] else self._others_of)[name].append(at)

    def forms(self, pattern: Pattern) -> tuple[Form, ...]:
        """Returns the forms of a pattern's theory rows, from the first of these sources that has any.

        1. Captured rows with the slots and the axes of the pattern.
        2. Captured rows with as many slots of the same kinds of numbers.
        3. Other rows with the slots and the axes of the pattern, unless the catalog has all their forms: rows of
           earlier runs must not add forms.
        4. The catalog.
        """
        captured = self._forms(pattern, self._captured_of[pattern.name])
        if captured:
            return captured
        loose = self._forms(pattern, self._captured)
        if loose:
            return loose
        others = self._forms(pattern, self._others_of[pattern.name])
        if {_bare(form) for form in others} - {_bare(form) for form in pattern.forms}:
            return others
        op_state, core = _most(self._places[at] for at in self._captured)
        return tuple(replace(form, op_state=op_state, core=core or form.core) for form in sorted_forms(pattern.forms))

    @cached_property
    def has_captured_blocks(self) -> bool:
        """Whether a captured row has a slot in FRACTAL_NZ, as on an NPU."""
        return any(name == NZ for at in self._captured for words in self._tensors[at] for *_, name in words)

    def unknown_dtypes(self) -> list[str]:
        """Returns the dtypes without a known size. Rows with one of these give no forms."""
        names = {dtype for row in self._tensors for words in row for _, dtype, _ in words if dtype}
        return sorted(name for name in names if known_dtype(name) is None)

    def _forms(self, pattern: Pattern, positions: Iterable[int]) -> tuple[Form, ...]:
        found: dict[Form, list[tuple[str, str]]] = {}
        kinds = _kinds(pattern)
        for at in positions:
            form = _form(pattern, self._tensors[at], kinds)
            if form is not None:
                found.setdefault(form, []).append(self._places[at])
        usual = {form: _most(pairs) for form, pairs in found.items()}
        return tuple(replace(form, op_state=usual[form][0], core=usual[form][1]) for form in sorted_forms(found))


def sorted_forms(forms: Iterable[Form]) -> list[Form]:
    """Sorts forms, so that a seed draws the same rows wherever the forms come from."""
    return sorted(forms, key=lambda form: (str(form), form.input_formats, form.output_formats))


def _bare(form: Form) -> Form:
    return replace(form, op_state="", core="")


def _most(pairs: Iterable[tuple[str, str]]) -> tuple[str, str]:
    """Returns the most frequent pair that has any text."""
    counts = Counter(pair for pair in pairs if any(pair))
    return min(counts, key=lambda pair: (-counts[pair], pair)) if counts else ("", "")


def _kind(dtype: str) -> str:
    known = known_dtype(dtype)
    if known is None:
        return "unknown"
    return "float" if known.is_float else "bool" if known.name == "BOOL" else "integer"


def _kinds(pattern: Pattern) -> list[list[set[str]]]:
    """Returns the kinds of numbers that the catalog has in each slot; an empty set allows any kind."""
    halves = []
    for dtypes, templates in (
        ([form.input_dtypes for form in pattern.forms], pattern.inputs),
        ([form.output_dtypes for form in pattern.forms], pattern.outputs),
    ):
        halves.append([{_kind(names[i]) for names in dtypes} for i in range(len(templates))])
    return halves


def _form(pattern: Pattern, row: Tensors, kinds: Sequence[Sequence[set[str]]]) -> Form | None:
    """Returns the form of a row; None if its slots or their kinds of numbers do not fit the pattern."""
    halves: list[tuple[str, ...]] = []
    for number, (templates, words) in enumerate(zip((pattern.inputs, pattern.outputs), row, strict=True)):
        dtypes, formats = [], []
        for i, (template, word) in enumerate(slot_pairs(templates, words)):
            shape, dtype, _ = word
            if template is None:
                if shape:
                    return None
                dtype, name = "", ""
            else:
                allowed = kinds[number][i]
                if (
                    bool(shape) != bool(template)
                    or known_dtype(dtype) is None
                    or (allowed and _kind(dtype) not in allowed)
                ):
                    return None
                # Formats of images fix the number of axes, which may differ here.
                name = NZ if is_blocked(template, word) else "ND"
            if i < len(templates):
                dtypes.append(dtype)
                formats.append(name)
        halves += [tuple(dtypes), tuple(formats)]
    return Form(halves[0], halves[1], halves[2], halves[3])
