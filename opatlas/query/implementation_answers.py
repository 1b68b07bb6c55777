"""The answers of each implementation of a database: stored rows, and predictions for what no row tells."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from opatlas.arrays import Floats
from opatlas.compare.databases import ComparedDatabase, with_implementations
from opatlas.model.communication import is_communication
from opatlas.model.location import communication_library, parse_path
from opatlas.model.named_databases import newness
from opatlas.model.schema import (
    INPUT_DTYPES,
    INPUT_FORMATS,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
    PROFILING_POPULATIONS,
    RUNTIME,
)
from opatlas.model.signature import row_cells, signature
from opatlas.query.answers import Answers
from opatlas.query.completion import Completion
from opatlas.query.compositions import NOT_TOLD
from opatlas.query.predictor import Predictor
from opatlas.query.question import Question
from opatlas.query.result import (
    OTHER_MACHINE_FLOOR,
    SAME_MACHINE_FLOOR,
    How,
    NoAnswer,
    QueryResult,
    UsedRow,
    measured_half_widths,
)
from opatlas.query.stored_rows import StoredRows
from opatlas.store.database import Database
from opatlas.store.manifest import read_manifests

#: AI cores of a 910B, whose manifests do not tell them.
_CORES_IF_UNKNOWN = 24
#: What tells rows with the same shapes apart, and what of `query` states it.
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
    noisy: bool = False


class ImplementationAnswers:
    """What the implementations of a database answer. Tables are read, and models fitted, at the first question.

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
        self._rows: dict[tuple[str, str], StoredRows] = {}
        self._predictors: dict[tuple[str, str], Predictor] = {}
        self._completions: dict[tuple[str, str], Completion] = {}

    @cached_property
    def kernel_types(self) -> list[str]:
        """The kernel types that some implementation had rows of at the first question."""
        found = {path.stem for each in self.implementations.values() for path in each.path.glob("[!.]*.csv")}
        return sorted(found)

    @cached_property
    def messages(self) -> ImplementationAnswers | None:
        """The newest communication database of the same device, itself if it has messages; None if there is none."""
        if next(self.path.glob("hcom_*.csv"), None):
            return self
        beside = {path.parent for path in self.path.parent.parent.glob("*/*/hcom_*.csv")}
        if not beside or parse_path(self.path) is None:
            return None
        return ImplementationAnswers(max(beside, key=newness), self.rules)

    @cached_property
    def with_compositions(self) -> ImplementationAnswers:
        """The same with rows whose duration is that of a composition."""
        return self if self.rules.compositions else self.under(compositions=True)

    def under(self, **rules: bool) -> ImplementationAnswers:
        """Returns the same with some rules changed."""
        return ImplementationAnswers(self.path, replace(self.rules, **rules))

    def answer(self, name: str, question: Question) -> QueryResult:
        """Returns the answer of an implementation. Raises NoAnswer if several rows fit, or none tells."""
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
        """Returns the answer of an implementation to a whole row. Raises NoAnswer if no row tells."""
        rows = self._answering_rows(kernel_type, name)
        position = rows.by_signature.get(signature(kernel_type, cells))
        if position is not None:
            return self._measured(rows, position)
        (prediction,) = self.predictor(kernel_type, name).predict([cells], with_rows=True)
        if prediction is None:
            raise NoAnswer(
                f"{kernel_type}: the rows of {rows.label} tell nothing of such a call: check that its shapes fit "
                f"together, or measure it"
            )
        composed = rows.any_composed
        cache, instrument = rows.conditions()
        other = "" if is_communication(kernel_type) or rows.has_dtypes(cells) else "no row has these dtypes"
        untold = NOT_TOLD if composed is None else ""
        note = "; ".join(filter(None, (prediction.note, other, note, untold)))
        return QueryResult(
            prediction.duration_us,
            prediction.interval_us,
            prediction.how,
            kernel_type,
            rows.label,
            prediction.rows,
            device=rows.device,
            cache=cache,
            instrument=instrument,
            note=note,
            composed=composed,
        )

    def _answering_rows(self, kernel_type: str, name: str) -> StoredRows:
        """Returns the rows of an implementation. Raises NoAnswer without rows."""
        rows = self.stored_rows(kernel_type, name)
        if not len(rows):
            raise NoAnswer(
                f"{kernel_type}: no row of {rows.label} answers; noisy rows, compositions of torch operators and rows "
                f"without a duration do not: measure rows, or use opatlas.open(DB, compositions=True, noisy=True)"
            )
        return rows

    def _measured(self, rows: StoredRows, position: int) -> QueryResult:
        duration_us = float(rows.duration_us[position])
        one = slice(position, position + 1)
        floors = self._floors(rows)[one]
        cache, instrument = rows.row_conditions[position]
        half = float(measured_half_widths(rows.std_us[one], rows.samples[one], rows.duration_us[one], floors)[0])
        return QueryResult(
            duration_us,
            (duration_us * (1 - half), duration_us * (1 + half)),
            How.MEASURED,
            rows.kernel_type,
            rows.label,
            (UsedRow(rows.case_id(position), rows.run_id[position], duration_us),),
            device=rows.device,
            cache=cache,
            instrument=instrument,
            machines=rows.machines[position][0],
            quality=rows.quality[position],
            note=_note(rows, position),
            composed=rows.composed[position],
        )

    def _floors(self, rows: StoredRows) -> Floats:
        """Returns the relative difference of each row on the machine that is asked for."""
        return np.full(len(rows), SAME_MACHINE_FLOOR) if self.rules.same_machine else rows.machine_floors

    def answer_frame(self, names: Collection[str], kernel_type: str, frame: pd.DataFrame) -> pd.DataFrame:
        """Returns the answers of the fastest of some implementations to many rows, as `OpenDatabase.query_many`."""
        best = Answers(len(frame))
        for name in names:
            rows = self.stored_rows(kernel_type, name)
            positions = rows.positions(frame)
            best.take_measured(rows, positions, self._floors(rows))
        missing = np.flatnonzero(~best.is_measured)
        if len(missing):
            cells = list(row_cells(frame.iloc[missing]))
            for name in names:
                found = self.predictor(kernel_type, name).predict(cells)
                best.take_predicted(missing, found, self.stored_rows(kernel_type, name))
        return best.frame(frame.index)

    def completion(self, kernel_type: str, implementation: str) -> Completion:
        """Returns what completes questions from the rows. Raises TableError."""
        key = kernel_type, implementation
        if key not in self._completions:
            self._completions[key] = Completion(self.stored_rows(*key))
        return self._completions[key]

    def predictor(self, kernel_type: str, implementation: str) -> Predictor:
        """Returns what predicts the durations of a kernel type in an implementation. Raises TableError."""
        key = kernel_type, implementation
        if key not in self._predictors:
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

    def stored_rows(self, kernel_type: str, implementation: str) -> StoredRows:
        """Returns the rows of a kernel type that answer for an implementation. Raises TableError."""
        key = kernel_type, implementation
        if key not in self._rows:
            database, rules = self.implementations[implementation], self.rules
            library = communication_library(database.path) if is_communication(kernel_type) else ""
            label = library or database.label.strip()
            self._rows[key] = StoredRows(
                database.path, kernel_type, label, compositions=rules.compositions, noisy=rules.noisy
            )
        return self._rows[key]


def _note(rows: StoredRows, position: int) -> str:
    """Returns what is to know of a stored row: populations of a capture's launches, an unknown composition."""
    if rows.captured[position] and rows.quality[position]:
        # The duration is the average: neither population may have it.
        return f"the capture has {rows.cells(PROFILING_POPULATIONS)[position]}: the duration is the average of all"
    return "" if rows.composed[position] is not None else NOT_TOLD
