"""Adds the rows whose measurement tells the most of what steps of models cost; `opatlas bench` measures them.

A row counts by its share of the time of the steps, and by how uncertain its prediction is; rows that tell of others
count for these, too. All steps count alike. A prefill has one sequence. Rows that the CSVs have are not added.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from opatlas.cli.arguments import StepArgument, add_json, read_step_argument, write_or_print_json
from opatlas.model.record import new_run_id
from opatlas.model.schema import INPUT_SHAPES
from opatlas.progress import Progress
from opatlas.query.database import OpenDatabase
from opatlas.query.database import open as open_database
from opatlas.query.next_rows import BATCHES, CONTEXTS, NextRows, Step, steps_of
from opatlas.store.database import Database
from opatlas.store.manifest import Manifest, code_digest
from opatlas.text import align_numbers, four_digits, percent_text, pluralize, shorten, show, wrap
from opatlas.theory.plan import append_rows

_ROWS, _NAME = 100, 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 done, also if no row is left to be measured; 1 a file failed; 2 wrong usage"
    parser.add_argument("database", metavar="DB", help="folder of {KernelType}.csv files, or name of a device")
    parser.add_argument("--next", type=int, default=_ROWS, metavar="N", help="the most rows (default: %(default)s)")
    parser.add_argument(
        "--step",
        action="append",
        default=[],
        type=read_step_argument,
        metavar="MODEL[,NAME=VALUE...]",
        help="a step of a model, by its name, or by its config.json or the folder of that; further: tp=N, ep=N, "
        "phase=decode or prefill, dtype=NAME; without batch, context or phase: steps with batch "
        f"{', '.join(map(str, BATCHES))}, context {', '.join(map(str, CONTEXTS))}, of both phases; may be given "
        "several times (default: the built-in models)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the rows, and add nothing (default: the CSVs get them)"
    )
    add_json(parser, "the rows and the expected errors")


def run(arguments: argparse.Namespace) -> int:
    """Adds the rows. Raises OpAtlasError."""
    started_at = time.time()
    opened = open_database(arguments.database)
    steps = [step for each in arguments.step for step in _steps(each)]
    with Progress(0, "kernel types", label="plan") as progress:
        found = opened.next_rows(arguments.next, steps=steps, tell=lambda kernel_type: progress.advance(1, kernel_type))
    only_json = write_or_print_json(arguments.json, _as_json(found))
    if not only_json:
        show("\n".join(_lines(found)))
    if arguments.dry_run or not found.rows:
        return 0
    added = _add(Database(opened.path), found, arguments, started_at)
    if not only_json:
        show(f"{pluralize(added, 'row')} added to {opened.path}")
        show(f"opatlas bench --database-path {opened.path}{_option(opened, found)} measures them")
    return 0


def _option(opened: OpenDatabase, found: NextRows) -> str:
    """Returns the option that measures the implementations that answer; "" for the default one."""
    default, *_ = opened.implementations
    others = dict.fromkeys(row.implementation for row in found.rows if row.implementation != default)
    return f" --implementation {','.join([default, *others])}" if others else ""


def _steps(named: StepArgument) -> list[Step]:
    settings = named.settings
    lists: dict[str, Any] = {name: (value,) for name, value in settings.items() if name != "dtype"}
    return steps_of([named.model], dtype=settings.get("dtype", ""), **lists)


def _as_json(found: NextRows) -> dict[str, object]:
    now, waiting, after = found.error
    return {
        "rows": [{**asdict(row), "signature": row.signature} for row in found.rows],
        "waiting": found.waiting,
        "differs": found.differs,
        "error": now,
        "error_with_waiting": waiting,
        "error_with_rows": after,
    }


def _lines(found: NextRows) -> Iterator[str]:
    for model, differs in found.differs.items():
        yield wrap(f"{model}, with differences: {'; '.join(differs)}", indent=0)
    rows: list[Sequence[str]] = [("kernel and inputs", "gain", "about us", "90 % interval", "steps", "by")]
    for row in found.rows:
        low, high = row.interval_us
        name = shorten(f"{row.kernel_type} {row.cells[INPUT_SHAPES].rstrip(';')}", _NAME)
        interval = f"{four_digits(low)} to {four_digits(high)}"
        rows.append(
            (
                name,
                percent_text(row.gain, 3),
                four_digits(row.duration_us),
                interval,
                str(row.steps),
                row.implementation,
            )
        )
    if found.rows:
        yield from align_numbers(rows)
        yield ""
    now, waiting, after = found.error
    yield f"expected errors of a step's calls, in sum: {percent_text(now)} of its time"
    if found.waiting:
        measured = "when the CSVs' rows without a duration are measured"
        yield f"  {percent_text(waiting)} {measured}: {found.waiting} of these steps"
    if found.rows:
        yield f"  {percent_text(after)} with {pluralize(len(found.rows), 'further row')}"
    else:
        yield "  no row is left to add"


def _add(database: Database, found: NextRows, arguments: argparse.Namespace, started_at: float) -> int:
    added = 0
    with database.lock():
        for kernel_type in dict.fromkeys(row.kernel_type for row in found.rows):
            rows = [row.cells for row in found.rows if row.kernel_type == kernel_type]
            added += append_rows(database, kernel_type, rows)
    options = {"next": arguments.next, "step": [step.text for step in arguments.step]}
    here = Path(__file__).parents[1]
    Manifest(
        run_id=new_run_id(),
        started_at=started_at,
        finished_at=time.time(),
        options={"command": "opatlas plan", **options},
        code=code_digest([here / "query", here / "theory"]),
        statuses={"added": added},
    ).write(database)
    return added
