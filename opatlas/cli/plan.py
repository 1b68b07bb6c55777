"""Adds the rows whose measurement tells the most of what steps of models cost; `opatlas bench` measures them.

A row counts by its share of the time of the steps, and by how uncertain its prediction is; rows that tell of others
count for these, too. All steps count alike. A prefill has one sequence. Rows that the CSVs have are not added.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from opatlas.cli.arguments import add_product_dtype
from opatlas.model.record import new_run_id
from opatlas.model.schema import INPUT_SHAPES
from opatlas.query.database import open as open_database
from opatlas.query.next_rows import BATCHES, CONTEXTS, NextRows
from opatlas.store.database import Database
from opatlas.store.manifest import Manifest, code_digest
from opatlas.text import pluralize, shorten, show, table_lines
from opatlas.theory.plan import append_rows

_ROWS, _SHAPES = 100, 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 done, also if no row is left to be measured; 1 a file failed; 2 wrong usage"
    parser.add_argument("database", metavar="DB", help="folder of {KernelType}.csv files, or name of a device")
    parser.add_argument("--next", type=int, default=_ROWS, metavar="N", help="the most rows (default: %(default)s)")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="MODEL",
        help="a model's name, or its config.json or the folder of that; repeatable (default: the built-in models)",
    )
    parser.add_argument(
        "--tp",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="devices that share a layer; repeatable (default: 1)",
    )
    parser.add_argument(
        "--ep",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="devices that share the experts: 1, or some times --tp; repeatable (default: 1)",
    )
    parser.add_argument(
        "--batch",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help=f"sequences of a decode step; repeatable (default: {', '.join(map(str, BATCHES))})",
    )
    parser.add_argument(
        "--context",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help=f"tokens of each sequence; repeatable (default: {', '.join(map(str, CONTEXTS))})",
    )
    parser.add_argument(
        "--phase", choices=("prefill", "decode"), help="what a step computes (default: steps of both phases)"
    )
    add_product_dtype(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the rows, and add nothing (default: the CSVs get them)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Adds the rows. Raises OpAtlasError."""
    started_at = time.time()
    opened = open_database(arguments.database)
    found = opened.next_rows(
        arguments.next,
        models=arguments.model,
        tp=arguments.tp or (1,),
        ep=arguments.ep or (1,),
        batch=arguments.batch,
        context=arguments.context,
        phase=(arguments.phase,) if arguments.phase else ("decode", "prefill"),
        dtype=arguments.dtype,
    )
    show("\n".join(_lines(found)))
    if arguments.dry_run or not found.rows:
        return 0
    added = _add(Database(opened.path), found, arguments, started_at)
    show(f"{pluralize(added, 'row')} added to {opened.path}: opatlas bench --database-path {opened.path} measures them")
    return 0


def _lines(found: NextRows) -> Iterator[str]:
    rows: list[Sequence[str]] = [("gain", "about us", "90 % interval", "steps", "kernel", "inputs")]
    for row in found.rows:
        low, high = row.interval_us
        interval = f"{low:.3g} to {high:.3g}"
        shapes = shorten(row.cells[INPUT_SHAPES].rstrip(";"), _SHAPES)
        rows.append((f"{row.gain:.3%}", f"{row.duration_us:.4g}", interval, str(row.steps), row.kernel_type, shapes))
    if found.rows:
        yield from table_lines(rows)
        yield ""
    now, waiting, after = found.error
    yield f"expected errors of a step's calls, in sum: {now:.1%} of its time"
    if found.waiting:
        yield f"  {waiting:.1%} when the CSVs' rows without a duration are measured: {found.waiting} of these steps"
    yield f"  {after:.1%} with {pluralize(len(found.rows), 'further row')}" if found.rows else "  no row is left to add"


def _add(database: Database, found: NextRows, arguments: argparse.Namespace, started_at: float) -> int:
    added = 0
    with database.lock():
        for kernel_type in dict.fromkeys(row.kernel_type for row in found.rows):
            rows = [row.cells for row in found.rows if row.kernel_type == kernel_type]
            added += append_rows(database, kernel_type, rows)
    options = {name: value for name, value in vars(arguments).items() if name not in ("database", "dry_run")}
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
