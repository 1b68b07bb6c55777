"""What became of each device event of a trace of torch.profiler: a row of a kernel type, or a reason why it has none.

The kernels, copies and fills of one operator call are one sample of its row, as a replay measures a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from opatlas.capture.cuda_graphs import Capture, captures_beside, captures_of, pair_graphs, steps_of
from opatlas.capture.launches import CapturedLaunches, SkipReason
from opatlas.capture.operator_rows import CapturedRow, LeftOut, NoRow, Operator, products_of_experts
from opatlas.capture.single_launches import Launch, Launches, device_times
from opatlas.capture.torch_operators import CACHE_OPERATOR, EXPERTS, attention_of_batch, row_of
from opatlas.capture.torch_trace import COLLECTIVE, CallKind, TorchTrace, read_trace
from opatlas.data.cells import kernels_cell
from opatlas.errors import TableError
from opatlas.row import columns as col
from opatlas.row.attention import Sequences, batch_cells, row_key
from opatlas.row.location import slug
from opatlas.text import kernel_name

_SHAPES_REMEDY = (
    "Record it again with record_shapes=True (vLLM: torch_profiler_record_shapes in --profiler-config); for CUDA "
    "graphs name the trace of the capture with --shapes-from"
)
#: The names of copies and fills among the kernels of a row, as replays have them.
_COPIES: Mapping[int, str] = {CallKind.MEMCPY: "memcpy", CallKind.MEMSET: "memset"}
#: The Accelerator Core of collectives.
COMMUNICATION = "COMMUNICATION"
OF_NCCL = re.compile(r"nccl", re.IGNORECASE)
#: What vLLM and SGLang write of prompts and of decoded sequences in a step: how many, and sums of their lengths.
_SUMS = re.compile(r"_(context|generation)_(\d+)\(sq(\d+)sk(\d+)sqsq(\d+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of device events that belong together.

    Attributes:
        row: the row, or why there is none.
        name: the operator, or what else names the events.
        events: their numbers in the trace, in their order.
        is_replay: whether a CUDA graph ran them.
    """

    row: CapturedRow | LeftOut
    name: str
    events: Sequence[int]
    is_replay: bool


