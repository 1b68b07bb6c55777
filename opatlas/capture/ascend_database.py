"""Databases of Ascend's profilers, as the table that kernel_details.csv of the same profile holds.

ascend_pytorch_profiler_{rank}.db, ascend_mindspore_profiler_{rank}.db, and msprof_{time}.db of msprof: SQLite, texts
are ids of STRING_IDS, times are nanoseconds since 1970. COMPUTE_TASK_INFO has a line for each task, which TASK may have
executed several times. `cube_utilization(%)` is in no database.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from opatlas.errors import TableError
from opatlas.row.columns import PIPE_UTILIZATION

if TYPE_CHECKING:
    import sqlite3

#: When the host's call began that launched a kernel. A CSV does not have it.
LAUNCHED = "Launch Time(us)"
#: The columns of text that are ids, with their names in COMPUTE_TASK_INFO.
_TEXTS = {
    "Name": "name",
    "Type": "opType",
    "Accelerator Core": "taskType",
    "OP State": "opState",
    "Input Shapes": "inputShapes",
    "Input Data Types": "inputDataTypes",
    "Input Formats": "inputFormats",
    "Output Shapes": "outputShapes",
    "Output Data Types": "outputDataTypes",
    "Output Formats": "outputFormats",
}
_REQUIRED = {
    "STRING_IDS": ["id", "value"],
    "TASK": ["startNs", "endNs", "globalTaskId"],
    "COMPUTE_TASK_INFO": ["globalTaskId", *(name for name in _TEXTS.values() if name != "opState")],
}
_LEVEL_1 = "Take the capture again with profiler_level=ProfilerLevel.Level1, or --task-time=l1 of msprof"
#: The other columns, as SQL.
_OWN = {
    "Step Id": "''",
    "Device_id": "IFNULL(l.device, 'N/A')",
    "Stream ID": "IFNULL(l.stream, 'N/A')",
    "Start Time(us)": "printf('%d.%03d', l.start / 1000, l.start % 1000)",
    LAUNCHED: "''",
}
_NUMBERS = {
    "Duration(us)": "(l.stop - l.start) / 1e3",
    "Wait Time(us)": "MAX(l.start - LAG(l.stop, 1, l.start) OVER (ORDER BY l.start), 0) / 1e3",
    "Block Dim": "CAST(l.block AS REAL)",
    "Mix Block Dim": "CAST(l.mixed AS REAL)",
}
#: The id of the core of a collective.
_COMMUNICATION = -1
_ROWS = 50_000
#: No group of metrics has as many.
_MOST_COUNTERS = 200
_CYCLES = {"aic_total_time": "aicore_time(us)", "aiv_total_time": "aiv_time(us)"}
#: Counters of units that a vector core does not have.
_NO_UNIT = re.compile(r"aiv_(mac|mte1)_")


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Yields a database for reading. Raises TableError: it is incomplete, or no database."""
    import sqlite3

    for end in ("-journal", "-wal"):
        if Path(f"{path}{end}").exists():
            remedy = "Wait until it has been written; if what wrote it was killed, take or export the capture again"
            raise TableError(path, f"incomplete: {path.name}{end} is beside it", remedy)
    try:
        # Without `immutable` SQLite may write beside the file.
        connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise TableError(path, f"cannot be opened ({error})", "Check the path and its permissions") from None
    try:
        connection.text_factory = lambda text: text.decode(errors="replace")
        # What the schema of a capture calls is not run.
        connection.execute("PRAGMA trusted_schema = OFF")
        yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise TableError(path, f"cannot be read as SQLite ({error})", "Take or export the capture again") from None
    finally:
        connection.close()


def columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    """Returns the columns of a table; none if there is no such table. A view is none."""
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")} if found else set()


def database_columns(path: Path) -> list[str]:
    """Returns the columns of kernel_details that a database has, counters last.

    Raises:
        TableError: the file is no such database, is incomplete, or was taken at level 0.
    """
    with opened(path) as connection:
        for table, columns in _REQUIRED.items():
            found = columns_of(connection, table)
            if missing := [name for name in columns if name not in found]:
                problem = f"{table} has no {', '.join(missing)}" if found else f"no table {table}"
                raise TableError(path, problem, _LEVEL_1)
        return [*_OWN, *_TEXTS, *_NUMBERS, *_counters(connection)]


def database_tables(path: Path, types: Mapping[str, pa.DataType]) -> Iterator[dict[str, pa.Array]]:
    """Yields the launches in the order of their start, some thousand at a time.

    Args:
        types: the wanted columns, each as float64 or as words.
    """
    with opened(path) as connection:
        counters = _counters(connection)
        words = {
            _COMMUNICATION: "COMMUNICATION",
            None: "N/A",
            **dict(connection.execute("SELECT id, IFNULL(CAST(value AS TEXT), '') FROM STRING_IDS")),
        }
        rows = connection.execute(_query(connection, types, counters))
        while batch := rows.fetchmany(_ROWS):
            found = {}
            for name, values in zip(types, zip(*batch, strict=True), strict=True):
                if types[name] == pa.float64():
                    found[name] = pa.array(values, type=pa.float64())
                else:
                    texts = [words.get(value, "") for value in values] if name in _TEXTS else map(str, values)
                    found[name] = pa.array(texts, type=pa.string()).dictionary_encode()
            yield found


