"""The cost of a step of a model on one device: the duration of each of its calls, and their sum.

A stack of implementations answers, as an engine runs them: an ordered list, of which the first with rows of a kernel
type answers for that kernel type, so that neighbouring sizes have durations of the same implementation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import hypot
from pathlib import Path
from typing import Literal, TypeAlias

from opatlas.ask.query.answering_rows import AnsweringRows
from opatlas.ask.query.features import kernel_work, row_features
from opatlas.ask.query.implementation_answers import FASTEST, ImplementationAnswers, answer_collective, best_answer
from opatlas.ask.query.question import How, NoAnswer, QueryResult
from opatlas.ask.query.step_time import StepTime, step_time
from opatlas.data.origin import are_one_device, joined
from opatlas.errors import OpAtlasError
from opatlas.files import read_file
from opatlas.row.columns import DTYPE, EXPERT_LOAD, MESSAGE_BYTES, NUM_DEVICES
from opatlas.row.communication import BY_KERNEL_TYPE
from opatlas.row.quality import Source
from opatlas.row.roofline import AchievedRates, achieved_rates, device_peak, tensor_bytes
from opatlas.row.slots import row_slots
from opatlas.theory.model_step import ModelCall, Step, StepMemory, count_queries

#: The file of a default database that names the stack of its device: implementations in their order, with commas.
STACK = "stack.txt"
_LARGEST_BYTES = 1 << 16
#: The word for a part without a known duration.
MISSING = "missing"
#: Words in the names of kernel types that touch few rows of their largest tensors: an embedding, or a cache of keys.
_TOUCH_FEW = ("Gather", "Index", "Cache", "Scatter")
#: The fields of a part that are those of its answer.
_OF_ANSWER = (
    *("kernel_type", "interval_us", "implementation", "device", "cache", "instrument", "source"),
    *("composed", "other_dtypes", "note"),
)
#: A field of a part that says how its duration is known, or how its rows were measured.
PartField: TypeAlias = Literal["how", "device", "cache", "instrument", "source"]


@dataclass(frozen=True)
class PartCost:
    """The calls of a part of a model with equal shapes.

    Attributes:
        part: the part of the model, such as "qkv".
        kernel_type: the kernel type that answered; that of the call if none did.
        calls: calls in a step.
        layers: the number of layers with this part; 0 for a part outside of layers.
        us_per_call: the duration of a call in microseconds; None if unknown.
        interval_us: its 90 % interval; None if unknown.
        how: measured, interpolated, extrapolated, analytic or missing.
        implementation: name and version of the software that ran; "" if the duration is unknown.
        device, cache, instrument: those of the rows, as in `QueryResult`; "" if unknown.
        composed: whether only compositions of operators have the duration; None if unknown.
        other_dtypes: whether all rows that the duration comes from have other dtypes.
        signature: the signature of the row.
        bytes_per_call: the least bytes that a call reads and writes, by its shapes and dtypes; 0 if unknown.
        source: whether the rows were replayed or captured, as in `QueryResult`; "" if the duration is unknown.
        roofline: the share of what the device's data sheet allows; None if unknown.
        tera_ops: the operations of products and of attention, in 10^12 a second; None if unknown.
        reason: why the duration is missing; "" if it is not.
        kernels: the device kernels of a call, of a predicted one those of the nearest row; 1 where rows do not say.
        expert_load: of a grouped product with random routing the load of the rows that answer: "random", or "captured"
            or "equal" where too few have that; else "".
        note: the note of the answer, as in `QueryResult`.
    """

    part: str
    kernel_type: str
    calls: int
    layers: int
    signature: str
    us_per_call: float | None = None
    interval_us: tuple[float, float] | None = None
    how: str = MISSING
    implementation: str = ""
    composed: bool | None = False
    other_dtypes: bool = False
    device: str = ""
    cache: str = ""
    instrument: str = ""
    source: str = ""
    bytes_per_call: float = 0.0
    roofline: float | None = None
    tera_ops: float | None = None
    reason: str = ""
    kernels: int = 1
    expert_load: str = ""
    note: str = ""

    @property
    def us(self) -> float | None:
        """The duration of all calls of a step; None if unknown."""
        return None if self.us_per_call is None else self.us_per_call * self.calls


@dataclass(frozen=True)
class ModelCost:
    """The cost of a step of a model on one device.

    Attributes:
        model: the model.
        database: the folder of the database.
        parts: the parts in the order of their first call.
        stack: the implementations that answered, in their order, or "fastest".
        step: the step that was asked for.
        dtype: of its products.
        layers: the number of layers.
        memory: of a device.
        differs: how the step differs from one of the published model: how weights are stored, windows and so on.
    """

    model: str
    database: Path
    parts: Sequence[PartCost]
    stack: Sequence[str]
    step: Step
    dtype: str
    layers: int
    memory: StepMemory
    differs: tuple[str, ...] = ()

    @property
    def us(self) -> float:
        """The sum of the known durations. Parts that are missing are not in it: see `missing`."""
        return sum(part.us or 0.0 for part in self.parts)

    @property
    def interval_us(self) -> tuple[float, float]:
        """The interval of the sum: of kernels only, not of a step with its gaps, overlap and host.

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
        return self.us - hypot(*below.values()), self.us + hypot(*above.values())

    @property
    def time(self) -> StepTime | None:
        """The time of the step, launched by a graph or eagerly; None on a device without measured steps."""
        return step_time(self)

    @property
    def tokens_per_s(self) -> float | None:
        """The tokens that one replica computes in a second, if steps follow each other without gaps; see `missing`.

        None if a part is missing. All stages have a batch each, and the largest one decides. Where the time of a step
        is known, that counts, and not the sum.
        """
        if self.missing or not self.us:
            return None
        largest = -(-self.layers // self.step.pp) / self.layers
        us = self.us - self.us_in_layers * (1 - largest)
        us *= (self.time or self).us / self.us
        return count_queries(self.step.groups()) / us * 1e6

    @property
    def missing(self) -> list[PartCost]:
        """The parts without a known duration."""
        return [part for part in self.parts if part.how == MISSING]

    @property
    def missing_calls_share(self) -> float:
        """The share of the calls that are missing."""
        return sum(part.calls for part in self.missing) / max(sum(part.calls for part in self.parts), 1)

    @property
    def missing_bytes_share(self) -> float:
        """The share of the calls' estimated bytes that the missing ones have."""
        moved = sum(part.bytes_per_call * part.calls for part in self.parts)
        return sum(part.bytes_per_call * part.calls for part in self.missing) / moved if moved else 0.0

    def us_of(self, counts: Callable[[PartCost], object]) -> float:
        """Returns how much of the sum the parts have that a function accepts."""
        return sum(part.us or 0.0 for part in self.parts if counts(part))

    @property
    def us_in_layers(self) -> float:
        """How much of the sum is in layers, all of them together."""
        return self.us_of(lambda part: part.layers)

    @property
    def composition_us(self) -> float:
        """How much of the sum rests on compositions of operators."""
        return self.us_of(lambda part: part.composed)

    @property
    def untold_us(self) -> float:
        """How much of the sum rests on rows that do not say whether a composition of operators ran."""
        return self.us_of(lambda part: part.composed is None)

    @property
    def other_dtypes_us(self) -> float:
        """How much of the sum rests on rows with other dtypes."""
        return self.us_of(lambda part: part.other_dtypes)

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
    stack: Sequence[str],
    calls: Iterable[tuple[ModelCall, ModelCall]],
    tell: Callable[[str], object],
    known: dict[Hashable, PartCost],
) -> list[PartCost]:
    """Returns the costs of the calls of a step. Rows of compositions answer where no others do.

    Args:
        stack: the implementations that answer, in their order; FASTEST for the best of all.
        calls: with weights in ND and in FRACTAL_NZ.
        tell: gets the kernel type of each call after its answer.
        known: earlier costs of these answers, to which these are added: steps of other sizes have many calls in common.
    """
    parts = []
    for layouts in calls:
        key = (*stack, *map(_key, layouts))
        if key not in known:
            known[key] = _part_cost(layouts, answers, stack)
        parts.append(known[key])
        tell(layouts[0].kernel_type)
    return parts


