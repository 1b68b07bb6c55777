"""Records rows that ran under msprof on disk, and reads their samples from msprof's output, even in a later session.

A file next to msprof's output of a process has a line for each correct row that the process ran. The file is there from
the start, and is removed when the rows have their outcomes: where it remains, the session was killed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from opatlas.capture.capture_discovery import op_summaries, profile_folders
from opatlas.capture.single_launches import Launch, read_launches
from opatlas.data import journal
from opatlas.data.database import Database
from opatlas.data.journal import JournalHeader
from opatlas.errors import OpAtlasError, TableError, describe_error
from opatlas.files import UnsafePath, read_safely, safe_file
from opatlas.row.errors import DeviceGone, ReplayError
from opatlas.row.record import Measurement, Record
from opatlas.row.signature import signature
from opatlas.row.status import Status, UpdateMode
from opatlas.run.group import RANK_SPREAD, slowest_us, spread_us
from opatlas.run.instruments.attribution import NoSamples, PendingSamples, ProfiledRow, ProfiledSamples, attribute
from opatlas.run.job import Job, RowOutcome, add_profiled_samples, outcome_of
from opatlas.text import last_line
from opatlas.typed_json import DecodeError, decode, json_line

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
        raise DeviceGone(
            "msprof is not on PATH: source CANN's set_env.sh (such as /usr/local/Ascend/ascend-toolkit/set_env.sh), "
            "or choose another --instrument"
        )
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


@dataclass(frozen=True)
class MsprofOutput:
    """The output of msprof in a folder.

    Attributes:
        profiles, summaries: the PROF_* folders, and the op_summary files in them.
        launches: the kernels of all summaries, by their start.
        unreadable: why summaries cannot be read.
        left_out: lines of summaries that cannot be read.
        problems: all problems in order: missing and unreadable summaries, and unreadable lines.
    """

    profiles: Sequence[Path]
    summaries: Sequence[Path]
    launches: Sequence[Launch]
    unreadable: Sequence[str]
    left_out: Sequence[str]
    problems: Sequence[str]


def read_output(output: Path, *, exports: bool) -> MsprofOutput:
    """Reads the output of msprof in a folder.

    Args:
        output: folder of msprof's output.
        exports: whether to run msprof for a profile without a summary, such as the profile of a killed process.

    Raises:
        DeviceGone: a profile needs an export, and msprof is missing.
    """
    found: list[Path] = []
    launches: list[Launch] = []
    unreadable, left_out, problems = list[str](), list[str](), list[str]()
    profiles = profile_folders(output) if output.is_dir() else []
    for profile in profiles:
        summaries = op_summaries(profile)
        if not summaries and exports:
            problems += filter(None, [export(profile)])
            summaries = op_summaries(profile)
        if not summaries:
            problems.append(f"{profile.name} has no op_summary")
        found += summaries
        for path in summaries:
            try:
                read = read_launches(path)
            except TableError as error:
                unreadable.append(str(error))
                problems.append(str(error))
                continue
            launches += read.launches
            left_out += read.problems
            problems += read.problems
    launches.sort(key=lambda launch: launch.start_ns)
    return MsprofOutput(profiles, found, launches, unreadable, left_out, problems)


def read_samples(output: Path, rows: Sequence[ProfiledRow]) -> list[ProfiledSamples | NoSamples]:
    """Reads the samples of each row of a process from msprof's output.

    Args:
        output: folder of msprof's output.
        rows: the rows that the process ran, in their order.

    Raises:
        DeviceGone: the profile is not parsed yet, and msprof is missing.
    """
    read = read_output(output, exports=True)
    problems = read.problems if read.profiles else ["msprof wrote no PROF_ folder"]
    found = attribute(read.launches, rows)
    why = "".join(f"; {problem}" for problem in problems[:_PROBLEMS_TOLD])
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


_FILE = "launched.jsonl"
#: Path of MsprofSession's folders below `profiles/`: `{run id}/{number}`, perhaps with an xdist worker in between.
_OUTPUT = re.compile(r"\d{8}T\d{6}-[0-9a-f]{6}/(gw\d+/)?\d{4,}", re.ASCII)
_LARGEST_BYTES = 1 << 28


@dataclass(frozen=True)
class _PendingRow:
    """A row whose samples are pending, as `record_pending` writes it.

    Attributes:
        measurement: with one sample in place of its own, which are in the profile.
        database: folder of the database of the row; "": the database that holds the profile.
    """

    kernel_type: str
    cells: Mapping[str, str]
    launched: PendingSamples
    measurement: Measurement
    database: str = ""


def expect_pending(output: Path) -> None:
    """Creates the empty file. Raises OSError."""
    (output / _FILE).touch()


def record_pending(output: Path, job: Job, outcome: RowOutcome) -> None:
    """Appends a row to the file next to msprof's output. Each line can be read without later lines. Raises OSError."""
    assert outcome.pending is not None
    assert outcome.measurement is not None
    measurement = replace(outcome.measurement, samples_us=(1.0,))
    row = _PendingRow(job.kernel_type, dict(job.cells), outcome.pending, measurement, job.database)
    with open(output / _FILE, "a", encoding="utf-8") as file:
        file.write(json_line(to_builtins(row)) + "\n")


