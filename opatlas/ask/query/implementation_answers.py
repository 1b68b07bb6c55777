"""The answers of each implementation of a database: stored rows, and predictions for cases without a row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from opatlas.arrays import Floats
from opatlas.ask.compare.databases import ComparedDatabase, with_implementations
from opatlas.ask.query.answering_rows import CAPTURED, AnsweringRows, RowDuration
from opatlas.ask.query.answers import Answers
from opatlas.ask.query.completion import Completion
from opatlas.ask.query.compositions import UNKNOWN_COMPOSITION
from opatlas.ask.query.question import Question
from opatlas.ask.query.result import (
    OTHER_MACHINE_FLOOR,
    SAME_MACHINE_FLOOR,
    How,
    NoAnswer,
    QueryResult,
    UsedRow,
    interval_of,
    leads,
    measured_half_widths,
)
from opatlas.data.database import Database
from opatlas.data.manifest import read_manifests
from opatlas.data.origin import Provenance, are_one_device, database_device, joined
from opatlas.row.columns import (
    INPUT_DTYPES,
    INPUT_FORMATS,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
    PROFILING_POPULATIONS,
    RUNTIME,
)
from opatlas.row.communication import is_communication
from opatlas.row.location import communication_library, device_kind, parse_path
from opatlas.row.named_databases import newness
from opatlas.row.signature import make_case_id, row_cells, signature
from opatlas.run.implementations.implementation import default_name

if TYPE_CHECKING:
    import pandas as pd

    from opatlas.ask.query.predictor import Predictor

#: AI cores of a 910B, whose manifests do not have them.
_CORES_IF_UNKNOWN = 24
#: The columns that distinguish rows with the same shapes, and the arguments of `query` for them.
_TELLING = {
    INPUT_DTYPES: "dtypes",
    INPUT_FORMATS: "formats",
    OUTPUT_SHAPES: "output_shapes",
    OUTPUT_DTYPES: "output_dtypes",
    OUTPUT_FORMATS: "output_formats",
    **dict.fromkeys(RUNTIME, "runtime"),
}


@dataclass(frozen=True)
class AnswerRules:
    """Which rows answer, and for which machine: the arguments of `opatlas.open`."""

    same_machine: bool = False
    compositions: bool = False


class ImplementationAnswers:
    """The answers of the implementations of a database. Tables are read, and models fitted, at the first question.

    Attributes:
        path: the folder of the default implementation.
        implementations: the databases of the implementations by name, the default one first.
        rules: which rows answer.
    """

    def __init__(self, path: Path, rules: AnswerRules) -> None:
        """Reads no table yet. Raises OpAtlasError if the folder is missing or has no CSVs."""
        databases = with_implementations(path)
        self.path = databases[0].path
        self.implementations: Mapping[str, ComparedDatabase] = {each.name: each for each in databases}
        self.rules = rules
        self._rows: dict[tuple[str, str], AnsweringRows] = {}
        self._devices: dict[str, Provenance] = {}
        self._predictors: dict[tuple[str, str], Predictor] = {}
        self._completions: dict[tuple[str, str], Completion] = {}

    @cached_property
    def kernel_types(self) -> list[str]:
        """The kernel types that some implementation had rows of at the first question."""
        found = {path.stem for each in self.implementations.values() for path in each.path.glob("[!.]*.csv")}
        return sorted(found)

    @cached_property
    def device(self) -> str:
        """The device that answers: that of the default implementation's database; "" if unknown."""
        return database_device(self.path)

    @cached_property
    def messages(self) -> ImplementationAnswers | None:
        """The newest communication database of the same device, itself if it has messages; None if there is none."""
        if next(self.path.glob("hcom_*.csv"), None):
            return self
        folders = {path.parent for path in self.path.parent.parent.glob("*/*/hcom_*.csv")}
        if not folders or parse_path(self.path) is None:
            return None
        return ImplementationAnswers(max(folders, key=newness), self.rules)

    @cached_property
    def with_compositions(self) -> ImplementationAnswers:
        """The same with rows whose duration is that of a composition."""
        return self if self.rules.compositions else self.under(compositions=True)

    def under(self, **rules: bool) -> ImplementationAnswers:
        """Returns the same with some rules changed."""
        return ImplementationAnswers(self.path, replace(self.rules, **rules))

    def answer(self, name: str, question: Question) -> QueryResult:
        """Returns the answer of an implementation. Raises NoAnswer if several rows fit, or none answers."""
        rows = self._answering_rows(question.kernel_type, name)
        found = rows.find(question)
        if len(found) > 1:
            columns = rows.differing(found, tuple(_TELLING))
            telling = dict.fromkeys(_TELLING[column] for column in columns)
            raise NoAnswer(
                f"{question.kernel_type}: {len(found)} rows have these inputs, with other {', '.join(columns)}: "
                f"give {', '.join(telling) or 'query_many whole rows'}",
                telling,
            )
        if found:
            return self._measured(rows, found[0])
        cells, note = self.completion(question.kernel_type, name).complete(question)
        return self.answer_row(name, question.kernel_type, cells, note)

    def answer_row(self, name: str, kernel_type: str, cells: Mapping[str, str], note: str = "") -> QueryResult:
        """Returns the answer of an implementation to a whole row. Raises NoAnswer if no row answers."""
        rows = self._answering_rows(kernel_type, name)
        own = signature(kernel_type, cells)
        position = rows.by_signature.get(own)
        if position is not None:
            return self._measured(rows, position)
        stored = rows.left_out.get(own)
        (prediction,) = self.predictor(kernel_type, name).predict([cells], with_rows=True)
        if prediction is None:
            raise NoAnswer(
                f"{kernel_type}: {_why(stored)}"
                if stored
                else f"{kernel_type}: the rows of {rows.label} do not answer this call: check that its shapes fit "
                f"together, or measure it"
            )
        composed = rows.any_composed
        has_dtypes = is_communication(kernel_type) or rows.has_dtypes(cells)
        other = "" if has_dtypes else "no row has these dtypes"
        unknown = UNKNOWN_COMPOSITION if composed is None else ""
        why = _why(stored) if stored else prediction.note
        note = "; ".join(filter(None, (why, other, note, unknown)))
        return QueryResult(
            prediction.duration_us,
            prediction.interval_us,
            prediction.how,
            kernel_type,
            rows.label,
            prediction.rows,
            device=rows.device,
            cache=joined(rows.cache),
            instrument=joined(rows.instrument),
            note=note,
            composed=composed,
            source=joined(rows.source),
            other_dtypes=not has_dtypes,
            rivals=() if stored is None else (self._of_row(rows, stored, make_case_id(kernel_type, own)),),
        )

    def _answering_rows(self, kernel_type: str, name: str) -> AnsweringRows:
        """Returns the rows of an implementation. Raises NoAnswer without rows."""
        rows = self.stored_rows(kernel_type, name)
        if not len(rows):
            away = {each.device for each in rows.left_out.values() if not are_one_device(each.device, self.device)}
            why = f"; those of {joined(away)} do not answer for this device" if away else ""
            raise NoAnswer(
                f"{kernel_type}: no row of {rows.label} answers; compositions of torch operators, failed rows and rows "
                f"without a duration do not{why}: measure rows, or use opatlas.open(DB, compositions=True)"
            )
        return rows

    def _measured(self, rows: AnsweringRows, position: int) -> QueryResult:
        case_id, stored = rows.case_id(position), rows.found[position]
        own = self._of_row(rows, stored, case_id, position)
        others = tuple(self._of_row(rows, each, case_id) for each in rows.others[position])
        return replace(own, note=_note(rows, position), rivals=others)

    def _of_row(
        self, rows: AnsweringRows, stored: RowDuration, case_id: str, position: int | None = None
    ) -> QueryResult:
        """Returns a duration of a row as an answer.

        Args:
            position: the position of the row if the duration is the one that answers, about which more is known.
        """
        answers = position is not None
        is_own = answers or are_one_device(stored.device, self.device)
        label = rows.label if is_own else default_name(device_kind(stored.device))
        cache, instrument, machines, floor = "", CAPTURED if stored.is_captured else "", None, self._floor_of_one
        if position is not None:
            cache, instrument = rows.cache[position], rows.instrument[position]
            machines, floor = rows.machines[position][0], float(self._floors(rows)[position])
        found = stored.measured
        half = measured_half_widths(found.std_us, found.samples, found.us, floor, found.noisy)
        low, high = interval_of(found.us, half)
        return QueryResult(
            found.us,
            (float(low), float(high)),
            How.MEASURED,
            rows.kernel_type,
            label,
            (UsedRow(case_id, stored.run_id, found.us),),
            device=stored.device,
            cache=cache,
            instrument=instrument,
            machines=machines,
            quality=stored.quality,
            composed=stored.composed,
            source=found.source.value,
        )

    @property
    def _floor_of_one(self) -> float:
        return SAME_MACHINE_FLOOR if self.rules.same_machine else OTHER_MACHINE_FLOOR

    def _floors(self, rows: AnsweringRows) -> Floats:
        """Returns the relative difference of each row on the machine that is asked for."""
        return np.full(len(rows), SAME_MACHINE_FLOOR) if self.rules.same_machine else rows.machine_floors

    def answer_frame(self, names: Collection[str], kernel_type: str, frame: pd.DataFrame) -> pd.DataFrame:
        """Returns the answers of the best of some implementations to many rows, as `OpenDatabase.query_many`."""
        best = Answers(len(frame))
        stored = [self.stored_rows(kernel_type, name) for name in names]
        positions = [rows.places(frame) for rows in stored]
        for rows, there in zip(stored, positions, strict=True):
            best.take_measured(rows, there, self._floors(rows))
        has_row = np.any([there >= 0 for there in positions], axis=0)
        cells: dict[int, Mapping[str, str]] = {}
        for name, rows, there in zip(names, stored, positions, strict=True):
            asked = np.flatnonzero(there < 0)
            unread = [i for i in asked.tolist() if i not in cells] if len(rows) else []
            cells |= dict(zip(unread, row_cells(frame.iloc[unread]), strict=True))
            # A prediction from rows of other dtypes goes before no stored row.
            where = [i for i in asked.tolist() if len(rows) and (not has_row[i] or rows.has_dtypes(cells[i]))]
            if where:
                found = self.predictor(kernel_type, name).predict([cells[i] for i in where])
                best.take_predicted(np.array(where, dtype=np.intp), found, rows)
        return best.frame(frame.index)

    def completion(self, kernel_type: str, implementation: str) -> Completion:
        """Returns the object that completes questions from the rows. Raises TableError."""
        key = kernel_type, implementation
        if key not in self._completions:
            self._completions[key] = Completion(self.stored_rows(*key))
        return self._completions[key]

    def predictor(self, kernel_type: str, implementation: str) -> Predictor:
        """Returns the predictor of a kernel type in an implementation. Raises TableError."""
        key = kernel_type, implementation
        if key not in self._predictors:
            from opatlas.ask.query.predictor import Predictor

            floor = 0.0 if self.rules.same_machine else OTHER_MACHINE_FLOOR
            self._predictors[key] = Predictor(self.stored_rows(*key), self._cores, floor)
        return self._predictors[key]

    @cached_property
    def _cores(self) -> int:
        """The multiprocessors of the device, by the manifests of its runs."""
        manifests = read_manifests(Database(self.path), problems=[])
        found = {(each.device.get("facts") or {}).get("multiprocessors") for each in manifests.values()}
        counts = [count for count in found if isinstance(count, int) and count > 0]
        return max(counts, default=_CORES_IF_UNKNOWN)

    def stored_rows(self, kernel_type: str, implementation: str) -> AnsweringRows:
        """Returns the rows of a kernel type that answer for an implementation. Raises TableError."""
        key = kernel_type, implementation
        if key not in self._rows:
            database, rules = self.implementations[implementation], self.rules
            library = communication_library(database.path) if is_communication(kernel_type) else ""
            label = library or database.label.strip()
            devices = self._devices.setdefault(implementation, Provenance(Database(database.path)))
            self._rows[key] = AnsweringRows(
                Database(database.path).read_or_empty(kernel_type),
                devices,
                label=label,
                device=self.device,
                compositions=rules.compositions,
            )
        return self._rows[key]


