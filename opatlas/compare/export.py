"""A comparison as JSON and CSV, with everything that is known of each row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from opatlas.compare.comparison import DatabaseComparison, RivalFigures, RowComparison
from opatlas.compare.databases import ComparedDatabase


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


def csv_text(comparisons: Mapping[str, DatabaseComparison]) -> str:
    """Returns a line for each row and database, of comparisons by the folders of their databases."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADER)
    for folder, comparison in comparisons.items():
        writer.writerows((*line, folder) for row in comparison.rows for line in _lines(comparison, row))
    return text.getvalue()


_HEADER = (
    "kernel_type",
    "id",
    "database",
    "implementation",
    "status",
    "reason",
    "duration_us",
    "sum_us",
    "span_us",
    "kernels",
    "noise",
    "samples",
    "speed_up",
    "verdict",
    "verdict_reason",
    "fastest",
    "composition_baseline",
    "host_bound",
    "outputs_missing",
    "conversions",
    "folder",
)


def _lines(comparison: DatabaseComparison, row: RowComparison) -> Iterator[tuple[object, ...]]:
    for database in (comparison.baseline, *comparison.rivals):
        call, pair = row.calls[database.name], row.pairs.get(database.name)
        yield (
            row.kernel_type,
            row.case_id,
            database.name,
            call.implementation or database.label,
            call.status,
            call.reason,
            call.duration_us,
            call.sum_us,
            call.span_us,
            call.kernels,
            call.noise,
            call.samples,
            pair and pair.speed_up,
            pair and pair.verdict,
            pair and pair.reason,
            database.name == row.fastest,
            row.is_composition,
            pair.host_bound if pair else call.is_host_bound,
            call.outputs_missing,
            call.conversions,
        )


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
        "calls": {name: {**asdict(call), "duration_us": call.duration_us} for name, call in row.calls.items()},
        "pairs": {
            name: {**asdict(pair), "margin": pair.margin, "speed_up": pair.speed_up} for name, pair in row.pairs.items()
        },
    }
