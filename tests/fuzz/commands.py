"""Commands and rules over whole databases: what any input may change there, and what it must not."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import captures
from decode_timelines import MOE_LAYER, collective, decode_steps, launches_of

from opatlas.ask.checks import CHECKS
from opatlas.ask.checks.check import CheckedDatabase, split_findings
from opatlas.capture.cases import Aggregate
from opatlas.data.database import Database
from opatlas.data.write_back import recover
from opatlas.row.columns import INPUT_SLOTS, OUTPUT_SLOTS, RUNTIME_PREFIX

from .readers import CELLS, OF_JOURNALS, RUN, csv_text, journals
from .target import Target, command, expect, files_of, packed, tables_of


def _write_table(path: Path, *rows: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in rows for name in row))
    path.write_bytes(csv_text([names, *([row.get(name, "") for name in names] for row in rows)]))


def _read_table(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


_LAUNCHES = [
    captures.launched("MatMulV3", 10.5),
    captures.launched("MatMulV3", 12, CELLS),
    captures.launched("Add", 3, captures.cells("128,7168;128,7168", "128,7168")),
    captures.launched("Slice", 4, captures.cells("128,7168;2", "128,64")),
    captures.launch(captures.COLLECTIVE),
    captures.launch(shapes="N/A", dtypes="N/A", formats="N/A"),
]
#: Rows whose other columns an ingest must not touch.
_THERE = [
    {**CELLS, "Average Duration(us)": "3.5", "Remark": 'a "word", and =1+1', "MicroBench Average Duration(us)": "3.50"},
    {**captures.cells("9,9;9,9", "9,9"), "Remark": "  blanks "},
]


def _captures() -> Iterator[bytes]:
    yield captures.capture_text(_LAUNCHES).encode()
    yield captures.capture_text(_LAUNCHES[:2]).encode()
    yield b"\xef\xbb\xbf" + captures.capture_text(_LAUNCHES).replace("\n", "\r\n").encode()
    yield captures.summary_text(_LAUNCHES).encode()
    yield captures.summary_text(_LAUNCHES[1:], older=True).encode()


def _ingest(data: bytes, folder: Path) -> None:
    path, database = folder / "kernel_details.csv", folder / "database"
    path.write_bytes(data)
    _write_table(database / "MatMulV3.csv", *_THERE)
    words = ("ingest", "--profiling-path", path, "--database-path", database)
    status, _, _ = command(*words)
    tables = tables_of(database)
    for before, after in zip(_THERE, _read_table(database / "MatMulV3.csv"), strict=False):
        expect(before.items() <= after.items(), "a cell that is not the capture's was changed")
    again, _, _ = command(*words)
    # A capture that lost rows to an error, or all of them, may be in already, or may not.
    expect(again in (0, status), f"exit status {status}, and {again} for the same capture again")
    expect(tables_of(database) == tables, "the same capture again changed a table")
    aggregate = Aggregate()
    if aggregate.add_files([path]):
        return
    account = aggregate.account
    expect(account.rows == account.ingested + account.left_out.total(), f"the account does not add up: {account}")
    launches = sum(len(case.durations_us) for of_type in aggregate.cases().values() for case in of_type)
    expect(launches == account.ingested, f"{launches} launches in cases, {account.ingested} ingested")


_SAMPLES = "ingest-20261121T163006Z-1f0c9a.jsonl.gz"


def _samples() -> Iterator[bytes]:
    for launches in (_LAUNCHES, [captures.launched("Add", 3)]):
        with tempfile.TemporaryDirectory() as folder:
            path = captures.write_capture(Path(folder, "kernel_details.csv"), launches)
            status, _, _ = command("ingest", "--profiling-path", path, "--database-path", Path(folder, "database"))
            assert status == 0
            (samples,) = Path(folder, "database/runs").glob("*.gz")
            yield gzip.decompress(samples.read_bytes())


def _beside_samples(data: bytes, folder: Path) -> None:
    path = captures.write_capture(folder / "kernel_details.csv", [captures.launched("MatMulV3", 20.5)])
    runs = folder / "database" / "runs"
    runs.mkdir(parents=True)
    (runs / _SAMPLES).write_bytes(gzip.compress(data, 1))
    before = files_of(runs)
    status, _, errors = command("ingest", "--profiling-path", path, "--database-path", runs.parent)
    expect(before.items() <= files_of(runs).items(), "samples of an earlier ingest were changed")
    expect(status == 0 or _SAMPLES.partition(".")[0] in errors or ".csv" in errors, f"nothing named: {errors}")


_DECODE = ";".join([*captures.DECODE_SHAPES, *[""] * 16])
_ATTENTION = {
    **captures.cells(),
    INPUT_SLOTS[0]: _DECODE,
    INPUT_SLOTS[1]: ";".join("DT_BF16" if shape else "DT_UNDEFINED" for shape in _DECODE.split(";")),
    INPUT_SLOTS[2]: ";".join("ND" for _ in _DECODE.split(";")),
    OUTPUT_SLOTS[0]: captures.DECODE_SHAPES[0],
    "Remark": "x\u00e9 ,\n",
}


def _records() -> Iterator[bytes]:
    other = {**captures.DECODE_RECORD, "actual_seq_lengths_kv": [1, 2, 3], "block_table_valid_blocks": 3}
    no_row = {**captures.DECODE_RECORD, "query_shape": [7, 4, 128], "input_layout": "BSH"}
    lines = [json.dumps(record) for record in (captures.DECODE_RECORD, other, other, no_row)]
    yield "".join(line + "\n" for line in lines).encode()
    yield lines[0].encode()


def _fill(data: bytes, folder: Path) -> None:
    path, database = folder / "calls.jsonl", folder / "database"
    path.write_bytes(data)
    table = database / "FusedInferAttentionScore.csv"
    _write_table(table, _ATTENTION)
    words = ("ingest", "--attention-records", path, "--database-path", database)
    status, _, err = command(*words)
    expect(not err or path.name in err, f"an error that does not name the records: {err}")
    tables = tables_of(database)
    for row in _read_table(table):
        kept = {column: cell for column, cell in row.items() if not column.startswith(RUNTIME_PREFIX) and cell}
        expect(kept == {column: cell for column, cell in _ATTENTION.items() if cell}, f"others changed: {row}")
    again, _, _ = command(*words)
    expect(again == status and tables_of(database) == tables, "the same records again changed a table")


_EVENTS = [
    {"ph": "M", "name": "process_name", "args": {"name": "Ascend Hardware"}},
    {"ph": "X", "name": "aclnnAdd_AddAiCore_Add", "ts": "1764246877073569.640", "dur": 2.5, "pid": 7, "tid": 2},
    {"ph": "X", "name": "gemm", "ts": 1.25, "dur": 0, "args": {"Input Dims": [[2, 3], [], [[4], [5]]], "id": 9}},
    {"ph": "X", "name": "aten::add", "ts": 2, "dur": "12.25", "cat": "cpu_op", "args": {"Id": 5, "a": [1, {"b": 2}]}},
    {"ph": "s", "name": "HostToDevice"},
]
_PRODUCT = {"Input Dims": [[8, 4], [4, 2]], "Input type": ["float", "float"], "Input Strides": [[4, 1], [1, 4]]}
_ARGS = {"correlation": 1, "device": 0, "stream": 7, "graph node id": 2}


def _timed(category: str, name: str, start: float, duration: float, **args: object) -> Mapping[str, object]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration, "args": args}


#: A product, the capture of a graph with one, a replay of the graph, and a kernel that nothing launched.
_ON_A_GPU = [
    _timed("cpu_op", "aten::mm", 0, 5.5, **_PRODUCT),
    _timed("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
    _timed("kernel", "void gemm<float>(float)", 3, 2.125, **_ARGS),
    _timed("cuda_runtime", "cudaStreamBeginCapture", 10, 1, correlation=2),
    _timed("cpu_op", "aten::mm", 12, 5.5, **_PRODUCT),
    _timed("cuda_driver", "cuLaunchKernelEx", 13, 1, correlation=3),
    _timed("cuda_runtime", "cudaStreamEndCapture", 20, 1, correlation=4),
    _timed("user_annotation", "ProfilerStep#3", 21, 5),
    _timed("cuda_runtime", "cudaGraphLaunch", 22, 1, correlation=5),
    _timed("kernel", "void gemm<float>(float)", 25, 2.25, **{**_ARGS, "correlation": 5}),
    _timed("gpu_memcpy", "Memcpy HtoD", 30, 2, **{**_ARGS, "correlation": 9}),
]


def _gpu_traces() -> Iterator[bytes]:
    header = {"deviceProperties": [{"name": "GPU"}], "cuda_runtime_version": 13000}
    yield json.dumps({**header, "traceEvents": _ON_A_GPU}, indent=1).encode()


def _gpu_trace(data: bytes, folder: Path) -> None:
    trace, database = folder / "trace.json", folder / "database"
    trace.write_bytes(data)
    database.mkdir()
    words = ("ingest", "--profiling-path", trace, "--device", "GPU", "--database-path", database)
    status, _, errors = command(*words)
    expect(status == 0 or str(trace) in errors or "nothing was ingested" in errors, f"{status}, {errors}")
    tables = tables_of(database)
    command(*words)
    expect(tables_of(database) == tables, "the same trace again changed a table")


_ROWS = re.compile(r"^rows +([\d,]+)", re.MULTILINE)


def _traces() -> Iterator[bytes]:
    yield json.dumps(_EVENTS).encode()
    yield json.dumps({"schemaVersion": 1, "traceEvents": _EVENTS, "end": 1}, indent=1).encode()


def _trace(data: bytes, folder: Path) -> None:
    trace, output = folder / "trace.json", folder / "trace.csv"
    trace.write_bytes(data)
    words = ("opatlas.cli.trace_to_csv", "--trace", trace, "--output", output)
    status, out, err = command(*words)
    expect(not err or str(trace) in err, f"an error that does not name the trace: {err}")
    files = files_of(folder)
    expect(files.keys() <= {trace.name, output.name}, f"files are left: {sorted(files)}")
    if output.exists():
        with open(output, encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        expect(len(set(header)) == len(header), "a column twice")
        expect(all(len(row) == len(header) for row in rows), "a row has not the header's columns")
        counted = _ROWS.search(out)
        expect(counted and int(counted[1].replace(",", "")) == len(rows), "the table has not the reported rows")
    again, _, _ = command(*words)
    expect(again == status and files_of(folder) == files, "the second table is another one")


_UNTOUCHED = {**captures.cells("9,9;9,9", "9,9"), "Remark": 'untouched, "to the letter" \u00e9'}


def _write_back(data: bytes, folder: Path) -> None:
    found = []
    for name in ("one", "two"):
        database = Database(folder / name)
        path = database.path / "MatMulV3.csv"
        _write_table(path, CELLS, _UNTOUCHED, CELLS)
        database.journal_dir.mkdir()
        (database.journal_dir / f"{RUN}.jsonl").write_bytes(data)
        recover(database, own_run="")
        found.append(tables_of(database.path))
        rows = [{name: cell for name, cell in row.items() if cell} for row in _read_table(path)]
        expect(_UNTOUCHED in rows or b"9,9" in data, "a row that no record is of was changed")
        before = files_of(database.path).keys() | {"journal/database.lock"}
        recover(database, own_run="")
        expect(files_of(database.path).keys() <= before, "a second recovery left files")
        expect(tables_of(database.path) == found[-1], "a second recovery changed a table")
    expect(found[0] == found[1], "the same journal gives another table")
    expect(sorted(path.name for path in folder.iterdir()) == ["one", "two"], "a file outside of the database")


_MEASURED = {
    "Average Duration(us)": "9.5",
    "MicroBench Median Duration(us)": "9.4",
    "MicroBench Min Duration(us)": "9.1",
    "MicroBench Std Duration(us)": "0.3",
    "MicroBench Samples": "20",
    "Profiling Average Duration(us)": "8.5",
    "Profiling Std Duration(us)": "1",
    "Cache State": "cold",
    "Status": "measured",
    "Quality": "",
}


def _checked_tables() -> Iterator[bytes]:
    for shapes in (("16,32;64,32", "16,64"), ("1,32;64,32", "1,64")):
        row = {**captures.cells(*shapes), **_MEASURED}
        noisy = {**row, "MicroBench Median Duration(us)": "99", "Quality": "noisy"}
        yield csv_text([list(row), list(row.values()), list(noisy.values())])


def _checks(data: bytes, folder: Path) -> None:
    # As a database of an H200 lies, whose peaks are known.
    path = folder / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0" / "MatMulV2.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    database = CheckedDatabase(path.parent)
    for check in CHECKS:
        for kernel_type in check.cases(database):
            for finding in split_findings(check, check.find(database, kernel_type), ()).new:
                expect(not math.isnan(finding.weight), f"{check.name}: a weight that orders nothing")


_COUNTERS = ("aiv_vec_ratio", "aiv_mte2_ratio", "aic_mac_ratio", "aiv_write_cache_hit", "aiv_write_cache_miss_allocate")
_DIAGNOSED = [
    {**captures.launched("MatMulV3", 30.5), "Block Dim": "20", "aic_mac_ratio": "0.9"},
    {**captures.launched("Add", 3), "Accelerator Core": "AI_VECTOR_CORE", "Block Dim": "1", "aiv_mte2_ratio": "0.85"},
    {**captures.launched("Cast", 40), "Accelerator Core": "AI_CPU", "Wait Time(us)": "12.5"},
    captures.launch({**captures.COLLECTIVE, "aiv_vec_ratio": "N/A"}),
]


def _diagnosed() -> Iterator[bytes]:
    yield captures.capture_text(_DIAGNOSED, (*captures.KERNEL_DETAILS[:-1], *_COUNTERS)).encode()
    yield captures.summary_text(_DIAGNOSED).encode()


def _diagnosis(data: bytes, folder: Path) -> None:
    path = folder / "kernel_details.csv"
    path.write_bytes(data)
    peaks = ("--peaks", "ATLAS_800_A2_313T_64G")
    status, out, errors = command("diagnose", path, *peaks, "--json")
    expect(status in (0, 1), f"exit status {status}")
    expect(not status or str(path) in errors, f"no place: {errors}")
    if not out:
        return
    found = json.loads(out)
    ranking, kernels = found["ranking"], found["kernels"]
    expect(sum(each["launches"] for each in ranking) == kernels, "launches of the ranking do not add up")
    lost = [each["lost_us"] for each in ranking]
    expect(lost == sorted(lost, reverse=True), "the ranking is in another order")
    expect(all(0 <= each["lost_us"] <= each["duration_us"] * 1.000001 for each in ranking), "more lost than it took")
    most = kernels + found["collectives"]
    expect(all(each["kernels"] <= most for each in found["verdicts"].values()), "more kernels than there are")
    status, out, _ = command("diagnose", path, *peaks, *(("--row", "1") if ranking else ()))
    expect(out, f"exit status {status}, and nothing to read")


def _timelines() -> Iterator[bytes]:
    dense = decode_steps(layers=2, steps=2)
    dense.insert(9, collective("hcom_allReduce_", 10.0, -4.0, "0"))
    yield captures.capture_text(launches_of(dense)).encode()
    yield captures.summary_text(launches_of(decode_steps(layers=3, steps=1, layer=MOE_LAYER))).encode()


def _timeline(data: bytes, folder: Path) -> None:
    path = folder / "kernel_details.csv"
    path.write_bytes(data)
    status, out, errors = command("diagnose", path, "--superkernel", "--json")
    expect(status in (0, 1), f"exit status {status}")
    if status:
        expect(str(path) in errors, f"no place: {errors}")
        return
    found = json.loads(out)
    for scope in found["scopes"]:
        expect(scope["fused_kernels"] <= scope["kernels"], f"more fused than there are: {scope}")
        expect(scope["saved_us"] <= scope["gaps_us"] + 1e-6, f"saves more than its gaps: {scope}")


_OF_CAPTURES = (b"MatMulV3", b"Type", b"OP Type", b"Duration(us)", b"Context ID", b"Input Shapes", b"DT_BF16", b"16,64")
_OF_SAMPLES = (b"durations_us", b"counters", b"replaced", b"sources", b"cells", b"finished_at")
_OF_RECORDS = (
    b'"query_shape"',
    b'"actual_seq_lengths_kv"',
    b'"block_table_valid_blocks"',
    b'"input_layout"',
    b"[1, 2]",
)
_OF_TRACES = (b'"ph": "X"', b'"dur"', b'"args"', b'"traceEvents"', b'"Input Dims"', b'"a\\rb": 1,')
_OF_GPU_TRACES = (b'"kernel"', b'"Input Dims"', b'"correlation"', b'"deviceProperties"', b"1e999", b"-1", b"9" * 20)
_OF_TIMES = (
    b"Block Dim",
    b"AI_CPU",
    b"MIX_AIC",
    b"Wait Time(us)",
    b"Step Id",
    b"static",
    b"nan",
    b"inf",
    b"-1",
    b"1e300",
)
_OF_CHECKS = (b"1e308", b"nan", b"-inf", b"999999999999999999", b";", b"0", b"cold", b"failed", b"bimodal")
COMMANDS = (
    Target("capture", "every row accounted for, others' cells kept, again no change", _captures, _ingest, _OF_CAPTURES),
    Target("ingest-samples", "added to, or named with nothing changed", _samples, _beside_samples, _OF_SAMPLES),
    Target("attention-records", "others' columns kept, again no change", packed(_records), _fill, _OF_RECORDS),
    Target("gpu-trace", "ingested, or named; again no change", _gpu_traces, _gpu_trace, _OF_GPU_TRACES),
    Target("trace", "rows of the header's columns, no file left", packed(_traces), _trace, _OF_TRACES),
    Target("write-back", "journal to CSV: twice the same, others' rows kept", journals, _write_back, OF_JOURNALS),
    Target("checks", "every check looks at a table with any cells", _checked_tables, _checks, _OF_CHECKS),
    Target("diagnosis", "no launch lost, none loses more than it takes", _diagnosed, _diagnosis, _OF_TIMES),
    Target("timeline", "nested counts, nothing saved but gaps", _timelines, _timeline, _OF_TIMES),
)
