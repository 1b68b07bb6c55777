"""Chrome traces into tables."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .target import Target, command, expect, files_of, packed

_EVENTS = [
    {"ph": "M", "name": "process_name", "args": {"name": "Ascend Hardware"}},
    {"ph": "X", "name": "aclnnAdd_AddAiCore_Add", "ts": "1764246877073569.640", "dur": 2.5, "pid": 7, "tid": 2},
    {
        "ph": "X",
        "name": "gemm",
        "ts": 1.25,
        "dur": 0,
        "args": {"Input Dims": [[2, 3], [], [[4], [5]]], "External id": 9},
    },
    {
        "ph": "X",
        "name": "aten::add",
        "ts": 2,
        "dur": "12.25",
        "cat": "cpu_op",
        "args": {"Stream Id": 5, "a": [1, {"b": 2}]},
    },
    {"ph": "s", "name": "HostToDevice"},
]
_ROWS = re.compile(r"^rows +([\d,]+)", re.MULTILINE)


def _seeds() -> Iterator[bytes]:
    yield json.dumps(_EVENTS).encode()
    yield json.dumps({"schemaVersion": 1, "traceEvents": _EVENTS, "end": 1}, indent=1).encode()


def _check(name: str, data: bytes, folder: Path) -> None:
    trace, output = folder / name, folder / "trace.csv"
    trace.write_bytes(data)
    status, out, err = command("opatlas.cli.trace_to_csv", "--trace", trace, "--output", output)
    expect(not err or str(trace) in err, f"an error that does not name the trace: {err}")
    files = files_of(folder)
    expect(files.keys() <= {name, "trace.csv"}, f"files are left: {sorted(files)}")
    if output.exists():
        with open(output, encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        expect(len(set(header)) == len(header), "a column twice")
        expect(all(len(row) == len(header) for row in rows), "a row has not the header's columns")
        counted = _ROWS.search(out)
        expect(counted and int(counted[1].replace(",", "")) == len(rows), "the table has not the reported rows")
    again, _, _ = command("opatlas.cli.trace_to_csv", "--trace", trace, "--output", output)
    expect(again == status and files_of(folder) == files, "the second table is another one")


_WORDS = (
    b'"ph": "X"',
    b'"dur"',
    b'"args"',
    b'"traceEvents"',
    b'"Input Dims"',
    b'"op_name"',
    b'"more_args"',
    b"\\r",
    b'"a\\rb": 1,',
)
TRACE = Target(
    "trace",
    "trace_to_csv: a table whose rows have the header's columns, the events before the damage, no file left",
    _seeds,
    partial(_check, "trace.json"),
    _WORDS,
)
PACKED_TRACE = Target("trace-gz", "the same, packed by gzip", packed(_seeds), partial(_check, "trace.json.gz"), _WORDS)