def _key(call: ModelCall) -> Hashable:
    """Returns all that the cost of a call depends on."""
    cells = (frozenset(each.items()) for each in (call.cells, call.nearest))
    of_it = (call.part, call.kernel_type, call.calls, call.layers, call.twins)
    return (*of_it, *cells, call.instead and _key(call.instead))


def _part_cost(layouts: tuple[ModelCall, ModelCall], answers: ImplementationAnswers, stack: Sequence[str]) -> PartCost:
    """Returns the cost of a call whose weight is in ND or in FRACTAL_NZ."""
    call = layouts[0]
    part = PartCost(
        call.part,
        call.kernel_type,
        call.calls_per_step,
        call.layers,
        call.signature(),
        bytes_per_call=_estimated_bytes(call),
    )
    found = answer_call(layouts, answers, stack)
    load = call.cells.get(EXPERT_LOAD, "")
    if load and (found is None or found[1].other_load):
        # A captured row has the load of the tokens that were captured.
        plain, in_nz = (replace(each, cells={**each.cells, EXPERT_LOAD: Source.CAPTURED.value}) for each in layouts)
        captured = answer_call((plain, in_nz), answers, stack)
        if captured and captured[1].how is How.MEASURED:
            found, load = captured, Source.CAPTURED.value
    if call.nearest and (found is None or found[1].other_dtypes or found[1].other_load):
        plain, in_nz = (replace(each, cells=each.nearest) for each in layouts)
        if nearest := answer_call((plain, in_nz), answers, stack):
            load = load and "equal"
            found = nearest[0], replace(nearest[1], other_dtypes=nearest[1].other_dtypes or not load)
    if call.instead and (found is None or found[1].other_dtypes):
        instead = _part_cost((call.instead, call.instead), answers, stack)
        if instead.how != MISSING:
            return instead
    if found is None:
        return replace(part, reason=_reason(call, answers, stack))
    chosen, answer = found
    rates = _rates(chosen, answer)
    return replace(
        part,
        us_per_call=answer.duration_us,
        how=answer.how.value,
        signature=chosen.signature(),
        roofline=rates.share if rates is not None else None,
        tera_ops=rates.tera_ops if rates is not None else None,
        kernels=answer.rows[0].kernels or 1 if answer.rows else 1,
        expert_load=load,
        **{name: getattr(answer, name) for name in _OF_ANSWER},
    )


