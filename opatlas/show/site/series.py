"""Series of durations: curves over one size, with what is predicted between the rows, and histories over runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from opatlas.ask.compare.regressions import find_regressions
from opatlas.ask.query.answering_rows import AnsweringRows
from opatlas.ask.query.database import OpenDatabase
from opatlas.data.database import Database
from opatlas.data.row_history import row_histories
from opatlas.row import columns as col
from opatlas.row.signature import RowChoice, make_case_id
from opatlas.row.slots import split_cell

from .rows import number_column

if TYPE_CHECKING:
    import pandas as pd

#: A curve has at least so many rows.
LEAST_ROWS = 3
#: Between the ends of a curve the durations of so many sizes are predicted, and those at the edges of tiles.
_BETWEEN, _TILES = 12, (64, 128, 256)
_SIZE = re.compile(r"\d+")
#: In place of the size that varies.
_VARIES = "*"
_SHAPES = (col.INPUT_SHAPES, col.OUTPUT_SHAPES)
#: Sizes of attention that vary with the context of each sequence.
_OF_CONTEXT = ("queries", "keys", "pairs", "bytes", "pages")


@dataclass
class Curve:
    """Rows of one implementation that differ in one size.

    Attributes:
        name: the shapes of the inputs, with "*" for this size; of attention the other sizes.
        key: all cells of the call but the size.
        cells: the cells of a row of the curve.
        varying: the cells with the size, "*" in its place; empty where others vary, too.
        places: the place of each row in `AnsweringRows`, by its size.
    """

    name: str
    key: tuple[str, ...]
    cells: Mapping[str, str]
    varying: Mapping[str, str] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)

    def cells_of(self, size: int) -> dict[str, str]:
        """Returns the cells of the call with a size."""
        return {**self.cells, **{name: cell.replace(_VARIES, str(size)) for name, cell in self.varying.items()}}


def curves_of(rows: AnsweringRows) -> list[Curve]:
    """Returns the curves of the rows. A row is in the one with the most rows."""
    found: dict[tuple[str, ...], Curve] = {}
    for place, sizes in enumerate(rows.sizes):
        cells = rows.row_cells(place)
        if col.MESSAGE_BYTES in cells:
            key = _other_cells(rows, place, (col.MESSAGE_BYTES,))
            name = f"{cells[col.DTYPE]}, {cells[col.NUM_DEVICES]}"
            _add(found, Curve(name, key, cells, {col.MESSAGE_BYTES: _VARIES}), int(cells[col.MESSAGE_BYTES]), place)
        elif "sequences" in sizes:
            _add(found, *_of_attention(rows, place, sizes), place)
        else:
            for size in _candidates(cells, sizes.get("m")):
                varying = {name: _varied(cells[name], size) for name in _SHAPES}
                key = (*varying.values(), *_other_cells(rows, place, _SHAPES))
                _add(found, Curve(varying[col.INPUT_SHAPES], key, cells, varying), size, place)
    _add_ones(found, rows)
    taken: set[int] = set()
    kept = []
    for curve in sorted(found.values(), key=lambda each: -len(each.places)):
        curve.places = {size: place for size, place in sorted(curve.places.items()) if place not in taken}
        if len(curve.places) >= LEAST_ROWS:
            taken |= {*curve.places.values()}
            kept.append(curve)
    return kept


def _add(found: dict[tuple[str, ...], Curve], curve: Curve, size: int, place: int) -> None:
    found.setdefault(curve.key, curve).places.setdefault(size, place)


def _candidates(cells: Mapping[str, str], tokens: object) -> Iterator[int]:
    """Yields the sizes that may be the number of tokens: M of a product, else axes of the first output but its last.

    1 is among the other sizes, too: see `_add_ones`.
    """
    if isinstance(tokens, int):
        sizes = [tokens]
    else:
        first = next(filter(None, split_cell(cells[col.OUTPUT_SHAPES]) or split_cell(cells[col.INPUT_SHAPES])), "")
        axes = [int(size) for size in _SIZE.findall(first)]
        sizes = axes[:-1] or axes
    yield from (size for size in dict.fromkeys(sizes) if size > 1)


def _varied(shapes: str, size: int) -> str:
    return _SIZE.sub(lambda found: _VARIES if int(found[0]) == size else found[0], shapes)


def _other_cells(rows: AnsweringRows, place: int, without: Sequence[str]) -> tuple[str, ...]:
    """Returns the cells of a call without some columns, and whether it was captured."""
    cells = rows.row_cells(place)
    named = [name for name in rows.table.call_cells if name not in without]
    return (*(cells.get(name, "") for name in named), str(rows.captured[place]))


def _of_attention(rows: AnsweringRows, place: int, sizes: Mapping[str, Any]) -> tuple[Curve, int]:
    """Returns the curve of a row of attention over the keys of each sequence, and these."""
    phase = "decode" if sizes["queries"] == sizes["sequences"] else "prefill"
    fixed = {name: size for name, size in sizes.items() if name not in (*_OF_CONTEXT, "operations", "dtype", "format")}
    heads = f"heads {fixed.pop('heads', '')}/{fixed.pop('kv_heads', '')}/{fixed.pop('head_size', '')}"
    plain = ("value_size", sizes.get("value_size")), ("latent", False), ("cache_share", 1.0)
    others = [f"{name} {size}" for name, size in fixed.items() if size is not None and (name, size) not in plain]
    name = ", ".join([phase, heads, *others])
    cells = rows.row_cells(place)
    key = (
        name,
        str(sizes.get("value_size")),
        cells[col.INPUT_DTYPES],
        cells[col.INPUT_FORMATS],
        str(rows.captured[place]),
    )
    return Curve(name, key, cells), sizes["keys"] // max(sizes["sequences"], 1)


def _add_ones(found: Mapping[tuple[str, ...], Curve], rows: AnsweringRows) -> None:
    """Adds the rows of one token."""
    shapes = zip(*map(rows.cells, _SHAPES), strict=True)
    places = {(*of_row, *_other_cells(rows, place, _SHAPES)): place for place, of_row in enumerate(shapes)}
    for key, curve in found.items():
        if col.INPUT_SHAPES in curve.varying:
            one = places.get((*(each.replace(_VARIES, "1") for each in key[:2]), *key[2:]))
            if one is not None:
                curve.places.setdefault(1, one)


def curve_cells(curves: Sequence[Curve], count: int, first: int) -> list[dict[str, int]]:
    """Returns the number of the curve of each of `count` rows, and the size that varies; nothing without a curve.

    Args:
        first: the number of the first curve.
    """
    cells: list[dict[str, int]] = [{} for _ in range(count)]
    for number, curve in enumerate(curves, start=first):
        for size, place in curve.places.items():
            cells[place] = {"curve": number, "varies": size}
    return cells


def predicted(curves: Sequence[Curve], database: OpenDatabase, kernel_type: str, name: str) -> Iterator[dict[str, Any]]:
    """Yields for each curve its name, and sizes with their predicted durations, and upper ends over durations.

    Without a model of the rows, or where more than shapes varies, nothing is predicted.
    """
    predictor = database.answers.predictor(kernel_type, name)
    sizes = [_asked(curve.places) if curve.varying and predictor.model is not None else [] for curve in curves]
    asked = [curve.cells_of(size) for curve, own in zip(curves, sizes, strict=True) for size in own]
    found = iter(predictor.predict(asked) if asked else [])
    for curve, own in zip(curves, sizes, strict=True):
        points = [(size, each) for size in own if (each := next(found)) is not None]
        yield {
            "name": curve.name,
            "x": [size for size, _ in points],
            "us": (number_column([each.duration_us for _, each in points]) or {"numbers": []})["numbers"],
            "factor": [round(each.interval_us[1] / each.duration_us, 3) for _, each in points],
        }


def _asked(sizes: Mapping[int, int]) -> list[int]:
    low, high = min(sizes), max(sizes)
    spread = np.geomspace(low, high, _BETWEEN).round().astype(int).tolist()
    return sorted({*spread, *(edge + over for edge in _TILES for over in (0, 1) if low < edge < high)})


#: The runs of a row by their numbers, the oldest first, with the durations.
History = Sequence[tuple[int, float]]
#: The largest changes of the newest run that are told.
_MOST_CHANGES = 5


class RunHistories:
    """The durations of rows over the runs of databases.

    Attributes:
        runs: the ids of the runs, the oldest first.
    """

    def __init__(self, databases: Sequence[OpenDatabase], problems: list[str]) -> None:
        """
        Args:
            problems: receives a sentence for each file that cannot be read.
        """
        self._found: dict[tuple[str, str], dict[str, float]] = {}
        for each in (one for database in databases for one in database.implementations.values()):
            for name, runs in row_histories(Database(each.path), RowChoice(), problems).items():
                known = {run.run_id: run.duration_us for run in runs if run.run_id and run.duration_us is not None}
                self._found.setdefault((make_case_id(*name), each.label), {}).update(known)
        self.runs = sorted({run for known in self._found.values() for run in known})

    def of_rows(self, table: pd.DataFrame) -> dict[int, History]:
        """Returns the histories of the rows of a table that several runs measured, by position."""
        numbers = {run: number for number, run in enumerate(self.runs)}
        names = zip(table["id"], table["implementation"], strict=True)
        found = {place: self._found.get(name, {}) for place, name in enumerate(names)}
        return {
            place: [(numbers[run], float(f"{us:.6g}")) for run, us in known.items()]
            for place, known in found.items()
            if len(known) > 1
        }

    @staticmethod
    def trend(histories: Iterable[History]) -> list[tuple[int, float]]:
        """Returns the median over rows of the duration in each run, as a multiple of the row's median over runs."""
        of_runs: dict[int, list[float]] = {}
        for history in histories:
            middle = median(us for _, us in history)
            for run, us in history:
                of_runs.setdefault(run, []).append(us / middle)
        return [(run, round(median(factors), 4)) for run, factors in sorted(of_runs.items())]

    def newest(self, database: OpenDatabase) -> dict[str, Any] | None:
        """Returns what the newest run of a database measured and changed; None without runs.

        Rows that it measured again have a median change. Steps need several runs (`opatlas history`).
        """
        label = next(iter(database.implementations.values())).label
        own = [known for (_, of), known in self._found.items() if of == label and known]
        if not own:
            return None
        newest = max(run for known in own for run in known)
        measured = [[*known.values()] for known in own if newest in known and newest == max(known)]
        again = [durations[-1] / durations[-2] - 1 for durations in measured if len(durations) > 1]
        steps = [each for each in find_regressions(Database(database.path), RowChoice()).changes if each.is_newest]
        steps.sort(key=lambda each: -abs(each.percent))
        return {
            "run": newest,
            "rows": len(measured),
            "again": len(again),
            "change": median(again) if again else None,
            "runs": len({run for known in own for run in known}),
            "steps": Counter("slower" if each.percent > 0 else "faster" for each in steps),
            "largest": [
                {"id": each.series.case_id, "percent": each.percent, "after": each.after_run}
                for each in steps[:_MOST_CHANGES]
            ],
        }
