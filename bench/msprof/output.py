"""What msprof wrote of a process, read back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.msprof.command import export
from bench.profiles.attribution import NoSamples, ProfiledRow, ProfiledSamples, attribute
from database.errors import TableError
from database.launches import Launch, read_launches
from database.profiles import op_summaries, profile_folders

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
