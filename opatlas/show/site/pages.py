"""The contents of the pages that are no tables of rows: overview, comparisons, costs of models."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from opatlas.ask.checks.overview import Overview
from opatlas.ask.compare.comparison import DatabaseComparison, RivalFigures
from opatlas.ask.query.model_cost import ModelCost
from opatlas.row.roofline import device_peak
from opatlas.show.site.columns import number_column, word_column
from opatlas.show.site.diagnosis import RowJudge


def overview_page(overview: Overview, judge: RowJudge) -> dict[str, Any]:
    """Returns the contents of a database: its kernel types, devices, runs, durations, and the peaks of the device."""
    peak = device_peak(judge.device)
    return {
        **asdict(overview),
        "device": judge.device,
        "durations": judge.durations,
        "gbps": peak.bandwidth_gbps,
        "tera_ops": dict(peak.tera_ops),
    }


def comparison_page(comparison: DatabaseComparison) -> dict[str, Any]:
    """Returns the figures of each rival by kernel type, and each row that the baseline or a rival measured."""
    lines = [
        (row, rival, row.pairs.get(rival.name))
        for row in comparison.rows
        for rival in comparison.rivals
        if row.pairs.get(rival.name) or row.calls[rival.name].status != row.calls[comparison.baseline.name].status
    ]
    theirs = [row.calls[rival.name] for row, rival, _ in lines]
    ours = [row.calls[comparison.baseline.name] for row, _, _ in lines]
    columns = {
        "id": word_column([row.case_id for row, _, _ in lines]),
        "kernel_type": word_column([row.kernel_type for row, _, _ in lines]),
        "rival": word_column([rival.label for _, rival, _ in lines]),
        "verdict": word_column([pair.verdict.value if pair else "" for _, _, pair in lines]),
        "status": word_column([call.status for call in theirs]),
        "baseline_status": word_column([call.status for call in ours]),
        "reason": word_column(
            [pair.reason if pair else call.reason for (_, _, pair), call in zip(lines, theirs, strict=True)]
        ),
        "baseline_us": number_column(
            [pair.baseline_us if pair else call.duration_us for (_, _, pair), call in zip(lines, ours, strict=True)]
        ),
        "rival_us": number_column(
            [pair.rival_us if pair else call.duration_us for (_, _, pair), call in zip(lines, theirs, strict=True)]
        ),
        "speed_up": number_column([pair.speed_up if pair else None for _, _, pair in lines]),
    }
    return {
        "baseline": {"label": comparison.baseline.label, "path": comparison.baseline.place},
        "rivals": [
            {
                "label": rival.label,
                "path": rival.place,
                "all": _figures(comparison.total(rival.name)),
                "kernel_types": [_figures(each) for each in comparison.figures(rival.name)],
            }
            for rival in comparison.rivals
        ],
        "fastest": dict(comparison.fastest),
        "problems": list(comparison.problems),
        "table": {"rows": len(lines), "columns": {name: each for name, each in columns.items() if each is not None}},
    }


def _figures(figures: RivalFigures) -> dict[str, Any]:
    return {
        "kernel_type": figures.kernel_type,
        "rows": figures.rows,
        "measured": figures.measured,
        "failed": figures.wrong + figures.crashed,
        "unsupported": figures.unsupported,
        "missing": figures.missing,
        "covered_rows": figures.covered_rows,
        "covered": figures.covered,
        "deployed": figures.deployed,
        "verdicts": dict(figures.verdicts),
    }


def model_page(cost: ModelCost, question: str) -> dict[str, Any]:
    """Returns the cost of a step of a model: the sum, its interval, and its parts."""
    return {
        "question": question,
        "model": cost.model,
        "differs": cost.differs,
        "us": cost.us,
        "interval_us": cost.interval_us,
        "tokens_per_s": cost.tokens_per_s,
        "us_by_how": cost.us_by_how(),
        "composition_us": cost.composition_us,
        "untold_us": cost.untold_us,
        "parts": [{**asdict(part), "us": part.us} for part in cost.parts],
    }
