"""`opatlas combine`: databases that were measured separately become one database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Annotated

from cyclopts import Parameter

from opatlas.capture.ingest import rebuild_profiling
from opatlas.cli.app import held
from opatlas.data.combine import CombineResult, CombineSources, open_sources, refuse_mixed
from opatlas.data.combine import combine as combine_databases
from opatlas.data.database import Database
from opatlas.data.log import COMBINE
from opatlas.data.pool import PooledRow
from opatlas.data.pool import pool as pool_runs
from opatlas.data.restore import clear_edited
from opatlas.errors import OpAtlasError, UsageError, usage_errors
from opatlas.formats import percent
from opatlas.show import Fields, Result, Table
from opatlas.show.result import Part


def combine(
    target: Annotated[Path, Parameter(name="TARGET")],
    /,
    *sources: Annotated[Path, Parameter(name="SOURCE")],
    mixed: bool = False,
    pool: bool = False,
) -> Result:
    """Combines databases that were measured separately into one database.

    If a row has two durations, that of the newer run stays, and the history keeps the other. SOURCEs do not change.

    Exit status: 0 everything is in; 1 something was left out because of an error, or TARGET cannot be written; 2
    nothing was done: wrong usage, or other devices or versions without --mixed.

    Args:
        target: folder of {KernelType}.csv files to combine into; made if it does not exist.
        sources: folders of {KernelType}.csv files, with their unmerged journals.
        mixed: combine durations of different devices or versions of torch.
        pool: then give each row of TARGET the duration of its run with the median over all runs, and fill the Pooled
            columns: runs, machines, and the spread between machines.
    """
    if not (sources or pool):
        raise UsageError("no SOURCE: name databases to combine into TARGET, or pool the runs of TARGET with --pool")
    with usage_errors():
        opened = open_sources(Database(target), sources)
        if not mixed:
            refuse_mixed(target, opened)
    with held(Database(target), "combine") as problems:
        found, pooled = _combine(Database(target), opened, pool)
        problems[:0] = opened.problems
        problems += found.problems
    content = {
        "target": target,
        "databases": len(opened.sources) - opened.journals,
        "journals": opened.journals,
        **{each.name: getattr(found, each.name) for each in fields(found) if each.name != "mapping"},
        "pooled": pooled,
        "problems": problems,
    }
    parts = [*_parts(target, opened, found), *(_pooled(pooled) if pooled is not None else ())]
    return Result(parts, content, problems)


def _combine(target: Database, opened: CombineSources, pool: bool) -> tuple[CombineResult, list[PooledRow] | None]:
    """Combines the opened sources; returns the rows whose runs were pooled, too. Raises OpAtlasError."""
    edited = clear_edited(target, COMBINE)
    outcome = combine_databases(target, opened)
    if outcome.ingests:
        _pool_captures(target, outcome)
    outcome.edited += edited.count
    outcome.problems += edited.problems
    if not pool:
        return outcome, None
    return outcome, pool_runs(target, outcome.problems)


def _pool_captures(target: Database, outcome: CombineResult) -> None:
    """Computes the captured durations of the target again, with the launches of all its ingests."""
    try:
        with target.lock():
            remade = rebuild_profiling(target).outcome
    except OpAtlasError as error:
        outcome.problems.append(str(error))
        return
    outcome.problems += remade.problems
    outcome.captures_pooled = remade.updated


def _parts(target: Path, opened: CombineSources, found: CombineResult) -> Iterator[Part]:
    yield Fields(
        {
            "databases": (len(opened.sources) - opened.journals) or None,
            "journals": opened.journals or None,
            "kernel types": (len(found.kernel_types), f"{len(found.new):,} new"),
            "rows added": found.added,
            "rows with another duration": found.taken,
            "rows with other new cells": found.changed,
            "pruned rows": found.pruned or None,
            "edited since their run": found.edited or None,
            "manifests": found.manifests or None,
            "ingests": found.ingests or None,
            "rows with pooled captures": found.captures_pooled or None,
            "rows in TARGET": found.target_rows,
            "op_mapping": str(target / found.mapping.path.name) if found.mapping is not None else None,
        },
        title=str(target),
    )


def _pooled(pooled: Sequence[PooledRow]) -> Iterator[Part]:
    kinds = Counter((row.runs, row.machines) for row in pooled)
    yield Table(("runs", "machines", "rows"), [(*kind, kinds[kind]) for kind in sorted(kinds, reverse=True)], "pooled")
    if spreads := [row.spread for row in pooled if row.spread is not None]:
        yield f"spread between machines: {percent(median(spreads))} in the median, {percent(max(spreads))} at most"
