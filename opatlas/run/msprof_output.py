"""Reads the samples of rows that ran under msprof from its output."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opatlas.capture.capture_discovery import op_summaries, profile_folders
from opatlas.capture.single_launches import Launch, read_launches
from opatlas.errors import TableError, noted
from opatlas.row.errors import DeviceGone, ReplayError
from opatlas.run.group import RANK_SPREAD, slowest_us, spread_us
from opatlas.run.instruments.attribution import NoSamples, ProfiledRow, ProfiledSamples, attribute
from opatlas.run.job import RowOutcome, add_profiled_samples, outcome_of
from opatlas.text import last_line

#: Longest time to parse a profile. Parsing takes seconds to minutes, depending on the number of kernels.
PARSE_TIMEOUT_S = 600.0
#: Part of a reason before the folder of the profile.
KEPT = "; msprof's output is kept in "
#: Maximum number of problems of a profile in the reason of a row.
_PROBLEMS_TOLD = 2


def msprof_executable() -> str:
    """Returns the path of msprof. Raises DeviceGone if it is not on PATH."""
    found = shutil.which("msprof")
    if found is None:
        raise DeviceGone("msprof is not on PATH: source CANN's set_env.sh, or choose another --instrument")
    return found


def export(profile: Path) -> str:
    """Makes msprof write the summaries of a PROF_* folder; returns the failure, "" for success.

    Raises:
        DeviceGone: msprof is missing.
    """
    command = [msprof_executable(), "--export=on", f"--output={profile}", "--type=text"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PARSE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"`msprof --export` took more than {PARSE_TIMEOUT_S:g} s"
    if done.returncode:
        return f"`msprof --export` ended with exit code {done.returncode}: {last_line(done.stderr or done.stdout)}"
    return ""


def read_samples(output: Path, rows: Sequence[ProfiledRow]) -> list[ProfiledSamples | NoSamples]:
    """Reads the samples of each row of a process from msprof's output.

    Args:
        output: folder of msprof's output.
        rows: the rows that the process ran, in their order.

    Raises:
        DeviceGone: the profile is not parsed yet, and msprof is missing.
    """
    launches, problems = list[Launch](), list[str]()
    profiles = profile_folders(output) if output.is_dir() else []
    for profile in profiles:
        summaries = op_summaries(profile)
        if not summaries:
            # The profile of a killed process.
            problems += filter(None, [export(profile)])
            summaries = op_summaries(profile)
        if not summaries:
            problems.append(f"{profile.name} has no op_summary")
        for path in summaries:
            with noted(problems, TableError):
                read = read_launches(path)
                launches += read.launches
                problems += read.problems
    launches.sort(key=lambda launch: launch.start_ns)
    problems = problems or ([] if profiles else ["msprof wrote no PROF_ folder"])
    why = "".join(f"; {problem}" for problem in problems[:_PROBLEMS_TOLD])
    found = attribute(launches, rows)
    return [NoSamples(f"{f.reason}{why}{KEPT}{output}") if isinstance(f, NoSamples) else f for f in found]


_RANK = "rank"


@dataclass(frozen=True)
class CompletedRow:
    """A row after its profile was read.

    Attributes:
        outcome: the outcome of the row, with the samples of its slowest rank.
        is_missing: whether a profile lacks samples of the row.
    """

    outcome: RowOutcome
    is_missing: bool


def folder_of_rank(output: Path, local_rank: int | str) -> Path:
    """Returns the folder of msprof's output for one rank of a group on this node."""
    return output / f"{_RANK}{local_rank}"


def complete_outcomes(output: Path, rows: Sequence[ProfiledRow], outcomes: Sequence[RowOutcome]) -> list[CompletedRow]:
    """Completes the outcomes of rows from msprof's output; a process, or all ranks of a group, ran the rows.

    Args:
        output: msprof's output of the process, or a folder with one output for each rank.
        rows: the rows in the order in which they ran.
        outcomes: outcomes of the rows from the process or the first rank.

    Raises:
        DeviceGone: a profile is not parsed yet, and msprof is missing.
    """
    ranks = sorted(output.glob(f"{_RANK}*"), key=lambda folder: int(folder.name.removeprefix(_RANK)))
    of_ranks = [read_samples(folder, rows) for folder in ranks or [output]]
    read: list[CompletedRow] = []
    for row, outcome, *found in zip(rows, outcomes, *of_ranks, strict=True):
        own = [add_profiled_samples(outcome, row.kernel_type, row.cells, each) for each in found]
        is_missing = any(isinstance(each, NoSamples) for each in found)
        read.append(CompletedRow(_of_slowest(row.kernel_type, own) if ranks else own[0], is_missing))
    return read


def _of_slowest(kernel_type: str, outcomes: Sequence[RowOutcome]) -> RowOutcome:
    """Returns the outcome of a row from the outcomes of a node's ranks, in order of the ranks."""
    for rank, outcome in enumerate(outcomes):
        if outcome.measurement is None:
            return replace(outcome, reason=f"rank {rank} of this node: {outcome.reason}")
    measured = [outcome.measurement for outcome in outcomes if outcome.measurement is not None]
    of_ranks = [measurement.samples_us for measurement in measured]
    if len(set(map(len, of_ranks))) > 1:
        counts = ", ".join(str(len(samples)) for samples in of_ranks)
        return outcome_of(ReplayError(f"the profiles of the ranks hold {counts} samples of one and the same call"))
    slowest, samples_us = slowest_us(kernel_type, of_ranks)
    spread = {RANK_SPREAD: spread_us(of_ranks)} if len(of_ranks) > 1 else {}
    counters = {**measured[slowest].counters, **spread}
    return replace(outcomes[slowest], measurement=replace(measured[slowest], samples_us=samples_us, counters=counters))
