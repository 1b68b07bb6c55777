"""Which shapes of a pattern the rows of a database have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from opatlas.errors import TableError
from opatlas.model.quality import valid_duration
from opatlas.model.schema import (
    BASE,
    INPUT_SHAPES,
    OUTPUT_SHAPES,
    PROFILING_AVERAGE,
)
from opatlas.model.slots import slot_words
from opatlas.store.database import Table
from opatlas.text import whole
from opatlas.theory.patterns import (
    NZ,
    Axis,
    Pattern,
    Template,
)
from opatlas.theory.sources import SOURCES, Shape

Dims = tuple[int, ...]
#: Dimensions, dtype and format of a slot.
Word = tuple[Dims, str, str]
_ABSENT: Word = ((), "", "")


@dataclass(frozen=True)
class KnownRow:
    """A row of the database, as theory rows look at it.

    Attributes:
        captured: it has a duration of a profiler.
    """

    inputs: tuple[Word, ...]
    outputs: tuple[Word, ...]
    op_state: str
    core: str
    captured: bool


@dataclass(frozen=True)
class Match:
    """What a row is of a pattern.

    Attributes:
        sizes: the variables that stand alone as a dimension.
        shapes: numbers of the shapes that it may have; none where its sizes are nobody's.
        on_axes: whether its other sizes are those that the pattern's axes have.
    """

    sizes: Mapping[str, int]
    shapes: tuple[int, ...]
    on_axes: bool


class Matcher:
    """Finds the shapes that rows have. What a pattern's axes do not depend on models for has one empty shape."""

    def __init__(self, pattern: Pattern, shapes: Sequence[Shape]) -> None:
        self.pattern = pattern
        dims = [dim for template in (*pattern.inputs, *pattern.outputs) for dim in template or ()]
        of_models = {name for axis in pattern.axes if axis.source for name in SOURCES[axis.source].names}
        self._key = sorted(of_models & {dim.variable for dim in dims})
        self._computed = {dim.text: dim for dim in dims if dim.names and not dim.variable}
        self._shapes = shapes
        self._by_key: dict[tuple[int, ...], list[int]] = {}
        for number, shape in enumerate(shapes):
            self._by_key.setdefault(tuple(shape.values[name] for name in self._key), []).append(number)

    def match(self, row: KnownRow) -> Match | None:
        """None where the row has other slots, or axes, or sizes that do not agree with each other."""
        sizes: dict[str, int] = {}
        computed: dict[str, int] = {}
        for templates, words in ((self.pattern.inputs, row.inputs), (self.pattern.outputs, row.outputs)):
            for template, (shape, dtype, name) in paired(templates, words):
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
        """Whether the computed dimensions are those of a shape, as far as the row tells what they come from."""
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


def paired(templates: Sequence[Template], words: Sequence[Word]) -> Iterator[tuple[Template, Word]]:
    """Slots of a pattern beside those of a row; what one of them does not have is absent."""
    for i in range(max(len(templates), len(words))):
        yield templates[i] if i < len(templates) else None, words[i] if i < len(words) else _ABSENT


def is_blocked(template: Template, word: Word) -> bool:
    """Whether a slot stands in FRACTAL_NZ for what the pattern has there; not every capture has formats."""
    shape, _, name = word
    return template is not None and len(template) >= 2 and len(shape) == len(template) + 2 and name in (NZ, "")


def read_rows(table: Table) -> Iterator[KnownRow]:
    """Raises TableError for a dimension that is no number; the message names the line."""
    frame = table.frame
    names = (*BASE, PROFILING_AVERAGE)
    columns = [frame[name].tolist() if name in frame.columns else [""] * len(frame) for name in names]
    for position, (op_state, core, *cells, duration) in enumerate(zip(*columns, strict=True)):
        words = []
        for first, column in ((0, INPUT_SHAPES), (3, OUTPUT_SHAPES)):
            try:
                words.append(_words(*cells[first : first + 3]))
            except ValueError:
                raise TableError(
                    table.path,
                    f"column {column!r} is {cells[first][:200]!r}, and dimensions are whole numbers, 0 or more",
                    "Correct the cell, or ingest the capture again",
                    line=position + 2,
                ) from None
        yield KnownRow(words[0], words[1], op_state.strip(), core.strip(), valid_duration(duration) is not None)


def _is_on(axis: Axis, size: int) -> bool:
    return axis.grid[0] <= size <= axis.grid[-1] if axis.between else size in axis.grid


def _matrix(template: Template, shape: Dims, name: str) -> Dims | None:
    """The dimensions without blocks; None where the slot has another number of axes."""
    assert template is not None
    if len(shape) == len(template) and name != NZ:
        return shape
    if is_blocked(template, (shape, "", name)):
        *batch, a, b, c, d = shape
        return (*batch, b * c, a * d)
    return None


@lru_cache(maxsize=65536)
def _words(shapes: str, dtypes: str, formats: str) -> tuple[Word, ...]:
    """Raises ValueError."""
    return tuple(
        (tuple(_dimension(text) for text in shape.split(",")) if shape else (), dtype, name)
        for shape, dtype, name in slot_words(shapes, dtypes, formats)
    )


def _dimension(text: str) -> int:
    size = whole(text)
    if size is None:
        raise ValueError(text)
    return size
