"""The contents of the pages that are no tables of rows: overview, comparisons, costs of models, registered pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from opatlas.ask.compare.comparison import DatabaseComparison, RivalFigures
from opatlas.ask.overview import read_overview
from opatlas.ask.query.database import OpenDatabase
from opatlas.ask.query.model_cost import ModelCost
from opatlas.data.database import Database
from opatlas.extensions import REPORT_PAGES, extensions
from opatlas.row.roofline import device_peak

from .rows import columns_of, durations_of


class ReportPage:
    """A page that registers itself, as a class (`opatlas.report_pages`). assets/ shows what it has, by its name."""

    def row_cells(self, database: OpenDatabase, implementation: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Returns further cells of the rows that answer, by kernel type, in the order of `stored_rows`."""
        return {}

    def content(self, tables: Sequence[pd.DataFrame], capture: Path | None) -> Any:
        """Returns what the page shows, in types of JSON; None for no page.

        Args:
            tables: the rows of each kernel type, with `kernel_type` and the cells of all pages.
            capture: the capture that the report is given, too.

        Raises:
            OpAtlasError: the capture cannot be read.
        """
        return None


def registered_pages() -> dict[str, ReportPage]:
    """Returns the registered pages by name."""
    return {name: entry.load()() for name, entry in sorted(extensions(REPORT_PAGES).items())}


def overview_page(database: OpenDatabase, implementation: str) -> dict[str, Any]:
    """Returns the contents of a database: its kernel types, devices, runs, durations, and the peaks of the device."""
    device = database.answers.device
    peak = device_peak(device)
    return {
        **asdict(read_overview(Database(database.implementations[implementation].path))),
        "device": device,
        "durations": durations_of(database, implementation),
        "gbps": peak.bandwidth_gbps,
        "tera_ops": dict(peak.tera_ops),
    }


def comparison_page(comparison: DatabaseComparison) -> dict[str, Any]:
    """Returns the figures of each rival by kernel type, and each row that the baseline or a rival measured."""
    lines = []
    for row in comparison.rows:
        ours = row.calls[comparison.baseline.name]
        for rival in comparison.rivals:
            pair, theirs = row.pairs.get(rival.name), row.calls[rival.name]
            if pair or theirs.status != ours.status:
                lines.append(
                    {
                        "id": row.case_id,
                        "kernel_type": row.kernel_type,
                        "rival": rival.label,
                        "verdict": pair.verdict.value if pair else "",
                        "status": str(theirs.status),
                        "baseline_status": str(ours.status),
                        "reason": pair.reason if pair else theirs.reason,
                        "baseline_us": pair.baseline_us if pair else ours.duration_us,
                        "rival_us": pair.rival_us if pair else theirs.duration_us,
                        "speed_up": pair.speed_up if pair else None,
                    }
                )
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
        "table": columns_of({name: [line[name] for line in lines] for name in (lines[0] if lines else ())}),
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
