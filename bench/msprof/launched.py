"""What a process launched, on disk: so that its profile can be read by a later session.

Beside msprof's output of a process there is a line for each row that it ran and found right. Once the
rows have their verdict, the file goes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bench.errors import DeviceGone
from bench.job import Job, Outcome
from bench.msprof.output import samples_of
from bench.profiles.attribution import Launched, NoSamples, ProfiledRow
from bench.profiles.profiled import with_samples
from database import journal
from database.errors import OpAtlasError
from database.journal import Header
from database.merge import UpdateMode
from database.record import Measurement, Record
from database.safe_paths import UnsafePath, own_file, read_own
from database.schema import Status
from database.signature import signature
from database.store import Database

_FILE = "launched.jsonl"
#: `{run id}/{number}` below `profiles/`, with a worker of xdist between: what MsprofSession makes, and nobody else.
_OUTPUT = re.compile(r"\d{8}T\d{6}-[0-9a-f]{6}/(gw\d+/)?\d{4,}", re.ASCII)
_LARGEST_BYTES = 1 << 28


def note_launched(output: Path, job: Job, outcome: Outcome) -> None:
    """Notes a row that was launched; nothing of a later line is needed to read it. Raises OSError."""
    assert outcome.launched is not None
    assert outcome.measurement is not None
    values = {
        "kernel_type": job.kernel_type,
        "cells": dict(job.cells),
        "launched": asdict(outcome.launched),
        "instrument": outcome.measurement.instrument,
        "cache_state": outcome.measurement.cache_state,
        "checked_elements": outcome.measurement.checked_elements,
        "total_elements": outcome.measurement.total_elements,
        "assumptions": outcome.measurement.assumptions,
    }
    with open(output / _FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def forget_launched(output: Path) -> None:
    """To be called once the rows have their verdict."""
    (output / _FILE).unlink(missing_ok=True)


def journal_left_behind(database: Database) -> list[str]:
    """Reads the profiles of killed sessions, and leaves what they measured as journals to be recovered.

    The caller has the database to itself. A profile that holds the samples of some rows only is done
    with then: the others have no verdict, and are run again.

    Returns:
        Why profiles could not be read; they stay for a later session.
    """
    problems: list[str] = []
    profiles = database.profiles_dir
    for output in sorted(Path(folder) for folder, _, files in os.walk(profiles) if _FILE in files):
        of_profiles = output.relative_to(profiles)
        run, *rest = of_profiles.parts or [""]
        try:
            if not _OUTPUT.fullmatch(of_profiles.as_posix()):
                raise OpAtlasError("no session gives a folder such a name: move it away")
            _expect_plain(output)
            records = list(_records(output / _FILE, run))
            if records:
                path = database.journal_dir / f"{'-'.join((run, *rest))}-profile.jsonl"
                journal.write(path, Header(run, UpdateMode.ALL.value, False), [r.to_json() for r in records])
            shutil.rmtree(output)
        except (OpAtlasError, DeviceGone, OSError) as error:
            problems.append(f"the profile {output} that session {run} left behind cannot be read yet: {error}")
    return problems


def _expect_plain(output: Path) -> None:
    """Raises UnsafePath if a folder holds anything but folders and regular files: what lies elsewhere is not ours."""
    for folder, folders, files in os.walk(output):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if own_file(path) != path:
                raise UnsafePath(path, "a link, which msprof does not make")


def _records(noted: Path, run: str) -> Iterator[Record]:
    jobs = [json.loads(line) for line in read_own(noted, _LARGEST_BYTES).decode().splitlines() if line.endswith("}")]
    rows = [ProfiledRow(values["kernel_type"], values["cells"], Launched(**values["launched"])) for values in jobs]
    for values, found in zip(jobs, samples_of(noted.parent, rows), strict=True):
        measurement = Measurement(
            samples_us=(),
            **{name: values[name] for name in ("instrument", "cache_state", "checked_elements", "total_elements")},
            assumptions=tuple(values["assumptions"]),
        )
        pending = Outcome(Status.MEASURED, measurement=measurement)
        outcome = pending if isinstance(found, NoSamples) else with_samples(pending, values["kernel_type"], found)
        if outcome is pending or outcome.measurement is None:
            continue
        yield Record(
            kernel_type=values["kernel_type"],
            signature=signature(values["kernel_type"], values["cells"]),
            cells=values["cells"],
            status=Status.MEASURED,
            reason="",
            run_id=run,
            finished_at=noted.stat().st_mtime,
            measurement=outcome.measurement,
        )
