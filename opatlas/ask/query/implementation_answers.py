"""The answers of each implementation of a database: stored rows, and predictions for cases without a row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opatlas.ask.compare.databases import ComparedDatabase, with_implementations
from opatlas.ask.query.answering_rows import UNKNOWN_COMPOSITION, AnsweringRows, RowDuration
from opatlas.ask.query.question import Completion, How, NoAnswer, QueryResult, Question, interval_of, leads
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest, read_manifests
from opatlas.data.origin import Provenance, are_one_device, database_device, joined
from opatlas.errors import OpAtlasError
from opatlas.row import columns as col
from opatlas.row.communication import BY_NAME, is_communication
from opatlas.row.location import communication_library, device_kind, messages_of_device
from opatlas.row.signature import row_cells, signature, signatures
from opatlas.row.slots import known_dtype
from opatlas.run.implementation import default_name
from opatlas.text import parse_whole

if TYPE_CHECKING:
    import pandas as pd

    from opatlas.ask.query.predictor import Predictor

#: The implementation that is fastest for each call, in place of named ones.
FASTEST = "fastest"
#: The columns of `OpenDatabase.query_many`.
ANSWER_COLUMNS = (
    *("Duration(us)", "Low(us)", "High(us)", "How", "Implementation", col.QUALITY, col.RUN_ID, "Composition"),
    *("Device", col.CACHE_STATE, col.INSTRUMENT, "Machines", "Source", "Note"),
)
#: Of these the ones that all rows of an implementation tell of a prediction, by their names in `QueryResult`.
_COMMON = {"device": "Device", "cache": col.CACHE_STATE, "instrument": col.INSTRUMENT, "source": "Source"}
#: The words of the column Composition, by `QueryResult.composed`.
COMPOSITION_WORDS = {False: "no", True: "yes", None: "not told"}
#: AI cores of a 910B, whose manifests do not have them.
_CORES_IF_UNKNOWN = 24
#: Columns that distinguish rows with the same shapes, and that `query` has an argument for.
_TELLING = {col.INPUT_DTYPES: "dtypes", col.OUTPUT_SHAPES: "output_shapes"}


class ImplementationAnswers:
    """The answers of the implementations of a database. Tables are read, and models fitted, at the first question.

    Attributes:
        path: the folder of the default implementation.
        implementations: the databases of the implementations by name, the default one first.
        same_machine, compositions: which rows answer, and for which machine, as for `opatlas.open`.
    """

    def __init__(self, path: Path, *, same_machine: bool = False, compositions: bool = False) -> None:
        """Reads no table yet. Raises OpAtlasError if the folder is missing or has no CSVs."""
        databases = with_implementations(path)
        self.path = databases[0].path
        self.implementations: Mapping[str, ComparedDatabase] = {each.name: each for each in databases}
        self.same_machine, self.compositions = same_machine, compositions
        # Each of a kernel type and an implementation; these raise TableError.
        self.stored_rows = cache(self._read_rows)
        self.completion = cache(lambda kernel_type, name: Completion(self.stored_rows(kernel_type, name)))
        self.predictor = cache(self._make_predictor)
        # Steps of a model have many calls in common, and so have stacks of implementations.
        self._answer_of = cache(self._new_answer)
        self._devices = cache(lambda name: Provenance(Database(self.implementations[name].path)))

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
        newest = messages_of_device(self.path)
        if newest is None:
            return None
        return ImplementationAnswers(newest, same_machine=self.same_machine, compositions=self.compositions)

    @cached_property
    def with_compositions(self) -> ImplementationAnswers:
        """The same with rows whose duration is that of a composition."""
        if self.compositions:
            return self
        return ImplementationAnswers(self.path, same_machine=self.same_machine, compositions=True)

    def answer(self, name: str, question: Question) -> QueryResult:
        """Returns the answer of an implementation. Raises NoAnswer if several rows fit, or none answers."""
        rows = self._answering_rows(question.kernel_type, name)
        found = rows.find(question)
        if len(found) > 1:
            columns = rows.differing(found, (*col.INPUT_SLOTS[1:], *col.OUTPUT_SLOTS, *col.RUNTIME))
            arguments = ", ".join(_TELLING[column] for column in columns if column in _TELLING)
            raise NoAnswer(
                f"{question.kernel_type}: {len(found)} rows have these inputs, with other {', '.join(columns)}: "
                f"give {f'{arguments}, or ' if arguments else ''}whole rows (`opatlas query --file`)"
            )
        if found:
            return self._measured(rows, found[0])
        cells, note = self.completion(question.kernel_type, name).complete(question)
        return self.answer_row(name, question.kernel_type, cells, note)

    def answer_row(self, name: str, kernel_type: str, cells: Mapping[str, str], note: str = "") -> QueryResult:
        """Returns the answer of an implementation to a whole row. Raises NoAnswer if no row answers."""
        return self._answer_of(name, kernel_type, frozenset(cells.items()), note)

    def _new_answer(self, name: str, kernel_type: str, items: frozenset[tuple[str, str]], note: str) -> QueryResult:
        cells = dict(items)
        rows = self._answering_rows(kernel_type, name)
        own = signature(kernel_type, cells)
        position = rows.by_signature.get(own)
        if position is not None:
            return self._measured(rows, position)
        stored = rows.left_out.get(own)
        if own in rows.refused:
            raise NoAnswer(f"{kernel_type}: {rows.label} does not take this row")
        predictor = self.predictor(kernel_type, name)
        (prediction,) = predictor.predict([cells], with_rows=True)
        if prediction is None:
            raise NoAnswer(
                f"{kernel_type}: {_why(stored)}"
                if stored
                else f"{kernel_type}: the rows of {rows.label} do not answer this call: check that its shapes fit "
                f"together, or measure it"
            )
        unlike = self._unlike(rows, name, cells)
        unknown = UNKNOWN_COMPOSITION if rows.common["composed"] is None else ""
        why = _why(stored) if stored else prediction.note
        return QueryResult(
            prediction.duration_us,
            prediction.interval_us,
            prediction.how,
            kernel_type,
            rows.label,
            prediction.rows,
            note="; ".join(filter(None, (unlike.dtypes, unlike.load, why, note, unknown))),
            other_dtypes=bool(unlike.dtypes),
            other_load=unlike.other_load,
            rivals=() if stored is None else (self._of_row(rows, stored),),
            **rows.common,
        )

    def _unlike(self, rows: AnsweringRows, name: str, cells: Mapping[str, str]) -> _Unlike:
        """Returns in what the rows of an implementation are unlike a call that they predict."""
        predictor = self.predictor(rows.kernel_type, name)
        has_dtypes = is_communication(rows.kernel_type) or predictor.has_dtypes(cells)
        asks_load = cells.get(col.EXPERT_LOAD) or rows.captured_load.all()
        load = predictor.other_loads(cells) if asks_load else ("", False)
        return _Unlike("" if has_dtypes else "no row has these dtypes", *load)

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

    def _measured(self, rows: AnsweringRows, place: int) -> QueryResult:
        own = rows.found[place]
        rivals = tuple(self._of_row(rows, each) for each in rows.others[place])
        return replace(self._of_row(rows, own), note=_note(own), rivals=rivals)

    def _of_row(self, rows: AnsweringRows, stored: RowDuration) -> QueryResult:
        """Returns a duration of a row as an answer."""
        duration = stored.duration
        is_own = are_one_device(stored.device, self.device)
        (half_width,) = rows.half_widths([stored], self.same_machine)
        low, high = interval_of(duration.us, half_width)
        return QueryResult(
            duration.us,
            (float(low), float(high)),
            How.MEASURED,
            rows.kernel_type,
            rows.label if is_own else default_name(device_kind(stored.device)),
            (stored.used(),),
            device=stored.device,
            cache=duration.cache,
            instrument=stored.instrument,
            machines=stored.machines[0],
            quality=str(duration.quality or ""),
            composed=stored.composed,
            source=duration.source.value,
        )

    def answer_frame(self, names: Collection[str], kernel_type: str, frame: pd.DataFrame) -> pd.DataFrame:
        """Returns the answers of the best of some implementations to many rows, as `OpenDatabase.query_many`."""
        import pandas as pd

        tables = {name: self.stored_rows(kernel_type, name) for name in names}
        places = {name: rows.places(frame) for name, rows in tables.items()}
        stored = [
            self._stored(rows).iloc[places[name][there]].set_index(there)
            for name, rows in tables.items()
            if len(there := np.flatnonzero(places[name] >= 0))
        ]
        row_us = np.full(len(frame), np.nan)
        for each in stored:
            row_us[each.index] = np.fmin(row_us[each.index], each["Duration(us)"])
        cells: dict[int, Mapping[str, str]] = {}
        predicted: list[pd.DataFrame] = []
        for name, rows in tables.items():
            asked = np.flatnonzero(places[name] < 0).tolist() if len(rows) else []
            if asked and rows.refused:
                owns = signatures(kernel_type, frame.iloc[asked])
                asked = [i for i, own in zip(asked, owns, strict=True) if own not in rows.refused]
            unread = [i for i in asked if i not in cells]
            cells |= dict(zip(unread, row_cells(frame.iloc[unread]), strict=True))
            unlike = {i: self._unlike(rows, name, cells[i]) for i in asked}
            # A prediction from rows of other dtypes goes before no stored row, and behind other predictions.
            where = [i for i in asked if np.isnan(row_us[i]) or not unlike[i].dtypes]
            found = self.predictor(kernel_type, name).predict([cells[i] for i in where]) if where else []
            leading = {
                i: (each.duration_us, *each.interval_us, each.how.value, rows.label)
                for i, each in zip(where, found, strict=True)
                if each is not None and leads(each.how, each.interval_us, row_us[i])
            }
            if leading:
                common = {_COMMON[fact]: word for fact, word in rows.common.items() if fact in _COMMON}
                table = pd.DataFrame.from_dict(leading, orient="index", columns=list(ANSWER_COLUMNS[:5]))
                notes = ["; ".join(filter(None, (unlike[i].dtypes, unlike[i].load))) for i in leading]
                table = table.assign(**common, Composition=COMPOSITION_WORDS[rows.common["composed"]], Note=notes)
                predicted.append(table.assign(rank=[2 * bool(unlike[i].dtypes) for i in leading]))
        ranked = [*predicted, *(each.assign(rank=1) for each in stored)]
        every = pd.concat(ranked) if ranked else pd.DataFrame(columns=["rank", *ANSWER_COLUMNS])
        best = every.sort_values(["rank", "Duration(us)"]).groupby(level=0).head(1)
        best = best.reindex(index=range(len(frame)), columns=list(ANSWER_COLUMNS))
        words = {name: best[name].astype(object).fillna("") for name in ANSWER_COLUMNS[3:]}
        return best.assign(**words).set_axis(frame.index)

    def _stored(self, rows: AnsweringRows) -> pd.DataFrame:
        """Returns the answers of stored rows."""
        facts = rows.facts
        low, high = interval_of(rows.duration_us, rows.half_widths(rows.found, self.same_machine))
        numbers = {"Duration(us)": rows.duration_us, "Low(us)": low, "High(us)": high, "How": How.MEASURED.value}
        told = {
            "Composition": facts["composed"].map(COMPOSITION_WORDS.__getitem__),
            "Machines": np.array(["" if each.machines[0] is None else each.machines[0] for each in rows.found], object),
            col.QUALITY: facts["quality"],
            col.RUN_ID: facts["run_id"],
        }
        common = {column: facts[fact] for fact, column in _COMMON.items()}
        return facts[[]].assign(**numbers, Implementation=rows.label, **told, **common)

    def _make_predictor(self, kernel_type: str, name: str) -> Predictor:
        from opatlas.ask.query.predictor import Predictor

        cores = self.device_fact("multiprocessors") or _CORES_IF_UNKNOWN
        return Predictor(self.stored_rows(kernel_type, name), cores, self.same_machine)

    def device_fact(self, name: str) -> int:
        """Returns a number that the manifests of runs tell of the device, such as its memory; 0 if none does."""
        facts = ((each.device.get("facts") or {}).get(name) for each in self._manifests.values())
        return max((fact for fact in facts if isinstance(fact, int)), default=0)

    @cached_property
    def _manifests(self) -> Mapping[str, Manifest]:
        return read_manifests(Database(self.path), problems=[])

    def _read_rows(self, kernel_type: str, name: str) -> AnsweringRows:
        database = self.implementations[name]
        library = communication_library(database.path) if is_communication(kernel_type) else ""
        return AnsweringRows(
            Database(database.path).read_or_empty(kernel_type),
            self._devices(name),
            label=library or database.label.strip(),
            device=self.device,
            compositions=self.compositions,
        )


class _Unlike(NamedTuple):
    """In what rows are unlike a call that they predict: notes on dtypes and load, and `QueryResult.other_load`."""

    dtypes: str
    load: str
    other_load: bool


def best_answer(names: Iterable[str], answer: Callable[[str], QueryResult]) -> QueryResult:
    """Returns the best answer of some implementations, with the others as its rivals.

    It is the fastest stored row, unless a prediction `leads` it; without stored rows the fastest prediction, those from
    rows with the dtypes and the load of the question first.

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
        best = min(ranked, key=lambda each: (each.other_dtypes, each.other_load))
    else:
        faster = (
            each for each in ranked if not each.other_dtypes and leads(each.how, each.interval_us, row.duration_us)
        )
        best = next((each for each in faster if each.how is not How.MEASURED), row)
    others = [each for each in ranked if each is not best]
    of_rows = (rival for each in (best, *others) for rival in each.rivals)
    return replace(best, rivals=(*(replace(each, rivals=()) for each in others), *of_rows))