def sequences_of_steps(steps: Iterable[str]) -> Iterator[tuple[list[Sequences], list[Sequences], dict[str, str]]]:
    """Yields the decoded sequences and the prompts that names of steps have, and the cells that tell of mean lengths.

    A name has sums of lengths, of which each sequence gets its share: the cells are empty if no others have these sums.
    """
    for step in steps:
        phases: dict[str, list[Sequences]] = {"generation": [], "context": []}
        is_mean = False
        for phase, *numbers in _SUMS.findall(step):
            count, queries, keys, squares = map(int, numbers)
            phases[phase] = [Sequences(1, (queries + at) // count, (keys + at) // count) for at in range(count)]
            is_mean |= count > 1 and (queries < keys or queries**2 < count * squares)
        if any(phases.values()):
            yield phases["generation"], phases["context"], dict([col.MEAN_LENGTHS] if is_mean else [])


def with_lengths_of_step(row: CapturedRow, steps: Iterable[str]) -> CapturedRow:
    """Returns a row of attention with the lengths that a step's name has; the row itself if none fits.

    A call has all sequences of the step, those decoded before prompts, or those of one phase; and sequences of one
    token that fill a graph.
    """
    key = row_key(row.cells)
    if key is None or key.kv_sequences is None:
        return row
    for decoded, prompts, of_means in sequences_of_steps(steps):
        for batch in (decoded + prompts, decoded, prompts):
            filling = [Sequences(key.kv_sequences - len(batch), 1, 1)]
            if (cells := batch_cells(key, batch + filling)) is not None:
                return replace(row, cells={**row.cells, **cells, **of_means})
    return row


class TraceOutcomes:
    """The outcomes of all device events of a trace.

    Attributes:
        problems: graphs, or calls of graphs, that fit no capture.
    """

    def __init__(self, trace: TorchTrace, captures: Sequence[Capture]) -> None:
        self.trace = trace
        self.problems: list[str] = []
        self.captures = captures
        #: By trace, operator, kernels; and of attention without lengths by the steps around it.
        self._rows: dict[tuple[int, int, tuple[int, ...], tuple[str, ...]], CapturedRow | LeftOut] = {}

    def __iter__(self) -> Iterator[Outcome]:
        """Yields the outcomes; each device event is in one of them."""
        trace = self.trace
        replayed = np.array(
            [call >= 0 and trace.call_kind[call] == CallKind.GRAPHLAUNCH for call in trace.call_of.tolist()], dtype=bool
        )
        eager = np.flatnonzero(~replayed)
        eager = eager[np.argsort(np.array(trace.start_ns)[eager], kind="stable")]
        yield from self._of_calls(trace, eager, trace.call_of[eager], is_replay=False)
        for events, pair in pair_graphs(trace, self.captures).values():
            if pair.problem and pair.problem not in self.problems:
                self.problems.append(pair.problem)
            if pair.capture is None:
                calls, source = np.full(len(events), -1), trace
            else:
                calls, source = np.array(pair.calls), pair.capture.trace
            yield from self._of_calls(source, np.array(events), calls, is_replay=True)

    def _of_calls(
        self, source: TorchTrace, events: np.ndarray, calls: np.ndarray, *, is_replay: bool
    ) -> Iterator[Outcome]:
        """Yields the outcomes of events that calls of a trace launched, or captured (-1: unknown)."""
        owners, inner = source.owners
        owner = np.where(calls >= 0, owners[calls], -1) if len(owners) else np.full(len(calls), -1)
        owned = np.flatnonzero(owner >= 0)
        owned = owned[np.argsort(owner[owned], kind="stable")]
        ends = np.flatnonzero(np.diff(owner[owned], append=-1)) + 1
        start = 0
        for end in ends.tolist():
            of_call, number = events[owned[start:end]].tolist(), int(owner[owned[start]])
            start = end
            called, row = source.operators[source.op_kind[number]], self._row(source, source.op_kind[number], of_call)
            products = dict[int, CapturedRow]()
            with suppress(NoRow, ValueError):
                names = [self.trace.names[self.trace.name[event]] for event in of_call]
                products = products_of_experts(called, names) if row is EXPERTS else products
            for at, product in products.items():
                yield Outcome(product, called.name, [of_call[at]], is_replay)
            if others := [event for at, event in enumerate(of_call) if at not in products]:
                yield Outcome(row, called.name, others, is_replay)
        for at in np.flatnonzero(owner < 0).tolist():
            event, call = int(events[at]), int(calls[at])
            around = int(inner[call]) if call >= 0 else -1
            operator = source.operators[source.op_kind[around]].name if around >= 0 else ""
            reason, name = self._reason(event, call, operator, owner[at] == COLLECTIVE, is_replay=is_replay)
            yield Outcome(LeftOut(reason), name, [event], is_replay)

    def _row(self, source: TorchTrace, kind: int, events: Sequence[int]) -> CapturedRow | LeftOut:
        """Returns the row of a call of an operator, with the lengths of its step if it has no others."""
        operator, names = source.operators[kind], tuple(self.trace.name[event] for event in events)
        key = id(source), kind, names, tuple[str, ...]()
        if key not in self._rows:
            self._rows[key] = row_of(operator, [self.trace.names[name] for name in names])
        row = self._rows[key]
        if isinstance(row, CapturedRow):
            has_lengths = col.WITHOUT_LENGTHS not in row.cells.items()
        else:
            has_lengths = row.reason is not SkipReason.NO_LENGTHS
        if has_lengths:
            return row
        steps = tuple(self.trace.steps_at(self.trace.call_ns[self.trace.call_of[events[0]]]))
        key = *key[:3], steps
        if key not in self._rows:
            made = with_lengths_of_step(row, steps) if isinstance(row, CapturedRow) else None
            self._rows[key] = made or self._attention_of_step(source, operator, steps) or row
        return self._rows[key]

    def _attention_of_step(self, source: TorchTrace, operator: Operator, steps: Sequence[str]) -> CapturedRow | None:
        """Returns the row of attention as one operator, whose cache another operator of the traces has."""
        operators = (*source.operators, *self.trace.operators)
        cache = next((each for each in operators if each.name == CACHE_OPERATOR), None)
        if cache is None:
            return None
        for decoded, prompts, of_means in sequences_of_steps(steps):
            with suppress(NoRow):
                row = attention_of_batch(operator, cache, decoded + prompts)
                return replace(row, cells={**row.cells, **of_means})
        return None

    def _reason(
        self, event: int, call: int, operator: str, is_collective: bool, *, is_replay: bool
    ) -> tuple[SkipReason, str]:
        kernel = kernel_name(self.trace.names[self.trace.name[event]])
        if is_collective or OF_NCCL.match(kernel):
            return SkipReason.COLLECTIVE, self.trace.messages.get(event, operator or kernel)
        if call < 0:
            return (SkipReason.GRAPH if is_replay else SkipReason.BEFORE_WINDOW), kernel
        if self.trace.kind[event] != CallKind.LAUNCH:
            return SkipReason.MEMORY_COPY, kernel
        return (SkipReason.NO_OPERATOR, operator) if operator else (SkipReason.OUTSIDE_OPERATORS, kernel)


@lru_cache(maxsize=16)
def _captures_in(path: Path, changed_ns: int, *, steps: bool) -> list[Capture]:
    """Returns the captures of a trace, else its steps if wanted. Cached, because all ranks have the same captures."""
    trace = read_trace(path)
    return captures_of(trace) or (steps_of(trace) if steps else [])


def read_outcomes(
    path: Path, on_bytes: Callable[[int], None] = lambda size: None, shapes_from: Path | None = None
) -> TraceOutcomes:
    """Reads a trace, and those of captures of its graphs.

    Args:
        on_bytes: called with the number of bytes that were read, for progress.
        shapes_from: the trace of the capture, or an eager one; None: those of captures beside the trace.

    Raises:
        OpAtlasError: a file cannot be read, or the trace has no shapes.
    """
    trace = read_trace(path, on_bytes)
    captures = captures_of(trace)
    if CallKind.GRAPHLAUNCH in trace.call_kind:
        for file in captures_beside(path) if shapes_from is None else [shapes_from]:
            changed_ns = file.stat().st_mtime_ns if file.exists() else 0
            captures += _captures_in(file, changed_ns, steps=shapes_from is not None)
    return TraceOutcomes(trace, captures)


def read_torch_trace(
    path: Path, root: Path, on_bytes: Callable[[int], None], shapes_from: Path | None = None
) -> CapturedLaunches:
    """Reads the launches of a trace (`CaptureReader`)."""
    outcomes = read_outcomes(path, on_bytes, shapes_from)
    trace = outcomes.trace
    if trace.name and not outcomes.captures and not any(operator.dims for operator in trace.operators):
        raise TableError(path, "recorded without the shapes of operators", _SHAPES_REMEDY)
    launches = CapturedLaunches(path, root, duration="dur")
    kinds: list[int] = []
    durations: list[int] = []
    for outcome in outcomes:
        time_ns = sum(trace.duration_ns[event] for event in outcome.events)
        if isinstance(outcome.row, LeftOut):
            name = f"{outcome.name} ({outcome.row.detail})" if outcome.row.detail else outcome.name
            launches.counts.add(outcome.row.reason, name, 1, time_ns / 1e3)
            continue
        names = [
            _COPIES.get(trace.kind[event]) or kernel_name(trace.names[trace.name[event]]) for event in outcome.events
        ]
        own = {
            col.PROFILING_KERNEL_NAMES: kernels_cell(names),
            col.PROFILING_SOURCE: "CUDA graph" if outcome.is_replay else "eager",
        }
        if outcome.row.differs:
            launches.counts.differing_ns[outcome.row.differs] += time_ns
        kinds.append(launches.kind(outcome.row.kernel_type, {**outcome.row.cells, **own}, 0))
        durations.append(time_ns)
    launches.add(np.array(kinds, dtype=np.int32), np.array(durations) / 1e3, {}, lambda at: (0, str(durations[at])))
    for problem in outcomes.problems:
        launches.report(0, problem, "Name the trace of this graph's capture with --shapes-from")
    if trace.name and trace.header.base_ns is None and not any(ns % 1000 for ns in trace.duration_ns):
        launches.report(0, "durations are whole microseconds", "Record it with torch 2.4 or later")
    rank = trace.header.ranks.rank if trace.header.ranks else None
    launches.counts.devices += device_times(path.name, rank, trace.device, trace.start_ns, trace.duration_ns)
    return launches


def torch_launches(path: Path) -> Launches:
    """Reads the device events of a trace one by one, in the order of their starts. Raises OpAtlasError."""
    outcomes = read_outcomes(path)
    trace = outcomes.trace
    found = []
    for outcome in outcomes:
        row = outcome.row
        kernel_type, cells = outcome.name, dict[str, str]()
        if isinstance(row, CapturedRow):
            kernel_type, cells = row.kernel_type, dict(row.cells)
        elif row.reason is SkipReason.COLLECTIVE:
            cells = {col.ACCELERATOR_CORE: COMMUNICATION}
        call_us = sum(trace.duration_ns[event] for event in outcome.events) / 1e3
        for event in outcome.events:
            call = int(trace.call_of[event])
            found.append(
                Launch(
                    device=str(trace.device[event]),
                    start_ns=trace.start_ns[event],
                    duration_us=trace.duration_ns[event] / 1e3,
                    kernel_type=kernel_type,
                    cells={column: cells[column] for column in (*col.BASE, *col.EXTRA_IN_SIGNATURE) if column in cells},
                    counters={},
                    name=trace.names[trace.name[event]],
                    step=trace.step_of(trace.call_ns[call]) if call >= 0 else "",
                    stream=str(trace.stream[event]),
                    launched_ns=trace.call_ns[call] if call >= 0 else None,
                    call_us=call_us,
                )
            )
    found.sort(key=lambda launch: launch.start_ns)
    name = slug(trace.header.gpus[0].name) if trace.header.gpus else ""
    return Launches(tuple(found), tuple(f"{path}: {problem}" for problem in outcomes.problems), name)