def best_answer(names: Iterable[str], answer: Callable[[str], QueryResult]) -> QueryResult:
    """Returns the best answer of some implementations, with the others as its rivals.

    It is the fastest stored row, unless a prediction `leads` it; without stored rows the fastest prediction.

    Raises:
        NoAnswer: none has an answer.
    """
    found: list[QueryResult] = []
    unknown: list[NoAnswer] = []
    for name in names:
        try:
            found.append(answer(name))
        except NoAnswer as error:
            unknown.append(error)
    if not found:
        raise unknown[0]
    ranked = sorted(found, key=lambda each: each.duration_us)
    row = next((each for each in ranked if each.how is How.MEASURED), None)
    if row is None:
        best = ranked[0]
    else:
        faster = (
            each for each in ranked if not each.other_dtypes and leads(each.how, each.interval_us, row.duration_us)
        )
        best = next((each for each in faster if each.how is not How.MEASURED), row)
    others = tuple(replace(each, rivals=()) for each in _others(ranked, best))
    return replace(best, rivals=(*others, *(rival for each in (best, *_others(ranked, best)) for rival in each.rivals)))


def _others(answers: Iterable[QueryResult], best: QueryResult) -> list[QueryResult]:
    return [each for each in answers if each is not best]


def _why(stored: RowDuration) -> str:
    """Returns why a stored duration does not answer."""
    return f"the row is stored, and does not answer: {stored.left_out}"


def _note(rows: AnsweringRows, position: int) -> str:
    """Returns the note of a stored row: populations of a capture's launches, a failed run, a composition."""
    if lost := rows.lost[position]:
        return f"the last run of the row ended with status {lost}: the duration is of an earlier one"
    if rows.captured[position] and rows.quality[position]:
        # The duration is the average: neither population may have it.
        return f"the capture has {rows.cells(PROFILING_POPULATIONS)[position]}: the duration is the average of all"
    return "" if rows.composed[position] is not None else UNKNOWN_COMPOSITION
