"""Combines separately measured databases and journals into one database.

If a row has two durations, the duration of the newer run stays, and a report lists both. SOURCEs do not change.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from opatlas.cli.arguments import add_json, write_or_print_json
from opatlas.combine.apply import COMBINE, all_kernel_types, combine
from opatlas.combine.pool import pool, without_pooled
from opatlas.combine.sources import CombineSources, open_sources, refuse_mixed
from opatlas.combine.summary import summary, write_conflicts, write_disagreements
from opatlas.errors import OpAtlasError, UsageError, usage_errors
from opatlas.files import TemporaryFolder
from opatlas.progress import Progress
from opatlas.store.database import Database, SessionLock, copy_for_dry_run
from opatlas.store.history import clear_edited
from opatlas.store.write_back import recover
from opatlas.text import print_problems, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 everything is in; 1 something was left out because of an error, "
        "or TARGET cannot be written; 2 nothing was done: wrong usage, or other devices or versions without --mixed"
    )
    parser.add_argument(
        "target",
        type=Path,
        metavar="TARGET",
        help="folder of {KernelType}.csv files to combine into; made if it does not exist",
    )
    parser.add_argument(
        "sources",
        type=Path,
        nargs="*",
        metavar="SOURCE",
        help="a folder of {KernelType}.csv files, with its unmerged journals, or a journal (.jsonl) of a session",
    )
    parser.add_argument(
        "--mixed",
        action="store_true",
        help="combine durations of different devices or versions of torch (default: refused, if manifests name these)",
    )
    parser.add_argument(
        "--pool",
        action="store_true",
        help="then give each row of TARGET the duration of its run with the median over all runs, and fill the Pooled "
        "columns: runs, machines, and the spread between machines (default: off)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would change, and write nothing (default: TARGET changes)"
    )
    add_json(parser, "the counts, all conflicts and all pooled rows")


def run(arguments: argparse.Namespace) -> int:
    """Combines, and returns the exit status that the help explains. Raises OpAtlasError."""
    target: Path = arguments.target
    if not (arguments.sources or arguments.pool):
        raise UsageError("no SOURCE: name databases to combine into TARGET, or pool the runs of TARGET with --pool")
    with TemporaryFolder("combine") as scratch:
        with usage_errors(), Progress(0, "journals", label="read") as progress:
            opened = open_sources(Database(target), arguments.sources, scratch, progress.advance)
            if not arguments.mixed:
                refuse_mixed(target, opened)
        warnings = [text for path in (target, *arguments.sources) for text in Database(path).misspelt_columns()]
        if not arguments.dry_run:
            lock = SessionLock(Database(target), run_id="combine", command="opatlas combine")
            lock.acquire()
            try:
                done = _combine(Database(target), opened, arguments.pool, dry_run=False)
            finally:
                lock.release()
        else:
            # The changes are made to a copy, so that the summary is exact.
            copy = copy_for_dry_run(target, scratch / "target")
            done = _combine(copy, opened, arguments.pool, dry_run=True)
            done.text = done.text.replace(str(copy.path), str(target)) + "\n\ndry run: nothing was written"
            done.problems = [problem.replace(str(copy.path), str(target)) for problem in done.problems]
    content = {"target": target, "dry_run": arguments.dry_run, **done.content, "problems": done.problems}
    if not write_or_print_json(arguments.json, content):
        show(done.text)
    print_problems(done.problems)
    print_problems(warnings, word="warning")
    return 1 if done.problems else 0


@dataclass
class _Combined:
    """The text and the content for JSON of a combination, and its problems."""

    text: str
    content: Mapping[str, object]
    problems: list[str]


def _combine(target: Database, opened: CombineSources, pool_runs: bool, *, dry_run: bool) -> _Combined:
    """Combines the opened sources. Raises OpAtlasError."""
    recovered = recover(target, own_run="") if target.journal_dir.is_dir() else []
    edited = clear_edited(target, COMBINE)
    with Progress(len(all_kernel_types(opened.sources)), "kernel types", label="combine") as progress:
        outcome = combine(target, opened.sources, opened.manifests, progress.advance)
    outcome.edited += edited.count
    outcome.problems += edited.problems
    pooled = None
    if pool_runs:
        with Progress(len(target.kernel_types()), "kernel types", label="pool") as progress:
            pooled = pool(target, outcome.problems, progress.advance)
        outcome.conflicts = without_pooled(outcome.conflicts, pooled)
    problems = [*opened.problems, *(problem for found in recovered for problem in found.problems), *outcome.problems]
    now = time.time()
    reports: dict[str, Path] = {}
    for what, write in (
        ("conflicts", partial(write_conflicts, target, outcome.conflicts, now)),
        ("rows that differ between machines", partial(write_disagreements, target, pooled or (), now)),
    ):
        try:
            path = write()
        except OpAtlasError as error:
            problems.append(str(error))
        else:
            reports |= {what: path} if path is not None else {}
    text = summary(target.path, recovered, opened, outcome, pooled, reports, dry_run=dry_run)
    left_out = {"mapping", "problems"}
    counts = {each.name: getattr(outcome, each.name) for each in fields(outcome) if each.name not in left_out}
    sources = {"databases": opened.databases, "journals": opened.journals, "ignored": opened.ignored}
    return _Combined(text, {**sources, **counts, "pooled": pooled}, problems)
