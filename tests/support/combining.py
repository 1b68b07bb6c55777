"""Combining databases in this process, and the type of the fixture that runs the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opatlas.capture.ingest import rebuild_profiling
from opatlas.data.combine import CombineResult, CombineSource, combine
from opatlas.data.database import Database
from opatlas.data.manifest import read_manifests

RunCombine = Callable[..., tuple[int, dict[str, Any], str]]


def apply(target: Database, *sources: Database) -> CombineResult:
    problems: list[str] = []
    every = [one for each in (target, *sources) for one in read_manifests(each, problems).values()]
    assert not problems
    named = [
        CombineSource(
            str(each.path),
            each,
            {each.runs_dir / f"{run_id}.json": one for run_id, one in read_manifests(each, problems).items()},
        )
        for each in sources
    ]
    done = combine(target, named, every)
    # As the command does.
    with target.lock():
        remade = rebuild_profiling(target).outcome
    done.problems += remade.problems
    done.captures_pooled = remade.updated
    return done
