"""Exports of Nsight Systems (`nsys export --type sqlite`): when kernels ran, and the operators of their NVTX ranges.

`torch.autograd.profiler.emit_nvtx(record_shapes=True)` writes the sizes of an operator's inputs into its range, but no
dtypes, so that no launch is a row. Times are nanoseconds since the recording began.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opatlas.capture.ascend_database import columns_of, opened
from opatlas.capture.launches import CapturedLaunches, SkipReason
from opatlas.capture.single_launches import Launch, Launches, device_times
from opatlas.capture.torch_launches import COMMUNICATION, OF_NCCL
from opatlas.errors import TableError
from opatlas.row.columns import ACCELERATOR_CORE, INPUT_SHAPES
from opatlas.row.location import slug
from opatlas.text import kernel_name

if TYPE_CHECKING:
    import sqlite3

#: The tables of device events, and the name of each event where its table has one for all.
_EVENTS = {"KERNEL": "", "MEMCPY": "Memcpy", "MEMSET": "Memset", "GRAPH_TRACE": "CUDA graph"}
_COPIES = {1: "Memcpy HtoD", 2: "Memcpy DtoH", 8: "Memcpy DtoD", 10: "Memcpy PtoP"}
_BY_NODE = "profile with --cuda-graph-trace=node"
#: `aten::mm, seq = 12, op_id = 5, sizes = [[8, 16], [16, 4]]`
_OPERATOR = re.compile(r"(?P<name>[\w.:]+)(, seq = \d+)?(, op_id = \d+)?(, sizes = (?P<sizes>\[.*\]))?")
#: What an NVTX range of a thread is that is pushed and popped.
_PUSHED = 59


class _Range(NamedTuple):
    start: int
    end: int
    text: str
    outer: int


def nsys_launches(path: Path) -> Launches:
    """Reads the device events of an export, in the order of their start.

    Raises:
        TableError: the file cannot be read, or has no device events.
    """
    with opened(path) as database:
        parts = list(filter(None, (_query(database, table, name) for table, name in _EVENTS.items())))
        if not parts:
            remedy = f"Record with --trace=cuda,nvtx; of CUDA graphs, {_BY_NODE}; export with --type sqlite"
            raise TableError(path, "no kernels", remedy)
        words = "SELECT id, IFNULL(CAST(value AS TEXT), '') FROM StringIds"
        names = dict(database.execute(words)) if {"id", "value"} <= columns_of(database, "StringIds") else {}
        ranges, calls = _ranges(database, names), _calls(database)
        launches = []
        for start, end, device, stream, correlation, process, name, kind in database.execute(
            f"{' UNION ALL '.join(parts)} ORDER BY 1"
        ):
            kernel = names.get(name, "") if kind is None else _COPIES.get(name, kind)
            launched, thread = calls.get((correlation, (process or 0) >> 24), (None, None))
            operator, sizes, step = _operator(ranges.get(thread, []), launched)
            launches.append(
                Launch(
                    device=str(device),
                    start_ns=start,
                    duration_us=max(end - start, 0) / 1e3,
                    kernel_type=operator or kernel_name(kernel),
                    cells={INPUT_SHAPES: sizes, ACCELERATOR_CORE: COMMUNICATION if OF_NCCL.match(kernel) else ""},
                    counters={},
                    name=kernel,
                    step=step,
                    stream=str(stream),
                    launched_ns=launched,
                )
            )
        gpu = "SELECT CAST(name AS TEXT) FROM TARGET_INFO_GPU"
        found = database.execute(gpu).fetchone() if "name" in columns_of(database, "TARGET_INFO_GPU") else None
        whole = sum(launch.name == _EVENTS["GRAPH_TRACE"] for launch in launches)
    problems = (f"{path}: {whole:,} CUDA graphs without their kernels: {_BY_NODE}",) if whole else ()
    return Launches(tuple(launches), problems, slug(found[0]) if found and found[0] else "")


def read_nsys(path: Path, root: Path, on_bytes: Callable[[int], None]) -> CapturedLaunches:
    """Reads the launches of an export (`CaptureReader`), none of which is a row."""
    read = nsys_launches(path)
    launches = CapturedLaunches(path, root)
    for launch in read.launches:
        reason = SkipReason.NO_DTYPES
        if launch.cells[ACCELERATOR_CORE]:
            reason = SkipReason.COLLECTIVE
        elif launch.name.startswith("Memcpy"):
            reason = SkipReason.MEMORY_COPY
        launches.counts.add(reason, f"{launch.kernel_type} {launch.dimensions}".rstrip(), 1, launch.duration_us)
    events = ((int(each.device), each.start_ns, each.duration_us * 1e3) for each in read.launches)
    launches.counts.devices += device_times(path.name, None, *zip(*events, strict=True))
    on_bytes(path.stat().st_size)
    return launches


def _query(database: sqlite3.Connection, table: str, name: str) -> str:
    """Returns the query of the events of a table; "" if the export does not have it."""
    columns = columns_of(database, f"CUPTI_ACTIVITY_KIND_{table}")
    if not {"start", "end"} <= columns:
        return ""
    named = next((each for each in ("demangledName", "shortName", "copyKind") if each in columns), "NULL")
    cells = [each if each in columns else "0" for each in ("deviceId", "streamId", "correlationId", "globalPid")]
    times = 'CAST(IFNULL(start, 0) AS INTEGER), CAST(IFNULL("end", 0) AS INTEGER)'
    kind = f"'{name}'" if name else "NULL"
    integers = ", ".join(f"CAST(IFNULL({cell}, 0) AS INTEGER)" for cell in cells)
    return f"SELECT {times}, {integers}, {named}, {kind} FROM CUPTI_ACTIVITY_KIND_{table}"


def _calls(database: sqlite3.Connection) -> dict[tuple[int, int], tuple[int, int]]:
    """Returns start and thread of the host's calls, by correlation and process."""
    columns = columns_of(database, "CUPTI_ACTIVITY_KIND_RUNTIME")
    if not {"start", "correlationId", "globalTid"} <= columns:
        return {}
    start, thread = (f"CAST(IFNULL({name}, 0) AS INTEGER)" for name in ("start", "globalTid"))
    query = f"SELECT CAST(correlationId AS INTEGER), {thread}, {start} FROM CUPTI_ACTIVITY_KIND_RUNTIME"
    return {(number, thread >> 24): (start, thread) for number, thread, start in database.execute(query)}


