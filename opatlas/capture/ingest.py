"""Ingests captures into a database, in steps that may be interrupted at any moment.

1. Read and group the captures; write nothing.
2. Write the samples to `runs/`, in one step. From here on the ingest counts: if it is killed, the next ingest or
   `rebuild_profiling` brings its samples into the CSVs.
3. Write the manifest beside the samples.
4. Write the statistics, pooled over all ingests that count, into the CSVs, one file at a time.
5. Write the manifest again with the time at which all of this was done.
6. Add an op_mapping.yaml if the database has none.

`rebuild_profiling` computes the Profiling cells of all rows again from the files of the ingests. The caller holds
the lock of the database.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from opatlas.capture.apply import CsvChanges, apply_cases, clear_edited_rows, unexplained_rows
from opatlas.capture.capture_discovery import CaptureInput, check_unchanged, distinct_captures, earlier_ingests
from opatlas.capture.cases import Aggregate, CaseKey, SampleLine, pool_cases, read_samples, write_samples
from opatlas.capture.launches import LaunchCounts
from opatlas.data import manifest as stored
from opatlas.data.database import Database
from opatlas.data.op_mapping import WrittenMapping, write_default_mapping
from opatlas.errors import OpAtlasError, TableError
from opatlas.row.columns import INPUT_SHAPES, OUTPUT_SHAPES, PROFILING_AVERAGE
from opatlas.row.versions import Versions, kind_of
from opatlas.text import pluralize, printable


@dataclass(frozen=True)
class IngestRequest:
    """The captures to ingest and the options.

    Attributes:
        root: the path that the user gave. Attention rows name their captures from its last folder on.
        replace: whether the samples hide the samples of earlier ingests.
        mixed: whether earlier captures may be of another device or of other versions.
        device, versions: device and software of the captures; None if unknown.
        options: options of the command line, for the manifest.
        shapes_from: the trace that has the shapes of CUDA graphs; None: those beside each trace.
    """

    root: Path
    replace: bool = False
    mixed: bool = False
    device: str | None = None
    versions: Versions = field(default_factory=Versions)
    options: Mapping[str, Any] = field(default_factory=dict)
    shapes_from: Path | None = None


@dataclass
class IngestResult:
    """The result of an ingest.

    Attributes:
        manifest: None if nothing was written.
        outcome: changes of the CSVs.
        account: the rows by their outcome.
        files: the captures that were read.
        already: files that an earlier ingest has, with its id; they were not read.
        same_bytes: files with the bytes of another file; they were not read.
        completed: earlier ingests that were interrupted and are complete now.
        mapping: the op_mapping.yaml that the database got.
        problems: a sentence for each problem.
    """

    manifest: stored.IngestManifest | None = None
    outcome: CsvChanges = field(default_factory=CsvChanges)
    account: LaunchCounts = field(default_factory=LaunchCounts)
    files: Sequence[Path] = ()
    already: Sequence[tuple[Path, str]] = ()
    same_bytes: Sequence[Path] = ()
    completed: Sequence[str] = ()
    mapping: WrittenMapping | None = None
    problems: list[str] = field(default_factory=list)


def ingest_captures(database: Database, captures: Sequence[Path], request: IngestRequest) -> IngestResult:
    """Brings captures into a database.

    Raises:
        OpAtlasError: the database cannot be locked or written; an earlier ingest cannot be read; a capture changed
            while it was read; earlier captures are of another device or other versions; or rows have captured durations
            without samples, which only `replace` may replace.
    """
    done = IngestResult()
    files = distinct_captures(captures, done.problems)
    done.same_bytes = [path for file in files for path in file.same_bytes]
    known: Mapping[str, stored.IngestManifest] = {}
    if database.runs_dir.exists():
        with database.lock():
            done.completed = _complete_interrupted(database, done)
            manifests = [ingest.manifest for ingest in stored.read_ingests(database)]
            known = earlier_ingests(files, manifests, replace=request.replace)
    already = [(file.path, known[file.sha256]) for file in files if file.sha256 in known]
    done.already = [(path, manifest.run_id) for path, manifest in already]
    for manifest in {manifest.run_id: manifest for _, manifest in already}.values():
        if facts := stored.unknown_facts(manifest, request.device, request.versions):
            done.problems.append(
                f"{manifest.run_id} has these captures without {facts}: ingest them into another --database-path"
            )
    files = [file for file in files if file.sha256 not in known]
    aggregate = Aggregate(request.root, request.shapes_from)
    done.problems += aggregate.add_files([file.path for file in files])
    done.problems += aggregate.problems
    done.account, done.files = aggregate.account, list(aggregate.files)
    read = [file for file in files if file.path in aggregate.files]
    for file in read:
        check_unchanged(file)
    if aggregate.account.ingested:
        with database.lock():
            ingests, keys = _store_samples(database, read, aggregate, request)
            # Frees some hundred megabytes for captures with very many signatures; the samples are on disk now.
            del aggregate
            done.manifest = ingests[-1].manifest
            done.outcome = _write_statistics(database, ingests, done.manifest, keys)
            done.problems += done.outcome.problems
    if done.manifest is not None or done.already:
        with database.lock():
            is_npu = request.device is None or kind_of(request.device).is_native
            done.mapping = write_default_mapping(database.path, is_npu=is_npu)
    return done


def _store_samples(
    database: Database, files: Sequence[CaptureInput], aggregate: Aggregate, request: IngestRequest
) -> tuple[list[stored.Ingest], set[CaseKey]]:
    """Runs steps 2 and 3. Returns all ingests, this one last, and its cases. Raises OpAtlasError."""
    cases = aggregate.cases()
    earlier = stored.read_ingests(database)
    manifests = [ingest.manifest for ingest in earlier]
    meanwhile = earlier_ingests(files, manifests, replace=request.replace)
    for file in files:
        if file.sha256 in meanwhile:
            run_id = meanwhile[file.sha256].run_id
            raise OpAtlasError(f"{file.path}: ingested by another process meanwhile ({run_id}): run again")
    if not request.mixed:
        stored.check_same_software(manifests, request.device, request.versions)
    signatures = {kernel_type: of_type.signatures for kernel_type, of_type in cases.items()}
    unexplained = unexplained_rows(database, signatures, _ingest_ids(earlier))
    if unexplained and not request.replace:
        raise _refusal(database, unexplained)
    manifest = stored.new_manifest(
        manifests,
        replace=request.replace,
        device=request.device,
        versions=request.versions,
        files=[_capture_file(file, aggregate.files[file.path]) for file in files],
        options=request.options,
    )
    path = stored.samples_path(database, manifest.run_id)
    lines = (
        SampleLine(
            kernel_type=case.kernel_type,
            cells={column: text for column, text in case.cells.items() if text},
            durations_us=list(case.durations_us),
            counters=case.counter_sums,
            sources=list(case.sources),
        )
        for of_type in cases.values()
        for case in of_type
    )
    write_samples(path, manifest, chain(lines, unexplained))
    manifest.write(database)
    keys = {(kernel_type, text) for kernel_type, texts in signatures.items() for text in texts}
    return [*earlier, stored.Ingest(manifest, path)], keys


def _write_statistics(
    database: Database, ingests: Sequence[stored.Ingest], manifest: stored.IngestManifest, keys: set[CaseKey]
) -> CsvChanges:
    """Runs steps 4 and 5 for the cases of one ingest. Raises OpAtlasError."""
    cases = pool_cases(ingests, keys)
    outcome = apply_cases(database, cases, _ingest_ids(ingests))
    manifest.kernel_types = len(cases)
    manifest.signatures = stored.SignatureCounts(outcome.new, outcome.updated, outcome.unchanged)
    others = {run_id for of_type in cases.values() for run_id in of_type.run_ids}
    manifest.added_to = tuple(sorted(others - {manifest.run_id}))
    # The next ingest tries again what has problems.
    manifest.finished_at = None if outcome.problems else time.time()
    manifest.write(database)
    return outcome


def _complete_interrupted(database: Database, done: IngestResult) -> list[str]:
    """Completes ingests that were interrupted, and returns their ids. Raises OpAtlasError."""
    completed = []
    ingests = stored.read_ingests(database)
    for ingest in ingests:
        if ingest.manifest.finished_at is None and ingest.samples is not None:
            outcome = _write_statistics(
                database, ingests, ingest.manifest, {line.key for line in read_samples(ingest.samples)}
            )
            done.problems += outcome.problems
            if not outcome.problems:
                completed.append(ingest.manifest.run_id)
    return completed


@dataclass(frozen=True)
class RebuildResult:
    """The result of `rebuild_profiling`.

    Attributes:
        outcome: changes of the CSVs: `updated` counts signatures with other cells than before, `new` signatures whose
            row was missing. Rows whose durations no samples explain are problems.
        edited: the rows with emptied Profiling cells, before the change, by kernel type.
        without_samples: ingests without a file of samples, whose rows cannot be computed again.
    """

    outcome: CsvChanges
    edited: Mapping[str, Sequence[Mapping[str, str]]]
    without_samples: tuple[str, ...]


def rebuild_profiling(database: Database) -> RebuildResult:
    """Computes the Profiling cells of all rows again from the files of the ingests.

    The caller holds the lock of the database. Missing rows are added again. Rows that were edited since their capture
    lose their Profiling cells, which describe the captured row. Rows with durations that no samples explain do not
    change.

    Raises:
        OpAtlasError: a file of an ingest cannot be read, or a manifest cannot be written.
    """
    ingests = stored.read_ingests(database)
    cases, known = pool_cases(ingests), _ingest_ids(ingests)
    outcome = apply_cases(database, cases, known)
    edited = clear_edited_rows(database, cases, known)
    for ingest in ingests:
        if ingest.manifest.finished_at is None and ingest.samples is not None and not outcome.problems:
            ingest.manifest.finished_at = time.time()
            ingest.manifest.write(database)
    missing = [ingest.manifest.run_id for ingest in ingests if ingest.samples is None]
    return RebuildResult(outcome, edited, tuple(missing))


def _ingest_ids(ingests: Sequence[stored.Ingest]) -> set[str]:
    return {ingest.manifest.run_id for ingest in ingests if ingest.samples is not None}


def _capture_file(file: CaptureInput, counts: LaunchCounts) -> stored.CaptureFile:
    return stored.CaptureFile(
        path=printable(str(file.path)),
        name=printable(file.path.name),
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        rows=counts.rows,
        ingested=counts.ingested,
        left_out={reason.name.lower(): count for reason, count in counts.left_out.items()},
        same_bytes=tuple(printable(str(path)) for path in file.same_bytes),
    )


def _refusal(database: Database, rows: Sequence[SampleLine]) -> OpAtlasError:
    first = rows[0]
    shapes = f"{first.cells[INPUT_SHAPES]} -> {first.cells[OUTPUT_SHAPES]}"
    more = f" (and {pluralize(len(rows) - 1, 'more row')})" if len(rows) > 1 else ""
    problem = (
        f"the row {shapes}{more} has a duration of another tool, without samples in {database.runs_dir}, to which no "
        f"samples can be added: nothing was ingested"
    )
    remedy = "Use --replace to replace the duration; the old cells are kept beside the new samples"
    duration = first.replaced[PROFILING_AVERAGE]
    return TableError(database.csv_path(first.kernel_type), problem, remedy, column=PROFILING_AVERAGE, value=duration)
