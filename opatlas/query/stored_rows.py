"""The rows of one kernel type in one database that have a duration, found by signature or by some of their cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from opatlas.arrays import Floats
from opatlas.combine.row_devices import RowDevices, are_one_device, joined
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.query.compositions import composition_of
from opatlas.query.kernel_model import LEAST_ROWS
from opatlas.query.question import Question
from opatlas.query.result import machine_floor, measured_half_widths
from opatlas.row.columns import (
    CACHE_STATE,
    EP_SIZE,
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    INSTRUMENT,
    LENGTHS_IN_SIGNATURE,
    MICROBENCH_DEVICE_KERNELS,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
    POOLED_MACHINES,
    POOLED_RUN_DURATIONS,
    POOLED_SPREAD,
    PROFILING_AVERAGE,
    PROFILING_POPULATIONS,
    PROFILING_RUN_ID,
    PROFILING_SAMPLES,
    PROFILING_STD,
    QUALITY,
    RUN_ID,
    RUNTIME_IN_SIGNATURE,
    STAND_IN,
    STATUS,
    Status,
)
from opatlas.row.communication import is_communication
from opatlas.row.optional_slots import optional_inputs, optional_outputs
from opatlas.row.quality import NOISE_LIMIT, Quality, is_noisy, valid_duration
from opatlas.row.row_kind import row_kind
from opatlas.row.signature import make_case_id, row_cells, signatures
from opatlas.row.slots import dtype_name, known_dtype, split_cell
from opatlas.text import parse_real, parse_whole

#: Columns besides those of the tensors that belong to the signature of some kernel types.
EXTRA_IN_SIGNATURE = (*RUNTIME_IN_SIGNATURE, *LENGTHS_IN_SIGNATURE, EP_SIZE)
#: The instrument of a captured duration.
CAPTURED = "capture"
#: After a run that ended so, an earlier duration may be one of a wrong result, or of a call that the row does not mean.
_WRONG = (Status.FAILED, Status.INVALID)
_UNSEEN = -2
_OF_INPUTS = (INPUT_DTYPES, INPUT_FORMATS)
#: The shapes of the slots that a column describes.
_SHAPES_OF = {
    **dict.fromkeys(_OF_INPUTS, INPUT_SHAPES),
    **dict.fromkeys((OUTPUT_DTYPES, OUTPUT_FORMATS), OUTPUT_SHAPES),
}
_NZ = "FRACTAL_NZ"
#: Samples of other columns describe the duration of these.
_SPREAD = {PROFILING_AVERAGE: (PROFILING_STD, PROFILING_SAMPLES)}


#: The source of a duration: that of a replay, or of a profiler's capture.
REPLAYED, CAPTURED_SOURCE = "replayed", "captured"


class Stored(NamedTuple):
    """A duration in a row.

    Attributes:
        duration_us, std_us, samples: the duration, and the known facts of its samples (else NaN).
        quality: the quality of the samples, as in the column Quality; of a captured duration BIMODAL if the capture
            has two populations of its launches, else "".
        run_id: the run that measured it; "" for a captured one.
        composed: whether it is that of a composition of torch operators; None if the row does not say.
        captured: whether it is that of a capture, and not of a replay.
        device: the device that it was measured on; "" if unknown.
        noisy: whether its samples are noisy, drifting, bimodal or throttled.
        lost: the status of the last run of the row where that did not measure it; else "".
        left_out: why it does not answer; "" if it does.
    """

    duration_us: float
    std_us: float
    samples: float
    quality: str
    run_id: str
    composed: bool | None
    captured: bool
    device: str
    noisy: bool
    lost: str
    left_out: str


class StoredRows:
    """The rows of a kernel type that answer: all that have a duration of the device, however noisy.

    Attributes:
        folder: the folder of their database.
        kernel_type: the kernel type.
        label: their implementation, for answers and messages.
        table, kept: all rows of the kernel type, and the positions of those that answer.
        frame: their cells, as text.
        signatures: their signatures; the same for equal rows.
        found: the duration of each row that answers; the replay of a row that also was captured.
        others: the other durations of each row: its capture in addition to its replay, those of other devices.
        left_out: durations that do not answer, by the signature of their row.
    """

    def __init__(
        self,
        folder: Path,
        kernel_type: str,
        label: str = "",
        *,
        compositions: bool = False,
        devices: RowDevices | None = None,
        device: str = "",
    ) -> None:
        """Reads the rows.

        Args:
            compositions: whether rows count whose duration is that of a composition of operators.
            devices: the devices of the durations in the folder; None: they are read.
            device: the device that answers; default: that of the folder.

        Raises:
            TableError: the CSV cannot be read.
        """
        self.table = Database(folder).read_or_empty(kernel_type)
        frame = self.table.frame
        devices = devices or RowDevices(folder)
        answering = device or devices.device
        judged = row_cells(frame[_judged_columns(kernel_type, frame)])
        stored = [list(_stored(kernel_type, row, compositions, devices, answering)) for row in judged]
        first = [next((each for each in found if not each.left_out), None) for found in stored]
        kept = [position for position, each in enumerate(first) if each is not None]
        self.kept = kept
        self.folder, self.kernel_type, self.label = folder, kernel_type, label or str(folder)
        self.frame = frame.iloc[kept].reset_index(drop=True)
        self.signatures = signatures(kernel_type, self.frame)
        self.found = [each for each in first if each is not None]
        self.others = [[each for each in stored[position] if each is not first[position]] for position in kept]
        lost = [position for position, found in enumerate(stored) if found and first[position] is None]
        names = signatures(kernel_type, frame.iloc[lost]) if lost else []
        self.left_out: Mapping[str, Stored] = {
            name: stored[position][0] for name, position in zip(names, lost, strict=True)
        }

    @cached_property
    def duration_us(self) -> Floats:
        """The duration of each row in microseconds."""
        return np.array([each.duration_us for each in self.found], dtype=np.float64)

    @cached_property
    def std_us(self) -> Floats:
        """The standard deviation of the samples of each row; NaN if unknown."""
        return np.array([each.std_us for each in self.found], dtype=np.float64)

    @cached_property
    def samples(self) -> Floats:
        """The number of samples of each row; NaN if unknown."""
        return np.array([each.samples for each in self.found], dtype=np.float64)

    @cached_property
    def quality(self) -> list[str]:
        """The quality of the samples of each row (`Stored.quality`)."""
        return [each.quality for each in self.found]

    @cached_property
    def run_id(self) -> list[str]:
        """The run that measured each duration; "" for a captured one."""
        return [each.run_id for each in self.found]

    @cached_property
    def composed(self) -> list[bool | None]:
        """Whether each duration is that of a composition of torch operators; None if the row does not say."""
        return [each.composed for each in self.found]

    @cached_property
    def captured(self) -> list[bool]:
        """Whether each duration is that of a capture, and not of a replay."""
        return [each.captured for each in self.found]

    @cached_property
    def source(self) -> list[str]:
        """The source of each duration, in a word: REPLAYED or CAPTURED_SOURCE."""
        return [source_word(each) for each in self.found]

    @cached_property
    def devices(self) -> list[str]:
        """The device of each duration; "" if unknown."""
        return [each.device for each in self.found]

    @cached_property
    def noisy(self) -> npt.NDArray[np.bool_]:
        """Whether the samples of each row are noisy, drifting, bimodal or throttled."""
        return np.array([each.noisy for each in self.found], dtype=bool)

    @cached_property
    def telling(self) -> npt.NDArray[np.bool_]:
        """Whether each row takes part in predictions of others.

        Those with noisy samples, and those whose last run did not measure them, do not, unless too few others are left.
        Of messages of collectives, whose samples differ much, those do whose mean is known well.
        """
        error = self.std_us / self.duration_us / np.sqrt(np.fmax(self.samples, 1))
        known = is_communication(self.kernel_type) & (error <= NOISE_LIMIT / 2)
        # The samples of a capture are launches in different places of a step.
        noisy = self.noisy & ~np.array(self.captured, dtype=bool)
        good: npt.NDArray[np.bool_] = (~noisy | known) & np.array([not each.lost for each in self.found], dtype=bool)
        return good if good.sum() >= LEAST_ROWS else np.ones(len(self), dtype=bool)

    def __len__(self) -> int:
        return len(self.signatures)

    @cached_property
    def any_composed(self) -> bool | None:
        """Whether some duration is that of a composition; None if none is known to be, and some row does not say."""
        return True if True in self.composed else None if None in self.composed else False

    @cached_property
    def share_in_nz(self) -> float:
        """The share of the rows with a tensor in FRACTAL_NZ, as weights are stored on NPUs."""
        return sum(_NZ in cell for cell in self.cells(INPUT_FORMATS)) / max(len(self), 1)

    @cached_property
    def by_signature(self) -> Mapping[str, int]:
        """The position of each row; of rows with equal signatures the first."""
        return {signature: i for i, signature in reversed(list(enumerate(self.signatures)))}

    def case_id(self, position: int) -> str:
        """Returns the id of a row."""
        return make_case_id(self.kernel_type, self.signatures[position])

    def cells(self, column: str) -> Sequence[str]:
        """Returns the cells of a column; empty ones if the column is missing."""
        if column not in self.frame.columns:
            return [""] * len(self)
        cells: list[str] = self.frame[column].tolist()
        return cells

    @cached_property
    def row_conditions(self) -> list[tuple[str, str]]:
        """Cache state and instrument of each row; of a captured one "" and CAPTURED."""
        cells = zip(self.captured, self.cells(CACHE_STATE), self.cells(INSTRUMENT), strict=True)
        return [("", CAPTURED) if captured else (cache, instrument) for captured, cache, instrument in cells]

    def conditions(self) -> tuple[str, str]:
        """Returns the cache states and the instruments of all rows, separated by commas."""
        cache, instrument = (joined(each[which] for each in self.row_conditions) for which in (0, 1))
        return cache, instrument

    @cached_property
    def device(self) -> str:
        """The device of the rows, several with commas; "" if unknown."""
        return joined(self.devices)

    @cached_property
    def is_pooled(self) -> list[bool]:
        """Whether the Pooled cells of each row belong to its duration, which may have been replaced since."""
        runs = zip(self.run_id, self.cells(POOLED_RUN_DURATIONS), strict=True)
        return [bool(run_id) and run_id in cell for run_id, cell in runs]

    @cached_property
    def machines(self) -> list[tuple[int | None, float | None]]:
        """The number of machines that measured each row, and their spread as a share; None if the row does not say."""
        cells = zip(self.is_pooled, self.cells(POOLED_MACHINES), self.cells(POOLED_SPREAD), strict=True)
        return [(parse_whole(count), _share(percent)) if holds else (None, None) for holds, count, percent in cells]

    @cached_property
    def machine_floors(self) -> Floats:
        """The `machine_floor` of each row, by its Pooled cells."""
        return np.array([machine_floor(count, spread) for count, spread in self.machines], dtype=np.float64)

    def half_widths(self, floors: Floats) -> Floats:
        """Returns the half width of the interval of each row, as a share of its duration (`measured_half_widths`)."""
        return measured_half_widths(self.std_us, self.samples, self.duration_us, floors, self.noisy)

    def find(self, question: Question) -> list[int]:
        """Returns the positions of the rows that have all cells of a question, one for each signature."""
        rows = self._by_inputs.get(normal_words(self.kernel_type, INPUT_SHAPES, question.cells), [])
        for column in question.cells:
            if rows and column != INPUT_SHAPES:
                wanted, there = normal_words(self.kernel_type, column, question.cells), self.normal_cells(column)
                rows = [i for i in rows if there[i] == wanted]
        if question.dtype and rows:
            there = self.normal_cells(INPUT_DTYPES)
            rows = [i for i in rows if there[i][:1] == (question.dtype,)]
        return sorted({self.signatures[i]: i for i in reversed(rows)}.values())

    def positions(self, frame: pd.DataFrame) -> npt.NDArray[np.intp]:
        """Returns the position of the row with the signature of each row of a table; -1 where there is none.

        Raises:
            OpAtlasError: the table lacks a column that every row has.
        """
        columns = [name for name in row_kind(self.kernel_type).identity_columns if name in frame.columns]
        columns += [name for name in (*EXTRA_IN_SIGNATURE,) if name in frame.columns]
        missing = [name for name in row_kind(self.kernel_type).required_columns if name not in columns]
        if missing:
            raise OpAtlasError(f"{self.kernel_type}: the rows lack the column {missing[0]!r}: add it")
        if not len(self):
            return np.full(len(frame), -1, dtype=np.intp)
        cells = list(zip(*(frame[name].tolist() for name in columns), strict=True))
        known = self._known.setdefault(tuple(columns), {})
        found = [known.get(each, _UNSEEN) for each in cells]
        if _UNSEEN in found:
            unseen = [i for i, position in enumerate(found) if position == _UNSEEN]
            for i, name in zip(unseen, signatures(self.kernel_type, frame[columns].iloc[unseen]), strict=True):
                found[i] = known[cells[i]] = self.by_signature.get(name, -1)
        return np.array(found, dtype=np.intp)

    @cached_property
    def _known(self) -> dict[tuple[str, ...], dict[tuple[str, ...], int]]:
        """The positions of rows that were asked for, by columns and cells: a look-up without a signature."""
        return {}

    def differing(self, rows: Sequence[int], columns: Sequence[str]) -> list[str]:
        """Returns the columns in which rows differ."""
        return [column for column in columns if len({self.normal_cells(column)[i] for i in rows}) > 1]

    @cached_property
    def _by_inputs(self) -> Mapping[tuple[str, ...], list[int]]:
        found: dict[tuple[str, ...], list[int]] = {}
        for position, words in enumerate(self.normal_cells(INPUT_SHAPES)):
            found.setdefault(words, []).append(position)
        return found

    def has_dtypes(self, cells: Mapping[str, str]) -> bool:
        """Returns whether some row has the dtypes of these inputs; slots that only one of them has do not count."""
        asked = normal_words(self.kernel_type, INPUT_DTYPES, cells)
        return any(asked[: len(words)] == words[: len(asked)] for words in self._dtypes)

    @cached_property
    def _dtypes(self) -> frozenset[tuple[str, ...]]:
        return frozenset(self.normal_cells(INPUT_DTYPES))

    def normal_cells(self, column: str) -> list[tuple[str, ...]]:
        """Returns the cells of a column as words, so that equal ones are equal however they are written."""
        if column not in self._normals:
            columns = dict.fromkeys((column, _SHAPES_OF.get(column, column)))
            rows = zip(*map(self.cells, columns), strict=True)
            self._normals[column] = [
                normal_words(self.kernel_type, column, dict(zip(columns, row, strict=True))) for row in rows
            ]
        return self._normals[column]

    @cached_property
    def _normals(self) -> dict[str, list[tuple[str, ...]]]:
        return {}


def normal_words(kernel_type: str, column: str, cells: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the words of a cell: dtypes without prefixes and synonyms, no absent slots at the end.

    Args:
        cells: the cell, and that of the shapes, where it is known.
    """
    words = [dtype_name(word).removeprefix("FORMAT_") for word in split_cell(cells.get(column, ""))]
    words = [word if (known := known_dtype(word)) is None else known.name for word in words]
    shapes = cells.get(_SHAPES_OF.get(column, ""), "")
    if shapes:
        optional = (optional_inputs if column in _OF_INPUTS else optional_outputs)(kernel_type)
        there = [bool(shape) for shape in split_cell(shapes)]
        words = [word if any(there[i : i + 1]) or i not in optional else "" for i, word in enumerate(words)]
    while words and not words[-1]:
        words.pop()
    return tuple(words)


