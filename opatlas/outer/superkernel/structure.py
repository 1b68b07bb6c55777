"""What kernel types tell, and the structure of a timeline: layers, by the repeated sequence of types; steps; scopes.

`kernel_types.yaml` has the patterns with their sources.
"""

from __future__ import annotations

import fnmatch
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from opatlas.capture.single_launches import LaunchTimeline, numbered_steps
from opatlas.row.slots import split_cell
from opatlas.text import Word, parse_whole

#: The longest sequence that is searched for: a step of a model with 100 layers of 100 kernels.
_MOST_PERIOD = 10_000
#: Kinds of layers in a model: those with experts, dense ones, and others.
_MOST_KINDS = 4
_NORMALIZATION = "normalization"
_FUSED_ATTENTION = "FusedInferAttentionScore"
#: The slot of the lengths of a fused attention, and the most tokens of a sequence in a decoding step that drafts some.
_LENGTHS_SLOT = 5
_MOST_DRAFTED = 8


class Module(Word):
    """A part of a layer of a model."""

    ATTENTION = "attention"
    MOE = "moe"
    FFN = "ffn"


class StepPhase(Word):
    """What a step computes."""

    DECODE = "decode"
    PREFILL = "prefill"
    TRAINING = "training"
    UNKNOWN = "unknown"


class ScopeKind(Word):
    """What a candidate scope encloses."""

    ATTENTION = "attention"
    MOE = "moe"
    FFN = "ffn"
    LAYER = "layer"
    ALL_LAYERS = "all layers"
    STEP = "step"


class TypePatterns(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"patterns": "types"}):
    """Kernel types that a SuperKernel may, or may not, hold, and who says so."""

    patterns: tuple[str, ...]
    source: str


