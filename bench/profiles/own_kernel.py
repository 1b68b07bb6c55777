"""Which launches of a call are the kernel that its row names, and which only help it.

A call may launch more than its kernel: a Cast of an operand, TransQuantParamV2 before a quantized product. The capture
that a row comes from has each launch as a row of its own, so the duration of a row is that of the row's kernel alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.profiles.attribution import NoSamples, ProfiledSamples
from bench.profiles.collective import counted_once
from database.launches import Launch
from database.record import RanAs
from database.same_case import Comparison, compare
from database.schema import INPUT_SHAPES
from database.siblings import siblings
from database.signature import normalized_kernel_type
from database.slots import split_cell


@dataclass(frozen=True)
class OwnKernel:
    """The samples of a row's kernel.

    Attributes:
        durations_us: of each sample; where a call launches the row's case several times, their mean.
        counters: means over the same launches, by name.
        device_kernels: that one call launched, helpers included.
        helper_kernels: the others of a call: microseconds of all launches of a type together, mean over the samples.
        assumptions: what had to be taken for granted.
        ran_as: the sibling that ran in the place of the row's kernel; None for the kernel itself.
    """

    durations_us: tuple[float, ...]
    counters: Mapping[str, float]
    device_kernels: int
    helper_kernels: Mapping[str, float]
    assumptions: tuple[str, ...]
    ran_as: RanAs | None = None


@dataclass(frozen=True)
class AnotherCase:
    """Why the duration of a call is not that of its row."""

    reason: str


def own_kernel(kernel_type: str, row: Mapping[str, str], found: ProfiledSamples) -> OwnKernel | AnotherCase | NoSamples:
    """Returns the samples of the kernel that a row names, from those of its call.

    Args:
        kernel_type, row: the row, and its cells by column.
    """
    calls, assumption = counted_once(kernel_type, found.calls)
    assumptions = [text for text in (found.assumption, assumption) if text]
    if not all(calls):
        return NoSamples("the profile holds no kernel of some of the samples")
    types = [normalized_kernel_type(launch.kernel_type) for launch in calls[0]]
    differences: list[str] = []
    for name in (kernel_type, *siblings(kernel_type)):
        if name not in types:
            continue
        compared = [_of_type(name, kernel_type, row, call) for call in calls]
        own = [_fitting(of_call) for of_call in compared]
        if not all(own):
            without = next(of_call for of_call, fitting in zip(compared, own, strict=True) if not fitting)
            differences.append(f"{name}: {without[0][1].difference}")
            continue
        if len({len(fitting) for fitting in own}) > 1:
            return NoSamples(f"samples of the same call launched {name} with other tensors")
        if len(own[0]) > 1 and not _is_recorded(own[0][0][0]):
            return NoSamples(f"the call launches {name} {len(own[0])} times, and the profile tells the tensors of none")
        return _samples(own, calls, assumptions, None if name == kernel_type else name)
    if differences:
        return AnotherCase(f"the call launches another case than the row's here ({'; '.join(differences)})")
    return AnotherCase(f"the call launches {' + '.join(types)} here, whose duration is not that of {kernel_type}")


_Compared = Sequence[tuple[Launch, Comparison]]


def _of_type(name: str, kernel_type: str, row: Mapping[str, str], call: Sequence[Launch]) -> _Compared:
    return [
        (launch, compare(kernel_type, row, launch.cells))
        for launch in call
        if normalized_kernel_type(launch.kernel_type) == name
    ]


def _fitting(compared: _Compared) -> _Compared:
    """Those that are the row's case: the ones for which the least had to be taken for granted."""
    fitting = [each for each in compared if not each[1].difference]
    least = min((len(comparison.assumptions) for _, comparison in fitting), default=0)
    return [each for each in fitting if len(each[1].assumptions) == least]


def _is_recorded(launch: Launch) -> bool:
    return any(split_cell(launch.cells.get(INPUT_SHAPES, "")))


def _samples(
    own: Sequence[_Compared], calls: Sequence[Sequence[Launch]], assumptions: Sequence[str], sibling: str | None
) -> OwnKernel:
    launches = [[launch for launch, _ in fitting] for fitting in own]
    first, comparison = own[0][0]
    helpers: dict[str, list[float]] = defaultdict(list)
    own_ids = {id(launch) for its_own in launches for launch in its_own}
    for call in calls:
        for launch in call:
            if id(launch) not in own_ids:
                helpers[normalized_kernel_type(launch.kernel_type)].append(launch.duration_us)
    counters: dict[str, list[float]] = defaultdict(list)
    for launch in (launch for its_own in launches for launch in its_own):
        for counter, value in launch.counters.items():
            counters[counter].append(value)
    several = f"the call launches the row's case {len(launches[0])} times: each sample is their mean"
    return OwnKernel(
        durations_us=tuple(fmean(launch.duration_us for launch in its_own) for its_own in launches),
        counters={counter: fmean(values) for counter, values in counters.items()},
        device_kernels=len(calls[0]),
        helper_kernels={helper: sum(values) / len(calls) for helper, values in helpers.items()},
        assumptions=(*assumptions, *comparison.assumptions, *([several] if len(launches[0]) > 1 else [])),
        ran_as=None if sibling is None else RanAs(sibling, first.cells),
    )
