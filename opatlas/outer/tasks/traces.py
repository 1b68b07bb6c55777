"""Traces of `opatlas export`: what was measured of definitions, in the schema of flashinfer-bench and SOL-ExecBench.

A line of a trace is a workload of a definition, a solution, and its evaluation. Sources: those of definitions.py.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opatlas.ask.compare.databases import implementations_of
from opatlas.ask.compare.regressions import run_facts
from opatlas.data.csv_files import write_text
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest, read_manifests
from opatlas.data.origin import run_origins
from opatlas.errors import OpAtlasError
from opatlas.outer.tasks.definitions import definition_name, is_definition, read_solution, workload_lines
from opatlas.outer.tasks.task import Task, read_tasks
from opatlas.row.columns import ERROR_CLASS, MAX_ERROR, MICROBENCH_MEDIAN, RUN_ID, STATUS, TASK_DIGEST, TASK_INPUTS
from opatlas.row.quality import valid_duration
from opatlas.row.status import Status
from opatlas.run.implementation_catalog import candidate_name
from opatlas.show.result import Result, Table
from opatlas.text import parse_real


def write_traces(database: Path, definitions: Path, output: Path) -> Result:
    """Writes what was measured of definitions as traces, one JSON a line.

    Each candidate in its newest version is a solution, which has its name in the folder of definitions if it is there;
    the reference is the Model of the task.

    Args:
        database: the database of `opatlas bench --tasks DEFINITIONS`.
        definitions: the same folder, or file, of definitions.

    Raises:
        OpAtlasError: nothing fits, or a file could not be read or written.
    """
    problems: list[str] = []
    base, *rivals = implementations_of(database)
    lines = []
    files = definitions.rglob("*.json") if definitions.is_dir() else ()
    solutions = {candidate_name(each.name): each.name for file in files if (each := read_solution(file))}
    runs = {rival.path: read_manifests(Database(rival.path), problems) for rival in rivals}
    for task in (each for each in read_tasks(definitions) if is_definition(each.path)):
        reference, named = _rows(Database(base.path), task), definition_name(task.path)
        workloads = [json.loads(line) for line in workload_lines(task.path)]
        for rival in rivals:
            manifests = runs[rival.path]
            # A row that failed names no run.
            newest = max(manifests.values(), key=lambda each: each.started_at, default=None)
            for number, cells in sorted(_rows(Database(rival.path), task).items()):
                evaluation = _evaluation(cells, reference.get(number, {}), manifests.get(cells.get(RUN_ID, ""), newest))
                if evaluation is not None:
                    workload = workloads[number].get("workload", workloads[number])
                    solution = solutions.get(rival.name.rpartition("-")[2], f"{rival.name}-{rival.version}")
                    solved = {"definition": named, "workload": workload, "solution": solution}
                    lines.append({**solved, "evaluation": evaluation})
    if not lines:
        raise OpAtlasError(f"{database}: has no candidate of {definitions}: nothing was written")
    write_text(output, "".join(f"{json.dumps(line)}\n" for line in lines))
    return Result([Table(("file", "traces"), [(str(output), len(lines))])], problems=problems)


def _rows(database: Database, task: Task) -> dict[int, Mapping[str, str]]:
    """Returns the rows of a task by the number of the workload."""
    rows = database.read_or_empty(task.kernel_type).rows()
    return {int(row[TASK_INPUTS]): row for row in rows if row.get(TASK_DIGEST) == task.digest}


#: The status of a trace, by the beginning of a candidate's error class.
_STATUS = {
    "pass": "PASSED",
    "mismatch": "INCORRECT_NUMERICAL",
    "interface/shape": "INCORRECT_SHAPE",
    "interface/dtype": "INCORRECT_DTYPE",
    "timeout": "TIMEOUT",
    **dict.fromkeys(("syntax", "import", "compile"), "COMPILE_ERROR"),
}


def _evaluation(
    cells: Mapping[str, str], reference: Mapping[str, str], manifest: Manifest | None
) -> dict[str, Any] | None:
    """Returns the evaluation of a trace; None for a row that no candidate ran on.

    Correctness has what OpAtlas knows: the largest error as a share of the allowed one.
    """
    if Status.from_cell(cells.get(STATUS, "")) in (None, Status.SKIPPED, Status.UNSUPPORTED) or manifest is None:
        return None
    error_class = cells.get(ERROR_CLASS, "")
    status = next((word for begin, word in _STATUS.items() if error_class.startswith(begin)), "RUNTIME_ERROR")
    us, reference_us = (valid_duration(each.get(MICROBENCH_MEDIAN, "")) for each in (cells, reference))
    performance = None
    if status == "PASSED":
        # The schema has no such status without a latency.
        if us is None:
            return None
        performance = {"latency_ms": us / 1e3}
        if reference_us is not None:
            performance |= {"reference_latency_ms": reference_us / 1e3, "speedup_factor": reference_us / us}
    correctness, error = None, parse_real(cells.get(MAX_ERROR, ""))
    if status in ("PASSED", "INCORRECT_NUMERICAL"):
        # JSON has no infinity.
        correctness = {"extra": {"error_of_allowed": error if error is not None and math.isfinite(error) else None}}
    versions = {name: text for origin in run_origins(manifest) for name, text in origin.versions.items()}
    return {
        "status": status,
        "environment": {"hardware": run_facts(manifest).get("device", "unknown"), "libs": versions},
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(manifest.started_at)),
        "log": "",
        "correctness": correctness,
        "performance": performance,
    }
