"""Which rows to measure next: those whose durations lower the error of the cost of models' steps most.

The weight of a row is its share of the time of the steps (calls x duration), times the deviation of its prediction. A
measured row has its own duration, and improves predictions of similar rows. So rows are chosen one after the other,
each for the error that the earlier rows leave.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import merge

import numpy as np

from opatlas.ask.query.features import RowFeatures, row_features
from opatlas.ask.query.implementation_answers import ImplementationAnswers
from opatlas.ask.query.model_cost import answer_call, default_stack, known_types
from opatlas.ask.query.question import NORMAL_90, How, QueryResult
from opatlas.data.database import Database
from opatlas.errors import UsageError
from opatlas.row.quality import Floats
from opatlas.row.signature import signature, signatures
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.model_calls import step_calls
from opatlas.theory.model_step import ModelCall, Step, step_dtype
from opatlas.theory.models import ModelFacts
from opatlas.theory.sources import resolve_model

#: The rows of a kernel type that are candidates: those that count most.
_MOST_CANDIDATES = 2000
#: The mean of the absolute value of a normal variable, in deviations.
_MEAN_ERROR = math.sqrt(2 / math.pi)
#: Of a kernel type without rows: microseconds of a launch, of a byte and of an operation, and a factor of the interval.
_LAUNCH_US, _BYTE_US, _OPERATION_US, _FACTOR = 5.0, 1e-6, 1e-8, 10.0
#: Without a model, rows twice as large are correlated by 1/e for each as many octaves.
_OCTAVES = 3.0


@dataclass(frozen=True)
class NextRow:
    """A row to be measured.

    Attributes:
        kernel_type, cells: the row, as `pytest shapes/` writes it.
        steps: the steps that call it.
        implementation: the name of the implementation that would answer, and that has to be measured.
        duration_us, interval_us: its prediction.
        gain: how much smaller the expected error of a step gets, as a share of the step's time.
    """

    kernel_type: str
    cells: Mapping[str, str]
    steps: int
    duration_us: float
    interval_us: tuple[float, float]
    gain: float
    implementation: str

    @property
    def signature(self) -> str:
        """The signature of the row."""
        return signature(self.kernel_type, self.cells)


@dataclass(frozen=True)
class NextRows:
    """Rows to be measured.

    Attributes:
        rows: the rows, the one with the largest gain first.
        error: the sum of the expected errors of a step's calls, as a share of its time: now, with the rows that are in
            the CSVs without a duration, and with `rows` too.
        waiting: rows of the steps that are in the CSVs without a duration.
        differs: how the steps differ from those of the published models, by the models' names.
    """

    rows: Sequence[NextRow]
    error: tuple[float, float, float]
    waiting: int
    differs: Mapping[str, Sequence[str]] = field(default_factory=dict)


def calls_of(step: Step) -> list[ModelCall]:
    """Returns the calls of a step that are measured by row: those that the catalog has.

    Raises:
        UsageError: the model is unknown, or cannot be divided so.
    """
    found = step_calls(_facts(step.model), step)
    return [call for call in found if call.kernel_type in built_in_catalog().kernels]


def differences(steps: Iterable[Step]) -> dict[str, tuple[str, ...]]:
    """Returns how steps differ from those of the published models, by the models' names."""
    found: dict[str, tuple[str, ...]] = {}
    for step in steps:
        facts = _facts(step.model)
        if differs := facts.differences(step_dtype(facts, step.dtype)):
            found[facts.name] = tuple(dict.fromkeys((*found.get(facts.name, ()), *differs)))
    return found


@cache
def _facts(model: str) -> ModelFacts:
    return resolve_model(model)


def next_rows(
    answers: ImplementationAnswers, n: int, steps: Sequence[Sequence[ModelCall]], tell: Callable[[str], object] = str
) -> NextRows:
    """Returns the rows whose measurement lowers the error of some steps most, as `OpenDatabase.next_rows`.

    All steps count alike, whatever they take. A row is measured if the implementation has measured it that answers in
    `OpenDatabase.model`: of the default stack the first with rows of the kernel type.

    Args:
        steps: the calls of each step.

    Raises:
        UsageError: `n` is below 1.
        OpAtlasError: a table cannot be read.
    """
    if n < 1:
        raise UsageError(f"{n} rows: give a number above 0")
    rows = _rows_of(answers, steps, tell)
    step_us = np.zeros(len(steps))
    tables: dict[tuple[str, str], list[_CalledRow]] = defaultdict(list)
    for row in rows:
        tables[row.kernel_type, row.implementation].append(row)
        for number, count in row.calls.items():
            step_us[number] += count * row.us
    choices = [_Choice(table, answers, step_us) for table in tables.values()]
    now = sum(choice.error for choice in choices)
    for choice in choices:
        choice.take_waiting()
    waiting = sum(choice.error for choice in choices)
    ranked = merge(*(choice.rows() for choice in choices), key=lambda row: -row.gain)
    chosen = [row for _, row in zip(range(n), ranked, strict=False)]
    after = waiting - sum(row.gain for row in chosen)
    return NextRows(chosen, (now, waiting, max(after, 0.0)), sum(len(choice.waiting) for choice in choices))


@dataclass(frozen=True)
class _CalledRow:
    """A row that steps call.

    Attributes:
        kernel_type, cells: the row.
        implementation: the name of the implementation that answers it; the first one, if none does.
        us, low, high: its duration and its interval.
        measured, listed: whether a stored row answers, and whether the CSV has the row.
        calls: how often each step calls it.
    """

    kernel_type: str
    cells: Mapping[str, str]
    implementation: str
    us: float
    low: float
    high: float
    measured: bool
    listed: bool
    calls: Counter[int] = field(default_factory=Counter)


