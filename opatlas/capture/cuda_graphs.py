"""Pairs the kernels of CUDA graphs with the calls that were captured.

A replay runs no operators, so its events have neither shapes nor a launch of their own. A trace that recorded the
capture has the operators and the launches, between the calls that begin and end the capture, but no kernels. The nodes
of a replay are in the order of the launches, on one stream. Names of kernels are evidence against a pairing: a
product needs a kernel of products, and equal calls need equal kernels.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from opatlas.capture.operator_rows import Operator
from opatlas.capture.torch_trace import CallKind, TorchTrace
from opatlas.grouping import grouped

_NONE = Operator("no operator")
#: The least share of a graph's device time whose calls must agree with each other.
_LEAST_SHARE = 0.95
_PRODUCT = re.compile(r"gemm|gemv|nvjet|cutlass|xmma|splitk|cijk|dot_kernel", re.IGNORECASE)
#: Not cutlass, which kernels of attention are made of too.
_ONLY_PRODUCT = re.compile(r"gemm|gemv|nvjet|splitk|cijk", re.IGNORECASE)
_MULTIPLIES = re.compile(r"aten::_?(?:add|badd|b|scaled_|int_)?mm(?:_|\Z)")
_MAY_MULTIPLY = re.compile(r"(?!aten::)|.*(?:mm|mv|matmul|linear|conv|attention|dot|einsum|rnn|lstm|gru)")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: Operators whose kernels may be those of add, mul and gather, and copies of the driver.
_OTHER_WORDS, _COPIES = {"sub", "div", "rsub", "index"}, {"memcpy", "memset"}
#: Tokens in the names of steps and captures of vLLM and SGLang.
_TOKENS = re.compile(
    r"(?:capture|execute)_(\d+)_|step\[DECODE bs=(\d+)|execute_context_\d+\((\d+)\)_generation_\d+\((\d+)\)"
)
#: The streams of a replay, the size of the captures that may fit, and kind and name of each node.
_Replay = tuple[int, int | None, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class Capture:
    """The launches of one graph while it was captured, or those of an eager step.

    Attributes:
        calls: the numbers of calls of the trace, in their order.
        kernels: the kernels of calls of an eager step, which a replay must have too.
    """

    trace: TorchTrace
    calls: Sequence[int]
    kernels: Mapping[int, str] = field(default_factory=dict)

    def operator(self, call: int) -> Operator:
        """The innermost operator around a launch; `Operator("no operator")` outside of all."""
        number = int(self.trace.owners[1][call])
        return self.trace.operators[self.trace.op_kind[number]] if number >= 0 else _NONE

    @property
    def tokens(self) -> int:
        """The tokens of a step that the graph is for; 0 if the trace does not say."""
        return _tokens(self.trace, self.calls[0])


@dataclass(frozen=True)
class PairedGraph:
    """What the nodes of a replay are.

    Attributes:
        capture: the capture that fits; None if none does.
        calls: for each node its call of the capture; -1 where equal calls have other kernels.
        problem: why no capture fits, or why nodes have no call.
    """

    capture: Capture | None
    calls: Sequence[int]
    problem: str = ""


def captures_beside(path: Path) -> list[Path]:
    """Returns the traces of captures in the folder of a trace, or in `capture_traces` there.

    Those whose names begin like that of the trace (`prefill-capture...`, `prefill-replay...`) come alone.
    """
    files = [*path.parent.glob("*capture*.json*"), *path.parent.glob("capture_traces/*.json*")]
    files = sorted(file for file in files if file != path and file.name.endswith((".json", ".json.gz")))
    alike = [file for file in files if (start := file.name.partition("capture")[0]) and path.name.startswith(start)]
    return alike or files


def captures_of(trace: TorchTrace) -> list[Capture]:
    """Returns the captures that a trace recorded."""
    found = []
    threads, kinds = np.array(trace.call_thread), np.array(trace.call_kind)
    times = np.array(trace.call_ns)
    for thread in np.unique(threads[kinds == CallKind.BEGINCAPTURE]).tolist():
        of_thread = np.flatnonzero(threads == thread)
        calls: list[int] | None = None
        for call in of_thread[np.argsort(times[of_thread], kind="stable")].tolist():
            if kinds[call] == CallKind.BEGINCAPTURE:
                calls = []
            elif kinds[call] == CallKind.ENDCAPTURE:
                if calls:
                    found.append(Capture(trace, calls))
                calls = None
            elif calls is not None:
                calls.append(call)
    return found


def steps_of(trace: TorchTrace) -> list[Capture]:
    """Returns the steps of an eager trace."""
    kernels = {call: trace.names[name] for call, name in zip(trace.call_of.tolist(), trace.name, strict=True)}
    in_time = sorted(kernels.keys() - {-1}, key=trace.call_ns.__getitem__)
    steps = grouped((trace.step_of(trace.call_ns[call]), call) for call in in_time)
    return [Capture(trace, calls, kernels) for calls in steps.values()]


def pair_graphs(trace: TorchTrace, captures: Iterable[Capture]) -> Mapping[int, tuple[Sequence[int], PairedGraph]]:
    """Pairs the replays of a trace.

    Returns:
        For each call that launched a graph its device events in the order of the nodes, and what they are.
    """
    captures = list(captures)
    by_call: dict[int, list[int]] = defaultdict(list)
    for event, call in enumerate(trace.call_of.tolist()):
        if call >= 0 and trace.call_kind[call] == CallKind.GRAPHLAUNCH:
            by_call[call].append(event)
    sizes = sorted({capture.tokens for capture in captures} - {0})
    replays: dict[_Replay, list[int]] = defaultdict(list)
    for call, events in by_call.items():
        has_ids = all(trace.node[event] for event in events)
        events.sort(key=lambda event: (trace.node[event], trace.start_ns[event]) if has_ids else trace.start_ns[event])
        streams = 1 if has_ids else len({trace.stream[event] for event in events})
        # A step is padded to the next size that was captured.
        tokens = _tokens(trace, call)
        size = next((each for each in sizes if each >= tokens), 0) if tokens and sizes else None
        replays[streams, size, tuple((trace.kind[event], trace.name[event]) for event in events)].append(call)
    fitting: dict[tuple[int, int], list[_Replay]] = defaultdict(list)
    pairs = {}
    for replay, calls in replays.items():
        of_size = [capture for capture in captures if replay[1] in (None, capture.tokens)]
        pairs[replay] = paired = _pair(trace, by_call[calls[0]], of_size, replay[0])
        if paired.capture is not None:
            fitting[id(paired.capture.trace), paired.capture.calls[0]].append(replay)
    for alike in fitting.values():
        for replay in alike if len(alike) > 1 else ():
            nodes = zip(*(sequence for _, _, sequence in alike), strict=True)
            first = next(at for at, of_node in enumerate(nodes) if len(set(of_node)) > 1)
            pairs[replay] = PairedGraph(None, (), f"its replays differ at node {first} of {len(replay[2]):,}")
    return {call: (by_call[call], pairs[replay]) for replay, calls in replays.items() for call in calls}


def _tokens(trace: TorchTrace, call: int) -> int:
    found = _TOKENS.match(trace.step_of(trace.call_ns[call]))
    return sum(int(number or 0) for number in found.groups()) if found else 0


def _pair(trace: TorchTrace, events: Sequence[int], captures: Sequence[Capture], streams: int) -> PairedGraph:
    size = f"a graph of {len(events):,} nodes"
    if streams > 1:
        return PairedGraph(None, (), f"{size} on {streams} streams, without ids of nodes: no order is known")
    if not captures:
        return PairedGraph(None, (), f"{size} without a trace of its capture")
    problems = [_mismatch(trace, events, capture) for capture in captures]
    fitting = [capture for capture, problem in zip(captures, problems, strict=True) if not problem]
    if not fitting:
        # Of a capture with as many launches the first node that does not fit says more than their numbers.
        return PairedGraph(None, (), f"{size}: {max(problems, key=lambda problem: problem.startswith('node'))}")
    operators = [[capture.operator(call) for call in capture.calls] for capture in fitting]
    if any(each != operators[0] for each in operators):
        return PairedGraph(None, (), f"{size}: {len(fitting)} captures of other operators or shapes fit")
    return _agreeing(trace, events, fitting[0], size)


def _mismatch(trace: TorchTrace, events: Sequence[int], capture: Capture) -> str:
    """Returns the first node that cannot be of its launch; "" if all can."""
    if len(events) != len(capture.calls):
        return f"{len(capture.calls):,} launches were captured"
    inner = capture.trace.owners[1]
    multiplied: dict[int, int] = {}
    for at, (event, call) in enumerate(zip(events, capture.calls, strict=True)):
        operator, name = capture.operator(call).name, trace.names[trace.name[event]]
        kind = CallKind(trace.kind[event])
        place = f"node {at} of {len(events)}: {operator} launched a "
        if kind != capture.trace.call_kind[call]:
            return f"{place}{CallKind(capture.trace.call_kind[call]).name.lower()}, the replay has {name}"
        if capture.kernels.get(call, name) != name:
            return f"{place}{capture.kernels[call]}, the replay has {name}"
        function = name.partition("<")[0]
        if kind is CallKind.LAUNCH and _ONLY_PRODUCT.search(function) and not _MAY_MULTIPLY.match(operator):
            return f"{place}kernel, the replay has {name}"
        if _MULTIPLIES.match(operator):
            multiplied.setdefault(int(inner[call]), at)
            if _PRODUCT.search(function):
                multiplied[int(inner[call])] = -1
    for at in multiplied.values():
        if at >= 0:
            operator, name = capture.operator(capture.calls[at]).name, trace.names[trace.name[events[at]]]
            return f"node {at} of {len(events)}: {operator} launched a product, the replay has {name}"
    return ""


def _agreeing(trace: TorchTrace, events: Sequence[int], capture: Capture, size: str) -> PairedGraph:
    """Returns the pairing without calls that have the kernel of another operator, and without their neighbours.

    Equal calls may have different kernels, as attention over a window does. A call whose kernels equal calls lack is
    wrong if a call of another operator, or with other operands, launched one of them. So is one that lacks the word of
    its operator. The pairing is refused if less than `_LEAST_SHARE` of the device time remains.
    """
    owners, inner = capture.trace.owners
    nodes: dict[int, list[int]] = defaultdict(list)
    launched_by: dict[int, set[Operator]] = defaultdict(set)
    for at, call in enumerate(capture.calls):
        number = int(owners[call] if owners[call] >= 0 else inner[call])
        # A launch outside of all operators stands alone.
        nodes[number if number >= 0 else -1 - at].append(at)
        launched_by[trace.name[events[at]]].add(capture.operator(call))
    words = {name: set(map(str.lower, _WORD.findall(trace.names[name]))) for name in launched_by}
    all_words = set().union(*words.values())
    equal: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)
    of_calls = []
    for number, places in nodes.items():
        kernels = tuple(trace.name[events[at]] for at in places)
        of_calls.append((kernels, equal[capture.trace.op_kind[number] if number >= 0 else number]))
        of_calls[-1][1][kernels] += 1
    wrong = [
        (others[kernels] * 2 <= others.total() and any(len(launched_by[kernel]) > 1 for kernel in kernels))
        or _lacks_word(capture.operator(capture.calls[places[0]]).name, [words[each] for each in kernels], all_words)
        for (kernels, others), places in zip(of_calls, nodes.values(), strict=True)
    ]
    if not any(wrong):
        return PairedGraph(capture, capture.calls)
    calls = [*capture.calls]
    for number, places in enumerate(nodes.values()):
        for at in places if any(wrong[max(number - 1, 0) : number + 2]) else ():
            calls[at] = -1
    first = [*nodes.values()][wrong.index(True)][0]
    operator, kernel = capture.operator(capture.calls[first]).name, trace.names[trace.name[events[first]]]
    problem = f"{size}: node {first}, {operator}: equal calls, or those of its name, have other kernels than {kernel}"
    whole_ns = sum(trace.duration_ns[event] for event in events)
    kept_ns = sum(trace.duration_ns[event] for event, call in zip(events, calls, strict=True) if call >= 0)
    return PairedGraph(capture if kept_ns >= _LEAST_SHARE * whole_ns else None, calls, problem)


def _lacks_word(operator: str, of_kernels: Sequence[set[str]], all_words: Collection[str]) -> bool:
    """Returns whether kernels of a graph have the word of an operator in their names, but those of a call of it lack
    it: `aten::mul_` and `MulFunctor`."""
    word = operator.partition("aten::")[2].strip("_")
    return (
        word in all_words
        and word not in _OTHER_WORDS
        and not any(word in words or not words.isdisjoint(_COPIES) for words in of_kernels)
    )