def _counters(connection: sqlite3.Connection) -> dict[str, str]:
    """Returns the counters by their names in kernel_details, each as SQL."""
    if not {"name", "value", "globalTaskId"} <= columns_of(connection, "TASK_PMU_INFO"):
        return {}
    text = "IFNULL(CAST(value AS TEXT), '')"
    names = f"SELECT CAST(id AS INTEGER), {text} FROM STRING_IDS WHERE id IN (SELECT name FROM TASK_PMU_INFO) LIMIT ?"
    found = {}
    for number, name in connection.execute(names, (_MOST_COUNTERS,)):
        unit = "(us)" if name.endswith("_time") else "(GB/s)" if re.search(r"_bw(_[a-z]+)?\Z", name) else ""
        if not _NO_UNIT.match(name):
            own = _CYCLES.get(name, name.removesuffix("_extra") + unit)
            found[own] = f"AVG(CASE WHEN name = {number} THEN value END){' / 1e3' if unit == '(us)' else ''}"
    # In the order of the CSV.
    return {name: found[name] for name in dict.fromkeys([*PIPE_UTILIZATION, *sorted(found)]) if name in found}


def _query(connection: sqlite3.Connection, wanted: Collection[str], counters: Mapping[str, str]) -> str:
    task = columns_of(connection, "TASK")
    of_task = ["t.startNs", "t.endNs", *_first("t", task, "deviceId", "streamId", "connectionId", "globalTaskId")]
    parts = []
    for table in ("COMPUTE_TASK_INFO", "COMMUNICATION_SCHEDULE_TASK_INFO"):
        if of := columns_of(connection, table):
            blocks = _first("c", of, ("blockNum", "blockDim"), ("mixBlockNum", "mixBlockDim"))
            cells = ", ".join([*of_task, *blocks, *_first("c", of, *_TEXTS.values())])
            # Contexts of one execution have equal lines.
            parts.append(f"SELECT DISTINCT {cells} FROM {table} c JOIN TASK t ON t.globalTaskId = c.globalTaskId")
    if of := columns_of(connection, "COMMUNICATION_OP"):
        cells = ", ".join(
            [
                *_first("c", of, "startNs", "endNs", "deviceId", "streamId", "connectionId"),
                *("NULL", "NULL", "NULL"),
                *_first("c", of, "opName", "opType"),
                str(_COMMUNICATION),
                *["NULL"] * (len(_TEXTS) - 3),
            ]
        )
        parts.append(f"SELECT {cells} FROM COMMUNICATION_OP c")
    names = ["start", "stop", "device", "stream", "connection", "task", "block", "mixed", *_TEXTS.values()]
    integers = [f"CAST(IFNULL({name}, 0) AS INTEGER) AS {name}" for name in names[:2]]
    events = f"WITH e({', '.join(names)}) AS ({' UNION ALL '.join(parts)})"
    launches = f"{events}, l AS (SELECT {', '.join([*integers, *names[2:]])} FROM e)"
    cells_of = {**_OWN, **{name: f"l.{column}" for name, column in _TEXTS.items()}, **_NUMBERS}
    joined = ""
    if {"id", "startNs"} <= columns_of(connection, "STEP_TIME"):
        # Kernels may run after the host's step.
        cells_of["Step Id"] = (
            "IFNULL((SELECT id FROM STEP_TIME WHERE startNs <= l.start ORDER BY startNs DESC LIMIT 1), '')"
        )
    if LAUNCHED in wanted and {"connectionId", "startNs"} <= columns_of(connection, "CANN_API"):
        # Of nested calls the innermost one launches.
        calls = "SELECT connectionId, MAX(startNs) AS at FROM CANN_API GROUP BY 1"
        joined = f" LEFT JOIN ({calls}) a ON a.connectionId = l.connection"
        cells_of[LAUNCHED] = "IIF(a.at IS NULL, '', printf('%d.%03d', a.at / 1000, a.at % 1000))"
    if used := {name: f"counter{place}" for place, name in enumerate(counters) if name in wanted}:
        # Newer databases tell of which execution of a task a value is.
        timed = "timestampNs" in columns_of(connection, "TASK_PMU_INFO")
        by = "globalTaskId, timestampNs" if timed else "globalTaskId"
        means = ", ".join(f"{counters[name]} AS {column}" for name, column in used.items())
        joined += f" LEFT JOIN (SELECT {by}, {means} FROM TASK_PMU_INFO GROUP BY {by}) p ON p.globalTaskId = l.task"
        joined += " AND p.timestampNs BETWEEN l.start AND l.stop" if timed else ""
        cells_of |= {name: f"p.{column}" for name, column in used.items()}
    return f"{launches} SELECT {', '.join(cells_of[name] for name in wanted)} FROM l{joined} ORDER BY l.start"


def _first(table: str, columns: Collection[str], *names: str | tuple[str, ...]) -> list[str]:
    """Returns for each name the column, or the first of several names that a table has; NULL without any."""
    choices = [(name,) if isinstance(name, str) else name for name in names]
    return [next((f"{table}.{name}" for name in each if name in columns), "NULL") for each in choices]
