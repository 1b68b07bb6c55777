"""The rows of a kernel type that answer questions.

This decides which duration of a row counts, whether it is of the device, and whether it may answer. All else about a
row and its duration is a column of its table (`opatlas.row.table`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opatlas.ask.query.question import FORM, Question, UsedRow, measured_half_widths, usual_deviation
from opatlas.data.origin import Provenance, are_one_device, joined
from opatlas.errors import OpAtlasError
from opatlas.grouping import positions_by_key
from opatlas.row import columns as col
from opatlas.row.communication import is_communication
from opatlas.row.quality import Duration, Floats, Mask, Positions, Source, run_medians
from opatlas.row.roofline import moves_all
from opatlas.row.signature import signature, signatures
from opatlas.row.slots import FP8, SHAPES_OF, normal_words
from opatlas.row.status import Status
from opatlas.row.table import Row, RowTable
from opatlas.text import parse_whole

if TYPE_CHECKING:
    import pandas as pd

#: The instrument of a captured duration.
CAPTURED = "capture"
#: The note of rows of which `RowDuration.composed` is None.
UNKNOWN_COMPOSITION = "the rows do not say whether a composition of operators ran"
#: After a run that ended so, an earlier duration may be one of a wrong result, or of a call that the row does not mean.
_WRONG = (Status.FAILED, Status.INVALID)
_UNSEEN = -2
_SIZE = re.compile(r"\d+")
_NZ = "FRACTAL_NZ"


class RowDuration(NamedTuple):
    """A duration of a row, and whether it answers.

    Attributes:
        device: the device that it was measured on; "" if unknown.
        composed: whether it is that of a composition of torch operators in place of the one kernel of an NPU; None if
            the row does not say.
        left_out: why it does not answer; "" if it does.
    """

    row: Row
    duration: Duration
    device: str
    composed: bool | None
    left_out: str

    @property
    def is_captured(self) -> bool:
        """Whether it is that of a capture, and not of a replay."""
        return self.duration.source is Source.CAPTURED

    @property
    def run_id(self) -> str:
        """The run that measured it; "" for a captured one."""
        return "" if self.is_captured else self.duration.run_id

    @property
    def instrument(self) -> str:
        """The instrument; CAPTURED for a captured one."""
        return CAPTURED if self.is_captured else self.duration.instrument

    @property
    def machines(self) -> tuple[int | None, float | None]:
        """The number of machines that measured the row, and their spread as a share; None if the row does not say."""
        return (None, None) if self.is_captured else self.row.table.machines[self.row.position]

    def used(self, distance: float = 0.0) -> UsedRow:
        """Returns the row as one that an answer comes from, so far from its question."""
        kernels = parse_whole(self.row.cell(col.MICROBENCH_DEVICE_KERNELS)) or 0
        return UsedRow(self.row.case_id, self.run_id, self.duration.us, distance, 1 if self.is_captured else kernels)

    @property
    def lost(self) -> Status | None:
        """The status of the last run of the row if that did not measure this duration; else None."""
        return None if self.is_captured or self.row.status is Status.MEASURED else self.row.status


class AnsweringRows:
    """The rows of a kernel type that answer: all that have a duration of the device, however noisy.

    Attributes:
        table: all rows of the kernel type.
        label: their implementation, for answers and messages.
        found: the duration of each row that answers; the replay of a row that also was captured.
        others: the other durations of each row: its capture in addition to its replay, those of other devices.
        left_out: durations that do not answer, by the signature of their row.
    """

    def __init__(
        self, table: RowTable, devices: Provenance, *, label: str = "", device: str = "", compositions: bool = False
    ) -> None:
        """
        Args:
            devices: the devices of the durations in the folder.
            label: default: the folder.
            device: the device that answers; default: that of the folder.
            compositions: whether rows answer whose duration is that of a composition of operators.
        """
        self.table, self.kernel_type, self.label = table, table.kernel_type, label or str(table.path.parent)
        self.found: list[RowDuration] = []
        self.others: list[list[RowDuration]] = []
        self.left_out: dict[str, RowDuration] = {}
        for position, judged in enumerate(_judged(table, devices, device or devices.device, compositions)):
            first = next((each for each in judged if not each.left_out), None)
            if first is not None:
                self.found.append(first)
                self.others.append([each for each in judged if each is not first])
            elif judged:
                self.left_out[table.signatures[position]] = judged[0]

    def __len__(self) -> int:
        return len(self.found)

    @cached_property
    def refused(self) -> frozenset[str]:
        """The signatures of rows without a duration that the implementation does not run."""
        last = zip(self.table.signatures, self.table.statuses, strict=True)
        return frozenset(name for name, status in last if status is Status.UNSUPPORTED) - {*self.signatures}

    def __iter__(self) -> Iterator[Row]:
        return (each.row for each in self.found)

    def case_id(self, place: int) -> str:
        """Returns the id of a row."""
        return self.found[place].row.case_id

    def cells(self, column: str) -> list[str]:
        """Returns the cells of a column; empty ones if the column is missing."""
        return self._of_rows(self.table.cells(column))

    def words(self, column: str) -> list[tuple[str, ...]]:
        """Returns the words of each cell of a column (`RowTable.words`)."""
        return self._of_rows(self.table.words(column))

    def words_at(self, place: int, column: str) -> tuple[str, ...]:
        """Returns the words of a cell of one row, which takes less time than those of a column."""
        if column == col.EXPERT_LOAD and self.captured_load[place]:
            return normal_words(self.kernel_type, column, {column: Source.CAPTURED.value})
        position = self.positions[place]
        cells = {name: self.table.cells(name)[position] for name in (column, SHAPES_OF.get(column, column))}
        return normal_words(self.kernel_type, column, cells)

    def _of_rows(self, values: Sequence[Any]) -> list[Any]:
        return [values[position] for position in self.positions]

    @cached_property
    def positions(self) -> list[int]:
        """The position of each row in the table."""
        return [each.row.position for each in self.found]

    @cached_property
    def signatures(self) -> list[str]:
        """The signature of each row; the same for equal rows. That of rows of `captured_load` has this load."""
        found: list[str] = self._of_rows(self.table.signatures)
        for place in np.flatnonzero(self.captured_load).tolist():
            found[place] = signature(self.kernel_type, self.row_cells(place))
        return found

    @cached_property
    def captured_load(self) -> Mask:
        """Whether each row is a captured product of experts, whose load is that of the captured tokens.

        A replay of the row has another load, so that these rows answer only where `Expert Load` is "captured".
        """
        grouped = self.kernel_type in col.GROUPED
        return np.array(
            [grouped and each.is_captured and not each.row.cell(col.EXPERT_LOAD) for each in self.found], dtype=bool
        )

    def row_cells(self, place: int) -> dict[str, str]:
        """Returns the cells of a row by column."""
        cells = self.found[place].row.cells
        return {**cells, col.EXPERT_LOAD: Source.CAPTURED.value} if self.captured_load[place] else cells

    @cached_property
    def by_signature(self) -> Mapping[str, int]:
        """The place of each row; of rows with equal signatures the first."""
        return {signature: i for i, signature in reversed(list(enumerate(self.signatures)))}

    @cached_property
    def duration_us(self) -> Floats:
        """The duration of each row in microseconds."""
        return self.numbers("us")

    def numbers(self, name: str) -> Floats:
        """Returns a number of the `Duration` of each row, such as std_us."""
        return np.array([getattr(each.duration, name) for each in self.found], dtype=np.float64)

    @cached_property
    def noisy(self) -> Mask:
        """Whether the samples of each row are noisy, drifting, bimodal or throttled."""
        return self.numbers("noisy") > 0

    @cached_property
    def captured(self) -> Mask:
        """Whether each duration is that of a capture, and not of a replay."""
        return np.array([each.is_captured for each in self.found], dtype=bool)

    @cached_property
    def devices(self) -> list[str]:
        """The device of each duration; "" if unknown."""
        return [each.device for each in self.found]

    @cached_property
    def common(self) -> Mapping[str, Any]:
        """Device, cache, instrument and source of all durations, each with commas, and whether any is composed.

        `composed` is None if no duration is known to be a composition, and some row does not say.
        """
        composed = {each.composed for each in self.found}
        return {
            "device": joined(self.devices),
            "cache": joined(each.duration.cache for each in self.found),
            "instrument": joined(each.instrument for each in self.found),
            "source": joined(each.duration.source.value for each in self.found),
            "composed": True if True in composed else None if None in composed else False,
        }

    @cached_property
    def facts(self) -> pd.DataFrame:
        """What is known of the duration of each row, as columns."""
        import pandas as pd

        medians = (durations.middle_us[self.positions] for durations in (self.table.captured, self.table.replayed))
        columns: dict[str, Any] = {
            "duration_us": self.duration_us,
            "median_us": np.where(self.captured, *medians),
            **{name: self.numbers(name) for name in ("std_us", "samples")},
            "quality": [str(each.duration.quality or "") for each in self.found],
            "composed": [each.composed for each in self.found],
            "machines": [each.machines[0] for each in self.found],
            "machine_spread": [each.machines[1] for each in self.found],
            "device": self.devices,
            "source": [each.duration.source.value for each in self.found],
            "cache": [each.duration.cache for each in self.found],
            "instrument": [each.instrument for each in self.found],
            "run_id": [each.run_id for each in self.found],
            "implementation": self.label,
        }
        return pd.DataFrame(columns)

    @cached_property
    def sizes(self) -> list[dict[str, object]]:
        """The sizes of each row (`Row.sizes`)."""
        return [row.sizes for row in self]

    def typed(self) -> pd.DataFrame:
        """Returns a table with a line for each row.

        The columns: m, n, k and batch of a product; m, n, k and groups of products of experts; sequences, queries,
        keys, heads, kv_heads, head_size, value_size, latent and pages of attention; message_bytes, num_devices, dtype
        and topology_tier of a collective; dtype and format of the first input, bytes (of attention those that it reads
        and writes, each once), those of `facts`, id, tflops and gbps (NaN of kernels that may read a part of a tensor).
        """
        import pandas as pd

        table: pd.DataFrame = pd.DataFrame(self.sizes)
        if not len(table):
            return table
        operations = table.pop("operations") if "operations" in table else None
        table = pd.concat([table, self.facts], axis=1).assign(id=[row.case_id for row in self])
        if operations is not None:
            table["tflops"] = operations / self.duration_us / 1e6
        if "bytes" in table:
            known = table["keys"].notna() if "keys" in table else moves_all(self.kernel_type)
            table["gbps"] = np.where(known, table["bytes"] / self.duration_us / 1e3, np.nan)
        return table

    @cached_property
    def usual_deviation(self) -> float:
        """The standard deviation between machines that is usual for the rows (`question.usual_deviation`)."""
        return usual_deviation(_machines(self.found), self.duration_us, self.numbers("error"))

    def half_widths(self, found: Sequence[RowDuration], same_machine: bool) -> Floats:
        """Returns the half widths of the intervals of durations of the kernel type (`measured_half_widths`)."""
        us, errors = (np.array([getattr(each.duration, name) for each in found]) for name in ("us", "error"))
        errors = np.hypot(errors, [*map(_deviation_of_runs, found)])
        return measured_half_widths(errors, _machines(found), us, None if same_machine else self.usual_deviation)

    @cached_property
    def share_in_nz(self) -> float:
        """The share of the rows with a tensor in FRACTAL_NZ, as weights are stored on NPUs."""
        return sum(_NZ in cell for cell in self.cells(col.INPUT_FORMATS)) / max(len(self), 1)

    def find(self, question: Question) -> list[int]:
        """Returns the places of the rows that have all cells of a question, one for each signature.

        A question without an Expert Load is about experts with equally many rows.
        """
        rows = self._by_inputs.get(normal_words(self.kernel_type, col.INPUT_SHAPES, question.cells), [])
        for column in (*question.cells, col.EXPERT_LOAD):
            if rows and column != col.INPUT_SHAPES:
                wanted = normal_words(self.kernel_type, column, question.cells)
                rows = [i for i in rows if self.words_at(i, column) == wanted]
        if question.dtype:
            rows = [i for i in rows if self.words_at(i, col.INPUT_DTYPES)[:1] == (question.dtype,)]
        return sorted({self.signatures[i]: i for i in reversed(rows)}.values())

    @cached_property
    def _by_inputs(self) -> Mapping[tuple[str, ...], list[int]]:
        return positions_by_key(self.words(col.INPUT_SHAPES))

    def differing(self, rows: Sequence[int], columns: Sequence[str]) -> list[str]:
        """Returns the columns in which rows differ."""
        return [column for column in columns if len({self.words_at(i, column) for i in rows}) > 1]

    def has_dtypes(self, cells: Mapping[str, str]) -> bool:
        """Returns whether some row has the dtypes of these inputs; slots that only one of them has do not count.

        Of FP8 the scales count: those of blocks have more axes than those of columns.
        """
        words = normal_words(self.kernel_type, col.INPUT_DTYPES, cells)
        asked = words, _scales(words, cells.get(col.INPUT_SHAPES, ""))
        return any(
            all(one[: len(other)] == other[: len(one)] for one, other in zip(asked, known, strict=True))
            for known in self._dtypes
        )

    @cached_property
    def _dtypes(self) -> frozenset[tuple[tuple[str, ...], tuple[str, ...]]]:
        shapes = self.cells(col.INPUT_SHAPES)
        found = ((self.words_at(places[0], col.INPUT_DTYPES), shapes[places[0]]) for places in self.alike)
        return frozenset((words, _scales(words, cell)) for words, cell in found)

    @cached_property
    def alike(self) -> list[list[int]]:
        """The places of the rows, those together that differ in nothing but the sizes of their tensors."""
        shapes = ([_SIZE.sub("0", cell) for cell in self.cells(name)] for name in (col.INPUT_SHAPES, col.OUTPUT_SHAPES))
        return list(positions_by_key(zip(*shapes, *map(self.cells, FORM), strict=True)).values())

    def places(self, frame: pd.DataFrame) -> Positions:
        """Returns the place of the row with the signature of each row of a table; -1 where there is none.

        Raises:
            OpAtlasError: the table lacks a column that every row has.
        """
        kind = self.table.kind
        columns = [name for name in (*kind.identity_columns, *col.EXTRA_IN_SIGNATURE) if name in frame.columns]
        missing = [name for name in kind.required_columns if name not in columns]
        if missing:
            raise OpAtlasError(f"{self.kernel_type}: the rows lack the column {missing[0]!r}: add it")
        if not len(self):
            return np.full(len(frame), -1, dtype=np.intp)
        cells = list(zip(*(frame[name].tolist() for name in columns), strict=True))
        known = self._known.setdefault(tuple(columns), {})
        found = [known.get(each, _UNSEEN) for each in cells]
        if _UNSEEN in found:
            unseen = [i for i, place in enumerate(found) if place == _UNSEEN]
            for i, name in zip(unseen, signatures(self.kernel_type, frame[columns].iloc[unseen]), strict=True):
                found[i] = known[cells[i]] = self.by_signature.get(name, -1)
        return np.array(found, dtype=np.intp)

    @cached_property
    def _known(self) -> dict[tuple[str, ...], dict[tuple[str, ...], int]]:
        """The places of rows that were asked for, by columns and cells: a look-up without a signature."""
        return {}


def _scales(dtypes: Sequence[str], shapes: str) -> tuple[str, ...]:
    """Returns the axes of the slots after the factors of a product in FP8; nothing of other kernels."""
    return tuple(_SIZE.sub("0", shapes).rstrip(";").split(";")[2:]) if FP8 & {*dtypes} else ()


def _judged(
    table: RowTable, devices: Provenance, answering: str, compositions: bool
) -> Iterator[Sequence[RowDuration]]:
    """Yields the durations of each row: that of the replay, then the captured one."""
    replayed_on, captured_on = cache(devices.replayed), cache(lambda run_ids: joined(devices.captured(run_ids)))
    for row in table:
        found = []
        for duration in filter(None, (durations[row.position] for durations in table.durations)):
            is_captured, composed = duration.source is Source.CAPTURED, duration.composed
            device = (captured_on if is_captured else replayed_on)(duration.run_id)
            if composed is None and not is_captured:
                composed = _composition_of(
                    row.kernel_type, duration.instrument, row.cell(col.MICROBENCH_DEVICE_KERNELS)
                )
            left_out = ""
            if not are_one_device(device, answering):
                left_out = f"its duration is of {device}"
            elif row.status in _WRONG and not is_captured:
                left_out = f"its last run ended with status {row.status}"
            elif composed and not compositions:
                left_out = "its duration is that of a composition of torch operators"
            found.append(RowDuration(row, duration, device, composed, left_out))
        yield found


def _deviation_of_runs(found: RowDuration) -> float:
    """Returns the standard deviation between the runs of a row that one machine pooled, as a share; else 0."""
    runs = [*run_medians(found.row.cell(col.POOLED_RUN_DURATIONS)).values()] if found.machines[0] == 1 else []
    return stdev(runs) / fmean(runs) if len(runs) > 1 else 0.0


def _machines(found: Sequence[RowDuration]) -> Floats:
    """Returns the number of machines that measured each row, and their spread, 2 x rows; NaN if unknown."""
    return np.array([each.machines for each in found], dtype=np.float64).reshape(-1, 2).T


def _composition_of(kernel_type: str, instrument: str, device_kernels: str) -> bool | None:
    """Returns whether a replay without Quality and Stand-In is of a composition; None if the row does not say.

    Rows of another tool, and of some databases that ship, have neither. A row of torch without both on a GPU or CPU
    says so only if one device kernel ran, or if the kernel type is that of an operator of torch.
    """
    instrument = instrument.strip()
    if not instrument or device_kernels == "1" or is_communication(kernel_type):
        return False
    return False if instrument in _native_instruments() or _is_operator_of_torch(kernel_type) else None


@cache
def _native_instruments() -> frozenset[str]:
    # Few rows need the devices and the registry, which take as long to import as a query to answer.
    from opatlas.run.devices.device import device_kinds

    return frozenset(name for kind in device_kinds().values() if kind.is_native for name in kind.instruments)


@cache
def _is_operator_of_torch(kernel_type: str) -> bool:
    """Whether torch's own operator launches the kernel on an NPU, and not one of torch_npu or of a serving engine."""
    from opatlas.run.registry import replay_spec, replays_of_bench, runs_on_cpu

    spec = replay_spec(replays_of_bench().get(kernel_type))
    return spec is not None and spec.npu is not None and runs_on_cpu(spec.npu)
