"""What a scope gains: the gaps between kernels that it fuses, less a synchronization of all cores at each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from opatlas.formats import percent
from opatlas.outer.superkernel.cuts import Cuts
from opatlas.outer.superkernel.scopes import CandidateScope, ScopeKind
from opatlas.outer.superkernel.timeline import Timeline

#: The part of a step that a SuperKernel must save to be kept, by the guide of CANN's recipes.
GATE = 0.10


@dataclass(frozen=True)
class PublicGain:
    """A gain that somebody measured and published, as a share of the duration without a SuperKernel."""

    what: str
    gain: float
    source: str


PUBLIC_GAINS = (
    PublicGain(
        "example of graph-autofusion: 407.54 to 384.66 us",
        0.0561,
        "hicann/graph-autofusion 423ae26, super_kernel/examples/super_kernel_profiling/README.md: sums of durations",
    ),
    PublicGain(
        "Hy3, decode: 31.5 to 30.8 ms per token, 1.02x",
        1 - 30.8 / 31.5,
        "hicann/cann-recipes-infer fbc225d, Hy3",
    ),
)


class ScopeVerdict(str, Enum):
    """What to do about a scope."""

    REFUSED = "refused"
    BELOW_GATE = "gain below gate"
    WORTH_TRYING = "worth trying"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class GainModel:
    """The two constants of the prediction.

    Attributes:
        cap_us: the longest gap that a SuperKernel can save. A longer gap waits for the host, and a graph removes it.
        sync_us: the cost of the synchronization of all cores between two kernels of a SuperKernel.
    """

    cap_us: float = 5.0
    sync_us: float = 0.5


@dataclass(frozen=True)
class ScopeGain:
    """The prediction for a scope; times and counts are means over the steps.

    Attributes:
        occurrences: how often the scope occurs in a step.
        kernels: kernels in the scope.
        fused_kernels: the kernels that lie in a SuperKernel of two kernels or more.
        super_kernels: SuperKernels that the scope becomes.
        duration_us: durations of the kernels, without those on other streams.
        gaps_us: gaps between kernels of the same SuperKernel.
        capped_us: the same, each at most the cap.
        saved_us: `capped_us` less the synchronizations.
        ceiling: `saved_us` as a share of the scope's duration with all its gaps, each at most the cap.
        step_share: `saved_us` as a share of the step's duration with all its gaps, each at most the cap.
        verdict, reason: what to do, and why.
    """

    kind: ScopeKind
    occurrences: float
    kernels: float
    fused_kernels: float
    super_kernels: float
    duration_us: float
    gaps_us: float
    capped_us: float
    saved_us: float
    ceiling: float
    step_share: float
    verdict: ScopeVerdict
    reason: str

    @property
    def host_us(self) -> float:
        """What of the gaps is above the cap."""
        return self.gaps_us - self.capped_us


@dataclass(frozen=True)
class StretchGains:
    """The upper bound for any scopes: all kernels between collectives, AI CPU kernels, other streams and steps.

    Attributes:
        stretches: ranges of two kernels or more.
        raw_ceiling: `gaps_us` as a share of durations and gaps.
        capped_ceiling: the same with gaps of at most the cap.
        saved_ceiling: the same less the synchronizations.
    """

    stretches: int
    kernels: int
    duration_us: float
    gaps_us: float
    capped_us: float
    saved_us: float

    @property
    def raw_ceiling(self) -> float:
        return _share(self.gaps_us, self.duration_us + self.gaps_us)

    @property
    def capped_ceiling(self) -> float:
        return _share(self.capped_us, self.duration_us + self.capped_us)

    @property
    def saved_ceiling(self) -> float:
        return _share(self.saved_us, self.duration_us + self.capped_us)


def stretch_gains(timeline: Timeline, cuts: Cuts, model: GainModel) -> StretchGains:
    """Returns the upper bound for any scopes of a timeline."""
    stretches = [stretch for stretch in cuts.stretches() if len(stretch) > 1]
    gaps, capped, saved = _saved(timeline, stretches, model)
    duration = sum(float(timeline.duration_us[stretch].sum()) for stretch in stretches)
    kernels = sum(map(len, stretches))
    return StretchGains(len(stretches), kernels, duration, gaps, capped, saved)


def step_duration_us(timeline: Timeline, start: int, stop: int, model: GainModel) -> float:
    """Returns the duration of launches with the idle time between them, each at most the cap."""
    idle = np.minimum(timeline.idle_us[start + 1 : stop], model.cap_us)
    return float(timeline.busy_us[start:stop].sum() + idle.sum())


def scope_gain(
    timeline: Timeline, cuts: Cuts, scope: CandidateScope, steps: int, step_us: float, model: GainModel, refusal: str
) -> ScopeGain:
    """Returns the prediction for a scope.

    Args:
        steps: the number of steps that the scope's ranges are from.
        step_us: the mean duration of these steps, by `step_duration_us`.
        refusal: why no scope of the capture may be tried; "" if one may.
    """
    pieces = [piece for start, stop in scope.ranges for piece in cuts.pieces(start, stop) if len(piece) > 1]
    gaps, capped, saved = _saved(timeline, pieces, model)
    duration = idle = 0.0
    for start, stop in scope.ranges:
        main = start + np.flatnonzero(~timeline.beside_main[start:stop])
        idle += float(np.minimum(_gaps_us(timeline, main), model.cap_us).sum())
        duration += float(timeline.duration_us[main].sum())
    share = _share(saved / steps, step_us)
    verdict, reason = _verdict(saved, share, bool(pieces), refusal)
    return ScopeGain(
        kind=scope.kind,
        occurrences=len(scope.ranges) / steps,
        kernels=sum(stop - start for start, stop in scope.ranges) / steps,
        fused_kernels=sum(map(len, pieces)) / steps,
        super_kernels=len(pieces) / steps,
        duration_us=duration / steps,
        gaps_us=gaps / steps,
        capped_us=capped / steps,
        saved_us=saved / steps,
        ceiling=_share(saved, duration + idle),
        step_share=share,
        verdict=verdict,
        reason=reason,
    )


def _verdict(saved_us: float, share: float, fuses: bool, refusal: str) -> tuple[ScopeVerdict, str]:
    if refusal:
        return ScopeVerdict.REFUSED, refusal
    if not fuses:
        return ScopeVerdict.REFUSED, "no two neighbouring kernels can be fused"
    if saved_us <= 0:
        return ScopeVerdict.REFUSED, "the synchronizations cost more than the gaps"
    if share < GATE:
        return ScopeVerdict.BELOW_GATE, f"{percent(share)} of a step; the gate is {percent(GATE, 0)}"
    return ScopeVerdict.WORTH_TRYING, f"{percent(share)} of a step; the gate is {percent(GATE, 0)}"


def _saved(timeline: Timeline, pieces: Iterable[np.ndarray], model: GainModel) -> tuple[float, float, float]:
    """Returns the gaps within pieces, the same capped, and what fusing each piece saves, in microseconds."""
    all_gaps = capped = synchronizations = 0.0
    for piece in pieces:
        gaps = _gaps_us(timeline, piece)
        all_gaps += float(gaps.sum())
        capped += float(np.minimum(gaps, model.cap_us).sum())
        synchronizations += model.sync_us * len(gaps)
    return all_gaps, capped, capped - synchronizations


def _gaps_us(timeline: Timeline, launches: np.ndarray) -> np.ndarray:
    """Returns the time between each launch and the next of these; 0 where both overlap."""
    gaps: np.ndarray = np.maximum(timeline.start_ns[launches[1:]] - timeline.end_ns[launches[:-1]], 0) / 1000
    return gaps


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
