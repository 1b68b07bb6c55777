"""Which rows to measure next: those whose durations tell the most of what steps of models cost.

The weight of a row is its share of the time of the steps (calls x duration), times the deviation of its prediction. A
measured row tells its own duration, and something of similar rows. So rows are chosen one after the other, each for
what the earlier rows leave open.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import merge
from itertools import product

import numpy as np
import numpy.typing as npt

from opatlas.arrays import Floats
from opatlas.errors import UsageError
from opatlas.model.signature import signature, signatures
from opatlas.query.features import RowFeatures, row_features
from opatlas.query.implementation_answers import ImplementationAnswers
from opatlas.query.result import NORMAL_90
from opatlas.query.stack import default_stack
from opatlas.store.database import Database
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.model_calls import ModelCall, Phase, model_calls, step_dtype
from opatlas.theory.models import ModelFacts, built_in_models
from opatlas.theory.sources import resolve_model

#: Sequences and tokens of each that steps have by default.
BATCHES, CONTEXTS = (1, 4, 16, 64, 256), (1024, 4096)
#: The rows of a kernel type that are candidates: those that count most.
_MOST_CANDIDATES = 2000
#: The mean of the absolute value of a normal variable, in deviations.
_MEAN_ERROR = math.sqrt(2 / math.pi)
#: Of a kernel type without rows: microseconds of a launch, of a byte and of an operation, and a factor of the interval.
_LAUNCH_US, _BYTE_US, _OPERATION_US, _FACTOR = 5.0, 1e-6, 1e-8, 10.0
#: Without a model, rows twice as large are correlated by 1/e for each as many octaves.
_OCTAVES = 3.0


@dataclass(frozen=True)
class Step:
    """A step of a model; see `opatlas.theory.model_calls.model_calls`."""

    model: str
    tp: int
    ep: int
    batch: int
    context: int
    phase: Phase
    dtype: str = ""


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


def steps_of(
    models: Sequence[str] = (),
    *,
    tp: Sequence[int] = (1,),
    ep: Sequence[int] = (1,),
    batch: Sequence[int] = BATCHES,
    context: Sequence[int] = CONTEXTS,
    phase: Sequence[Phase] = ("decode", "prefill"),
    dtype: str = "",
) -> list[Step]:
    """Returns the steps of models: decode with each batch and context, prefill of one sequence of each context.

    Args:
        models: names, or files; none: the built-in models.
    """
    names = list(models) or [model.name for model in built_in_models()]
    return [
        Step(name, each_tp, each_ep, sequences, tokens, each, dtype)
        for name in names
        for each_tp in tp
        for each_ep in ep
        for each in phase
        for tokens in context
        for sequences in (batch if each == "decode" else (1,))
    ]


def calls_of(step: Step) -> list[ModelCall]:
    """Returns the calls of a step that are measured by row: those that the catalog has.

    Raises:
        UsageError: the model is unknown, or cannot be divided so.
    """
    found = model_calls(
        _facts(step.model),
        tp=step.tp,
        ep=step.ep,
        batch=step.batch,
        context=step.context,
        phase=step.phase,
        dtype=step.dtype,
    )
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
    answers: ImplementationAnswers,
    n: int,
    steps: Sequence[Sequence[ModelCall]],
    tell: Callable[[str], None] = lambda kernel_type: None,
) -> NextRows:
    """Returns the rows whose measurement tells the most of some steps, at most `n`.

    All steps count alike, whatever they take. A row is measured if the implementation has measured it that answers in
    `OpenDatabase.model`: of the default stack the first with rows of the kernel type.

    Args:
        steps: the calls of each step.
        tell: called with each kernel type that is predicted.

    Raises:
        UsageError: `n` is below 1.
        OpAtlasError: a table cannot be read.
    """
    if n < 1:
        raise UsageError(f"{n} rows: give a number above 0")
    types: dict[str, _Calls] = {}
    known, stack = answers.kernel_types, default_stack(answers)
    for number, calls in enumerate(steps):
        for call in calls:
            # A twin has equal rows; the device runs one of them.
            kernel_type = next((name for name in (call.kernel_type, *call.twins) if name in known), call.kernel_type)
            types.setdefault(kernel_type, _Calls(kernel_type)).add(number, call)
    tables: list[_Table] = []
    for each in types.values():
        tell(each.kernel_type)
        tables += each.tables(answers, stack)
    step_us = np.zeros(len(steps))
    for table in tables:
        for row, of_steps in enumerate(table.calls):
            for number, count in of_steps.items():
                step_us[number] += count * table.us[row]
    choices = [_Choice(table, answers, step_us) for table in tables]
    now = sum(choice.error for choice in choices)
    for choice in choices:
        choice.take_waiting()
    waiting = sum(choice.error for choice in choices)
    ranked = merge(*(choice.rows() for choice in choices), key=lambda row: -row.gain)
    chosen = [row for _, row in zip(range(n), ranked, strict=False)]
    after = waiting - sum(row.gain for row in chosen)
    return NextRows(chosen, (now, waiting, max(after, 0.0)), sum(len(choice.waiting) for choice in choices))


@dataclass
class _Table:
    """The rows that steps call of one kernel type, and that one implementation answers.

    Attributes:
        implementation: the name of the implementation.
        cells: the cells of each.
        calls: how often each step calls it.
        us, low, high: its duration and its interval.
        measured, listed: whether a stored row answers, and whether the CSV has the row.
    """

    kernel_type: str
    implementation: str
    cells: Sequence[Mapping[str, str]]
    calls: Sequence[Mapping[int, int]]
    us: Floats
    low: Floats
    high: Floats
    measured: npt.NDArray[np.bool_]
    listed: npt.NDArray[np.bool_]


@dataclass
class _Calls:
    """The calls of one kernel type, by the signatures of their rows."""

    kernel_type: str
    cells: dict[str, Mapping[str, str]] = field(default_factory=dict)
    counts: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, step: int, call: ModelCall) -> None:
        name = signature(self.kernel_type, call.cells)
        self.cells.setdefault(name, call.cells)
        self.counts[name][step] = self.counts[name].get(step, 0) + call.calls_per_step

    def tables(self, answers: ImplementationAnswers, stack: Sequence[str]) -> Iterator[_Table]:
        """Yields the rows by the implementation that answers them; those that none answers are the first one's."""
        names, cells = list(self.cells), list(self.cells.values())
        us, low, high = (np.full(len(cells), np.nan) for _ in range(3))
        measured = np.zeros(len(cells), dtype=bool)
        owner = [stack[0]] * len(cells)
        listed: set[str] = set()
        if self.kernel_type in answers.kernel_types:
            listed = set(signatures(self.kernel_type, Database(answers.path).read_or_empty(self.kernel_type).frame))
            # As `OpenDatabase.model` asks.
            for asked, of_dtypes, name in product((answers, answers.with_compositions), (True, False), stack):
                rows = asked.stored_rows(self.kernel_type, name)
                here = [
                    i
                    for i in np.flatnonzero(np.isnan(us)).tolist()
                    if len(rows) and (not of_dtypes or rows.has_dtypes(cells[i]))
                ]
                found = asked.predictor(self.kernel_type, name).predict([cells[i] for i in here]) if here else []
                for i, prediction in zip(here, found, strict=True):
                    known_us = rows.duration_by_signature.get(names[i])
                    if known_us is not None:
                        us[i] = low[i] = high[i] = known_us
                        measured[i] = True
                    elif prediction is not None:
                        us[i], (low[i], high[i]) = prediction.duration_us, prediction.interval_us
                    else:
                        continue
                    owner[i] = name
        for i in np.flatnonzero(np.isnan(us)).tolist():
            us[i] = _guess_us(row_features(self.kernel_type, cells[i], 1))
            low[i], high[i] = us[i] / _FACTOR, us[i] * _FACTOR
        in_csv = np.array([name in listed for name in names])
        for name in dict.fromkeys(owner):
            own = [i for i, each in enumerate(owner) if each == name]
            counts = [self.counts[names[i]] for i in own]
            numbers = (us[own], low[own], high[own], measured[own], in_csv[own])
            yield _Table(self.kernel_type, name, [cells[i] for i in own], counts, *numbers)


