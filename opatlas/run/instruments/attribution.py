"""Launches marks around the samples of rows, and assigns the kernels of a profile to the samples by them.

A profile lists all kernels in the order in which the device ran them, including those of set-up, warm-up, cache flush
and check. Before each row, and before and after each sample, the measuring process launches a mark: the negation of a
tensor whose shape no model has. The shape in the profile identifies the row or sample that begins or ends. Marks are
on the device's clock and in the same file as the kernels, for any profiler and any options; range markers of the host
(mstx) are neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta

from opatlas.row.columns import INPUT_SHAPES
from opatlas.row.communication import is_communication
from opatlas.row.record import LaunchedCase
from opatlas.row.same_case import LaunchComparison, compare_launch
from opatlas.row.signature import normalized_kernel_type
from opatlas.row.slots import base_type, siblings, split_cell
from opatlas.text import parse_whole
from opatlas.typed_json import Count

if TYPE_CHECKING:
    # Not imported at run time, because device processes do not import pandas.
    from opatlas.capture.single_launches import Launch

#: Kernel type of a mark.
MARK_TYPE = "Neg"
#: Shapes of the marks of a sample. A mark moves 44 to 52 KB, which is little in a flushed cache of megabytes.
BEGIN_MARK = (11, 1009)
END_MARK = (13, 1009)
_ROW = 103
_BASE = 32
#: Largest number of rows in one profile with marks.
MOST_ROWS = _BASE * _BASE


def row_mark(number: int) -> tuple[int, int, int]:
    """Returns the shape of the mark before row `number` of a profile, from 0 to MOST_ROWS - 1.

    Raises:
        ValueError: the number is too large.
    """
    if not 0 <= number < MOST_ROWS:
        raise ValueError(f"a profile has rows 0 to {MOST_ROWS - 1}, not {number}")
    return _ROW, 1 + number // _BASE, 1 + number % _BASE


def parse_row_mark(dimensions: str) -> int | None:
    """Returns the number of the row whose mark has these dimensions; None for other dimensions."""
    sizes = dimensions.split(",")
    if len(sizes) != 3 or sizes[0] != str(_ROW):
        return None
    # Sizes of a mark are at least 1, so 0 can stand for an invalid size.
    high, low = ((parse_whole(size) or 0) - 1 for size in sizes[1:])
    return high * _BASE + low if 0 <= high < _BASE and 0 <= low < _BASE else None


def dimensions(shape: tuple[int, ...]) -> str:
    """Returns a shape as profilers write it."""
    return ",".join(map(str, shape))


#: Parts of the names of kernels that carry out a collective.
_CARRIERS = ("AIVKERNEL", "AICPUKERNEL")


def count_collectives_once(
    kernel_type: str, calls: Sequence[Sequence[Launch]]
) -> tuple[Sequence[Sequence[Launch]], str]:
    """Removes the carrier kernels, which repeat a collective. In a call without the collective the carriers stay.

    Calls of other kernel types are returned unchanged, as are calls without a collective or a carrier.

    Args:
        kernel_type: kernel type of the row.
        calls: the launches of each sample.

    Returns:
        The launches of each sample that count, and an assumption ("" for none).
    """
    if not is_communication(kernel_type):
        return calls, ""
    own = [[each for each in call if is_communication(each.kernel_type) and not _carries(each)] for call in calls]
    if any(own):
        # A call without the collective becomes empty, because its duration is not known.
        return own, ""
    carriers = [[launch for launch in call if _carries(launch)] for call in calls]
    if not any(carriers):
        return calls, ""
    names = sorted({launch.kernel_type for call in carriers for launch in call})
    assumption = (
        f"the profile has no {kernel_type} launch: the duration is that of {', '.join(names)}, which carries it"
    )
    return [[replace(launch, kernel_type=kernel_type) for launch in call] for call in carriers], assumption


def _carries(launch: Launch) -> bool:
    text = f"{launch.kernel_type} {launch.name}".upper()
    return any(carrier in text for carrier in _CARRIERS)


_BEGIN, _END = dimensions(BEGIN_MARK), dimensions(END_MARK)


@dataclass(frozen=True)
class PendingSamples:
    """Identifies the samples of a row in a profile.

    Attributes:
        number: number of the row in the profile, which its mark encodes.
        samples: number of calls between marks.
    """

    number: Count
    samples: Annotated[int, Meta(ge=1, le=2**63 - 1)]


@dataclass(frozen=True)
class ProfiledRow:
    """A row whose samples are in a profile.

    Attributes:
        kernel_type, cells: the row.
        pending: identifies its samples.
    """

    kernel_type: str
    cells: Mapping[str, str]
    pending: PendingSamples


@dataclass(frozen=True)
class ProfiledSamples:
    """The samples of a row in a profile.

    Attributes:
        calls: the launches of each sample in their order: the row's kernel and helper kernels.
    """

    calls: tuple[tuple[Launch, ...], ...]


@dataclass(frozen=True)
class NoSamples:
    """The reason why a profile has no reliable samples of a row."""

    reason: str


def attribute(launches: Sequence[Launch], rows: Sequence[ProfiledRow]) -> list[ProfiledSamples | NoSamples]:
    """Returns the samples of each row.

    Args:
        launches: launches of one process, in the order of their start.
        rows: the rows that this process ran, in their order.
    """
    devices: dict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        devices[launch.device].append(launch)
    found: dict[int, list[list[Launch]] | NoSamples] = {}
    for of_device in devices.values():
        found |= _launches_of_device(of_device)
    return [_checked_samples(row, found.get(row.pending.number)) for row in rows]


def _mark(launch: Launch) -> str:
    """Returns the dimensions of a launch whose kernel type is that of marks; "" for other launches."""
    return launch.dimensions if base_type(launch.kernel_type) == MARK_TYPE else ""


def _launches_of_device(launches: Iterable[Launch]) -> dict[int, list[list[Launch]] | NoSamples]:
    """Returns the launches of each sample, by the number of the row."""
    rows: dict[int, list[list[Launch]] | NoSamples] = {}
    number: int | None = None
    sample: list[Launch] | None = None
    for launch in launches:
        mark = _mark(launch)
        began = parse_row_mark(mark) if mark else None
        if began is not None:
            number, sample = began, None
            rows[number] = []
        elif number is None:
            continue
        elif mark in (_BEGIN, _END):
            found = rows.setdefault(number, [])
            if isinstance(found, NoSamples):
                continue
            if (mark == _BEGIN) != (sample is None):
                rows[number] = NoSamples(f"marks are missing after sample {len(found)}")
            elif mark == _BEGIN:
                sample = []
            elif sample is not None:
                found.append(sample)
                sample = None
        elif sample is not None:
            sample.append(launch)
    return rows


def _checked_samples(row: ProfiledRow, found: list[list[Launch]] | NoSamples | None) -> ProfiledSamples | NoSamples:
    """Returns the samples of a row if the profile has all of them, with the same kernels in each."""
    if found is None:
        return NoSamples("the profile holds nothing of the row")
    if isinstance(found, NoSamples):
        return found
    if len(found) != row.pending.samples:
        return NoSamples(f"the profile holds {len(found)} samples, and {row.pending.samples} were taken")
    # Sorted, because kernels on several streams begin in any order.
    kinds = {tuple(sorted(launch.kernel_type for launch in call)) for call in found}
    if () in kinds:
        return NoSamples("the profile holds no kernel of some of the samples")
    if len(kinds) > 1:
        several = " and ".join(sorted("+".join(kind) for kind in kinds))
        return NoSamples(f"samples of the same call launched different kernels: {several}")
    return ProfiledSamples(tuple(map(tuple, found)))


@dataclass(frozen=True)
class OwnKernel:
    """The samples of a row's own kernel.

    Attributes:
        durations_us: duration of each sample in microseconds; if a call launches the row's case several times, the mean
            of these launches.
        counters: means of the hardware counters over the same launches, by name.
        device_kernels: number of kernels of one call, including helper kernels.
        helper_kernels: microseconds of all other launches of a call by kernel type, mean over the samples.
        assumptions: assumptions about the samples.
        ran_as: the sibling that ran in place of the row's kernel; None for the kernel itself.
        kernel_names: names of the launches of one call, in their order.
    """

    durations_us: tuple[float, ...]
    counters: Mapping[str, float]
    device_kernels: int
    helper_kernels: Mapping[str, float]
    assumptions: tuple[str, ...]
    ran_as: LaunchedCase | None = None
    kernel_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnotherCase:
    """The reason why the duration of a call is not the duration of its row."""

    reason: str


def own_kernel(kernel_type: str, row: Mapping[str, str], found: ProfiledSamples) -> OwnKernel | AnotherCase | NoSamples:
    """Returns the samples of a row's own kernel from the launches of its call.

    Args:
        kernel_type, row: kernel type and cells of the row.
        found: the launches of each sample.
    """
    calls, assumption = count_collectives_once(kernel_type, found.calls)
    assumptions = [assumption] if assumption else []
    if not all(calls):
        return NoSamples("the profile holds no kernel of some of the samples")
    types = [normalized_kernel_type(launch.kernel_type) for launch in calls[0]]
    differences: list[str] = []
    for name in (kernel_type, *siblings(kernel_type)):
        if name not in types:
            continue
        compared = [_of_type(name, kernel_type, row, call) for call in calls]
        own = [_closest_launches(of_call) for of_call in compared]
        if not all(own):
            without = next(of_call for of_call, fitting in zip(compared, own, strict=True) if not fitting)
            differences.append(f"{name}: {without[0][1].difference}")
            continue
        if len({len(fitting) for fitting in own}) > 1:
            return NoSamples(f"samples of the same call launched {name} with other tensors")
        if len(own[0]) > 1 and not any(split_cell(own[0][0][0].cells.get(INPUT_SHAPES, ""))):
            return NoSamples(f"the call launches {name} {len(own[0])} times, and the profile has the tensors of none")
        return _samples(own, calls, assumptions, None if name == kernel_type else name)
    if differences:
        return AnotherCase(f"the call launches another case than the row's here ({'; '.join(differences)})")
    return AnotherCase(f"the call launches {' + '.join(types)} here, whose duration is not that of {kernel_type}")


def whole_call(found: ProfiledSamples) -> OwnKernel | NoSamples:
    """Returns samples of all launches of a call, for an implementation whose kernels have names of their own."""
    calls = found.calls
    if not all(calls):
        return NoSamples("the profile holds no kernel of some of the samples")
    names = {tuple(launch.kernel_type for launch in call) for call in calls}
    if len(names) > 1:
        several = " and ".join(sorted(" + ".join(each) for each in names))
        return NoSamples(f"equal calls launched different kernels: {several}")
    return OwnKernel(
        durations_us=tuple(sum(launch.duration_us for launch in call) for call in calls),
        counters=_mean_counters(calls),
        device_kernels=len(calls[0]),
        helper_kernels={},
        assumptions=(),
        kernel_names=next(iter(names)),
    )


def _mean_counters(calls: Iterable[Iterable[Launch]]) -> dict[str, float]:
    """Returns the mean of each hardware counter over all launches that have it."""
    counters: dict[str, list[float]] = defaultdict(list)
    for launch in (launch for call in calls for launch in call):
        for counter, value in launch.counters.items():
            counters[counter].append(value)
    return {counter: fmean(values) for counter, values in counters.items()}


_Compared: TypeAlias = "Sequence[tuple[Launch, LaunchComparison]]"


def _of_type(name: str, kernel_type: str, row: Mapping[str, str], call: Sequence[Launch]) -> _Compared:
    return [
        (launch, compare_launch(kernel_type, row, launch.cells))
        for launch in call
        if normalized_kernel_type(launch.kernel_type) == name
    ]


def _closest_launches(compared: _Compared) -> _Compared:
    """Returns the launches of the row's case with the fewest assumptions."""
    fitting = [each for each in compared if not each[1].difference]
    least = min((len(comparison.assumptions) for _, comparison in fitting), default=0)
    return [each for each in fitting if len(each[1].assumptions) == least]


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
    several = f"the call launches the row's case {len(launches[0])} times: each sample is their mean"
    return OwnKernel(
        durations_us=tuple(fmean(launch.duration_us for launch in its_own) for its_own in launches),
        counters=_mean_counters(launches),
        device_kernels=len(calls[0]),
        helper_kernels={helper: sum(values) / len(calls) for helper, values in helpers.items()},
        assumptions=(*assumptions, *comparison.assumptions, *([several] if len(launches[0]) > 1 else [])),
        ran_as=None if sibling is None else LaunchedCase(sibling, first.cells),
        kernel_names=tuple(launch.kernel_type for launch in calls[0]),
    )
