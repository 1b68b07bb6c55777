"""`opatlas ingest`: profiler captures, and recorded lengths of attention, into a database."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from opatlas import options
from opatlas.capture.apply import rows_without_replay
from opatlas.capture.attention import fill_rows, rows_without_lengths
from opatlas.capture.capture_discovery import NVBENCH, TRACE, FoundCaptures, find_captures, kind_of_capture
from opatlas.capture.ingest import IngestRequest, IngestResult, ingest_captures
from opatlas.capture.nvbench import nvbench_device
from opatlas.capture.torch_trace import captured_gpu
from opatlas.cli.app import held
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError, UsageError, usage_errors
from opatlas.files import expect_folder, size_mb
from opatlas.formats import percent
from opatlas.progress import progress
from opatlas.row.attention import Sequences, read_sequences
from opatlas.row.location import DEFAULT_NPU_DEVICE, default_path, expect_npu
from opatlas.row.versions import Versions, detect
from opatlas.run.registry import replays_of_bench
from opatlas.show.parameters import reads
from opatlas.show.result import Column, Fields, Part, Result, Table
from opatlas.text import close_matches, printable

_MAKES = "`opatlas ingest --profiling-path` makes a database"
_SHARE = Column("of captured time", percent)
_NO_KERNELS = (
    "no kernels of a device: record with ProfilerActivity.CUDA; a trace of the capture of CUDA graphs has only their "
    "shapes, for --shapes-from"
)


def ingest(
    *,
    profiling_path: Path | None = None,
    attention_records: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = (),
    attention: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = (),
    database_path: Path | None = None,
    device: str | None = None,
    versions: Annotated[Versions | None, reads(options.versions), Parameter(accepts_keys=False)] = None,
    shapes_from: Path | None = None,
    replace: bool = False,
    mixed: bool = False,
) -> Result:
    """Brings profiler captures into a database: one CSV for each kernel type.

    A capture does not hold the sequence lengths of attention calls. --attention-records fills the Runtime columns of
    attention rows from records of the serving process: JSON objects, one a line (docs/captures.md). --attention fills
    those of rows that no record has with the lengths of batches that are known otherwise.

    Exit status: 0 all captures are in the database; 1 something was left out because of an error, nothing could be
    ingested, or the database cannot be written; 2 wrong usage.

    Args:
        profiling_path: kernel_details or op_summary file, database of a profiler, or a folder that is searched for
            `*kernel_details*.csv`, or for `*op_summary*.csv` if it has none of these, for databases of profiles
            without a CSV, and for traces of torch.profiler, `*.trace.json`, else exports of nsys, `*.sqlite`, if it
            has no other captures.
        attention_records: files of records that fill the lengths of attention rows, .jsonl or .jsonl.gz.
        attention: the sequences of a batch, as for `opatlas model --sequences`, for attention rows of as many sequences
            and queries without lengths: 64x1@4096+1x2048@2048 has 64 of 1 query and 4,096 keys.
        database_path: folder of the {KernelType}.csv files (default: that of the device and versions).
        device: device of the captures, by the name of its database folder (default: the GPU that a trace names, else
            ATLAS_800_A3_752T_128G_DIE; with --database-path: not known).
        versions: versions of vllm-ascend, torch and CANN of the captures, or some of them, such as
            vllm=0.18.0,torch=2.9.0,cann=8.5 (default: the installed ones).
        shapes_from: trace that recorded the capture of the CUDA graphs, or an eager trace of the same steps, for their
            shapes (default: traces named *capture* beside each trace, or in capture_traces there).
        replace: replace the samples of earlier captures, for the signatures of this capture.
        mixed: ingest captures of another device, or of other versions, than earlier captures of this database.
    """
    if profiling_path is None and not attention_records and not attention:
        raise UsageError("nothing to ingest: name a capture with --profiling-path, --attention-records or --attention")
    batches = [read_sequences(text) for text in attention]
    given = versions or Versions()
    manifest_options = {
        "profiling_path": profiling_path and printable(str(profiling_path)),
        "database_path": database_path and printable(str(database_path)),
        "device": device and printable(device),
        "shapes_from": shapes_from and printable(str(shapes_from)),
        "replace": replace,
        "mixed": mixed,
        "versions": dataclasses.asdict(given),
    }
    with usage_errors():
        found = FoundCaptures([]) if profiling_path is None else find_captures(profiling_path)
        if database_path is not None:
            expect_folder(database_path, _MAKES, option="--database-path", may_be_made=profiling_path is not None)
        database_path, device, software = _place(found.files, database_path, device, given)
        records_mb = sum(map(size_mb, attention_records))
    database = Database(database_path)
    found_by = list[Result]()
    if profiling_path is not None:
        request = IngestRequest(profiling_path, replace, mixed, device, software, manifest_options, shapes_from)
        found_by.append(_ingest(database, found, request))
    if attention_records or batches:
        try:
            found_by.append(_fill(database, tuple(dict.fromkeys(attention_records)), records_mb, batches))
        except OpAtlasError as error:
            if profiling_path is None:
                raise
            found_by.append(Result(json={}, problems=[str(error)]))
    content: dict[str, Any] = {"database": database_path}
    for each in found_by:
        content |= each.json
    problems = [problem for each in found_by for problem in each.problems]
    parts = [part for each in found_by for part in each.parts]
    if profiling_path is not None and len(found_by) == 1 and (left := rows_without_lengths(database)):
        parts.append(Fields({"attention rows without lengths": (left, "--attention-records or --attention")}))
    return Result(parts, content, problems)


def _place(
    files: Sequence[Path], path: Path | None, device: str | None, given: Versions
) -> tuple[Path, str | None, Versions]:
    """Returns the folder of the database, the device, and the versions: of a GPU those that its files name."""
    traces = [file for file in files if kind_of_capture(file) is TRACE]
    if traces:
        device, cuda = captured_gpu(traces, device, may_be_unknown=path is not None)
        given = dataclasses.replace(given, cuda=cuda)
    if benchmarks := [file for file in files if kind_of_capture(file) is NVBENCH]:
        device = device or nvbench_device(benchmarks[0])
    if path is None:
        device = device or DEFAULT_NPU_DEVICE
        if not traces:
            # `npu` does not say which one.
            expect_npu(device)
        given = detect(given)
        path = default_path(device, given)
    return path, device, dataclasses.replace(given, nccl=None, cuda=given.cuda if traces else None)


def _ingest(database: Database, found: FoundCaptures, request: IngestRequest) -> Result:
    done = ingest_captures(database, found.files, request)
    done.problems[:0] = found.unparsed
    if done.manifest is None and not done.already:
        why = "no capture can be read"
        if done.files:
            why = f"all {done.account.rows:,} rows were left out" if done.account.rows else _NO_KERNELS
        done.problems.append(f"nothing was ingested: {why}")
    parts = [*_capture_parts(done, found.not_read), *_database_parts(database, done)]
    return Result(parts, {"captures": _captures_json(done)}, done.problems)


def _capture_parts(done: IngestResult, not_read: Sequence[tuple[str, Sequence[Path]]]) -> Iterator[Part]:
    account, outcome = done.account, done.outcome
    yield Table(
        ("file", "not read"),
        [
            *((path, f"already ingested by {run_id}") for path, run_id in done.already),
            *((path, reason) for reason, paths in not_read for path in paths),
            *((path, "same bytes as another capture") for path in done.same_bytes),
        ],
    )
    device_us = account.time_ns.total() / 1e3
    if done.files:
        signatures = outcome.new + outcome.updated + outcome.unchanged
        fates = f"{outcome.new:,} new, {outcome.updated:,} updated, {outcome.unchanged:,} unchanged"
        yield Fields(
            {
                "captures": len(done.files),
                "rows": (account.rows, f"{account.ingested:,} ingested, {account.left_out.total():,} left out"),
                "device time(us)": (device_us or None, f"{percent(account.ingested_us / (device_us or 1))} ingested"),
                "kernel types": len(outcome.kernel_types),
                "signatures": (signatures, fates),
            }
        )
    yield Table(
        ("trace", "device", "rank", "events", "span(us)", "busy(us)", "idle(us)"),
        [dataclasses.astuple(each) for each in account.devices],
    )
    first = dict(reversed(account.without_duration))
    yield Table(
        ("left out", "kernel type or operator", "launches", _SHARE, "first"),
        [
            (reason.value, each.kernel_type, each.count, each.share, first.get(reason))
            for reason, each in account.time_left_out
        ],
    )
    differing = [(what, ns / 1e3 / device_us) for what, ns in account.differing_ns.most_common() if ns]
    yield Table(("in rows that do not say", _SHARE), differing)
    yield Table(("unknown dtype, kept", "rows"), account.unknown_dtypes.most_common())
    widest = sorted(outcome.mixed, key=lambda row: row.modes.low_us - row.modes.high_us)
    yield Table(
        ("two populations", "shapes", "launches", "median(us)", "launches", "median(us)"),
        [(row.kernel_type, row.shapes, *dataclasses.astuple(row.modes)) for row in widest],
    )


def _database_parts(database: Database, done: IngestResult) -> Iterator[Part]:
    if done.manifest is None and not done.already and not done.completed:
        return
    replayed = replays_of_bench()
    rows, without = rows_without_replay(database, replayed)
    mapping = done.mapping
    yield Fields(
        {
            "database": str(database.path),
            "run": done.manifest and done.manifest.run_id,
            "completed": ", ".join(done.completed),
            "op_mapping.yaml": mapping and (f"copy of {mapping.source}" if mapping.source else "new"),
            "rows with a replay": f"{rows - sum(each.count for each in without):,} of {rows:,}",
        }
    )
    yield Table(
        ("without a replay", "rows", _SHARE, "similar"),
        [
            (
                each.kernel_type,
                each.count,
                each.share,
                ", ".join(close_matches(each.kernel_type, replayed, most=3, least=0.85)),
            )
            for each in without
        ],
    )
    command = ["opatlas", "bench", "--database-path", str(database.path), "--update-mode=unreplayed"]
    yield f"next: {shlex.join(command)}"


def _captures_json(done: IngestResult) -> dict[str, object]:
    account, outcome = done.account, done.outcome
    return {
        "run_id": None if done.manifest is None else done.manifest.run_id,
        "files": done.files,
        "already": [{"file": path, "run_id": run_id} for path, run_id in done.already],
        "same_bytes": done.same_bytes,
        "rows": account.rows,
        "ingested": account.ingested,
        "left_out": {reason.value: count for reason, count in account.left_out.items()},
        "ingested_us": account.ingested_us,
        "left_out_us": [
            {"reason": reason.value, "name": each.kernel_type, "calls": each.count, "duration_us": each.time_us}
            for reason, each in account.time_left_out
        ],
        "differing_us": {what: ns / 1e3 for what, ns in account.differing_ns.items()},
        "devices": account.devices,
        "unknown_dtypes": account.unknown_dtypes,
        "kernel_types": sorted(outcome.kernel_types),
        "new": outcome.new,
        "updated": outcome.updated,
        "unchanged": outcome.unchanged,
        "two_populations": outcome.mixed,
        "problems": done.problems,
    }


def _fill(database: Database, files: Sequence[Path], total_mb: float, batches: Sequence[list[Sequences]]) -> Result:
    with usage_errors():
        expect_folder(database.path, _MAKES)
    # A session writes rows back by their signatures, which change here.
    with held(database, "ingest --attention-records") as problems, progress("read, MB", total_mb) as advance:
        outcome = fill_rows(database, files, advance, batches)
    problems += outcome.problems
    counts = {name: count for name, count in vars(outcome).items() if isinstance(count, int)}
    tables = list[Table]()
    for what, name in (("record", "unmatched"), ("row", "without_record")):
        rows = [(place, count, key) for kind, count, place, key in outcome.unmatched if kind == what]
        counts[name] = sum(count for _, count, _ in rows)
        tables.append(Table((f"unmatched {what}", "count", "key"), rows))
    facts = {f"attention {name.replace('_', ' ')}": count or None for name, count in counts.items()}
    found = {**counts, "unmatched_places": outcome.unmatched, "problems": problems}
    return Result([Fields({**facts, "database": str(database.path)}), *tables], {"attention_records": found}, problems)
