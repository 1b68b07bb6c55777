"""The site: the contents of its pages, the data of each kernel type, and Bokeh's JavaScript from its Python package."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from opatlas.ask.compare.calls import MISSING
from opatlas.ask.compare.comparison import DatabaseComparison, compare_databases
from opatlas.ask.compare.databases import ComparedDatabase
from opatlas.ask.compare.states import compared_states
from opatlas.ask.overview import read_overview
from opatlas.ask.query.database import OpenDatabase, open as open_database
from opatlas.ask.query.model_cost import ModelCost, PartCost
from opatlas.ask.query.sweep import BATCHES, CONTEXTS, answered_steps, step_grid
from opatlas.data.csv_files import is_abandoned, write_bytes, write_text
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.files import expect_folder
from opatlas.installation import REPORT_PAGES, extensions
from opatlas.progress import progress, track
from opatlas.row.location import database_folder, parse_path
from opatlas.row.quality import Quality
from opatlas.row.roofline import device_peak
from opatlas.row.versions import package_version
from opatlas.theory.model_step import Step

from .rows import NOT_JUDGED, WORDS, MoreCells, columns_of, durations_of, moves_each_byte_once, row_table
from .series import RunHistories, curve_cells, curves_of, predicted

#: What the files of rows and of steps are called, before their numbers.
_ROWS, _STEPS = "rows", "steps"
#: Without steps that were asked for, those of at most so many models are shown.
_MODELS = 2
#: The first file that is written, and the mark of a site.
_MARK = "overview.js"
_BOKEH_FILES = ("bokeh.min.js", "bokeh-api.min.js")


class ReportPage:
    """A page that registers itself, as a class (`opatlas.report_pages`). assets/ shows what it has, by its name."""

    def row_cells(self, database: OpenDatabase, implementation: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Returns further cells of the rows that answer, by kernel type, in the order of `stored_rows`."""
        return {}

    def content(self, tables: Sequence[pd.DataFrame]) -> Any:
        """Returns what the page shows, in types of JSON; None for no page.

        Args:
            tables: the rows of each kernel type, with `kernel_type` and the cells of all pages.
        """
        return None


def registered_pages() -> dict[str, ReportPage]:
    """Returns the registered pages by name."""
    return {name: entry.load()() for name, entry in sorted(extensions(REPORT_PAGES).items())}


def _overview_page(database: OpenDatabase, implementation: str) -> dict[str, Any]:
    """Returns the contents of a database: its kernel types, devices, runs, durations, and the peaks of the device."""
    device = database.answers.device
    peak = device_peak(device)
    return {
        **asdict(read_overview(Database(database.implementations[implementation].path))),
        "device": device,
        "asked": _name_of(database),
        "durations": durations_of(database, implementation),
        "gbps": peak.bandwidth_gbps,
        "tera_ops": dict(peak.tera_ops),
    }


def _name_of(database: OpenDatabase) -> str:
    """Returns how a command names a database: its device where that has this one, else its folder."""
    device = parse_path(database.path)
    with suppress(OpAtlasError):
        if device is not None and database_folder(device[0]).resolve() == database.path.resolve():
            return device[0]
    return str(database.path)


def _comparison_page(comparison: DatabaseComparison) -> dict[str, Any]:
    """Returns the figures of each rival by kernel type, and each row that the baseline or a rival measured."""
    lines = []
    for row in comparison.rows:
        ours = row.calls[comparison.baseline.name]
        for rival in comparison.rivals:
            pair, theirs = row.pairs.get(rival.name), row.calls[rival.name]
            # Those that neither ran, or the rival did not, are in the figures.
            if pair or theirs.status not in (ours.status, MISSING):
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
                "all": comparison.total(rival.name).told(),
                "kernel_types": [each.told() for each in comparison.figures(rival.name)],
            }
            for rival in comparison.rivals
        ],
        "fastest": dict(comparison.fastest),
        "problems": list(comparison.problems),
        "table": columns_of({name: [line[name] for line in lines] for name in (lines[0] if lines else ())}),
    }


