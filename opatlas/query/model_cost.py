"""What a step of a model costs on one device: the duration of each of its calls, and their sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Literal, TypeAlias

import pandas as pd

from opatlas.model.communication import BY_KERNEL_TYPE
from opatlas.model.schema import DTYPE, MESSAGE_BYTES, NUM_DEVICES
from opatlas.query.answers import COMPOSITION_WORDS
from opatlas.query.collectives import answer_collective
from opatlas.query.implementation_answers import ImplementationAnswers
from opatlas.query.result import How, NoAnswer
from opatlas.query.stored_rows import StoredRows
from opatlas.theory.model_calls import ModelCall, Phase

#: How a part is known whose duration nothing tells.
MISSING = "missing"
#: A field of a part that says how its duration is known, or how its rows were measured.
PartField: TypeAlias = Literal["how", "device", "cache", "instrument"]


@dataclass(frozen=True)
class PartCost:
    """The calls of a part of a model with equal shapes.

    Attributes:
        part: the part of the model, such as "qkv".
        kernel_type: the kernel type that answered; that of the call if none did.
        calls: calls in a step.
        layers: the number of layers with this part; 0 for a part outside of layers.
        us_per_call: the duration of a call in microseconds; None if nothing tells it.
        interval_us: its 90 % interval; None if nothing tells it.
        how: measured, interpolated, extrapolated, analytic or missing.
        implementation: name and version of what ran; "" if nothing tells the duration.
        device, cache, instrument: on what, with which cache state and by which instrument the rows were measured, as in
            `QueryResult`; "" if unknown.
        composed: whether only compositions of operators tell the duration; None if the rows do not tell what ran.
        other_dtypes: whether all rows that tell the duration have other dtypes.
        signature: the signature of the row.
        reason: why the duration is missing; "" if it is not.
    """

    part: str
    kernel_type: str
    calls: int
    layers: int
    us_per_call: float | None
    interval_us: tuple[float, float] | None
    how: str
    implementation: str
    composed: bool | None
    other_dtypes: bool
    signature: str
    device: str = ""
    cache: str = ""
    instrument: str = ""
    reason: str = ""

    @property
    def us(self) -> float | None:
        """The duration of all calls of a step; None if nothing tells it."""
        return None if self.us_per_call is None else self.us_per_call * self.calls


@dataclass(frozen=True)
class ModelCost:
    """What a step of a model costs on one device.

    Attributes:
        model: the model.
        database: the folder of the database.
        parts: the parts in the order of their first call.
        tp, ep, batch, context, phase, dtype: the step, as for `OpenDatabase.model`.
        layers: the number of layers.
        differs: how the step differs from one of the published model: how weights are stored, windows and so on.
    """

    model: str
    database: Path
    parts: Sequence[PartCost]
    tp: int
    ep: int
    batch: int
    context: int
    phase: Phase
    dtype: str
    layers: int
    differs: tuple[str, ...] = ()

    @property
    def us(self) -> float:
        """The sum of the known durations. Parts that are missing are not in it: see `missing`."""
        return sum(part.us or 0.0 for part in self.parts)

    @property
    def interval_us(self) -> tuple[float, float]:
        """The interval of the sum.

        Errors of calls of one kernel type and implementation come from one model, and add up. Those of others are
        taken to be independent: the root of the sum of their squares.
        """
        below: dict[tuple[str, str], float] = defaultdict(float)
        above: dict[tuple[str, str], float] = defaultdict(float)
        for part in self.parts:
            if part.us_per_call is not None and part.interval_us is not None:
                key = part.kernel_type, part.implementation
                below[key] += (part.us_per_call - part.interval_us[0]) * part.calls
                above[key] += (part.interval_us[1] - part.us_per_call) * part.calls
        return self.us - _root_of_squares(below.values()), self.us + _root_of_squares(above.values())

    @property
    def tokens_per_s(self) -> float:
        """The tokens that the --tp devices compute in a second, if steps follow each other without gaps.

        A decode step computes one token of each sequence, a prefill step all of them.
        """
        tokens = self.batch * (self.context if self.phase == "prefill" else 1)
        return tokens / self.us * 1e6 if self.us else 0.0

    @property
    def missing(self) -> list[PartCost]:
        """The parts whose durations nothing tells."""
        return [part for part in self.parts if part.how == MISSING]

    @property
    def us_in_layers(self) -> float:
        """How much of the sum is in layers, all of them together."""
        return sum(part.us or 0.0 for part in self.parts if part.layers)

    @property
    def composition_us(self) -> float:
        """How much of the sum rests on compositions of operators."""
        return sum(part.us or 0.0 for part in self.parts if part.composed)

    @property
    def untold_us(self) -> float:
        """How much of the sum rests on rows that do not tell whether a composition of operators ran."""
        return sum(part.us or 0.0 for part in self.parts if part.composed is None)

    @property
    def other_dtypes_us(self) -> float:
        """How much of the sum is told by rows with other dtypes."""
        return sum(part.us or 0.0 for part in self.parts if part.other_dtypes)

    def us_by(self, field: PartField) -> dict[str, float]:
        """Returns how much of the sum each value of a field of the parts has, the largest first."""
        sums: dict[str, float] = defaultdict(float)
        for part in self.parts:
            if part.us is not None:
                sums[getattr(part, field)] += part.us
        return dict(sorted(sums.items(), key=lambda each: -each[1]))

    def us_by_how(self) -> dict[str, float]:
        """Returns how much of the sum is measured, interpolated, extrapolated and analytic."""
        sums = self.us_by("how")
        return {how.value: sums.get(how.value, 0.0) for how in How}


def part_costs(
    answers: ImplementationAnswers,
    calls: Iterable[tuple[ModelCall, ModelCall]],
    tell: Callable[[str], object],
) -> list[PartCost]:
    """Returns what the calls of a step cost. Rows of compositions answer where no others do.

    Args:
        calls: with weights in ND and in FRACTAL_NZ.
        tell: gets the kernel type of each call after its answer.
    """
    parts = []
    for layouts in calls:
        parts.append(_part_cost(layouts, answers))
        tell(layouts[0].kernel_type)
    return parts


def _part_cost(layouts: tuple[ModelCall, ModelCall], answers: ImplementationAnswers) -> PartCost:
    """Returns the cost of a call whose weight is in ND or in FRACTAL_NZ."""
    found = _answer(layouts, answers) or _answer(layouts, answers.with_compositions)
    if found is not None:
        return found
    call, known = layouts[0], answers.kernel_types
    names = [name for name in (call.kernel_type, *call.twins) if name in known]
    reason = "no row tells it" if names or call.kernel_type in BY_KERNEL_TYPE else "no rows of this kernel type"
    return replace(_unknown(call), reason=reason)


def _unknown(call: ModelCall) -> PartCost:
    return PartCost(
        part=call.part,
        kernel_type=call.kernel_type,
        calls=call.calls_per_step,
        layers=call.layers,
        us_per_call=None,
        interval_us=None,
        how=MISSING,
        implementation="",
        composed=False,
        other_dtypes=False,
        signature=call.signature(),
    )


def _answer(layouts: tuple[ModelCall, ModelCall], answers: ImplementationAnswers) -> PartCost | None:
    """Returns the cost of a call by the rows of a database; None if no row tells.

    A stored row comes before others, and after it the layout that most rows have.
    """
    call, in_nz = layouts
    if call.kernel_type in BY_KERNEL_TYPE:
        return next(_message_answers(call, answers), None)
    found = list(_kernel_answers(call, answers))
    if in_nz.cells != call.cells and any(rows.share_in_nz for rows in _tables(call, answers)):
        stored = list(_kernel_answers(in_nz, answers))
        mostly = any(rows.share_in_nz > 0.5 for rows in _tables(call, answers))
        found = stored + found if mostly else found + stored
    return min(found, key=lambda part: part.how != How.MEASURED.value, default=None)


def _tables(call: ModelCall, answers: ImplementationAnswers) -> Iterator[StoredRows]:
    known = answers.kernel_types
    for kernel_type in (call.kernel_type, *call.twins):
        if kernel_type in known:
            yield from (answers.stored_rows(kernel_type, name) for name in answers.implementations)


def _message_answers(call: ModelCall, answers: ImplementationAnswers) -> Iterator[PartCost]:
    cells = call.cells
    try:
        answer = answer_collective(
            answers.messages,
            BY_KERNEL_TYPE[call.kernel_type].name,
            int(cells[MESSAGE_BYTES]),
            int(cells[NUM_DEVICES]),
            cells[DTYPE],
        )
    except NoAnswer:
        return
    yield replace(
        _unknown(call),
        us_per_call=answer.duration_us,
        interval_us=answer.interval_us,
        how=answer.how.value,
        implementation=answer.implementation,
        device=answer.device,
        cache=answer.cache,
        instrument=answer.instrument,
    )


def _kernel_answers(call: ModelCall, answers: ImplementationAnswers) -> Iterator[PartCost]:
    known = answers.kernel_types
    for kernel_type in (call.kernel_type, *call.twins):
        if kernel_type not in known:
            continue
        asked = pd.DataFrame([dict(call.cells)])
        (answer,) = answers.answer_frame(answers.implementations, kernel_type, asked).to_dict("records")
        if not answer["How"]:
            continue
        tables = [answers.stored_rows(kernel_type, name) for name in answers.implementations]
        yield replace(
            _unknown(call),
            kernel_type=kernel_type,
            us_per_call=float(answer["Duration(us)"]),
            interval_us=(float(answer["Low(us)"]), float(answer["High(us)"])),
            how=str(answer["How"]),
            implementation=str(answer["Implementation"]),
            device=str(answer["Device"]),
            cache=str(answer["Cache State"]),
            instrument=str(answer["Instrument"]),
            other_dtypes=not any(
                rows.has_dtypes(call.cells) for rows in tables if rows.label == answer["Implementation"]
            ),
            composed=next(told for told, word in COMPOSITION_WORDS.items() if word == answer["Composition"]),
        )


def _root_of_squares(values: Iterable[float]) -> float:
    return sqrt(sum(value * value for value in values))