def clear_pending(output: Path) -> None:
    """Removes the file when its rows have their outcomes."""
    (output / _FILE).unlink(missing_ok=True)


def recover_profiles(database: Database, others: Container[Path] = ()) -> list[str]:
    """Writes journals from the profiles of killed sessions, each in the database of its rows.

    The caller holds the lock of the database.

    A profile is removed even if it has the samples of only some rows: the other rows have no outcome and run again. So
    do rows of a database that the session does not write: a stranger's profile must not name a folder to write.

    Args:
        database: holds the profiles.
        others: folders of the other databases of the session.

    Returns:
        The reasons of unreadable profiles, which are kept for a later session.
    """
    problems: list[str] = []
    profiles = database.profiles_dir
    for output in sorted(Path(folder) for folder, _, files in os.walk(profiles) if _FILE in files):
        of_profiles = output.relative_to(profiles)
        run, *rest = of_profiles.parts or [""]
        try:
            if not _OUTPUT.fullmatch(of_profiles.as_posix()):
                raise OpAtlasError("the name of the folder does not belong to a session: move the folder away")
            _expect_plain(output)
            rows, unreadable = _read_pending_rows(output / _FILE)
            by_folder: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
            for folder, record in _records(output / _FILE, run, rows):
                if not folder or Path(folder) in others:
                    by_folder[folder].append(record.to_json())
            for folder, records in by_folder.items():
                # The other implementations of the killed session have databases of their own.
                holder = Database(Path(folder)) if folder else database
                path = holder.journal_dir / f"{'-'.join((run, *rest))}-profile.jsonl"
                journal.write(path, JournalHeader(run, UpdateMode.ALL.value, False), records)
            if unreadable:
                # Renamed, so that the file is reported only once, because a later session cannot read more.
                kept = (output / _FILE).replace(output / f"{_FILE}.unreadable")
                problems.append(f"{unreadable}; the profile is kept in {output}, its rows in {kept.name}")
            else:
                shutil.rmtree(output)
                _remove_empty(output, profiles)
        except Exception as error:
            text = describe_error(error, output, "it stays as it is; report this error with the profile")
            problems.append(f"the profile {output} that session {run} left behind cannot be read yet: {text}")
    return problems


def _remove_empty(output: Path, profiles: Path) -> None:
    """Removes the empty parent folders of a profile, up to the folder of all profiles."""
    with suppress(OSError):
        for folder in output.parents:
            folder.rmdir()
            if folder == profiles:
                return


def _expect_plain(output: Path) -> None:
    """Raises UnsafePath if a folder contains links, which may lead to files of other users."""
    for folder, folders, files in os.walk(output):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if safe_file(path) != path:
                raise UnsafePath(path, "a link, which msprof does not create")


def _read_pending_rows(noted: Path) -> tuple[list[_PendingRow], str]:
    """Returns the rows up to the first damaged line, and the damage ("" for none). A torn last line is ignored.

    Rows after a damaged line are not read, because without marks samples are assigned by the order of all rows.
    """
    rows: list[_PendingRow] = []
    *lines, last = read_safely(noted, _LARGEST_BYTES).split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(decode(line, _PendingRow, f"{noted}:{number}"))
        except DecodeError as error:
            return rows, f"{error}: this row and all later rows run again"
    with suppress(DecodeError):
        rows.append(decode(last, _PendingRow, str(noted)))
    return rows, ""


def _records(noted: Path, run: str, jobs: Sequence[_PendingRow]) -> Iterator[tuple[str, Record]]:
    """Yields the folder of the database of each row with samples ("" for the profile's), and its record."""
    if not jobs:
        # Without an export of the profile.
        return
    rows = [ProfiledRow(job.kernel_type, job.cells, job.launched) for job in jobs]
    pending = [RowOutcome(Status.MEASURED, measurement=replace(job.measurement, samples_us=())) for job in jobs]
    for job, read in zip(jobs, complete_outcomes(noted.parent, rows, pending), strict=True):
        measurement = read.outcome.measurement
        if read.is_missing or measurement is None:
            continue
        record = Record(
            kernel_type=job.kernel_type,
            signature=signature(job.kernel_type, job.cells),
            cells=job.cells,
            status=Status.MEASURED,
            reason="",
            run_id=run,
            finished_at=noted.stat().st_mtime,
            measurement=measurement,
        )
        yield job.database, record
