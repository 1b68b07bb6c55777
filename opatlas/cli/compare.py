"""`opatlas compare`: databases row by row: implementations, devices, git revisions, runs, captures against replays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from opatlas.ask.compare.calls import CallPair, RowCall
from opatlas.ask.compare.comparison import DatabaseComparison, Evidence, RowComparison, compare_databases
from opatlas.ask.compare.databases import ComparedDatabase, implementations_of
from opatlas.ask.compare.states import compared_states
from opatlas.errors import UsageError, usage_errors
from opatlas.formats import microseconds
from opatlas.row import columns as col
from opatlas.row.location import named_folder
from opatlas.run.devices.device import available_devices, database_name
from opatlas.show import Result
from opatlas.show.compared import parts
from opatlas.show.parameters import Names, Percent

#: Cells that are known of a replayed call, by their names in the JSON.
_CELLS = {
    "cache_state": col.CACHE_STATE,
    "instrument": col.INSTRUMENT,
    "stand_in": col.STAND_IN,
    "implementation": col.IMPLEMENTATION,
    "kernel_names": col.KERNEL_NAMES,
    "outputs_missing": col.OUTPUTS_MISSING,
    "conversions": col.CONVERSIONS,
}

_OF_CALL = (
    *("status", "reason", "sum_us", "span_us", "kernels", "noise", "samples", "is_captured", "run_medians_us"),
    "duration_us",
)


def compare(
    *databases: Annotated[str, Parameter(name="DB[@STATE]")],
    baseline: str = "",
    ops: Names = (),
    fail_slower: Percent | None = None,
) -> Result:
    """Which implementation or database is faster, row by row.

    One database: its own rows against those of each implementation that was measured on them, the newest version of
    each. Several: each against the first, or against --baseline. Rows are the same where kernel type and signature
    are.

    Exit status: 0 done; 1 a row is slower (--fail-slower), or a file could not be read; 2 wrong usage.

    Args:
        databases: folders of {KernelType}.csv files, or devices such as NVIDIA_H200; STATE is a
            git revision (DB@main), the Run ID of a run, or `captures` (default: the database of this machine).
        baseline: implementation, or database, that speed-ups refer to (default: torch, or torch_npu on an NPU, else
            the first).
        ops: compare only these kernel types, as in opatlas query, or these collectives, such as all_reduce.
        fail_slower: exit with 1 if a rival is SLOW in a row, and its whole interval lies beyond this, such as 5%; or
            if no row compares.
    """
    with usage_errors(), _databases(databases) as opened:
        comparison = compare_databases(opened, baseline=baseline, kernel_types=ops)
    problems = [*comparison.problems, *(_slower(comparison, fail_slower) if fail_slower is not None else ())]
    return Result(list(parts(comparison)), _content(comparison), problems)


def _databases(places: Sequence[str]) -> AbstractContextManager[list[ComparedDatabase]]:
    """Returns a context with the databases to compare. Raises OpAtlasError, also when it is entered."""
    if len(places) > 1:
        return compared_states(places)
    base = named_folder(places[0] if places else database_name(available_devices(None)))
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


def _content(comparison: DatabaseComparison) -> Mapping[str, object]:
    """Returns databases, figures of each rival by kernel type and in all, and all rows."""
    return {
        "baseline": _database(comparison.baseline),
        "rivals": [
            {
                **_database(rival),
                "evidence": _evidence(comparison.evidence(rival.name)),
                "all": comparison.total(rival.name).told(),
                "kernel_types": [each.told() for each in comparison.figures(rival.name)],
            }
            for rival in comparison.rivals
        ],
        "fastest": dict(comparison.fastest),
        "without_common_rows": [rival.name for rival in comparison.without_common_rows],
        "problems": comparison.problems,
        "rows": [_row(row) for row in comparison.rows],
    }


def _database(database: ComparedDatabase) -> Mapping[str, object]:
    return {name: getattr(database, name) for name in ("name", "version", "path", "state")}


def _evidence(evidence: Evidence) -> Mapping[str, object]:
    return {
        "pairs": {str(basis): count for basis, count in evidence.pairs.items()},
        "controls": [{**asdict(each), "threshold": each.threshold} for each in evidence.controls],
        "default_spreads": evidence.spreads,
    }


def _row(row: RowComparison) -> Mapping[str, object]:
    return {
        "kernel_type": row.kernel_type,
        "signature": row.signature,
        "id": row.case_id,
        "fastest": row.fastest,
        "composition_baseline": row.is_composition,
        "calls": {name: _call(call) for name, call in row.calls.items()},
        "pairs": {name: _pair(pair) for name, pair in row.pairs.items()},
    }


def _pair(pair: CallPair) -> Mapping[str, object]:
    content = asdict(pair)
    ratios = content.pop("ratios")
    ends = {"speed_up": ratios["ratio"], "speed_up_low": ratios["low"], "speed_up_high": ratios["high"]}
    return {**content, **ends, "rounds": ratios["rounds"]}


def _call(call: RowCall) -> Mapping[str, object]:
    quality = call.duration and call.duration.quality
    return {
        **{name: getattr(call, name) for name in _OF_CALL},
        "quality": quality.value if quality else "",
        **{name: call.cell(column) for name, column in _CELLS.items()},
    }
