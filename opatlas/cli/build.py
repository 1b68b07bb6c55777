"""Compiles ahead what a session would compile at the first use of an implementation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from opatlas.cli.kernel_rows import smallest_rows, starter_database
from opatlas.devices.device import DeviceSpec
from opatlas.devices.discovery import available_devices, database_name
from opatlas.engine.job import Job
from opatlas.engine.kernel_facts import replays_of_bench
from opatlas.engine.registry import replay_spec
from opatlas.errors import OpAtlasError
from opatlas.implementations.catalog import default_implementation
from opatlas.implementations.implementation import Implementation
from opatlas.instruments.instrument import EVENTS, MeasureSettings
from opatlas.isolation.device_process import DeviceProcess
from opatlas.model.location import default_path
from opatlas.model.schema import Status
from opatlas.model.siblings import base_type
from opatlas.model.versions import detect
from opatlas.progress import Progress
from opatlas.store.database import Database
from opatlas.text import pluralize, show, wrap

#: Deadline of a row, whose set-up may compile for minutes: as of a row that was never run before.
_ROW_S = 900.0


def build(implementation: Implementation, device: str | None, database: Path | None) -> bool:
    """Runs small rows of each kernel type on the device, keeps no duration, and prints what failed.

    Args:
        implementation: what is compiled.
        device: name or kind of the device; None: the device at hand.
        database: has the rows; None: the database of the device.

    Returns:
        Whether each row ran, or is unsupported.

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
    for line in failures:
        show(wrap(line, 0))
    without = sorted(wanted.difference(rows)) if implementation.wrap is None and not implementation.is_default else []
    told = ", ".join(f"{count} {status.value}" for status, count in counts.most_common())
    told = told.replace(Status.MEASURED.value, "ran")
    show(wrap(f"{implementation.label}: {pluralize(len(jobs), 'row')} of {len(rows)} kernel types: {told}", 0))
    if without:
        show(wrap(f"without a row in the database: {', '.join(without)}", 0))
    return not failures


def _expect_usable(implementation: Implementation, spec: DeviceSpec) -> None:
    """Raises OpAtlasError if an implementation is not installed or does not run on a device."""
    if implementation.missing:
        raise OpAtlasError(f"{implementation.name} is {implementation.missing}")
    if implementation.devices and spec.kind not in implementation.devices:
        raise OpAtlasError(f"{implementation.name} runs on {', '.join(implementation.devices)}, and not on {spec}")
    if implementation.is_default and implementation.name != default_implementation(spec.kind).name:
        raise OpAtlasError(f"{implementation.name} is not what {spec} measures")


def _run(jobs: Sequence[Job], spec: DeviceSpec, label: str) -> tuple[Counter[Status], list[str]]:
    """Runs rows on a device. Returns the number of rows by status, and a line for each row that failed."""
    # Events and clocks need no profiler, and the one duration is not kept.
    settings = MeasureSettings(repeat_count=1, cache="warm", instrument=EVENTS.get(spec.kind))
    process = DeviceProcess(spec, settings)
    counts: Counter[Status] = Counter()
    failures: list[str] = []
    try:
        with Progress(len(jobs), "rows", label=label) as progress:
            for job in jobs:
                if progress.on_terminal:
                    progress.show(job.kernel_type, "")
                outcome = process.run(job)
                counts[outcome.status] += 1
                if outcome.status not in (Status.MEASURED, Status.UNSUPPORTED):
                    failures.append(f"{job.kernel_type}: {outcome.status}: {outcome.explanation}")
                progress.advance(note=f"{len(failures)} failed" if failures else "")
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