def _why(stored: RowDuration) -> str:
    """Returns why a stored duration does not answer."""
    return f"the row is stored, and does not answer: {stored.left_out}"


def _note(stored: RowDuration) -> str:
    """Returns the note of a stored row: populations and kernels of a capture, a failed run, a composition."""
    if stored.lost:
        return f"the last run of the row ended with status {stored.lost}: the duration is of an earlier one"
    told = "" if stored.composed is not None else UNKNOWN_COMPOSITION
    if not stored.is_captured:
        return told
    if stored.duration.quality:
        # The duration is the average: neither population may have it.
        told = f"the capture has {stored.row.cell(col.PROFILING_POPULATIONS)}: the duration is the average of all"
    elif kernels := stored.row.cell(col.PROFILING_KERNEL_NAMES):
        told = f"{stored.row.cell(col.PROFILING_SOURCE)}: {kernels}"
    of_mean = "each sequence has the mean length of its step" if col.MEAN_LENGTHS in stored.row.cells.items() else ""
    return "; ".join(filter(None, (told, of_mean)))


def answer_collective(
    messages: ImplementationAnswers | None,
    name: str,
    message_bytes: int,
    devices: int,
    dtype: str,
    tier: int | None = None,
) -> QueryResult:
    """Returns the duration of a collective, as `OpenDatabase.collective`.

    Args:
        messages: the communication database of the device; None if there is none.

    Raises:
        NoAnswer: the database does not have these messages.
        OpAtlasError: the collective is unknown, or it has fewer than two devices.
    """
    if name not in BY_NAME:
        raise OpAtlasError(f"{name}: unknown collective: name one of {', '.join(BY_NAME)}")
    if devices < 2:
        raise OpAtlasError(f"{name} between {devices}: a collective has 2 devices or more")
    kernel_type = BY_NAME[name].kernel_type
    if messages is None or kernel_type not in messages.kernel_types:
        raise NoAnswer(f"{name}: no communication database of this device has it: measure it (opatlas collectives)")
    (label, *_) = messages.implementations
    rows = messages.stored_rows(kernel_type, label)
    counts = [count for cell in rows.cells(col.NUM_DEVICES) if (count := parse_whole(cell.strip()))]
    if counts and devices > max(counts):
        measured, collective, known = max(counts), BY_NAME[name], known_dtype(dtype)
        wanted = message_bytes * collective.bus_share(devices) / collective.bus_share(measured)
        alike = collective.message_bytes(round(wanted), measured, known.bytes if known is not None else 1)
        answer = answer_collective(messages, name, alike, measured, dtype, tier)
        low, high = answer.interval_us
        # A guess: latencies of more steps, other topologies and other algorithms are not in it.
        factor = 1 + math.log2(devices / measured)
        note = f"no row has {devices} devices: from {measured} with as many bytes on the busiest link ({alike})"
        return replace(answer, interval_us=(low / factor, high * factor), how=How.EXTRAPOLATED, note=note)
    tiers = Counter(
        each
        for each, count in zip(rows.cells(col.TOPOLOGY_TIER), rows.cells(col.NUM_DEVICES), strict=True)
        if count.strip() == str(devices)
    )
    chosen = str(tier) if tier is not None else tiers.most_common(1)[0][0] if tiers else ""
    cells = {
        col.MESSAGE_BYTES: str(message_bytes),
        col.NUM_DEVICES: str(devices),
        col.DTYPE: dtype,
        col.TOPOLOGY_TIER: chosen,
    }
    return messages.answer_row(label, kernel_type, cells)
