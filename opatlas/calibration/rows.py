"""The calibration set of a database: 30 rows of all families and durations, in `calibration.json` beside the CSVs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from opatlas.arrays import Floats
from opatlas.engine.kernel_facts import replays_of_bench
from opatlas.engine.registry import replay_spec
from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.model.quality import valid_duration
from opatlas.model.roofline import row_bytes
from opatlas.model.schema import (
    CACHE_STATE,
    INSTRUMENT,
    MICROBENCH_MEDIAN,
    POOLED_MEDIAN,
    is_file_name,
)
from opatlas.query.stored_rows import StoredRows
from opatlas.store.csv_files import write_text
from opatlas.store.database import Database
from opatlas.typed_json import DecodeError, decode

CALIBRATION = "calibration.json"
ROWS = 30
_LARGEST_FILE_BYTES = 1 << 20
#: Rows that take longer, or whose tensors are larger, would make the set slow or large: 30 rows of these take 20 s on a
#: CPU, and the check of a row needs several times its tensors.
_LONGEST_US = 10_000.0
_LARGEST_BYTES = 256 << 20
#: Rows with a larger half width, as a share of the duration, say little about a machine.
_WIDEST = 0.10
_LAUNCH_BOUND = "launch-bound"
#: Durations up to this multiple of the 5th percentile of a database are those of a launch.
_OF_A_LAUNCH = 1.5
_PRODUCTS = "products"
#: The family of each module of `bench/`; kernel types of other modules are not in the set.
_FAMILIES: Mapping[str, str] = {
    "matmul": _PRODUCTS,
    **dict.fromkeys(("attention", "flash_attention", "sparse_attention"), "attention"),
    **dict.fromkeys(("elementwise", "activation", "comparison", "rope", "quantized"), "element-wise"),
    **dict.fromkeys(("reduction", "topk", "pooling"), "reductions"),
    **dict.fromkeys(("movement", "indexing", "layout", "cache", "scatter", "creation", "moe"), "copies"),
    "norm": "norms",
}
#: Kernel types that the name of their module does not describe.
_REDUCTIONS = frozenset({"ArgMaxV2", "ArgMaxWithValue", "SoftmaxV2", "LogSoftmaxV2", "MoeGatingTopK", "Cumsum"})


@dataclass(frozen=True)
class CalibrationRow:
    """A row of the set.

    Attributes:
        family: what kind of kernel the row stands for.
        kernel_type, case_id: the row, with its id as pytest shows it.
    """

    family: str
    kernel_type: str
    case_id: str


@dataclass(frozen=True)
class CalibrationDuration:
    """What a database has of a row of the set.

    Attributes:
        row: the row.
        cells: its cells.
        median_us: the median of the runs, or of the samples of one run, in microseconds.
        half_width: half of the 90 % interval for another machine of the same type, as a share of the duration.
        is_judged: whether the row tells if it is a composition; one without Quality may not.
    """

    row: CalibrationRow
    cells: Mapping[str, str]
    median_us: float
    half_width: float
    is_judged: bool


@dataclass(frozen=True)
class _File:
    rows: Sequence[CalibrationRow]
    version: int = 1


def read_set(folder: Path) -> list[CalibrationRow] | None:
    """Returns the calibration set of a database; None if it has none. Raises OpAtlasError."""
    path = folder / CALIBRATION
    again = f"choose the rows anew (opatlas calibrate {folder} --choose)"
    try:
        rows = list(decode(read_safely(path, _LARGEST_FILE_BYTES), _File, str(path)).rows)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check its permissions") from None
    except DecodeError as error:
        raise OpAtlasError(f"{error}: {again}") from None
    for row in rows:
        if not is_file_name(row.kernel_type):
            raise OpAtlasError(f"{path}: {row.kernel_type!r} is no kernel type: {again}")
    return rows


def write_set(folder: Path, rows: Sequence[CalibrationRow]) -> Path:
    """Writes the calibration set of a database, a line for each row; returns the path. Raises OpAtlasError."""
    path = folder / CALIBRATION
    lines = [json.dumps(asdict(row)) for row in rows]
    write_text(path, '{"version": 1, "rows": [\n' + ",\n".join(lines) + "\n]}\n")
    return path


def stored_durations(folder: Path, rows: Sequence[CalibrationRow]) -> list[CalibrationDuration]:
    """Returns what a database has of the rows of a set. Raises OpAtlasError if it lacks one."""
    found: dict[str, CalibrationDuration] = {}
    for kernel_type in dict.fromkeys(row.kernel_type for row in rows):
        wanted = {row.case_id: row for row in rows if row.kernel_type == kernel_type}
        stored = StoredRows(folder, kernel_type)
        for position in range(len(stored)):
            row = wanted.get(stored.case_id(position))
            if row is not None:
                found.setdefault(row.case_id, _stored(row, stored, position))
    missing = [row for row in rows if row.case_id not in found]
    if missing:
        raise OpAtlasError(
            f"{folder / CALIBRATION}: the database has no duration of {missing[0].case_id} "
            f"({len(missing)} of {len(rows)} rows): choose the rows anew (opatlas calibrate {folder} --choose)"
        )
    return [found[row.case_id] for row in rows]


def _stored(row: CalibrationRow, stored: StoredRows, position: int) -> CalibrationDuration:
    column = POOLED_MEDIAN if stored.is_pooled[position] else MICROBENCH_MEDIAN
    median_us = valid_duration(stored.cells(column)[position]) or float(stored.duration_us[position])
    half_width = float(_half_widths(stored)[position])
    cells: dict[str, str] = stored.frame.iloc[position].to_dict()
    return CalibrationDuration(row, cells, median_us, half_width, stored.composed[position] is not None)


def _half_widths(stored: StoredRows) -> Floats:
    return stored.half_widths(stored.machine_floors)


@dataclass(frozen=True)
class _Candidate:
    kernel_type: str
    case_id: str
    duration_us: float
    half_width: float
    conditions: tuple[str, str]


def choose(folder: Path, on_kernel_type: Callable[[], None] = lambda: None) -> list[CalibrationRow]:
    """Returns the rows of a calibration set: stable and short ones, spread over families and durations.

    All were measured with the same cache state and instrument. Compositions, noisy rows and rows of several devices are
    left out.

    Args:
        on_kernel_type: called after each kernel type.

    Raises:
        OpAtlasError: a file cannot be read, or no row fits.
    """
    candidates: list[_Candidate] = []
    for kernel_type in Database(folder).kernel_types():
        if _family(kernel_type):
            candidates += _candidates(folder, kernel_type)
        on_kernel_type()
    conditions = Counter(each.conditions for each in candidates).most_common(1)
    candidates = [each for each in candidates if each.conditions == conditions[0][0]]
    if not candidates:
        raise OpAtlasError(
            f"{folder}: no row fits a calibration set (replayed with a known cache state, quiet, up to "
            f"{_LONGEST_US / 1000:g} ms): measure the database first (opatlas bench)"
        )
    launch_us = _OF_A_LAUNCH * float(np.quantile([each.duration_us for each in candidates], 0.05))
    families: dict[str, list[_Candidate]] = {name: [] for name in (*_FAMILIES.values(), _LAUNCH_BOUND)}
    for each in candidates:
        is_launch = each.duration_us <= launch_us
        families[_LAUNCH_BOUND if is_launch else _family(each.kernel_type)].append(each)
    found = {name: _spread(rows, count) for name, rows, count in _shares(families)}
    return [CalibrationRow(name, each.kernel_type, each.case_id) for name, rows in found.items() for each in rows]


def _family(kernel_type: str) -> str:
    """Returns the family of a kernel type; "" if it has none, or needs several devices."""
    function = replays_of_bench().get(kernel_type)
    spec = replay_spec(function) if function is not None else None
    if function is None or spec is None or spec.group is not None or spec.binding is not None:
        return ""
    if "matmul" in kernel_type.lower():
        return _PRODUCTS
    family = _FAMILIES.get(function.__module__.rpartition("test_")[2], "")
    return "reductions" if kernel_type in _REDUCTIONS else family


def _candidates(folder: Path, kernel_type: str) -> Iterable[_Candidate]:
    stored = StoredRows(folder, kernel_type)
    half_widths = _half_widths(stored)
    columns = zip(stored.cells(CACHE_STATE), stored.cells(INSTRUMENT), strict=True)
    for position, conditions in enumerate(columns):
        duration_us = float(stored.duration_us[position])
        found = stored.found[position]
        is_known = all(conditions) and found.run_id and not (found.noisy or found.lost)
        if is_known and duration_us <= _LONGEST_US and half_widths[position] <= _WIDEST:
            size = row_bytes(kernel_type, stored.frame.iloc[position].to_dict())
            if size is not None and size <= _LARGEST_BYTES:
                half_width = float(half_widths[position])
                yield _Candidate(kernel_type, stored.case_id(position), duration_us, half_width, conditions)


def _shares(families: Mapping[str, list[_Candidate]]) -> list[tuple[str, list[_Candidate], int]]:
    """Returns each family that has rows, with the number of rows that the set takes: the same of all, if they have."""
    counts = dict.fromkeys((name for name, rows in families.items() if rows), 0)
    while sum(counts.values()) < ROWS:
        growing = [name for name, count in counts.items() if count < len(families[name])]
        if not growing:
            break
        for name in growing[: ROWS - sum(counts.values())]:
            counts[name] += 1
    return [(name, families[name], count) for name, count in counts.items()]


def _spread(rows: Sequence[_Candidate], count: int) -> list[_Candidate]:
    """Returns rows whose durations are spread evenly on a logarithmic scale, of as many kernel types as there are."""
    least, most = (float(np.quantile([row.duration_us for row in rows], each)) for each in (0.05, 0.95))
    left = sorted(rows, key=lambda row: (row.kernel_type, row.case_id))
    chosen: list[_Candidate] = []
    for target_us in np.geomspace(least, most, count).tolist():
        used = {row.kernel_type for row in chosen}

        def cost(row: _Candidate, target_us: float = target_us, used: set[str] = used) -> float:
            # A kernel type that is in the set costs as much as an octave, and so does a half width of 5 %.
            return abs(math.log2(row.duration_us / target_us)) + (row.kernel_type in used) + 20 * row.half_width

        best = min(left, key=cost)
        left.remove(best)
        chosen.append(best)
    return sorted(chosen, key=lambda row: row.duration_us)