def _ranges(database: sqlite3.Connection, names: Mapping[int, str]) -> dict[Any, list[_Range]]:
    """Returns the ranges of each thread by start, each with the place of the range around it (-1: none)."""
    columns = columns_of(database, "NVTX_EVENTS")
    if not {"start", "end", "text", "globalTid"} <= columns:
        return {}
    number = "textId" if "textId" in columns else "NULL"
    pushed = f"AND eventType = {_PUSHED}" if "eventType" in columns else ""
    query = (
        f'SELECT globalTid, CAST(start AS INTEGER), CAST("end" AS INTEGER), CAST(text AS TEXT), {number} '
        f'FROM NVTX_EVENTS WHERE CAST("end" AS INTEGER) > CAST(start AS INTEGER) {pushed} ORDER BY 1, 2, 3 DESC'
    )
    found: dict[Any, list[_Range]] = {}
    for thread, start, end, text, number in database.execute(query):
        of_thread = found.setdefault(thread, [])
        outer = len(of_thread) - 1
        while outer >= 0 and of_thread[outer].end < end:
            outer = of_thread[outer].outer
        of_thread.append(_Range(start, end, names.get(number, "") if text is None else text, outer))
    return found


def _operator(ranges: list[_Range], at: int | None) -> tuple[str, str, str]:
    """Returns operator, sizes and step of a host's call: the innermost operator around it, and the outermost range."""
    place = -1 if at is None else bisect_right(ranges, at, key=lambda each: each.start) - 1
    operator, sizes, step = "", "", ""
    while place >= 0:
        around = ranges[place]
        place = around.outer
        if at is None or around.end < at:
            continue
        told = _OPERATOR.fullmatch(around.text)
        if told is None or not (told["sizes"] or "::" in told["name"]):
            # Two steps may have one name.
            step = f"{around.text} at {around.start / 1e6:.3f} ms"
        elif not operator or not sizes.strip(";"):
            operator, sizes = told["name"], ";".join(_shapes(told["sizes"] or "[]"))
    return operator, sizes, step


def _shapes(text: str) -> Iterator[str]:
    """Yields the shapes of `[[8, 16], [], [[4], [4]]]`; those of a list of tensors one after the other."""
    try:
        given = msgspec.json.decode(text, type=list[list[int | list[int]]])
    except msgspec.DecodeError:
        return
    for each in given:
        if any(isinstance(size, list) for size in each):
            yield from (",".join(map(str, shape)) for shape in each if isinstance(shape, list))
        else:
            yield ",".join(map(str, each))
