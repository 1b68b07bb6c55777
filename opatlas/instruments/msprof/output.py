"""What msprof wrote of a process, read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opatlas.capture.profiles import Launch, op_summaries, profile_folders, read_launches
from opatlas.engine.job import Outcome
from opatlas.errors import TableError
from opatlas.instruments.attribution import (
    NoSamples,
    ProfiledRow,
    ProfiledSamples,
    attribute,
)
from opatlas.instruments.msprof.command import export
from opatlas.instruments.profile_executor import with_samples
from opatlas.isolation.groups.group import RANK_SPREAD, slowest_us, spread_us
from opatlas.model.schema import Status

#: After it a reason names the folder of the profile.
KEPT = "; msprof's output is kept in "
#: Of what went wrong with a profile, so much is told with each row.
_PROBLEMS_TOLD = 2


def samples_of(output: Path, rows: Sequence[ProfiledRow]) -> list[ProfiledSamples | NoSamples]:
    """What msprof wrote of each row of a process.

    Args:
        output: where it was told to write.
        rows: that the process ran, in that order.

    Raises:
        DeviceGone: the profile is not parsed yet, and there is no msprof to do so.
    """
    launches: list[Launch] = []
    problems: list[str] = []
    profiles = profile_folders(output)
    for profile in profiles:
        summaries = op_summaries(profile)
        if not summaries:
            # Its process was killed, or msprof was before it had parsed what it recorded.
            problems += filter(None, [export(profile)])
            summaries = op_summaries(profile)
        if not summaries:
            problems.append(f"{profile.name} has no op_summary")
        for path in summaries:
            try:
                read = read_launches(path)
            except TableError as error:
                problems.append(str(error))
                continue
            launches += read.launches
            problems += read.problems
    if not profiles:
        problems.append("msprof wrote no PROF_ folder")
    found = attribute(sorted(launches, key=lambda launch: launch.start_ns), rows)
    why = "".join(f"; {problem}" for problem in problems[:_PROBLEMS_TOLD])
    return [NoSamples(f"{f.reason}{why}{KEPT}{output}") if isinstance(f, NoSamples) else f for f in found]


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
