"""A question and its answer: the known cells of a row, and a duration with its interval and the rows it comes from.

A question is completed by what the rows have and a user does not write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np

from opatlas.errors import CellError, OpAtlasError
from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES, INPUT_SLOTS, OUTPUT_SHAPES, OUTPUT_SLOTS
from opatlas.row.quality import Floats, Positions
from opatlas.row.slots import dtype_name, known_dtype, normal_words, parse_slots, split_cell
from opatlas.text import Word, parse_whole

if TYPE_CHECKING:
    from opatlas.ask.query.answering_rows import AnsweringRows

#: Two-sided 90 % quantile of the normal distribution.
NORMAL_90 = 1.645
#: The 90 % quantile of the relative difference of equal rows in one session.
SAME_MACHINE_FLOOR = 0.021
#: The standard deviation of equal rows between machines, as a share, where few rows of a kernel type tell it, and how
#: many rows it counts for. What a clock adds, in microseconds. The share of rows within one standard deviation.
_USUAL_DEVIATION, _USUAL_ROWS, _CLOCK_US, _WITHIN_ONE = 0.0094, 4, 0.012, 0.683
#: How many degrees of freedom the usual variance has, and at most the machines of a row, which have longer tails than a
#: normal distribution. The 90 % quantile of Student's t with 2, 3, ... of them. Fitted to half of the H200's rows.
_USUAL_FREEDOM, _OWN_FREEDOM = 2, 3
_STUDENT_90 = np.array([np.nan, np.nan, 2.920, 2.353, 2.132, 2.015])
#: The mean range of 1, 2, ... normally distributed values, in standard deviations (Tippett 1925).
_RANGES = (1.0, 1.128, 1.693, 2.059, 2.326, 2.534, 2.704, 2.847, 2.970, 3.078)
#: The lower end of an interval stays above zero.
LARGEST_HALF_WIDTH = 0.99


class NoAnswer(OpAtlasError):
    """A question without an answer. The message names the missing data, and the data that the database has instead."""


class How(Word):
    """How a duration is known, from the best to the worst."""

    MEASURED = "measured"  # the row is stored
    INTERPOLATED = "interpolated"  # from rows around it
    EXTRAPOLATED = "extrapolated"  # from rows that are all smaller, or all larger
    ANALYTIC = "analytic"  # from bytes and operations


@dataclass(frozen=True, slots=True)
class UsedRow:
    """A stored row that an answer comes from.

    Attributes:
        case_id: the id of the row, as pytest shows it.
        run_id: the run that measured it; "" for a captured duration.
        duration_us: its duration.
        distance: how far the row is from the question; 0 for the row itself.
        kernels: the device kernels of a call; 0 if unknown.
    """

    case_id: str
    run_id: str
    duration_us: float
    distance: float = 0.0
    kernels: int = 0


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer to a question.

    Attributes:
        duration_us: the duration in microseconds.
        interval_us: the lower and the upper end of the 90 % interval.
        how: whether the row is stored, or the duration is derived from others.
        kernel_type: the kernel type of the question.
        implementation: name and version of the software that ran ("torch", "flashinfer 0.5.3").
        source: "replayed", or "captured" by a profiler; "captured, replayed" of rows of both.
        rows: the stored rows that the answer comes from, the nearest first.
        device: the device that measured the rows; "" if unknown.
        cache: the cache state of the rows ("cold", "warm"), several with commas; "" if unknown.
        instrument: the instrument that measured the rows ("cupti"), several with commas; "capture" for a captured
            duration; "" if unknown.
        machines: the number of machines that measured the row; None unless the row is stored and has it.
        quality: the quality of the row's samples; "" unless the row is stored and its quality is known.
        note: the assumptions, or why the row is not stored; "" if there is nothing to say.
        composed: whether a composition of torch operators ran in place of the one kernel of an NPU; None if the rows do
            not say.
        other_dtypes: whether no row that the duration comes from has the dtypes of the question.
        other_load: whether too few of the rows that the duration comes from have the Expert Load of the question.
        rivals: the other answers: those of the other implementations, the fastest first, then the capture of a row
            that was also replayed, and durations of the row on other devices.
    """

    duration_us: float
    interval_us: tuple[float, float]
    how: How
    kernel_type: str
    implementation: str
    rows: tuple[UsedRow, ...]
    device: str = ""
    cache: str = ""
    instrument: str = ""
    machines: int | None = None
    quality: str = ""
    note: str = ""
    composed: bool | None = False
    source: str = ""
    other_dtypes: bool = False
    other_load: bool = False
    rivals: tuple[QueryResult, ...] = ()

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs that measured the rows, each once."""
        return tuple(dict.fromkeys(row.run_id for row in self.rows if row.run_id))


def leads(how: How, interval_us: tuple[float, float], row_us: float) -> bool:
    """Returns whether a prediction goes before a stored row of another implementation.

    Args:
        how, interval_us: of the prediction. An analytic one has no interval that was found by hiding rows.
        row_us: the duration of the row; NaN if no row is stored, and the prediction has nothing to go before.
    """
    return bool(np.isnan(row_us)) or (how is not How.ANALYTIC and interval_us[1] < row_us)


def usual_deviation(machines: Floats, duration_us: Floats, errors: Floats) -> float:
    """Returns the standard deviation between machines that is usual for some rows, as a share.

    It is a quantile of what each row tells beyond its samples and the clock, so that few odd rows do not change it.

    Args:
        machines: as for `machine_half_widths`.
        errors: the standard errors of the rows' durations, as shares.
    """
    variances, freedom = _own_variances(machines)
    several = freedom > 0
    # This quantile of the F distribution with these and two degrees of freedom.
    odds = _WITHIN_ONE ** (-2 / freedom[several]) - 1
    own = variances[several] * odds * freedom[several] / 2
    beyond = own - errors[several] ** 2 - (_CLOCK_US / duration_us[several]) ** 2
    return float(np.sqrt(max(np.quantile([*beyond, *[_USUAL_DEVIATION**2] * _USUAL_ROWS], _WITHIN_ONE), 0.0)))


def machine_half_widths(machines: Floats, duration_us: Floats, usual: Floats | float) -> Floats:
    """Returns the relative differences of rows on another machine of the same type in nine of ten cases.

    The variance of the machines that measured a row and the usual one are averaged by their degrees of freedom (Smyth
    2004, moderated t).

    Args:
        machines: the number of machines that measured each row (NaN, unknown, counts as one); the largest minus the
            smallest median of these machines, as a share of the row's (NaN if unknown). 2 x rows, or x 1 for all.
        usual: the `usual_deviation` of rows of the kernel type.
    """
    variances, freedom = _own_variances(machines)
    pooled = _USUAL_FREEDOM * (usual**2 + (_CLOCK_US / duration_us) ** 2) + freedom * variances
    freedom += _USUAL_FREEDOM
    return _STUDENT_90[freedom] * np.sqrt(pooled / freedom * (1 + 1 / np.fmax(machines[0], 1)))


def measured_half_widths(errors: Floats, machines: Floats, duration_us: Floats, usual: Floats | float | None) -> Floats:
    """Returns the half widths, as shares of the durations, of the intervals of stored rows.

    Args:
        errors: the standard errors of the durations, as shares.
        machines, usual: as for `machine_half_widths`; None for intervals of the machine that measured the rows.
    """
    equal = SAME_MACHINE_FLOOR if usual is None else machine_half_widths(machines, duration_us, usual)
    return np.hypot(NORMAL_90 * errors, equal)


def _own_variances(machines: Floats) -> tuple[Floats, Positions]:
    """Returns the variances between the machines of rows, and their degrees of freedom; 0 and 0 if unknown."""
    counts, spreads = np.where(np.isnan(machines).any(axis=0), [[1], [0]], machines)
    deviations = spreads / np.interp(counts, range(1, len(_RANGES) + 1), _RANGES)
    return deviations**2, np.minimum(counts - 1, _OWN_FREEDOM).astype(np.intp)


def interval_of(duration_us: Floats | float, half_widths: Floats) -> tuple[Floats, Floats]:
    """Returns the lower and the upper ends of intervals by their half widths as shares of the durations."""
    return duration_us * (1 - np.minimum(half_widths, LARGEST_HALF_WIDTH)), duration_us * (1 + half_widths)


#: The columns of a row's tensors but their sizes.
FORM = (*INPUT_SLOTS[1:], *OUTPUT_SLOTS[1:])

#: A tensor's shape: "48,18432" or (48, 18432).
Shape = str | Sequence[int]
#: The shapes of several tensors: a cell of the CSV ("48,18432;7168,18432"), or a shape for each tensor.
Shapes = str | Sequence[Shape]
#: The dtypes of several tensors: a cell of the CSV, or a word for each tensor.
Words = str | Sequence[str]


@dataclass(frozen=True)
class Question:
    """The known cells of a row.

    Attributes:
        kernel_type: the kernel type.
        cells: the known cells by column, normalized; `Input Shapes` is among them.
        dtype: the dtype of the first input, where only that is known; "" if unknown, or if the cells have all dtypes.
    """

    kernel_type: str
    cells: Mapping[str, str]
    dtype: str = ""


def ask(kernel_type: str, input_shapes: Shapes, *, dtypes: Words = "", output_shapes: Shapes = "") -> Question:
    """Returns a question.

    Args:
        dtypes: a word for each input, or one word: the dtype of the first input.

    Raises:
        OpAtlasError: a shape has no dimensions, or a dtype is unknown.
    """
    shapes = _shapes_cell(input_shapes)
    names = _words(dtypes)
    for name in names:
        if name and known_dtype(name) is None:
            raise OpAtlasError(f"{kernel_type}: {name!r} is not a dtype: write BF16, FLOAT16, FLOAT8_E4M3FN, INT8, ...")
    single = len(names) == 1 and ";" in shapes
    cells = {
        INPUT_SHAPES: shapes,
        INPUT_DTYPES: "" if single else ";".join(names),
        OUTPUT_SHAPES: _shapes_cell(output_shapes),
    }
    _expect_numbers(kernel_type, cells)
    return Question(kernel_type, {column: cell for column, cell in cells.items() if cell}, names[0] if single else "")


def _shapes_cell(shapes: Shapes) -> str:
    if isinstance(shapes, str):
        return shapes.strip()
    if shapes and all(isinstance(size, int) for size in shapes):
        # One tensor, as a tuple of its sizes.
        return ",".join(map(str, shapes))
    return ";".join(shape.strip() if isinstance(shape, str) else ",".join(map(str, _sizes(shape))) for shape in shapes)


def _sizes(shape: object) -> Iterable[object]:
    if not isinstance(shape, Iterable):
        raise OpAtlasError(f"{shape!r} is not the shape of a tensor: write (48, 7168) or '48,7168'")
    return shape


def _words(words: Words) -> list[str]:
    cell = words if isinstance(words, str) else ";".join(words)
    # As torch prints them: torch.bfloat16.
    return [] if not cell.strip() else [_name(word.removeprefix("TORCH.")) for word in split_cell(cell)]


def _name(word: str) -> str:
    known = known_dtype(word)
    return dtype_name(word) if known is None else known.name


def _expect_numbers(kernel_type: str, cells: Mapping[str, str]) -> None:
    for column in (INPUT_SHAPES, OUTPUT_SHAPES):
        words = ";".join("BF16" if shape else "" for shape in split_cell(cells[column]))
        try:
            parse_slots(cells[column], words, "", (column, column, column))
        except CellError as error:
            raise OpAtlasError(f"{kernel_type}: {error}: write the shape of each tensor as 48,18432") from None
    if not any(split_cell(cells[INPUT_SHAPES])):
        raise OpAtlasError(f"{kernel_type}: no shape of an input: write each tensor as 48,18432")


Dims = tuple[tuple[int, ...], ...]


class Completion:
    """Completes the questions about one kernel type of one implementation. The content of its rows is read once."""

    def __init__(self, rows: AnsweringRows) -> None:
        self._rows = rows

    def complete(self, question: Question) -> tuple[Mapping[str, str], str]:
        """Returns the cells of a row, and the assumptions.

        The form (dtypes, formats, number of axes) is the most frequent one of the rows that agrees with the question. A
        size of an output follows from the inputs by the rule that all rows of the form obey: it is a size of an input,
        a constant, a multiple or part of a size, or the product of two.

        Raises:
            NoAnswer: no row has inputs with as many axes and these dtypes, or the outputs do not follow from the
                inputs.
        """
        asked = _dims(question.cells[INPUT_SHAPES])
        forms = self._forms.get(_axes(asked), {})
        fitting = {form: found for form, found in forms.items() if _agrees(form, question)}
        if not fitting:
            rows, as_many = f"row of {self._rows.label}", f"inputs with as many axes as {question.cells[INPUT_SHAPES]}"
            if forms:
                dtypes, formats = (";".join(words) for words in max(forms, key=lambda each: len(forms[each]))[:2])
                raise NoAnswer(
                    f"{question.kernel_type}: each {rows} that has {as_many} has other dtypes or formats, such as "
                    f"{dtypes} with {formats}: ask for these, or measure the row"
                )
            ((usual, _),) = Counter(self._rows.cells(INPUT_SHAPES)).most_common(1)
            raise NoAnswer(f"{question.kernel_type}: no {rows} has {as_many} (most have {usual}): measure the row")
        form = max(fitting, key=lambda each: len(fitting[each]))
        named = {column: ";".join(words) for column, words in zip(FORM, form, strict=True)}
        outputs = question.cells.get(OUTPUT_SHAPES) or self._follow(fitting[form], asked)
        if outputs is None:
            raise NoAnswer(
                f"{question.kernel_type}: the outputs do not follow from the inputs: give output_shapes, or a row "
                f"(`opatlas query --file`)"
            )
        note = "" if len(fitting) == 1 else f"with {named[FORM[0]]}, as most rows"
        return {**named, **question.cells, OUTPUT_SHAPES: outputs}, note

    @cached_property
    def stores_weight_transposed(self) -> bool:
        """Whether most products have the weight as (n, k) and not as (k, n)."""
        votes = 0
        for shapes, results in zip(self._inputs, self._outputs, strict=True):
            if len(shapes) >= 2 and len(shapes[1]) == 2 and results and results[0]:
                votes += (shapes[1][0] == results[0][-1]) - (shapes[1][1] == results[0][-1])
        return votes >= 0

    @cached_property
    def _inputs(self) -> list[Dims]:
        return list(map(_dims, self._rows.cells(INPUT_SHAPES)))

    @cached_property
    def _outputs(self) -> list[Dims]:
        return list(map(_dims, self._rows.cells(OUTPUT_SHAPES)))

    @cached_property
    def _forms(self) -> Mapping[tuple[int, ...], Mapping[tuple[tuple[str, ...], ...], list[int]]]:
        """The positions of the rows by the numbers of axes of the inputs, then by form."""
        found: dict[tuple[int, ...], dict[tuple[tuple[str, ...], ...], list[int]]] = {}
        for places in self._rows.alike:
            form = tuple(self._rows.words_at(places[0], column) for column in FORM)
            found.setdefault(_axes(self._inputs[places[0]]), {}).setdefault(form, []).extend(places)
        return found

    def _follow(self, found: Sequence[int], asked: Dims) -> str | None:
        """Returns the cell of the outputs' shapes that follows from the inputs; None if it does not follow.

        Rows of products with transposed and other operands have no rule in common. Then rows count whose inputs agree
        in sizes in which the asked ones agree, too: each group of these rows has to lead to the same outputs.
        """
        if (all_rows := self._follow_rule(found, asked)) is not None:
            return all_rows
        agreeing, groups = _equal_sizes(asked), dict[frozenset[tuple[int, int]], list[int]]()
        for position in found:
            if (equal := _equal_sizes(self._inputs[position])) and equal <= agreeing:
                groups.setdefault(equal, []).append(position)
        cells = {self._follow_rule(group, asked) for group in groups.values()}
        return cells.pop() if len(cells) == 1 else None

    def _follow_rule(self, found: Sequence[int], asked: Dims) -> str | None:
        """Returns the cell of the outputs' shapes by the rule that all these rows obey; None without one."""
        outputs = [self._outputs[i] for i in found]
        axes = Counter(map(_axes, outputs)).most_common(1)[0][0]
        usual = [i for i, dims in zip(found, outputs, strict=True) if _axes(dims) == axes]
        inputs, flat = [_flat(self._inputs[i]) for i in usual], [_flat(self._outputs[i]) for i in usual]
        sizes = [_size(inputs, [row[column] for row in flat], _flat(asked)) for column in range(len(flat[0]))]
        if None in sizes:
            return None
        following = iter(sizes)
        return ";".join(",".join(str(next(following)) for _ in range(count)) for count in axes)


