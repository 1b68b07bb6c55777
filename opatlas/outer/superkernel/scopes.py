"""Candidate scopes of a timeline, nested as a model is: modules of layers, layers, all layers; and its steps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np

from opatlas.capture.single_launches import Launch
from opatlas.outer.superkernel.kernel_types import Module, StepPhase, is_normalization, module_of_type, phase_of_type
from opatlas.outer.superkernel.repeats import Layer, find_layers
from opatlas.outer.superkernel.timeline import Timeline
from opatlas.row.columns import INPUT_SHAPES
from opatlas.row.slots import split_cell
from opatlas.text import parse_whole

_FUSED_ATTENTION = "FusedInferAttentionScore"
#: The slot of the lengths of a fused attention, and the most tokens of a sequence in a decoding step that drafts some.
_LENGTHS_SLOT = 5
_MOST_DRAFTED = 8

ModuleOf = Callable[[str, str], "Module | None"]


class ScopeKind(str, Enum):
    """What a candidate scope encloses."""

    ATTENTION = "attention"
    MOE = "moe"
    FFN = "ffn"
    LAYER = "layer"
    ALL_LAYERS = "all layers"
    STEP = "step"

    def __str__(self) -> str:
        return self.value


class StepSource(str, Enum):
    """What tells the steps of a capture."""

    STEP_ID = "Step Id"
    LAYERS = "repetition of all layers"
    NOTHING = "nothing"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class CandidateScope:
    """A candidate scope.

    Attributes:
        ranges: the launches of each occurrence, as first index and the index after the last.
    """

    kind: ScopeKind
    ranges: tuple[tuple[int, int], ...]


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
    def step_count(self) -> int:
        """The number of steps."""
        return self.steps[-1] + 1

    def range_of(self, step: int) -> tuple[int, int]:
        """Returns the first launch of a step, and the launch after its last."""
        return bisect_left(self.steps, step), bisect_right(self.steps, step)


def find_structure(timeline: Timeline) -> ModelStructure:
    """Returns the layers and the steps of a timeline."""
    launches = timeline.launches
    main = np.flatnonzero(~timeline.beside_main).tolist()
    kernel_types = [launches[index].kernel_type for index in main]
    found = find_layers(kernel_types)
    layers = tuple(Layer(main[each.start], main[each.stop - 1] + 1, each.kind) for each in found)
    kinds = []
    for kind in range(max((each.kind for each in found), default=-1) + 1):
        own = [each for each in found if each.kind == kind]
        kinds.append(LayerKind(tuple(kernel_types[own[0].start : own[0].stop]), len(own)))
    labels = [launch.step for launch in launches]
    if any(labels):
        numbers, source = _numbered(labels), StepSource.STEP_ID
    else:
        numbers, source = _steps_of_layers(timeline, layers, found)
    return ModelStructure(layers, tuple(kinds), tuple(numbers), source)


def _numbered(labels: Sequence[str]) -> list[int]:
    """Numbers steps in the order of their first launches. A launch without a label is of the step before it."""
    order = {label: number for number, label in enumerate(dict.fromkeys(filter(None, labels)))}
    numbers, current = [], 0
    for label in labels:
        # The last kernels of a step may run after the first ones of the next.
        current = max(current, order.get(label, 0))
        numbers.append(current)
    return numbers


def _steps_of_layers(
    timeline: Timeline, layers: Sequence[Layer], in_sequence: Sequence[Layer]
) -> tuple[list[int], StepSource]:
    """Numbers the steps by the runs of adjacent layers. Between two runs a step begins after the longest idle time."""
    runs: list[list[int]] = []
    for index, layer in enumerate(in_sequence):
        if runs and layer.start == in_sequence[index - 1].stop:
            runs[-1].append(index)
        else:
            runs.append([index])
    sizes = [len(run) for run in runs]
    most = max(sizes, default=0)
    # A capture may begin and end within a step.
    if len(runs) < 2 or most < 2 or any(size != most for size in sizes[1:-1]):
        return [0] * len(timeline.launches), StepSource.NOTHING
    numbers = np.zeros(len(timeline.launches), dtype=np.int64)
    for before, after in pairwise(runs):
        end, start = layers[before[-1]].stop, layers[after[0]].start
        numbers[end + int(timeline.idle_us[end : start + 1].argmax()) :] += 1
    return numbers.tolist(), StepSource.LAYERS


def phase_of(launches: Iterable[Launch]) -> StepPhase:
    """Returns the phase that the kernels of a step tell: training before prefill before decode."""
    told: set[StepPhase | None] = set()
    for launch in launches:
        told.add(_phase_of_attention(launch) or phase_of_type(launch.kernel_type))
    order = (StepPhase.TRAINING, StepPhase.PREFILL, StepPhase.DECODE)
    return next((phase for phase in order if phase in told), StepPhase.UNKNOWN)


def _phase_of_attention(launch: Launch) -> StepPhase | None:
    """Returns what the shapes of a fused attention tell: in decode each sequence has one token, or some drafted."""
    if not launch.kernel_type.startswith(_FUSED_ATTENTION):
        return None
    slots = [_dimensions(slot) for slot in split_cell(launch.cells[INPUT_SHAPES])]
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
    timeline: Timeline, structure: ModelStructure, steps: Sequence[int], module_of: ModuleOf | None
) -> tuple[CandidateScope, ...]:
    """Returns the candidate scopes of some steps, the smallest kinds first.

    Args:
        module_of: the module of a kernel by name and type; None: layers are divided by kernel types alone.
    """
    by_kind: dict[ScopeKind, list[tuple[int, int]]] = {kind: [] for kind in ScopeKind}
    for step in steps:
        first, last = structure.range_of(step)
        own = [layer for layer in structure.layers if first <= layer.start and layer.stop <= last]
        if not own:
            by_kind[ScopeKind.STEP].append((first, last))
            continue
        for layer in own:
            for module, found in _modules(timeline, layer, module_of).items():
                by_kind[ScopeKind(module.value)].append(found)
            by_kind[ScopeKind.LAYER].append((layer.start, layer.stop))
        by_kind[ScopeKind.ALL_LAYERS].append((own[0].start, own[-1].stop))
    return tuple(CandidateScope(kind, tuple(ranges)) for kind, ranges in by_kind.items() if ranges)


def _modules(timeline: Timeline, layer: Layer, module_of: ModuleOf | None) -> dict[Module, tuple[int, int]]:
    launches = timeline.launches[layer.start : layer.stop]
    if module_of is not None:
        named: list[Module | None] = []
        for launch in launches:
            named.append(module_of(launch.name, launch.kernel_type) or (named[-1] if named else None))
        found: dict[Module, tuple[int, int]] = {}
        for index, module in enumerate(named):
            if module is not None:
                start, _ = found.get(module, (layer.start + index, 0))
                found[module] = (start, layer.start + index + 1)
        return found
    told = [module_of_type(launch.kernel_type) for launch in launches]
    attention = [index for index, module in enumerate(told) if module is Module.ATTENTION]
    if not attention:
        return {}
    border = next(
        (index for index in range(attention[-1] + 1, len(told)) if is_normalization(launches[index].kernel_type)),
        len(told),
    )
    found = {Module.ATTENTION: (layer.start, layer.start + border)}
    rest = Counter(told[border:])
    module = next((module for module in (Module.MOE, Module.FFN) if rest[module]), None)
    if module is not None:
        found[module] = (layer.start + border, layer.stop)
    return found