def _guess_us(features: RowFeatures | None) -> float:
    """Returns the order of magnitude of a duration that no row tells."""
    if features is None:
        return _LAUNCH_US
    moved, done, *_ = features.work
    return _LAUNCH_US + moved * _BYTE_US + done * _OPERATION_US


class _Choice:
    """Chooses rows of one kernel type, one after the other.

    Attributes:
        waiting: positions of candidates that the CSV has without a duration.
        error: the sum of the expected errors of all candidates, as a share of a step's time.
    """

    def __init__(self, table: _Table, answers: ImplementationAnswers, step_us: Floats) -> None:
        self._table = table
        share = np.array([sum(n / step_us[step] for step, n in each.items()) for each in table.calls]) / len(step_us)
        log_deviation = np.log(table.high / table.low) / (2 * NORMAL_90)
        counted = share * table.us * log_deviation
        open_rows = np.flatnonzero(~table.measured)
        self._rows = open_rows[np.argsort(-counted[open_rows], kind="stable")[:_MOST_CANDIDATES]]
        self._value = (share * table.us)[self._rows]
        deviation = log_deviation[self._rows]
        self._joint = self._correlations(answers) * np.outer(deviation, deviation)
        self.waiting = np.flatnonzero(table.listed[self._rows])

    def _correlations(self, answers: ImplementationAnswers) -> Floats:
        kernel_type, cells = self._table.kernel_type, [self._table.cells[i] for i in self._rows]
        if not cells:
            return np.zeros((0, 0))
        if kernel_type in answers.kernel_types:
            found = answers.predictor(kernel_type, self._table.implementation).correlations(cells)
            if found is not None:
                return found
        sizes = [() if (row := row_features(kernel_type, each, 1)) is None else row.sizes for each in cells]
        if len({len(each) for each in sizes}) > 1:
            return np.eye(len(cells))
        points = np.array(sizes)
        octaves = np.sqrt(((points[:, None, :] - points[None, :, :]) ** 2).sum(-1))
        near: Floats = np.exp(-octaves / _OCTAVES)
        return near

    @property
    def error(self) -> float:
        return _MEAN_ERROR * float((self._value * self._deviation).sum())

    @property
    def _deviation(self) -> Floats:
        deviation: Floats = np.sqrt(np.maximum(np.diag(self._joint), 0.0))
        return deviation

    def take_waiting(self) -> None:
        """Counts the rows that wait in the CSV as measured."""
        for i in self.waiting.tolist():
            self._take(i)

    def rows(self) -> Iterator[NextRow]:
        """Yields the rows that are not in the CSV, each time the one with the largest gain."""
        left = ~self._table.listed[self._rows]
        while left.any():
            gains = np.where(left, self._gains(), -np.inf)
            best = int(gains.argmax())
            if not gains[best] > 0:
                return
            left[best] = False
            row = self._rows[best]
            table = self._table
            yield NextRow(
                table.kernel_type,
                table.cells[row],
                len(table.calls[row]),
                float(table.us[row]),
                (float(table.low[row]), float(table.high[row])),
                _MEAN_ERROR * float(gains[best]),
                table.implementation,
            )
            self._take(best)

    def _gains(self) -> Floats:
        """Returns for each candidate by how much its measurement lowers the sum of all errors."""
        variance = np.maximum(np.diag(self._joint), 1e-12)
        told = np.minimum(self._joint**2 / (variance[:, None] * variance[None, :]), 1.0)
        lowered: Floats = (1 - np.sqrt(1 - told)) @ (self._value * np.sqrt(variance))
        return lowered

    def _take(self, position: int) -> None:
        variance = self._joint[position, position]
        if variance > 0:
            column = self._joint[:, position].copy()
            self._joint -= np.outer(column, column) / variance
        self._value[position] = 0.0