def _rows_of(
    answers: ImplementationAnswers, steps: Sequence[Sequence[ModelCall]], tell: Callable[[str], object]
) -> list[_CalledRow]:
    """Returns the rows that steps call, each once."""
    called: dict[tuple[str, str], ModelCall] = {}
    counts: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for number, calls in enumerate(steps):
        for call in calls:
            key = call.kernel_type, call.signature()
            called.setdefault(key, call)
            counts[key][number] += call.calls_per_step
    stack = default_stack(answers)
    names = {each.label.strip(): name for name, each in answers.implementations.items()}
    listed: dict[str, set[str]] = {}
    rows: dict[tuple[str, str], _CalledRow] = {}
    for key, call in called.items():
        tell(call.kernel_type)
        found = answer_call((call, call), answers, stack)
        answer = None if found is None else found[1]
        # A twin has equal rows; the device runs one of them.
        kernel_type = next(iter(known_types(call, answers)), call.kernel_type) if answer is None else answer.kernel_type
        if kernel_type not in listed:
            listed[kernel_type] = set(signatures(kernel_type, Database(answers.path).read_or_empty(kernel_type).frame))
        own = signature(kernel_type, call.cells)
        if (kernel_type, own) not in rows:
            name = stack[0] if answer is None else names[answer.implementation]
            rows[kernel_type, own] = _CalledRow(
                kernel_type, call.cells, name, *_duration(call, answer), listed=own in listed[kernel_type]
            )
        rows[kernel_type, own].calls.update(counts[key])
    return list(rows.values())


def _duration(call: ModelCall, answer: QueryResult | None) -> tuple[float, float, float, bool]:
    """Returns a duration, the ends of its interval, and whether it is measured."""
    if answer is None:
        us = _guess_us(row_features(call.kernel_type, call.cells, 1))
        return us, us / _FACTOR, us * _FACTOR, False
    us = answer.duration_us
    return (us, us, us, True) if answer.how is How.MEASURED else (us, *answer.interval_us, False)


def _guess_us(features: RowFeatures | None) -> float:
    """Returns the order of magnitude of a duration without a row."""
    if features is None:
        return _LAUNCH_US
    moved, done, *_ = features.work
    return _LAUNCH_US + moved * _BYTE_US + done * _OPERATION_US


class _Choice:
    """Chooses rows of one kernel type and implementation, one after the other.

    Attributes:
        waiting: positions of candidates that the CSV has without a duration.
        error: the sum of the expected errors of all candidates, as a share of a step's time.
    """

    def __init__(self, rows: Sequence[_CalledRow], answers: ImplementationAnswers, step_us: Floats) -> None:
        def weight(row: _CalledRow) -> float:
            return row.us * sum(count / float(step_us[step]) for step, count in row.calls.items()) / len(step_us)

        def deviation(row: _CalledRow) -> float:
            return math.log(row.high / row.low) / (2 * NORMAL_90)

        unknown = [row for row in rows if not row.measured]
        self._rows = sorted(unknown, key=lambda row: -weight(row) * deviation(row))[:_MOST_CANDIDATES]
        self._value = np.array(list(map(weight, self._rows)))
        deviations = np.array(list(map(deviation, self._rows)))
        self._joint = self._correlations(answers) * np.outer(deviations, deviations)
        self._listed = np.array([row.listed for row in self._rows], dtype=bool)
        self.waiting = np.flatnonzero(self._listed)

    def _correlations(self, answers: ImplementationAnswers) -> Floats:
        if not self._rows:
            return np.zeros((0, 0))
        kernel_type, cells = self._rows[0].kernel_type, [row.cells for row in self._rows]
        if kernel_type in answers.kernel_types:
            found = answers.predictor(kernel_type, self._rows[0].implementation).correlations(cells)
            if found is not None:
                return found
        sizes = [() if (row := row_features(kernel_type, each, 1)) is None else row.sizes for each in cells]
        if len({len(each) for each in sizes}) > 1:
            return np.eye(len(cells))
        points = np.array(sizes)
        octaves = np.sqrt(((points[:, None, :] - points[None, :, :]) ** 2).sum(-1))
        return np.exp(-octaves / _OCTAVES)

    @property
    def error(self) -> float:
        return _MEAN_ERROR * float((self._value * self._deviation).sum())

    @property
    def _deviation(self) -> Floats:
        return np.sqrt(np.maximum(np.diag(self._joint), 0.0))

    def take_waiting(self) -> None:
        """Counts the rows that wait in the CSV as measured."""
        for i in self.waiting.tolist():
            self._take(i)

    def rows(self) -> Iterator[NextRow]:
        """Yields the rows that are not in the CSV, each time the one with the largest gain."""
        left = ~self._listed
        while left.any():
            gains = np.where(left, self._gains(), -np.inf)
            best = int(gains.argmax())
            if not gains[best] > 0:
                return
            left[best] = False
            row = self._rows[best]
            yield NextRow(
                row.kernel_type,
                row.cells,
                len(row.calls),
                row.us,
                (row.low, row.high),
                _MEAN_ERROR * float(gains[best]),
                row.implementation,
            )
            self._take(best)

    def _gains(self) -> Floats:
        """Returns for each candidate by how much its measurement lowers the sum of all errors."""
        variance = np.maximum(np.diag(self._joint), 1e-12)
        explained = np.minimum(self._joint**2 / (variance[:, None] * variance[None, :]), 1.0)
        return (1 - np.sqrt(1 - explained)) @ (self._value * np.sqrt(variance))

    def _take(self, position: int) -> None:
        variance = self._joint[position, position]
        if variance > 0:
            column = self._joint[:, position].copy()
            self._joint -= np.outer(column, column) / variance
        self._value[position] = 0.0
