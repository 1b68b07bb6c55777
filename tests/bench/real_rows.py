"""Rows of real captures and measurements, where these lie next to the checkout.

Nothing of them is part of the project; `shared/data/SOURCES.md` there describes them.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from opatlas.row.columns import INPUT_SHAPES, INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.row.signature import normalized_kernel_type, signature
from opatlas.row.slots import EMPTY_WORDS, slot_words

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@dataclass
class RealRow:
    """A distinct row of a source.

    Attributes:
        times: how many rows of the source have its signature.
    """

    source: str
    kernel_type: str
    cells: dict[str, str]
    signature: str
    times: int = 0


@dataclass
class Source:
    """A file of rows.

    Attributes:
        rows: the distinct ones.
        unrecorded: by kernel type, how many rows have no input shapes; "" where the type is missing too.
    """

    name: str
    rows: list[RealRow] = field(default_factory=list)
    unrecorded: Counter[str] = field(default_factory=Counter)


@cache
def sources() -> tuple[Source, ...]:
    """Captures, and measurements of a 910B; none where the folder is not there."""
    found = []
    for path in sorted(DATA.glob("ascend_profiler/*/*.csv")):
        if "kernel_details" in path.name or "op_summary" in path.name:
            found.append(_source(path, _captured(path)))
    for path in sorted(DATA.glob("910b/*.csv")):
        # `GroupedMatmul_MoE_W8A8.csv` has the measured kernel in its name.
        found.append(_source(path, ((path.stem.partition("_")[0], row) for row in _read(path))))
    return tuple(found)


def _source(path: Path, rows: Iterator[tuple[str, dict[str, str]]]) -> Source:
    source = Source(str(path.relative_to(DATA)))
    distinct: dict[tuple[str, str], RealRow] = {}
    for kernel_type, row in rows:
        cells = {column: row.get(column) or "" for column in (*INPUT_SLOTS, *OUTPUT_SLOTS)}
        if not _is_recorded(cells):
            source.unrecorded[kernel_type] += 1
            continue
        text = signature(kernel_type, cells)
        known = distinct.setdefault((kernel_type, text), RealRow(source.name, kernel_type, cells, text))
        known.times += 1
    source.rows = list(distinct.values())
    return source


def _is_recorded(cells: dict[str, str]) -> bool:
    # An empty cell with a dtype is a 0-dim tensor; N/A is nothing.
    shapes = cells[INPUT_SHAPES].strip()
    return not (shapes and shapes.upper() in EMPTY_WORDS) and bool(slot_words(*map(cells.__getitem__, INPUT_SLOTS)))


def _captured(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    for row in _read(path):
        kernel_type = normalized_kernel_type(row.get("Type") or row.get("OP Type") or "")
        yield "" if kernel_type.upper() in EMPTY_WORDS else kernel_type, row


def _read(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        yield from csv.DictReader(file)