def _share(percent: str) -> float | None:
    """Returns a cell in percent as a share; None unless it is a finite number of at least 0."""
    value = parse_real(percent)
    return value / 100 if value is not None and 0 <= value < np.inf else None


def _judged_columns(kernel_type: str, frame: pd.DataFrame) -> list[str]:
    """Returns the columns of a table that `_stored` reads."""
    durations = row_kind(kernel_type).duration_columns
    wanted = (*durations, MICROBENCH_STD, MICROBENCH_SAMPLES, PROFILING_STD, PROFILING_SAMPLES)
    wanted = (
        *wanted,
        PROFILING_POPULATIONS,
        PROFILING_RUN_ID,
        QUALITY,
        STAND_IN,
        STATUS,
        RUN_ID,
        INSTRUMENT,
        MICROBENCH_DEVICE_KERNELS,
    )
    return [name for name in dict.fromkeys(wanted) if name in frame.columns]


def source_word(stored: Stored) -> str:
    """Returns the source of a duration: REPLAYED or CAPTURED_SOURCE."""
    return CAPTURED_SOURCE if stored.captured else REPLAYED


def _stored(
    kernel_type: str, row: Mapping[str, str], compositions: bool, devices: RowDevices, answering: str
) -> Iterator[Stored]:
    """Yields the durations of a row: that of the replay, then the captured one."""
    for column in row_kind(kernel_type).duration_columns:
        duration_us = valid_duration(row.get(column, ""))
        if duration_us is None:
            continue
        std_column, samples_column = _SPREAD.get(column, (MICROBENCH_STD, MICROBENCH_SAMPLES))
        std_us, samples = parse_real(row.get(std_column, "")), parse_real(row.get(samples_column, ""))
        captured = column == PROFILING_AVERAGE
        if captured:
            quality = Quality.BIMODAL.value if row.get(PROFILING_POPULATIONS, "").strip() else ""
            device = devices.captured(row.get(PROFILING_RUN_ID, ""))
        else:
            quality = row.get(QUALITY, "")
            device = devices.replayed(row.get(RUN_ID, ""))
        composed = False if captured else composition_of(kernel_type, row)
        status = None if captured else Status.from_cell(row.get(STATUS, ""))
        noise = std_us / duration_us if std_us is not None else None
        left_out = ""
        if not are_one_device(device, answering):
            left_out = f"its duration is of {device}"
        elif status in _WRONG:
            left_out = f"its last run ended with status {status}"
        elif composed and not compositions:
            left_out = "its duration is that of a composition of torch operators"
        yield Stored(
            duration_us,
            np.nan if std_us is None else std_us,
            np.nan if samples is None else samples,
            quality,
            "" if captured else row.get(RUN_ID, ""),
            composed,
            captured,
            device,
            is_noisy(Quality.from_cell(quality), None if captured else noise),
            "" if status in (None, Status.MEASURED) else str(status),
            left_out,
        )