class _Steps:
    """Costs of steps for JavaScript: of each step a point, which names its parts by their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[PartCost, int] = {}

    def point(self, cost: ModelCost | None, why: str = "") -> dict[str, Any]:
        """Returns the time of a step and its parts, or why there is none. Without all parts there is no time."""
        if cost is None:
            return {"why": why}
        time = cost.time or cost
        low, high = time.interval_us
        us = {"us": time.us, "low": low, "high": high, "sum": cost.us, "tokens_per_s": cost.tokens_per_s}
        told = {name: None if cost.missing or value is None else round(value, 1) for name, value in us.items()}
        return {**told, "parts": [self._numbers.setdefault(part, len(self._numbers)) for part in cost.parts]}

    def answers(self) -> dict[str, Any]:
        """Returns the parts as columns."""
        parts = list(self._numbers)
        names = ("part", "kernel_type", "calls", "us_per_call", "how", "implementation", "roofline", "reason")
        ends = [part.interval_us or (None, None) for part in parts]
        columns: dict[str, Sequence[Any]] = {name: [getattr(part, name) for part in parts] for name in names}
        composed = ["yes" if part.composed else "" for part in parts]
        return columns_of(
            {**columns, "composed": composed, "low": [low for low, _ in ends], "high": [high for _, high in ends]}
        )


def _step_page(cost: ModelCost) -> dict[str, Any]:
    """Returns a step for the overview."""
    steps, step = _Steps(), cost.step
    asked = {"model": cost.model, "batch": step.batch, "context": step.context, "tp": step.tp, "ep": step.ep}
    return {**asked, "question": f"{step}", "dtype": cost.dtype, "point": steps.point(cost), "answers": steps.answers()}


def _model_pages(
    database: OpenDatabase, costs: Sequence[ModelCost], data: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Adds the steps of models to the data: those that were asked for, else those that the rows answer.

    Returns:
        What the overview has of each model, and its step; None without models.
    """
    with progress("report, steps of models", None) as advance:
        found = list(costs)
        if not found:
            found = answered_steps(database, _MODELS, lambda _: advance(1))
        pages: list[dict[str, Any]] = []
        for first in {cost.step.model: cost for cost in reversed(found)}.values():
            grid, steps, file = step_grid(database, first, lambda _: advance(1)), _Steps(), f"{_STEPS}{len(pages):04}"
            asked = [cost for cost in costs if cost.step.model == first.step.model]
            start = {name: getattr(first.step, name) for name in ("batch", "context", "tp", "ep")}
            data[file] = {
                "axes": {"stack": [*grid.stacks], "division": grid.divisions, "context": CONTEXTS, "batch": BATCHES},
                "points": [steps.point(cost, why) for _, cost, why in grid.steps],
                "asked": [{"question": f"{cost.step}", "point": steps.point(cost)} for cost in asked],
                "answers": steps.answers(),
            }
            facts = {"name": first.model, "file": file, "dtype": first.dtype, "layers": first.layers}
            device = database.answers.device
            pages.insert(0, {**facts, "device": device, "differs": first.differs, "start": start})
    return pages, _step_page(found[0]) if found else None


@dataclass(frozen=True)
class WrittenSite:
    """What a site shows.

    Attributes:
        start: the file to open.
        kernel_types, rows: their numbers.
        rows_of: the number of rows of each implementation, and of collectives, the most first.
        problems: messages about files that cannot be read.
    """

    start: Path
    kernel_types: int
    rows: int
    rows_of: Mapping[str, int]
    problems: Sequence[str]


def write_site(place: Path, folder: Path, *, against: str = "", steps: Sequence[Step] = ()) -> WrittenSite:
    """Writes the site of a database into a folder. A failure leaves the folder as it was.

    Args:
        against: the baseline that the database is compared with, as `opatlas compare` names it; "" for none.
        steps: steps of models, whose costs are shown.

    Raises:
        OpAtlasError: Bokeh is not installed, a database is missing, a step is impossible, the folder holds other files,
            or a file cannot be written.
    """
    scripts = list(_bokeh())
    _expect_own(folder)
    asked = open_database(place)
    costs = [asked.model(**msgspec.structs.asdict(step)) for step in steps]
    database = OpenDatabase(asked.answers.with_compositions)
    beside = database.messages
    sources = [database, *([beside] if beside is not None and beside is not database else [])]
    overviews = [_overview_page(source, name) for source in sources for name in source.implementations]
    problems = [problem for each in overviews for problem in each["problems"]]
    data: dict[str, Any] = {}

    def compare(name: str, databases: Sequence[ComparedDatabase], baseline: str = "") -> None:
        if len(databases) > 1:
            data[name] = _comparison_page(compare_databases(databases, baseline=baseline))
            problems.extend(data[name]["problems"])

    compare("implementations", list(database.implementations.values()))
    if against:
        with compared_states([against, str(database.path)]) as databases:
            compare("databases", databases, databases[0].name)
    comparisons = list(data)
    histories = RunHistories(sources, problems)
    pages = registered_pages()
    types: list[dict[str, Any]] = []
    tables: list[pd.DataFrame] = []
    for source in sources:
        more = {name: [page.row_cells(source, name) for page in pages.values()] for name in source.implementations}
        for kernel_type in track(source.kernel_types(), "report, kernel types"):
            try:
                page, table = _type_page(source, kernel_type, more)
            except OpAtlasError as error:
                problems.append(str(error))
                continue
            file = f"{_ROWS}{len(types):04}"
            of_rows = histories.of_rows(table)
            data[file] = {**page, "history": of_rows}
            tables.append(table.assign(kernel_type=kernel_type))
            facts = {"name": kernel_type, "file": file, "trend": histories.trend(of_rows.values())}
            types.append({**facts, **_facts(source, kernel_type, table)})
    models, first = _model_pages(asked, costs, data)
    overview = {
        "databases": overviews,
        "types": types,
        "pages": comparisons,
        **{name: page.content(tables) for name, page in pages.items()},
        "models": models,
        "step": first,
        "figures": _figures(tables),
        "runs": histories.runs,
        "newest": histories.newest(database),
        "problems": list(dict.fromkeys(problems)),
        "version": package_version("opatlas") or "",
    }
    # The overview comes first: it marks the folder as a site.
    for path in (path for name in (_ROWS, _STEPS) for path in (folder / "data").glob(f"{name}*.js")):
        path.unlink()
    for name, page in {"overview": overview, **data}.items():
        _write_data(folder, name, page)
    for name, content in (*_assets(), *scripts):
        write_bytes(folder / name, content)
    rows_of = Counter[str]()
    for each, table in zip(types, tables, strict=True):
        rows_of.update(["collectives"] * len(table) if each["collective"] else table["implementation"])
    return WrittenSite(
        folder / "index.html", len(types), rows_of.total(), dict(rows_of.most_common()), overview["problems"]
    )