def answer_call(
    layouts: tuple[ModelCall, ModelCall], answers: ImplementationAnswers, stack: Sequence[str]
) -> tuple[ModelCall, QueryResult] | None:
    """Returns the answer to a call; None if no row answers. Rows of compositions answer where no others do.

    Args:
        layouts: the call with its weight in ND, and in FRACTAL_NZ.
        stack: as for `part_costs`.
    """
    return _answer(layouts, answers, stack) or _answer(layouts, answers.with_compositions, stack)


def _estimated_bytes(call: ModelCall) -> float:
    """Returns the least bytes that a call reads and writes, by its shapes and dtypes; 0 if unknown."""
    features = row_features(call.kernel_type, call.cells, 1)
    if features is None or not any(word in call.kernel_type for word in _TOUCH_FEW):
        return 0.0 if features is None else features.work[0]
    inputs, outputs = row_slots(call.kernel_type, call.cells)
    sizes = [tensor_bytes([slot]) or 0 for slot in (*inputs, *outputs)]
    # The rows that it takes from the table, or brings there, are read and written.
    return 2.0 * sum(size for size in sizes if size < max(sizes))


def _rates(call: ModelCall, answer: QueryResult) -> AchievedRates | None:
    work = None if call.kernel_type in BY_KERNEL_TYPE else kernel_work(call.kernel_type, call.cells)
    if work is None:
        return None
    return achieved_rates(work, device_peak(answer.device), answer.duration_us, cold=answer.cache != "warm")


