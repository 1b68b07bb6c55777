"""Compiles ahead what a session would compile at the first use of an implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opatlas.ask.kernel_rows import smallest_rows, starter_database
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.progress import track
from opatlas.row.location import default_path
from opatlas.row.siblings import base_type
from opatlas.row.status import Status
from opatlas.row.versions import detect
from opatlas.run.devices.device import DeviceSpec, available_devices, database_name, kind_named
from opatlas.run.implementations.catalog import default_implementation
from opatlas.run.implementations.implementation import Implementation
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job
from opatlas.run.kernel_facts import replays_of_bench
from opatlas.run.process.device_process import DeviceProcess
from opatlas.run.registry import replay_spec

#: Deadline of a row, whose set-up may compile for minutes: as of a row that was never run before.
_ROW_S = 900.0


@dataclass(frozen=True)
class Built:
    """What became of the rows of an implementation.

    Attributes:
        label: the implementation with its version.
        kernel_types: the number of those that have a row.
        counts: the rows by status; measured ones ran.
        failures: kernel type, status and reason of each row that failed.
        without: kernel types without a row in the database.
    """

    label: str
    kernel_types: int
    counts: Counter[Status]
    failures: Sequence[tuple[str, Status, str]]
    without: Sequence[str]


def build_ahead(implementation: Implementation, device: str | None, database: Path | None) -> Built:
    """Runs small rows of each kernel type on the device, and keeps no duration.

    Args:
        implementation: what is compiled.
        device: name or kind of the device; None: the device at hand.
        database: has the rows; None: the database of the device.

    Raises:
        OpAtlasError: the implementation is not installed or does not run on the device, the device cannot be used, or
            the database cannot be read.
    """
    spec = available_devices(device)[0]
    _expect_usable(implementation, spec)
    wanted = {
        name
        for name, function in replays_of_bench().items()
        if implementation.implements(name) and base_type(name) == name and not _needs_group(function)
    }
    path = database or default_path(database_name([spec]), detect())
    rows = smallest_rows(Database(path), wanted)
    if not rows and database is None:
        with starter_database() as starter:
            rows = smallest_rows(starter, wanted)
    if not rows:
        raise OpAtlasError(f"{path} has no row of a kernel type of {implementation.name}: name another --database-path")
    jobs = [_job(implementation, name, cells) for name, own in rows.items() for cells in own]
    counts, failures = _run(jobs, spec, f"build {implementation.name}")
    without = sorted(wanted.difference(rows)) if implementation.wrap is None and not implementation.is_default else []
    return Built(implementation.label, len(rows), counts, failures, without)


def _expect_usable(implementation: Implementation, spec: DeviceSpec) -> None:
    """Raises OpAtlasError if an implementation is not installed or does not run on a device."""
    if implementation.missing:
        raise OpAtlasError(f"{implementation.name} is {implementation.missing}")
    if implementation.devices and spec.kind not in implementation.devices:
        raise OpAtlasError(f"{implementation.name} runs on {', '.join(implementation.devices)}, and not on {spec}")
    if implementation.is_default and implementation.name != default_implementation(spec.kind).name:
        raise OpAtlasError(f"{implementation.name} is not what {spec} measures")


def _run(jobs: Sequence[Job], spec: DeviceSpec, label: str) -> tuple[Counter[Status], list[tuple[str, Status, str]]]:
    """Runs rows on a device. Returns the number of rows by status, and the rows that failed."""
    # Events and clocks need no profiler, and the one duration is not kept.
    settings = MeasureSettings(repeat_count=1, cache="warm", instrument=kind_named(spec.kind).events)
    process = DeviceProcess(spec, settings)
    counts: Counter[Status] = Counter()
    failures: list[tuple[str, Status, str]] = []
    try:
        for job in track(jobs, label):
            outcome = process.run(job)
            counts[outcome.status] += 1
            if outcome.status not in (Status.MEASURED, Status.UNSUPPORTED):
                failures.append((job.kernel_type, outcome.status, outcome.explanation))
    finally:
        process.close()
    return counts, failures


def _job(implementation: Implementation, kernel_type: str, cells: Mapping[str, str]) -> Job:
    function = replays_of_bench()[kernel_type]
    source = implementation.source(kernel_type)
    return Job(function.__module__, "", function.__name__, kernel_type, cells, _ROW_S, source=source)


def _needs_group(function: object) -> bool:
    spec = replay_spec(function)
    return spec is None or spec.group is not None or spec.binding is not None
