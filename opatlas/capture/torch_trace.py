"""Reads a Chrome trace of torch.profiler: what ran on the devices, which calls launched it, and of which operators.

A device event has no shapes: they are in the operator around the call that launched the event. Events and calls are
kept in arrays, 20 to 40 bytes each, because a trace has millions of them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from opatlas.capture.operator_rows import Operator
from opatlas.capture.torch_operators import is_known, wins_over_inner
from opatlas.capture.traces import EventStream, TruncatedTraceError
from opatlas.errors import TableError
from opatlas.files import open_stream
from opatlas.row.location import slug

_NO_LIST = msgspec.Raw(b"[]")
_AGAIN = "Copy or export the trace of torch.profiler again"
#: Steps of torch.profiler, vLLM and SGLang, and captures of graphs.
_STEP = re.compile(r"ProfilerStep#(\d+)|(?:execute|capture)_.*|step\[.*")
_CALL = re.compile(r"(?:cuda|cu|hip)\w*?(GraphLaunch|Launch(?!HostFunc)|Memcpy|Memset|BeginCapture|EndCapture)")
_COLLECTIVE = re.compile(r"record_param_comms|.*(?:::|_)(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)")
#: Owners of calls that no operator of the table has.
NO_OWNER, COLLECTIVE = -1, -2


class CallKind(IntEnum):
    """What a call of the runtime or the driver does; a kind of device event has the number of its call."""

    LAUNCH = 0
    MEMCPY = 1
    MEMSET = 2
    GRAPHLAUNCH = 3
    BEGINCAPTURE = 4
    ENDCAPTURE = 5


_RUNTIMES = ("cuda_runtime", "cuda_driver")
#: Of microseconds since 1970, before the point.
_DIGITS = 16
#: Bytes of an element, by the dtype of a message.
_DTYPE_BYTES = {"BFloat16": 2, "Half": 2, "Float": 4, "Double": 8, "Long": 8, "Int": 4}
_DEVICE = {"kernel": CallKind.LAUNCH, "gpu_memcpy": CallKind.MEMCPY, "gpu_memset": CallKind.MEMSET}


class _Args(msgspec.Struct, frozen=True, gc=False):
    correlation: int = 0
    device: int | str = 0
    stream: int | str = 0
    node: int = msgspec.field(default=0, name="graph node id")
    dims: msgspec.Raw = msgspec.field(default=_NO_LIST, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=_NO_LIST, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=_NO_LIST, name="Input Strides")
    values: msgspec.Raw = msgspec.field(default=_NO_LIST, name="Concrete Inputs")
    collective: str = msgspec.field(default="", name="Collective name")
    sent: int = msgspec.field(default=0, name="In msg nelems")
    dtype: str = ""
    ranks: int = msgspec.field(default=0, name="Group size")


class _Event(msgspec.Struct, gc=False):
    args: _Args = _Args()
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)


class _Gpu(msgspec.Struct):
    name: str = ""


class _Ranks(msgspec.Struct):
    rank: int = 0


def _nanoseconds(microseconds: Decimal) -> int:
    if microseconds.adjusted() > _DIGITS:
        raise OverflowError(f"a time of {microseconds} us")
    return int(microseconds * 1000)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, dict)) else value


def _number(numbers: dict[str, int], name: str, names: list[str]) -> int:
    number = numbers.setdefault(name, len(names))
    if number == len(names):
        names.append(name)
    return number


class TraceHeader(msgspec.Struct):
    """What a trace says of its machine."""

    gpus: list[_Gpu] = msgspec.field(default_factory=list, name="deviceProperties")
    cuda_runtime_version: int = 0
    base_ns: int | None = msgspec.field(default=None, name="baseTimeNanoseconds")
    ranks: _Ranks | None = msgspec.field(default=None, name="distributedInfo")

    @property
    def cuda(self) -> str | None:
        """The version of CUDA: `13.0` for 13000."""
        version = self.cuda_runtime_version
        return f"{version // 1000}.{version % 1000 // 10}" if version else None


@dataclass
class TorchTrace:
    """The device events of a trace and the calls that launched them, in the order of the file.

    Attributes:
        operators: the different operators; `names`: the different names of device events and collectives.
        op_start, op_end, op_thread, op_kind: times in ns, thread and number in `operators` of each operator call.
        call_correlation, call_ns, call_thread, call_kind: of each call of the runtime that launches or captures.
        correlation, start_ns, duration_ns, name, device, stream, kind, node: of each device event.
        messages: the message of each collective, by the number of the device event.
        steps: start, end and name of each annotated step.
    """

    header: TraceHeader
    operators: list[Operator] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    op_start: array[int] = field(default_factory=lambda: array("q"))
    op_end: array[int] = field(default_factory=lambda: array("q"))
    op_thread: array[int] = field(default_factory=lambda: array("i"))
    op_kind: array[int] = field(default_factory=lambda: array("i"))
    call_correlation: array[int] = field(default_factory=lambda: array("q"))
    call_ns: array[int] = field(default_factory=lambda: array("q"))
    call_thread: array[int] = field(default_factory=lambda: array("i"))
    call_kind: array[int] = field(default_factory=lambda: array("b"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    start_ns: array[int] = field(default_factory=lambda: array("q"))
    duration_ns: array[int] = field(default_factory=lambda: array("q"))
    name: array[int] = field(default_factory=lambda: array("i"))
    device: array[int] = field(default_factory=lambda: array("h"))
    stream: array[int] = field(default_factory=lambda: array("i"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    node: array[int] = field(default_factory=lambda: array("q"))
    messages: dict[int, str] = field(default_factory=dict)
    steps: list[tuple[int, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._operators: dict[tuple[str, bytes, bytes, bytes, bytes], int] = {}
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[int | str, int | str], int] = {}
        self._calls: dict[str, CallKind | None] = {}

    def add(self, events: Sequence[_Event]) -> None:
        """Adds events of the file."""
        for event in events:
            category, args = event.cat, event.args
            if category == "cpu_op":
                start, duration = _nanoseconds(event.ts), _nanoseconds(event.dur)
                self.op_start.append(start)
                self.op_end.append(start + duration)
                self.op_thread.append(self._thread(event))
                self.op_kind.append(self._operator(event.name, args))
            elif category in _RUNTIMES:
                if event.name not in self._calls:
                    found = _CALL.match(event.name)
                    self._calls[event.name] = CallKind[found[1].upper()] if found else None
                if (kind := self._calls[event.name]) is not None:
                    self.call_correlation.append(args.correlation)
                    self.call_ns.append(_nanoseconds(event.ts))
                    self.call_thread.append(self._thread(event))
                    self.call_kind.append(kind)
            elif category in _DEVICE:
                if args.collective:
                    size = args.sent * _DTYPE_BYTES.get(args.dtype, 1)
                    self.messages[len(self.name)] = f"{args.collective} {size:,} bytes, {args.ranks} ranks"
                self.correlation.append(args.correlation)
                self.start_ns.append(_nanoseconds(event.ts))
                # A negative one counts as none.
                self.duration_ns.append(max(_nanoseconds(event.dur), 0))
                self.name.append(_number(self._names, event.name, self.names))
                self.device.append(int(args.device))
                self.stream.append(int(args.stream))
                self.kind.append(_DEVICE[category])
                self.node.append(args.node)
            elif category == "user_annotation" and (found := _STEP.fullmatch(event.name)):
                start = _nanoseconds(event.ts)
                # The names of vLLM and SGLang repeat.
                name = found[1] or f"{event.name} #{len(self.steps)}"
                self.steps.append((start, start + _nanoseconds(event.dur), name))

    def _thread(self, event: _Event) -> int:
        return self._threads.setdefault((event.pid, event.tid), len(self._threads))

    def _operator(self, name: str, args: _Args) -> int:
        key = (name, bytes(args.dims), bytes(args.types), bytes(args.strides), bytes(args.values))
        number = self._operators.get(key)
        if number is None:
            number = self._operators[key] = len(self.operators)
            self.operators.append(Operator(name, *(_tuples(msgspec.json.decode(text)) for text in key[1:])))
        return number

    @cached_property
    def call_of(self) -> np.ndarray:
        """For each device event the number of the call that launched it; -1 if it was launched before the trace."""
        given = np.array(self.call_correlation, dtype=np.int64)
        order = np.argsort(given, kind="stable")
        wanted = np.array(self.correlation, dtype=np.int64)
        at = np.minimum(np.searchsorted(given[order], wanted), max(len(given) - 1, 0))
        if not len(given):
            return np.full(len(wanted), -1)
        return np.where(given[order[at]] == wanted, order[at], -1)

    @cached_property
    def owners(self) -> tuple[np.ndarray, np.ndarray]:
        """For each call the operator call whose row its kernels belong to, and the innermost operator call around it.

        The owner is the innermost one that the table knows, unless one around that wins; NO_OWNER; or COLLECTIVE.
        The innermost is -1 outside of all operators.
        """
        owner = np.full(len(self.call_ns), NO_OWNER, dtype=np.int32)
        inner = np.full(len(self.call_ns), -1, dtype=np.int32)
        is_collective = [_COLLECTIVE.match(each.name) is not None for each in self.operators]
        known = [is_known(each.name) for each in self.operators]
        wins = [known[at] and wins_over_inner(each.name) for at, each in enumerate(self.operators)]
        starts, ends = np.array(self.op_start, dtype=np.int64), np.array(self.op_end, dtype=np.int64)
        op_threads, call_threads = np.array(self.op_thread), np.array(self.call_thread)
        times = np.array(self.call_ns, dtype=np.int64)
        for thread in np.unique(call_threads).tolist():
            ops = np.flatnonzero(op_threads == thread)
            ops = ops[np.lexsort((-ends[ops], starts[ops]))].astype(np.int32)
            calls = np.flatnonzero(call_threads == thread)
            calls = calls[np.argsort(times[calls], kind="stable")]
            # Of each open operator: its end, itself, the owner of what is called inside, whether that is decided.
            open_: list[tuple[int, int, int, bool]] = []
            inside = zip(starts[ops].data, ends[ops].data, ops.data, strict=True)
            begin, end, number = next(inside, (None, 0, 0))
            for call, now in zip(calls.tolist(), times[calls].data, strict=True):
                while begin is not None and begin <= now:
                    while open_ and open_[-1][0] <= begin:
                        open_.pop()
                    _, around, row, decided = open_[-1] if open_ else (0, 0, NO_OWNER, False)
                    kind = self.op_kind[number]
                    # Copies inside are of the collective.
                    number = around if row == COLLECTIVE else number
                    if not decided and is_collective[kind]:
                        row, decided = COLLECTIVE, True
                    elif not decided and known[kind]:
                        row, decided = number, wins[kind]
                    open_.append((end, number, row, decided))
                    begin, end, number = next(inside, (None, 0, 0))
                while open_ and open_[-1][0] < now:
                    open_.pop()
                if open_:
                    _, inner[call], owner[call], _ = open_[-1]
        return owner, inner

    def step_of(self, ns: int) -> str:
        """Returns the annotated step at a time of the host; "" outside of all."""
        return next(self.steps_at(ns), "")

    def steps_at(self, ns: int) -> Iterator[str]:
        """Yields the annotated steps at a time of the host, the last one first."""
        return (name for start, end, name in reversed(self.steps) if start <= ns <= end)


def read_header(path: Path) -> TraceHeader:
    """Returns the header of a trace. Raises OpAtlasError: the file cannot be read, or is not a trace."""
    with open_stream(path, lambda size: None) as file:
        return _header(path, EventStream(path, file, msgspec.json.Decoder(list[Any])))


def captured_gpu(
    paths: Sequence[Path], given: str | None = None, *, may_be_unknown: bool = False
) -> tuple[str | None, str | None]:
    """Returns the GPU of some traces, as the folder of its databases is called, and the version of CUDA.

    Args:
        given: the device that a user names.
        may_be_unknown: whether traces that name none have the result None.

    Raises:
        OpAtlasError: a file cannot be read, or the traces name no GPU, several, or another one than the user.
    """
    headers = [read_header(path) for path in paths]
    of_each = [{slug(gpu.name) for gpu in header.gpus if gpu.name} for header in headers]
    names = sorted(set().union(*of_each))
    cuda = next((header.cuda for header in headers if header.cuda), None)
    if given is not None:
        for path, own in zip(paths, of_each, strict=True):
            if own and given not in own:
                raise TableError(
                    path, f"a trace of {', '.join(sorted(own))}, not of --device {given}", "Leave out --device"
                )
        return given, cuda
    if len(names) == 1 or (may_be_unknown and not names):
        return next(iter(names), None), cuda
    problem = f"the traces are of several GPUs: {', '.join(names)}" if names else "the trace names no GPU"
    raise TableError(paths[0], problem, "Name it with --device, and ingest those of each GPU alone")


def _header(path: Path, stream: EventStream[Any]) -> TraceHeader:
    try:
        return msgspec.json.decode(stream.header, type=TraceHeader)
    except msgspec.ValidationError as error:
        raise TableError(path, f"not a header of torch.profiler ({error})", _AGAIN) from None


def read_trace(path: Path, on_bytes: Callable[[int], None] = lambda size: None) -> TorchTrace:
    """Reads a trace.

    Args:
        on_bytes: called with the number of bytes that were read, for progress.

    Raises:
        OpAtlasError: the file cannot be read, is cut off, or is not a trace of torch.profiler.
    """
    with open_stream(path, on_bytes) as file:
        stream = EventStream(path, file, msgspec.json.Decoder(list[_Event]))
        trace = TorchTrace(_header(path, stream))
        try:
            for batch in stream:
                trace.add(batch)
        except TruncatedTraceError as error:
            raise TableError(path, error.problem, _AGAIN) from None
        except (ValueError, ArithmeticError) as error:
            raise TableError(path, f"not a trace of torch.profiler ({error})", _AGAIN) from None
    return trace
