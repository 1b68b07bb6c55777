"""`python -m opatlas.cli.trace_to_csv`: a Chrome trace as a table, with a row for each complete event."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from opatlas.capture.traces import TruncatedTraceError, read_events
from opatlas.cli.app import run_tool
from opatlas.data.csv_files import write_atomically
from opatlas.errors import OpAtlasError, usage_errors
from opatlas.files import open_stream, size_mb
from opatlas.progress import progress
from opatlas.row.quality import LONGEST_US
from opatlas.show.result import Fields, Result
from opatlas.text import parse_real

#: The first columns. The args follow, each in a column of its name, in order of appearance.
COLUMNS = ("op_name", "kernel_type", "dur_us", "shapes", "ts_us", "pid", "tid", "category")
_TYPE_ARGS = ("kernel_type", "Kernel Type", "OP Type", "Op Type", "op_type", "Type")
_SHAPE_ARGS = ("Input Shapes", "Input Dims", "input_shapes", "Input shapes", "shapes")
_MALFORMED_NAMED = 10
#: Some versions of csv do not quote a lone carriage return, or read a NUL. UTF-8 has no half of a surrogate pair.
_NOT_PLAIN = re.compile("[\r\0\ud800-\udfff]")


def columns_of(events: Iterable[Any]) -> dict[str, str]:
    """Returns the column of each arg of the events, in order of appearance."""
    columns: dict[str, str] = {}
    for key in (key for event in events if _problem(event) == "" for key in _args(event)):
        if key not in columns:
            name = _text(key).replace("\n", "\\n")
            name = f"args.{name}" if name in COLUMNS else name
            # Two args may differ only in characters that a header cannot have.
            while name in columns.values():
                name += "_"
            columns[key] = name
    return columns


def cells_of(event: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """Returns the row of a complete event with the args of these keys."""
    name, args = _text(event.get("name")), _args(event)
    cells = [name, _kernel_type(name, args), _text(event["dur"]), _shapes(args)]
    cells += [_text(event.get(key)) for key in ("ts", "pid", "tid", "cat")]
    return [*cells, *(_text(args.get(key)) for key in keys)]


def _problem(event: Any) -> str | None:
    """Returns why an event is no row; "" for one that is; None for an event of another phase."""
    if not isinstance(event, dict):
        return "not a JSON object"
    if event.get("ph") != "X":
        return None
    if not (duration := _text(event.get("dur"))):
        return "a complete event without dur"
    us = parse_real(duration)
    is_duration = us is not None and 0 <= us <= LONGEST_US
    return "" if is_duration else f"dur is {duration!r}, not a number of microseconds from 0 to an hour"


def _args(event: Mapping[str, Any]) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _kernel_type(name: str, args: Mapping[str, Any]) -> str:
    if (key := next((key for key in _TYPE_ARGS if key in args), None)) is not None:
        return _text(args[key])
    # Names of NPU kernels consist of API, variant and type: aclnnMatmul_MatMulV3Common_MatMulV3.
    return name.rpartition("_")[2] if name.startswith("aclnn") and name.count("_") >= 2 else ""


def _shapes(args: Mapping[str, Any]) -> str:
    """Returns shapes as in the database: `136,7168;7168,3584`."""
    value = next((args[key] for key in _SHAPE_ARGS if key in args), None)
    return ";".join(_slots(value)) if isinstance(value, list) else _text(value).strip('"')


def _slots(shapes: Sequence[Any]) -> list[str]:
    """Returns the dimensions of each tensor; the tensors of a list follow one another."""
    slots = []
    for shape in shapes:
        if isinstance(shape, list) and any(isinstance(part, list) for part in shape):
            slots += _slots(shape)
        else:
            slots.append(",".join(map(_text, shape)) if isinstance(shape, list) else _text(shape))
    return slots


def _text(value: Any) -> str:
    if value is None:
        return ""
    is_plain = isinstance(value, (str, int, Decimal)) and not isinstance(value, bool)
    text = str(value) if is_plain else json.dumps(value, ensure_ascii=False, default=float)
    if not _NOT_PLAIN.search(text):
        return text
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\\0")
    return text.encode(errors="backslashreplace").decode()


def trace_to_csv(*, trace: Path, output: Path | None = None) -> Result:
    """Flattens a Chrome trace into CSV: a row for each complete event, a column for each arg.

    Traces of torch.profiler and torch_npu.profiler (trace_view.json) of any size are read, packed by gzip or not. The
    columns: op_name, kernel_type (an arg, or the last word of a name such as aclnnAdd_AddAiCore_Add), dur_us, shapes
    (136,7168;7168,3584), ts_us, pid, tid, category, then the args.

    Exit status: 0 every complete event is in; 1 something was left out because of an error (a trace that was cut off
    keeps what is there), or the table cannot be written; 2 wrong usage.

    Args:
        trace: the trace: .json or .json.gz.
        output: the table (default: beside the trace, with the ending .csv).
    """
    output = output or trace.with_name(f"{trace.name.removesuffix('.gz').removesuffix('.json')}.csv")
    with usage_errors():
        total_mb = size_mb(trace)
        if output.exists() and output.samefile(trace):
            raise OpAtlasError(f"{output}: is the trace itself: name another file with --output")
    columns: dict[str, str] = {}
    counts, malformed, truncated = Counter[str](), list[str](), list[str]()

    def write(temporary: str) -> None:
        # The trace is read twice: all columns are known only after its last event.
        with open(temporary, "w", encoding="utf-8", newline="") as file, progress("read, MB", 2 * total_mb) as advance:

            def events() -> Iterator[Any]:
                try:
                    with open_stream(trace, lambda size: advance(size / 1e6)) as stream:
                        yield from read_events(trace, stream)
                except TruncatedTraceError as error:
                    truncated[:] = [str(error)]

            columns.update(columns_of(events()))
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*COLUMNS, *columns.values()])
            for number, event in enumerate(events(), start=1):
                problem = _problem(event)
                try:
                    cells = cells_of(event, columns) if problem == "" else []
                except RecursionError:
                    problem = "its values are nested too deep"
                counts["other events" if problem is None else "malformed" if problem else "rows"] += 1
                if problem == "":
                    writer.writerow(cells)
                elif problem and len(malformed) < _MALFORMED_NAMED:
                    malformed.append(f"{trace}: event {number}: {problem}")

    write_atomically(output, write)
    if more := counts["malformed"] - len(malformed):
        malformed.append(f"{trace}: {more:,} more malformed events")
    told = {"rows": counts["rows"], "columns": len(COLUMNS) + len(columns), "other events": counts["other events"]}
    return Result([Fields({**told, "table": str(output)})], problems=[*truncated, *malformed])


if __name__ == "__main__":
    sys.exit(run_tool(trace_to_csv, "python -m opatlas.cli.trace_to_csv"))
