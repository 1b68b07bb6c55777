"""Combining databases in this process, and the type of the fixture that runs the command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opatlas.capture.ingest import rebuild_profiling
from opatlas.data.combine import CombineResult, CombineSource, CombineSources, combine
from opatlas.data.database import Database
from opatlas.data.manifest import read_manifests

RunCombine = Callable[..., tuple[int, dict[str, Any], str]]


def apply(target: Database, *sources: Database) -> CombineResult:
    problems: list[str] = []
    opened = [CombineSource(str(each.path), each, read_manifests(each, problems)) for each in sources]
    done = combine(target, CombineSources(opened, read_manifests(target, problems)))
    assert not problems
    # As the command does.
    with target.lock():
        remade = rebuild_profiling(target).outcome
    done.problems += remade.problems
    done.captures_pooled = remade.updated
    return done