class ModelFamily(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The scopes that a guide recommends for a family of models.

    Attributes:
        scopes: to try, the first one first.
        source: who recommends them.
        names: patterns of the names of its models, in lower case.
        experts: whether its models have experts; None for both.
    """

    scopes: tuple[ScopeKind, ...]
    source: str
    names: tuple[str, ...]
    experts: bool | None = None

    @property
    def told(self) -> str:
        return f"{' or '.join(self.scopes)} ({self.source})"


class KernelTypes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The patterns of `kernel_types.yaml`."""

    collectives: TypePatterns
    unfusable: tuple[TypePatterns, ...]
    modules: dict[Module, tuple[str, ...]]
    attention: tuple[str, ...]
    normalization: tuple[str, ...]
    phases: dict[StepPhase, tuple[str, ...]]
    families: Mapping[str, ModelFamily]


@cache
def known_types() -> KernelTypes:
    """Returns the patterns that come with OpAtlas."""
    text = resources.files(__package__).joinpath("kernel_types.yaml").read_bytes()
    return msgspec.yaml.decode(text, type=KernelTypes)


@lru_cache(maxsize=1 << 16)
def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Returns whether one of the patterns fits a whole name."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_normalization(kernel_type: str) -> bool:
    """Returns whether a kernel type normalizes, so that a module of a layer may begin with it."""
    return matches(kernel_type, known_types().normalization)


def unfusable_source(kernel_type: str) -> str:
    """Returns who says that a kernel type splits a SuperKernel; "" if nobody does."""
    return next((rule.source for rule in known_types().unfusable if matches(kernel_type, rule.patterns)), "")


def module_of_type(kernel_type: str) -> Module | None:
    """Returns the module that a kernel type tells; None if it tells none."""
    return next((module for module, patterns in known_types().modules.items() if matches(kernel_type, patterns)), None)


def phase_of_type(kernel_type: str) -> StepPhase | None:
    """Returns the phase that a kernel type tells; None if it tells none."""
    return next((phase for phase, patterns in known_types().phases.items() if matches(kernel_type, patterns)), None)


class StepSource(Word):
    """What tells the steps of a capture."""

    STEP_ID = "Step Id"
    LAYERS = "repetition of all layers"
    NOTHING = "nothing"


class Layer(NamedTuple):
    """One layer: the range `start` to before `stop` of a sequence, and the number of its kind."""

    start: int
    stop: int
    kind: int


@dataclass(frozen=True)
class LayerKind:
    """Layers with one sequence of kernel types."""

    kernel_types: tuple[str, ...]
    layers: int


@dataclass(frozen=True)
class ModelStructure:
    """The layers and the steps of a timeline.

    Attributes:
        layers: ordered by start, as indices of launches; without those of other streams.
        kinds: the kinds of layers, by number.
        steps: the number of each launch's step, from 0.
        step_source: what tells the steps.
    """

    layers: tuple[Layer, ...]
    kinds: tuple[LayerKind, ...]
    steps: tuple[int, ...]
    step_source: StepSource

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The first launch of each step, and the launch after its last."""
        return [(bisect_left(self.steps, step), bisect_right(self.steps, step)) for step in range(self.steps[-1] + 1)]


def find_structure(timeline: LaunchTimeline) -> ModelStructure:
    """Returns the layers and the steps of a timeline."""
    main = np.flatnonzero(~timeline.beside_main).tolist()
    kernel_types = [timeline.launches[index].kernel_type for index in main]
    found = find_layers(kernel_types)
    layers = tuple(Layer(main[each.start], main[each.stop - 1] + 1, each.kind) for each in found)
    kinds = []
    for kind in range(max((each.kind for each in found), default=-1) + 1):
        own = [each for each in found if each.kind == kind]
        kinds.append(LayerKind(tuple(kernel_types[own[0].start : own[0].stop]), len(own)))
    labels = [launch.step for launch in timeline.launches]
    if any(labels):
        numbers, source = numbered_steps(labels).tolist(), StepSource.STEP_ID
    else:
        numbers = _steps_of_layers(timeline, layers, found)
        source = StepSource.LAYERS if numbers[-1] else StepSource.NOTHING
    return ModelStructure(layers, tuple(kinds), tuple(numbers), source)


def _longest_repeat(codes: np.ndarray) -> tuple[int, int, int] | None:
    """Returns start, period and count of the repeat that covers the most of a sequence; None if nothing repeats.

    Of equal ones the shortest period counts. It is at least 2: the same kernel in a row is no layer.
    """
    best, covered = None, 0
    for period in range(2, min(len(codes) // 2, _MOST_PERIOD) + 1):
        equal = codes[:-period] == codes[period:]
        if best is not None and covered + best[1] > len(codes):
            # What is left is less than one occurrence.
            break
        if int(np.count_nonzero(equal)) + period <= covered:
            continue
        borders = np.concatenate(([-1], np.flatnonzero(~equal), [len(equal)]))
        lengths = np.diff(borders) - 1
        longest = int(lengths.argmax())
        count = int(lengths[longest]) // period + 1
        if count >= 2 and period * count > covered:
            best, covered = (int(borders[longest]) + 1, period, count), period * count
    return best


def find_layers(kernel_types: Sequence[str]) -> tuple[Layer, ...]:
    """Returns the layers in a sequence of kernel types, ordered, of up to four kinds; none where nothing repeats.

    A layer begins with the first normalization after its last kernel of experts or of a feed-forward network, where it
    has such kernels. Normalizations count as equal: the first layer adds no residual to its first one.
    """
    names = [_NORMALIZATION if is_normalization(name) else name for name in kernel_types]
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    codes = np.array([number[name] for name in names], dtype=np.int64)
    attends = np.array([matches(name, known_types().attention) for name in kernel_types], dtype=bool)
    layers: list[Layer] = []
    rest = codes.copy()
    for kind in range(_MOST_KINDS):
        found = _innermost(rest, attends)
        if found is None:
            break
        start, period = found
        if kind and not attends[start : start + period].any():
            break
        first = start + _offset_of_start(kernel_types[start : start + period])
        # The sequence that begins there may be that of the next period.
        pattern = codes[first : first + period]
        if len(pattern) < period:
            break
        for start in _occurrences(rest, pattern):
            layers.append(Layer(start, start + period, kind))
            # Never equal to anything else.
            rest[start : start + period] = -1 - np.arange(start, start + period)
    return tuple(sorted(layers))


def _innermost(codes: np.ndarray, attends: np.ndarray) -> tuple[int, int] | None:
    """Returns start and length of the shortest sequence with an attention that repeats: a layer within the steps."""
    found = _longest_repeat(codes)
    while found is not None:
        start, period, _ = found
        inner = _longest_repeat(codes[start : start + period])
        if inner is None or 2 * inner[1] * inner[2] < period:
            return start, period
        inside = start + inner[0]
        if attends[start : start + period].any() and not attends[inside : inside + inner[1]].any():
            return start, period
        found = inside, *inner[1:]
    return None


def _offset_of_start(kernel_types: Sequence[str]) -> int:
    """Returns where a layer begins within one period of the sequence."""
    told = [index for index, name in enumerate(kernel_types) if module_of_type(name) in (Module.MOE, Module.FFN)]
    after = [(told[-1] + step) % len(kernel_types) for step in range(1, len(kernel_types) + 1)] if told else []
    return next((index for index in after if is_normalization(kernel_types[index])), 0)


def _occurrences(codes: np.ndarray, pattern: np.ndarray) -> list[int]:
    """Returns the starts of the occurrences of a sequence, from left to right, without overlaps."""
    if len(codes) < len(pattern):
        return []
    fits = (np.lib.stride_tricks.sliding_window_view(codes, len(pattern)) == pattern).all(axis=1)
    found: list[int] = []
    for start in np.flatnonzero(fits).tolist():
        if not found or start >= found[-1] + len(pattern):
            found.append(start)
    return found


def _steps_of_layers(timeline: LaunchTimeline, layers: Sequence[Layer], in_sequence: Sequence[Layer]) -> list[int]:
    """Numbers the steps by the runs of adjacent layers. Between two runs a step begins after the longest idle time."""
    runs: list[list[int]] = []
    for index, layer in enumerate(in_sequence):
        if runs and layer.start == in_sequence[index - 1].stop:
            runs[-1].append(index)
        else:
            runs.append([index])
    sizes = [len(run) for run in runs]
    most = max(sizes, default=0)
    numbers = np.zeros(len(timeline.launches), dtype=np.int64)
    # A capture may begin and end within a step.
    if len(runs) > 1 and most > 1 and all(size == most for size in sizes[1:-1]):
        for before, after in pairwise(runs):
            end, start = layers[before[-1]].stop, layers[after[0]].start
            numbers[end + int(timeline.idle_us[end : start + 1].argmax()) :] += 1
    return numbers.tolist()


def phase_of(kernels: Iterable[tuple[str, str]]) -> StepPhase:
    """Returns the phase that the kernels of a step tell, each by type and input shapes: training, prefill, decode."""
    told = {_phase_of_attention(*kernel) or phase_of_type(kernel[0]) for kernel in set(kernels)}
    order = (StepPhase.TRAINING, StepPhase.PREFILL, StepPhase.DECODE)
    return next((phase for phase in order if phase in told), StepPhase.UNKNOWN)


def _phase_of_attention(kernel_type: str, shapes: str) -> StepPhase | None:
    """Returns what the shapes of a fused attention tell: in decode each sequence has one token, or some drafted."""
    if not kernel_type.startswith(_FUSED_ATTENTION):
        return None
    slots = [_dimensions(slot) for slot in split_cell(shapes)]
    query = slots[0] if slots else ()
    if len(query) == 3 and len(slots) > _LENGTHS_SLOT and len(slots[_LENGTHS_SLOT]) == 1:
        tokens, sequences = query[0], slots[_LENGTHS_SLOT][0]
        return StepPhase.DECODE if tokens <= _MOST_DRAFTED * sequences else StepPhase.PREFILL
    if len(query) == 4 and 1 in query[1:3]:
        return StepPhase.DECODE
    return None


def _dimensions(slot: str) -> tuple[int, ...]:
    sizes = [parse_whole(word) for word in slot.split(",")]
    return tuple(size for size in sizes if size is not None) if None not in sizes else ()


def find_scopes(
    timeline: LaunchTimeline, structure: ModelStructure, steps: Iterable[tuple[int, int]]
) -> dict[ScopeKind, list[tuple[int, int]]]:
    """Returns the candidate scopes of some steps, the smallest kinds first, with the range of each occurrence.

    Args:
        steps: ranges of launches.
    """
    by_kind: dict[ScopeKind, list[tuple[int, int]]] = {kind: [] for kind in ScopeKind}
    for first, last in steps:
        own = [layer for layer in structure.layers if first <= layer.start and layer.stop <= last]
        if not own:
            by_kind[ScopeKind.STEP].append((first, last))
            continue
        for layer in own:
            for module, found in _modules(timeline, layer).items():
                by_kind[ScopeKind(module.value)].append(found)
            by_kind[ScopeKind.LAYER].append((layer.start, layer.stop))
        by_kind[ScopeKind.ALL_LAYERS].append((own[0].start, own[-1].stop))
    return {kind: ranges for kind, ranges in by_kind.items() if ranges}


def _modules(timeline: LaunchTimeline, layer: Layer) -> dict[Module, tuple[int, int]]:
    launches = timeline.launches[layer.start : layer.stop]
    told = [module_of_type(launch.kernel_type) for launch in launches]
    if Module.ATTENTION not in told:
        return {}
    last = len(told) - 1 - told[::-1].index(Module.ATTENTION)
    after = range(last + 1, len(told))
    border = next((index for index in after if is_normalization(launches[index].kernel_type)), len(told))
    found = {Module.ATTENTION: (layer.start, layer.start + border)}
    rest = next((module for module in (Module.MOE, Module.FFN) if module in told[border:]), None)
    return found if rest is None else {**found, rest: (layer.start + border, layer.stop)}