def _reason(call: ModelCall, answers: ImplementationAnswers, stack: Sequence[str]) -> str:
    """Returns why the duration of a call is missing."""
    names = [name for level in levels(stack, answers) for name in level]
    tables = [] if call.kernel_type in BY_KERNEL_TYPE else list(_tables(call, answers, names))
    if not any(map(len, tables)):
        left_out = [each.device for rows in tables for each in rows.left_out.values()]
        if others := joined(device for device in left_out if not are_one_device(device, answers.device)):
            return f"only on {others}"
        unasked = [name for name in answers.implementations if name not in names]
        if found := [rows.label for rows in _tables(call, answers, unasked) if len(rows)]:
            return f"only in {', '.join(found)}"
    return "no similar row" if tables else "no rows"


def _answer(
    layouts: tuple[ModelCall, ModelCall], answers: ImplementationAnswers, stack: Sequence[str]
) -> tuple[ModelCall, QueryResult] | None:
    """Returns the answer to a call by the rows of a database; None if no row answers.

    It is the first implementation of the stack that has rows with its dtypes, or else the first with others. Of its
    rows a stored one comes before others, and after it the layout that most rows have.
    """
    call, in_nz = layouts
    if call.kernel_type in BY_KERNEL_TYPE:
        with suppress(NoAnswer):
            return call, _message_answer(call, answers)
        return None
    others: list[tuple[ModelCall, QueryResult]] = []
    for names in levels(stack, answers):
        found = list(_kernel_answers(call, answers, names))
        shares = [rows.share_in_nz for rows in _tables(call, answers, names)]
        if in_nz.cells != call.cells and any(shares):
            stored = list(_kernel_answers(in_nz, answers, names))
            found = stored + found if max(shares) > 0.5 else found + stored
        own = [each for each in found if not each[1].other_dtypes]
        if own:
            return min(own, key=lambda each: each[1].how is not How.MEASURED)
        others = others or found
    return next(iter(others), None)


def known_types(call: ModelCall, answers: ImplementationAnswers) -> list[str]:
    """Returns the kernel types of a call that a database has: its own, and its twins."""
    known = answers.kernel_types
    return [name for name in (call.kernel_type, *call.twins) if name in known]


def _tables(call: ModelCall, answers: ImplementationAnswers, names: Collection[str]) -> Iterator[AnsweringRows]:
    for kernel_type in known_types(call, answers):
        yield from (answers.stored_rows(kernel_type, name) for name in names)


def _message_answer(call: ModelCall, answers: ImplementationAnswers) -> QueryResult:
    """Returns the answer to a collective. Raises NoAnswer."""
    name, cells = BY_KERNEL_TYPE[call.kernel_type].name, call.cells
    size, devices = int(cells[MESSAGE_BYTES]), int(cells[NUM_DEVICES])
    return answer_collective(answers.messages, name, size, devices, cells[DTYPE])


def _kernel_answers(
    call: ModelCall, answers: ImplementationAnswers, names: Collection[str]
) -> Iterator[tuple[ModelCall, QueryResult]]:
    for kernel_type in known_types(call, answers):
        with suppress(NoAnswer):
            yield call, best_answer(names, partial(answers.answer_row, kernel_type=kernel_type, cells=call.cells))


def default_stack(answers: ImplementationAnswers) -> tuple[str, ...]:
    """Returns the stack that a database names; of others the default implementation, then those next to it.

    Implementations without a database are left out.

    Raises:
        OpAtlasError: the file cannot be read, or names no implementation that has a database.
    """
    measured = tuple(answers.implementations)
    path: Path = answers.path / STACK
    if not (path.exists() or path.is_symlink()):
        return measured
    text = read_file(path, _LARGEST_BYTES, "check its permissions").decode("utf-8", errors="replace")
    named = [word.strip() for word in text.replace("\n", ",").split(",") if word.strip()]
    found = tuple(name for name in dict.fromkeys(named) if name in measured)
    if not found:
        raise OpAtlasError(f"{path}: {text.strip()!r} names none of {', '.join(measured)}: name some, with commas")
    return found


def levels(stack: Sequence[str], answers: ImplementationAnswers) -> Iterator[Collection[str]]:
    """Yields the implementations that answer together, one level after the other: all of them for FASTEST."""
    if FASTEST in stack:
        yield answers.implementations
    else:
        yield from ((name,) for name in stack)
