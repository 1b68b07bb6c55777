"""A comparison as JSON, with everything that is known of each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from opatlas.ask.compare.calls import RowCall
from opatlas.ask.compare.comparison import DatabaseComparison, RivalFigures, RowComparison
from opatlas.ask.compare.databases import ComparedDatabase
from opatlas.row.columns import (
    CACHE_STATE,
    CONVERSIONS,
    IMPLEMENTATION,
    INSTRUMENT,
    KERNEL_NAMES,
    OUTPUTS_MISSING,
    STAND_IN,
)

#: Cells that are known of a replayed call, by their names in the JSON.
_CELLS = {
    "cache_state": CACHE_STATE,
    "instrument": INSTRUMENT,
    "stand_in": STAND_IN,
    "implementation": IMPLEMENTATION,
    "kernel_names": KERNEL_NAMES,
    "outputs_missing": OUTPUTS_MISSING,
    "conversions": CONVERSIONS,
}


def json_value(comparisons: Mapping[str, DatabaseComparison]) -> Mapping[str, object]:
    """Returns all that is known for JSON: of one comparison, or of several by the folders of their databases."""
    contents = {name: _content(comparison) for name, comparison in comparisons.items()}
    return contents.get("", contents)


def _content(comparison: DatabaseComparison) -> Mapping[str, object]:
    """Returns databases, figures of each rival by kernel type and in all, and all rows."""
    return {
        "baseline": _database(comparison.baseline),
        "rivals": [
            {
                **_database(rival),
                "all": _figures(comparison.total(rival.name)),
                "kernel_types": [_figures(each) for each in comparison.figures(rival.name)],
                "step": [{**asdict(each), "speed_up": each.speed_up} for each in comparison.step_figures(rival.name)],
            }
            for rival in comparison.rivals
        ],
        "fastest": dict(comparison.fastest),
        "without_rival": comparison.without_rival,
        "without_common_rows": [rival.name for rival in comparison.without_common_rows],
        "problems": comparison.problems,
        "rows": [_row(row) for row in comparison.rows],
    }


def _database(database: ComparedDatabase) -> Mapping[str, object]:
    return {
        "name": database.name,
        "version": database.version,
        "path": str(database.path),
        "state": database.state,
    }


def _figures(figures: RivalFigures) -> Mapping[str, object]:
    counts = {name: getattr(figures, name) for name in ("measured", "unsupported", "wrong", "crashed", "missing")}
    return {**asdict(figures), **counts}


def _row(row: RowComparison) -> Mapping[str, object]:
    return {
        "kernel_type": row.kernel_type,
        "signature": row.signature,
        "id": row.case_id,
        "fastest": row.fastest,
        "composition_baseline": row.is_composition,
        "calls": {name: _call(call) for name, call in row.calls.items()},
        "pairs": {
            name: {**asdict(pair), "margin": pair.margin, "speed_up": pair.speed_up} for name, pair in row.pairs.items()
        },
    }


def _call(call: RowCall) -> Mapping[str, object]:
    quality = call.duration and call.duration.quality
    return {
        **{name: getattr(call, name) for name in ("status", "reason", "sum_us", "span_us", "kernels")},
        **{name: getattr(call, name) for name in ("noise", "samples")},
        "quality": quality.value if quality else "",
        **{name: call.cell(column) for name, column in _CELLS.items()},
        **{name: getattr(call, name) for name in ("is_captured", "run_medians_us", "duration_us")},
    }
