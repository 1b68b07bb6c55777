"""`opatlas compare`: databases row by row: implementations, devices, git revisions, runs, captures against replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from opatlas.ask.compare.comparison import DatabaseComparison, compare_databases
from opatlas.ask.compare.databases import ComparedDatabase, implementations_of
from opatlas.ask.compare.export import json_value
from opatlas.ask.compare.states import compared_states, pairs_below
from opatlas.ask.compare.step import ModelStep, read_step
from opatlas.errors import OpAtlasError, UsageError, usage_errors
from opatlas.formats import microseconds
from opatlas.row.location import default_path
from opatlas.row.named_databases import named_folder
from opatlas.row.versions import detect
from opatlas.run.devices.discovery import available_devices, database_name
from opatlas.show import Output, Result, Table, print_note
from opatlas.show import compared as tables
from opatlas.show.parameters import Names, Percent
from opatlas.show.result import Part


def compare(
    *databases: Annotated[str, Parameter(name="DB[@STATE]")],
    baseline: str = "",
    ops: Names = (),
    calls: Path | None = None,
    fail_slower: Percent | None = None,
    output: Annotated[Output, Parameter(parse=False)],
) -> Result:
    """Which implementation or database is faster, row by row.

    One database: its own rows against those of each implementation that was measured on them, the newest version of
    each. Several: each against the first, or against --baseline. Rows are the same where kernel type and signature
    are.

    Exit status: 0 done; 1 a row is slower (--fail-slower), or a file could not be read; 2 wrong usage.

    Args:
        databases: folders of {KernelType}.csv files, folders above such, or devices such as NVIDIA_H200; STATE is a
            git revision (DB@main), the Run ID of a run, or `captures` (default: the database of this machine).
        baseline: implementation, or database, that speed-ups refer to (default: torch, or torch_npu on an NPU, else
            the first).
        ops: compare only these kernel types, named exactly, or these collectives, such as all_reduce.
        calls: also weight durations by the calls of a model's step: what `opatlas model --json` printed into a file.
        fail_slower: exit with 1 if a rival is slower in a row by more than this, such as 5%, and by more than chance
            explains; or if no row compares.
    """
    with usage_errors():
        step = None if calls is None else read_step(calls)
        comparisons = _comparisons(databases, baseline, ops, step)
    if output.format == "csv":
        lines = [(*line, name) for name, each in comparisons.items() for line in tables.row_lines(each)]
        parts: list[Part] = [Table((*tables.LINE_COLUMNS, "folder"), lines)]
    else:
        parts = [part for name, comparison in comparisons.items() for part in tables.parts(comparison, name)]
        parts = [part for part in parts if not isinstance(part, Table) or part.rows]
    problems = [problem for comparison in comparisons.values() for problem in comparison.problems]
    if fail_slower is not None:
        problems += [line for comparison in comparisons.values() for line in _slower(comparison, fail_slower)]
    return Result(parts, json_value(comparisons), problems, 1 if problems else 0)


def _comparisons(
    places: Sequence[str], baseline: str, kernel_types: Sequence[str], step: ModelStep | None
) -> dict[str, DatabaseComparison]:
    """Returns the comparisons by the path of their databases below the folders that are named. Raises OpAtlasError.

    Of databases below folders, those that a state lacks are left out, and told.
    """
    found: dict[str, DatabaseComparison] = {}
    errors: list[OpAtlasError] = []
    for name, pair in pairs_below(places).items():
        try:
            with _databases(pair) as databases:
                found[name] = compare_databases(databases, baseline=baseline, kernel_types=kernel_types, step=step)
        except OpAtlasError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    for left_out in errors:
        print_note(f"left out: {left_out}")
    return found


def _databases(places: Sequence[str]) -> AbstractContextManager[list[ComparedDatabase]]:
    """Returns a context with the databases to compare. Raises OpAtlasError, also when it is entered."""
    if len(places) > 1:
        return compared_states(places)
    base = named_folder(places[0]) if places else default_path(database_name(available_devices(None)), detect())
    if "@" in base.name and not base.exists():
        raise UsageError(f"{base}: alone: name a second database, such as {str(base).rpartition('@')[0]}")
    return nullcontext(implementations_of(base))


def _slower(comparison: DatabaseComparison, least: float) -> Iterator[str]:
    """Yields a line for each rival that is `least` percent slower in a row, or has no row that compares."""
    for rival in comparison.rivals:
        found = comparison.slower_rows(rival.name, least)
        if found:
            row, pair = found[0]
            us = f"{microseconds(pair.baseline_us)} us against {microseconds(pair.rival_us)} us"
            yield f"--fail-slower {least:g}%: {rival.label}: {len(found):,} rows slower, most {row.case_id}: {us}"
        elif not any(row.pairs[rival.name].is_comparable for row in comparison.rows if rival.name in row.pairs):
            yield f"--fail-slower {least:g}%: {rival.label} has no row that compares"