def _agrees(form: Sequence[tuple[str, ...]], question: Question) -> bool:
    if question.dtype and form[0][:1] != (question.dtype,):
        return False
    return all(
        column not in question.cells or normal_words(question.kernel_type, column, question.cells) == words
        for column, words in zip(FORM, form, strict=True)
    )


def _dims(cell: str) -> Dims:
    """Returns the sizes of each slot; of a malformed one none."""
    slots = split_cell(cell)
    while slots and not slots[-1]:
        slots.pop()
    return tuple(map(_sizes_of_slot, slots))


@lru_cache(maxsize=8192)
def _sizes_of_slot(slot: str) -> tuple[int, ...]:
    return tuple(size for word in slot.split(",") if (size := parse_whole(word)) is not None)


def _axes(dims: Dims) -> tuple[int, ...]:
    return tuple(map(len, dims))


def _flat(dims: Dims) -> tuple[int, ...]:
    return tuple(size for slot in dims for size in slot)


def _equal_sizes(dims: Dims) -> frozenset[tuple[int, int]]:
    """Returns the pairs of axes with equal sizes above 1, by their positions among the axes of all tensors."""
    return frozenset((i, j) for (i, a), (j, b) in combinations(enumerate(_flat(dims)), 2) if a == b > 1)


def _size(inputs: Sequence[tuple[int, ...]], sizes: Sequence[int], asked: Sequence[int]) -> int | None:
    """Returns the size of an output by the first rule that all rows obey; None if there is none."""
    columns = list(zip(*inputs, strict=True))
    for column, value in zip(columns, asked, strict=True):
        if list(column) == list(sizes):
            return value
    if len(set(sizes)) == 1:
        return sizes[0]
    for column, value in zip(columns, asked, strict=True):
        ratios = {Fraction(size, one) if one else None for size, one in zip(sizes, column, strict=True)}
        if len(ratios) == 1 and (ratio := ratios.pop()) is not None:
            return int(value * ratio)
    for one, other in combinations_with_replacement(range(len(columns)), 2):
        if all(a * b == size for a, b, size in zip(columns[one], columns[other], sizes, strict=True)):
            return asked[one] * asked[other]
    return None
