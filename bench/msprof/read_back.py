"""What became of rows, now that msprof's output of the process that ran them, or of a group's ranks, can be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.groups.group import RANK_SPREAD, slowest_us, spread_us
from bench.job import Outcome
from bench.msprof.output import samples_of
from bench.profiles.attribution import NoSamples, ProfiledRow
from bench.profiles.profiled import with_samples
from database.schema import Status

_RANK = "rank"


@dataclass(frozen=True)
class ReadBack:
    """
    Attributes:
        outcome: of a row, with the samples of its slowest rank.
        is_missing: whether a profile that should hold samples of the row does not.
    """

    outcome: Outcome
    is_missing: bool


def folder_of_rank(output: Path, local_rank: int | str) -> Path:
    """Where msprof writes what one of a group's ranks launched."""
    return output / f"{_RANK}{local_rank}"


def read_back(output: Path, rows: Sequence[ProfiledRow], outcomes: Sequence[Outcome]) -> list[ReadBack]:
    """Reads what msprof wrote of rows, each of which all ranks of a group ran, or one process.

    Args:
        output: of the process, or with a folder for each rank.
        rows: in the order in which they ran.
        outcomes: theirs, as the process or the first rank gave them.

    Raises:
        DeviceGone: a profile is not parsed yet, and there is no msprof to do so.
    """
    ranks = sorted(output.glob(f"{_RANK}*"), key=lambda folder: int(folder.name.removeprefix(_RANK)))
    of_ranks = [samples_of(folder, rows) for folder in ranks or [output]]
    read: list[ReadBack] = []
    for row, outcome, *found in zip(rows, outcomes, *of_ranks, strict=True):
        own = [with_samples(outcome, row.kernel_type, row.cells, each) for each in found]
        is_missing = any(isinstance(each, NoSamples) for each in found)
        read.append(ReadBack(_of_slowest(row.kernel_type, own) if ranks else own[0], is_missing))
    return read


def _of_slowest(kernel_type: str, outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a row from those of the ranks of a node, in their order."""
    for rank, outcome in enumerate(outcomes):
        if outcome.measurement is None:
            return replace(outcome, reason=f"rank {rank} of this node: {outcome.reason}")
    measured = [outcome.measurement for outcome in outcomes if outcome.measurement is not None]
    of_ranks = [measurement.samples_us for measurement in measured]
    if len(set(map(len, of_ranks))) > 1:
        counts = ", ".join(str(len(samples)) for samples in of_ranks)
        return Outcome(Status.FAILED, f"the profiles of the ranks hold {counts} samples of one and the same call")
    slowest, samples_us = slowest_us(kernel_type, of_ranks)
    spread = {RANK_SPREAD: spread_us(of_ranks)} if len(of_ranks) > 1 else {}
    counters = {**measured[slowest].counters, **spread}
    return replace(outcomes[slowest], measurement=replace(measured[slowest], samples_us=samples_us, counters=counters))
