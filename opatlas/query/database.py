"""`opatlas.open`: the implementations of a device, and the questions that they answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from opatlas.compare.databases import ComparedDatabase, with_implementations
from opatlas.errors import OpAtlasError
from opatlas.model.location import implementation_of, list_databases, parse_path
from opatlas.model.schema import (
    INPUT_DTYPES,
    INPUT_FORMATS,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
    RUNTIME,
)
from opatlas.model.versions import version_key
from opatlas.query.answers import Answers
from opatlas.query.question import Question, Shapes, Words, ask
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
from opatlas.text import suggest

#: The implementation that has the shortest measured duration of the row.
FASTEST = "fastest"
#: What tells rows with the same shapes apart, and what of `query` states it.
_TELLING = {
    INPUT_DTYPES: "dtypes",
    INPUT_FORMATS: "formats",
    OUTPUT_SHAPES: "output_shapes",
    OUTPUT_DTYPES: "output_dtypes",
    OUTPUT_FORMATS: "output_formats",
    **dict.fromkeys(RUNTIME, "runtime"),
}


def open(  # noqa: A001
    place: Path | str,
    *,
    same_machine: bool = False,
    compositions: bool = False,
    noisy: bool = False,
) -> OpenDatabase:
    """Opens a database and those of the implementations that were measured on its rows. Tables are read when needed.

    Args:
        place: a folder, or the name of a device: its newest default database.
        same_machine: whether the intervals are for the machine that measured the rows. On another one of the same
            type, equal rows differ by 5.3 % at the 90th percentile, and the intervals are no narrower.
        compositions, noisy: whether rows answer whose duration is that of a composition of torch operators, or whose
            samples are noisy, drifting, bimodal or throttled.

    Raises:
        OpAtlasError: there is no such folder or device, or the folder has no CSVs.
    """
    return OpenDatabase(_folder(place), same_machine=same_machine, compositions=compositions, noisy=noisy)


def _folder(place: Path | str) -> Path:
    if isinstance(place, Path) or Path(place).is_dir():
        return Path(place)
    devices: dict[str, list[Path]] = {}
    for path in list_databases():
        parsed = parse_path(path)
        if parsed is not None and not implementation_of(path)[0] and next(path.glob("[!.h]*.csv"), None):
            devices.setdefault(parsed[0], []).append(path)
    if place not in devices:
        meant = suggest(place, devices) or f" ({', '.join(devices)})"
        raise OpAtlasError(f"{place}: neither a folder nor a device with a database{meant}: name one of them")
    return max(devices[place], key=_newness)


def _newness(path: Path) -> tuple[object, ...]:
    """Sorts databases of a device: newer versions later, and of equal ones that without a suffix last."""
    parsed = parse_path(path)
    versions = () if parsed is None else tuple(version_key(version) for version in parsed[1].values())
    return versions, -len(path.name), path.name


class OpenDatabase:
    """A database that answers questions.

    Attributes:
        path: the folder.
        implementations: the databases of the implementations by name, the default one first.
    """

    def __init__(
        self, path: Path, *, same_machine: bool = False, compositions: bool = False, noisy: bool = False
    ) -> None:
        """The arguments are those of `open`. Raises OpAtlasError."""
        databases = with_implementations(path)
        self.path = databases[0].path
        self.implementations: Mapping[str, ComparedDatabase] = {each.name: each for each in databases}
        self._floor = SAME_MACHINE_FLOOR if same_machine else OTHER_MACHINE_FLOOR
        self._compositions, self._noisy = compositions, noisy
        self._rows: dict[tuple[str, str], StoredRows] = {}

    def kernel_types(self) -> list[str]:
        """Returns the kernel types that some implementation has rows of."""
        found = {path.stem for each in self.implementations.values() for path in each.path.glob("[!.]*.csv")}
        return sorted(found)

    def query(
        self,
        kernel_type: str,
        input_shapes: Shapes,
        *,
        dtypes: Words = "",
        formats: Words = "",
        output_shapes: Shapes = "",
        output_dtypes: Words = "",
        output_formats: Words = "",
        runtime: Mapping[str, object] | None = None,
        implementation: str = FASTEST,
    ) -> QueryResult:
        """Returns the duration of a call.

        Args:
            input_shapes: `["48,18432", "7168,18432"]`, `[(48, 18432), (7168, 18432)]` or a cell of the CSV.
            dtypes: a word for each input, or one word: the dtype of the first input.
            runtime: what an attention kernel reads: `{"num_heads": 64, "actual_seq_lengths_kv_values": [4096]}`.
            implementation: a name, or the fastest one that was measured.

        Raises:
            NoAnswer: no row tells, or several do.
            OpAtlasError: the question is malformed, or there is no such kernel type or implementation.
        """
        question = ask(
            kernel_type,
            input_shapes,
            dtypes=dtypes,
            formats=formats,
            output_shapes=output_shapes,
            output_dtypes=output_dtypes,
            output_formats=output_formats,
            runtime=runtime,
        )
        self._expect(kernel_type)
        answers = [self._answer(name, question) for name in self._chosen(implementation)]
        found = sorted((each for each in answers if each is not None), key=lambda each: each.duration_us)
        if not found:
            raise NoAnswer(f"{kernel_type}: no row has the inputs {input_shapes}: measure it (pytest bench/)")
        return found[0] if len(found) == 1 else _with_rivals(found)

    def _answer(self, name: str, question: Question) -> QueryResult | None:
        """Returns the answer of an implementation. Raises NoAnswer if several rows fit."""
        rows = self.stored_rows(question.kernel_type, name)
        found = rows.find(question)
        if len(found) > 1:
            columns = rows.differing(found, tuple(_TELLING))
            remedy = ", ".join(dict.fromkeys(_TELLING[column] for column in columns)) or "query_many with whole rows"
            raise NoAnswer(
                f"{question.kernel_type}: {len(found)} rows have these inputs, with other {', '.join(columns)}: "
                f"give {remedy}"
            )
        return self._measured(name, rows, found[0]) if found else None

    def _measured(self, name: str, rows: StoredRows, position: int) -> QueryResult:
        duration_us = float(rows.duration_us[position])
        one = slice(position, position + 1)
        half = float(measured_half_widths(rows.std_us[one], rows.samples[one], rows.duration_us[one], self._floor)[0])
        return QueryResult(
            duration_us,
            (duration_us * (1 - half), duration_us * (1 + half)),
            How.MEASURED,
            rows.kernel_type,
            self.implementations[name].label.strip(),
            (UsedRow(rows.case_id(position), rows.run_id[position], duration_us),),
            rows.quality[position],
        )

    def query_many(self, kernel_type: str, frame: pd.DataFrame, *, implementation: str = FASTEST) -> pd.DataFrame:
        """Returns the durations of many rows.

        Args:
            frame: rows with the identity columns of the CSV contract, as text; other columns do not matter.

        Returns:
            A table with the same index and the columns ANSWER_COLUMNS; `How` is "" where there is no answer.

        Raises:
            OpAtlasError: there is no such kernel type or implementation, or a column is missing.
        """
        self._expect(kernel_type)
        best = Answers(len(frame))
        for name in self._chosen(implementation):
            rows = self.stored_rows(kernel_type, name)
            positions = rows.positions(frame)
            best.take_measured(rows, positions, self.implementations[name].label.strip(), self._floor)
        return best.frame(frame.index)

    def stored_rows(self, kernel_type: str, implementation: str) -> StoredRows:
        """Returns the rows of a kernel type that answer for an implementation. Raises TableError."""
        key = kernel_type, implementation
        if key not in self._rows:
            folder = self.implementations[implementation].path
            self._rows[key] = StoredRows(folder, kernel_type, compositions=self._compositions, noisy=self._noisy)
        return self._rows[key]

    def _chosen(self, implementation: str) -> Iterable[str]:
        if implementation == FASTEST:
            return self.implementations
        if implementation not in self.implementations:
            raise OpAtlasError(
                f"{implementation}: {self.path} has no such implementation: name {FASTEST} or one of "
                f"{', '.join(self.implementations)}"
            )
        return [implementation]

    def _expect(self, kernel_type: str) -> None:
        known = self.kernel_types()
        if kernel_type not in known:
            raise OpAtlasError(
                f"{kernel_type}: {self.path} has no such kernel type{suggest(kernel_type, known)}: "
                f"`opatlas show DB` lists them"
            )


def _with_rivals(answers: Sequence[QueryResult]) -> QueryResult:
    """Returns the fastest measured answer, or else the fastest, with the others as its rivals."""
    ranked = sorted(answers, key=lambda each: (each.how is not How.MEASURED, each.duration_us))
    return replace(ranked[0], rivals=tuple(ranked[1:]))