def _type_page(
    database: OpenDatabase, kernel_type: str, more: Mapping[str, list[MoreCells]]
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Returns the rows of a kernel type for JavaScript, with their curves, and as a table. Raises TableError."""
    points: list[dict[str, Any]] = []
    cells: dict[str, list[MoreCells]] = {}
    for name in database.implementations:
        stored = database.answers.stored_rows(kernel_type, name)
        curves = curves_of(stored)
        cells[name] = [*more[name], {kernel_type: curve_cells(curves, len(stored), len(points))}]
        points += predicted(curves, database, kernel_type, name)
    table = row_table(database, kernel_type, cells)
    if points:
        # The rows of a curve are neighbours; those without one come last.
        table = table.sort_values(["curve", "varies"], kind="stable", ignore_index=True)
    first = [name for name in WORDS if name in table]
    columns = columns_of(table[[*first, *(name for name in table.columns if name not in first)]], WORDS)
    return {**columns, "curves": points}, table


def _facts(database: OpenDatabase, kernel_type: str, table: pd.DataFrame) -> dict[str, Any]:
    """Returns what the overview shows of a kernel type."""
    timed = table["duration_us"].dropna()
    return {
        "rows": len(table),
        "timed": len(timed),
        "each_byte_once": moves_each_byte_once(database, kernel_type),
        "collective": kernel_type.startswith("hcom_"),
        "least_us": float(timed.min()) if len(timed) else None,
        "most_us": float(timed.max()) if len(timed) else None,
        "roofline": _median([table], "roofline"),
        "status": table["status"].value_counts().to_dict(),
        "quality": table.loc[table["quality"] != "", "quality"].value_counts().to_dict(),
        "dtypes": sorted(set(table["dtype"].dropna().astype(str))) if "dtype" in table else [],
        "implementations": list(dict.fromkeys(table["implementation"])),
    }


def _median(tables: Sequence[pd.DataFrame], column: str) -> float | None:
    """Returns the median of a column of all tables that have it, of 4 digits; None without numbers."""
    cells = [pd.to_numeric(table[column]).dropna() for table in tables if column in table]
    known = pd.concat(cells) if cells else pd.Series(dtype=float)
    return float(f"{known.median():.4g}") if len(known) else None


def _figures(tables: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """Returns the numbers of the first screen, over all rows."""
    judged = Counter(quality for table in tables for quality in table["quality"] if quality not in ("", NOT_JUDGED))
    return {
        "rows": sum(map(len, tables)),
        "timed": int(sum(table["duration_us"].notna().sum() for table in tables)),
        **{name: _median(tables, name) for name in ("interval", "roofline")},
        "quiet": judged[Quality.QUIET.value] / judged.total() if judged else None,
    }


def _expect_own(folder: Path) -> None:
    """Checks that a folder is new, empty or a site, also one whose writing ended early. Raises OpAtlasError."""
    expect_folder(folder, "name another one", may_be_made=True)
    if not folder.is_dir() or (folder / "data" / _MARK).is_file():
        return
    # A write that ended before its first file leaves a folder for the data, and what was to become this file.
    data = folder / "data"
    begun = {data, *filter(is_abandoned, data.glob("*"))} if data.is_dir() and not data.is_symlink() else set()
    if {*folder.rglob("*")} - begun:
        raise OpAtlasError(f"{folder}: holds files that are no site of `opatlas report`: name a new or an empty folder")


def _write_data(folder: Path, name: str, content: object) -> None:
    """Writes data as a script: a page that was opened from a file may load scripts, and nothing else."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    write_text(folder / "data" / f"{name}.js", f"opatlas.receive({json.dumps(name)},{json.dumps(text)});\n")


def _assets() -> Iterator[tuple[str, bytes]]:
    for file in resources.files(__package__).joinpath("assets").iterdir():
        if file.is_file():
            yield file.name, file.read_bytes()


def _bokeh() -> Iterator[tuple[str, bytes]]:
    """Yields the scripts of Bokeh by name."""
    scripts = resources.files("bokeh") / "server" / "static" / "js"
    for name in _BOKEH_FILES:
        yield name, scripts.joinpath(name).read_bytes()
