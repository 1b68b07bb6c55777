"""Predicts the durations of rows that are not stored, from the rows of a kernel type in one implementation.

Fitted models are kept on disk, by a hash of the rows and of how they are fitted: a changed CSV has another file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import platformdirs
from threadpoolctl import ThreadpoolController

from opatlas.ask.query.answering_rows import AnsweringRows
from opatlas.ask.query.features import RowFeatures, kind_of_load, row_features
from opatlas.ask.query.kernel_model import LEAST_ROWS, OWN_ROWS, Asked, Fit, KernelModel
from opatlas.ask.query.question import How, UsedRow, machine_half_widths
from opatlas.ask.query.smoother import fit_roofline, roofline_log_us
from opatlas.data.csv_files import write_bytes
from opatlas.data.manifest import code_digest
from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES
from opatlas.row.communication import is_communication
from opatlas.row.quality import NOISE_LIMIT, Floats, Mask
from opatlas.row.slots import FP8, normal_words

#: The interval of a duration that comes from one row, two rows, and so on: the factor that nine of ten other rows of
#: their table were not farther off by (345 draws from 69 tables of an H200; of four and six rows between the others).
_FACTORS_OF_FEW = (50.0, 3.7, 2.3, 2.0, 1.7, 1.6, 1.5)
_REASONS = {
    Asked.NEAR: "no row of this signature",
    Asked.NEW_SITE: "no row that predicts it has these sizes besides the number of tokens",
    Asked.GAP: "the rows that predict it have fewer or more tokens only",
    Asked.BEYOND: "a size is outside of those of the rows that predict it",
}
_LARGEST_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted duration.

    Attributes:
        duration_us, interval_us: the duration and its 90 % interval, in microseconds.
        how: whether all its sizes lie within the sizes of the rows.
        rows: the rows that it comes from, the nearest first; empty unless they were asked for.
        note: why the row is not exact.
    """

    duration_us: float
    interval_us: tuple[float, float]
    how: How
    rows: tuple[UsedRow, ...]
    note: str


class _StoredModel(msgspec.Struct):
    """The models of a kernel type on disk, with the features of each row that they know."""

    features: list[RowFeatures | None]
    fits: dict[str, Fit]


def folder() -> Path:
    """Returns the folder of the fitted models, in the user's cache."""
    return platformdirs.user_cache_path("opatlas", appauthor=False) / "query"


def predicting_rows(rows: AnsweringRows) -> Mask:
    """Returns which rows take part in predictions of others.

    Those with noisy samples, and those whose last run did not measure them, do not, unless too few others are left.
    Of messages of collectives, whose samples differ much, those do whose mean is known well. Captured products of
    experts, whose loads nobody knows, do only where all rows are such.
    """
    error = rows.numbers("std_us") / rows.duration_us / np.sqrt(np.fmax(rows.numbers("samples"), 1))
    known = is_communication(rows.kernel_type) & (error <= NOISE_LIMIT / 2)
    # The samples of a capture are launches in different places of a step.
    kept = np.array([each.lost is None for each in rows.found], dtype=bool) & ~rows.captured_load
    good: Mask = (~rows.noisy | rows.captured | known) & kept
    if good.sum() >= LEAST_ROWS:
        return good
    return np.ones(len(rows), dtype=bool) if rows.captured_load.all() else ~rows.captured_load


class Predictor:
    """Predicts the durations of a kernel type from its `predicting_rows`. Models are fitted when needed."""

    def __init__(self, rows: AnsweringRows, cores: int, same_machine: bool) -> None:
        """
        Args:
            rows: the stored rows.
            cores: multiprocessors or AI cores of the device.
            same_machine: whether the intervals are for the machine that measured the rows.
        """
        self._rows, self._cores, self._same_machine = rows, cores, same_machine
        used = predicting_rows(rows)
        self._path = folder() / f"{_key(rows, cores, used)}.msgpack"
        self._stored = _load(self._path)
        self._found = (
            [self._features_of(rows.row_cells(i)) if use else None for i, use in enumerate(used.tolist())]
            if self._stored is None
            else self._stored.features
        )
        widths = [None if each is None else _width(each) for each in self._found]
        self._width = max(set(widths) - {None}, key=widths.count, default=None)
        self._positions = np.array([i for i, width in enumerate(widths) if width and width == self._width], np.intp)
        self._duration_us = rows.duration_us[self._positions]
        self._features = [each for i in self._positions if (each := self._found[i]) is not None]

    @cached_property
    def model(self) -> KernelModel | None:
        """The models, fitted so far or as they are stored; None for fewer than LEAST_ROWS rows."""
        if len(self._features) < LEAST_ROWS:
            return None
        fits = None if self._stored is None else self._stored.fits
        return KernelModel(self._features, self._duration_us, fits)

    def predict(self, cells: Sequence[Mapping[str, str]], *, with_rows: bool = False) -> list[Prediction | None]:
        """Returns the durations of rows; None where the cells mean no tensors, or no stored row helps.

        Args:
            cells: the cells of each row by column.
            with_rows: whether to name the rows that the durations come from.
        """
        asked = list(map(self._features_of, cells))
        usable = [i for i, each in enumerate(asked) if each is not None and _width(each) == self._width]
        found: list[Prediction | None] = [None] * len(asked)
        if usable:
            features = [each for i in usable if (each := asked[i]) is not None]
            predicted = self._predict(self.model, features, with_rows) if self.model else self._guess(features)
            for i, prediction in zip(usable, predicted, strict=True):
                found[i] = prediction
        return found

    def correlations(self, cells: Sequence[Mapping[str, str]]) -> Floats | None:
        """Returns how the errors of the predictions of rows are correlated; None unless a model predicts them all."""
        features = list(map(self._features_of, cells))
        known = [each for each in features if each is not None and _width(each) == self._width]
        if self.model is None or len(known) < len(features):
            return None
        with _one_blas_thread():
            return self.model.correlations(known)

    def has_dtypes(self, cells: Mapping[str, str]) -> bool:
        """Returns whether some row that predicts has the dtypes of these inputs; slots that only one has do not count.

        Of FP8 the scales count: those of blocks have more axes than those of columns.
        """
        words = normal_words(self._rows.kernel_type, INPUT_DTYPES, cells)
        asked = words, _scales(words, cells.get(INPUT_SHAPES, ""))
        return any(
            all(one[: len(other)] == other[: len(one)] for one, other in zip(asked, known, strict=True))
            for known in self._dtypes
        )

    @cached_property
    def _dtypes(self) -> frozenset[tuple[tuple[str, ...], tuple[str, ...]]]:
        rows, predicting = self._rows, {*self._positions.tolist()}
        shapes = rows.cells(INPUT_SHAPES)
        alike = (next(filter(predicting.__contains__, places), None) for places in rows.alike)
        found = ((rows.words_at(place, INPUT_DTYPES), shapes[place]) for place in alike if place is not None)
        return frozenset((words, _scales(words, cell)) for words, cell in found)

    def other_loads(self, cells: Mapping[str, str]) -> tuple[str, bool]:
        """Returns a note where rows of other loads predict a row too, and whether its own are too few for a model."""
        alike = self._rows_of_load[kind_of_load(cells)]
        if alike < LEAST_ROWS:
            return "few rows have this load: from others too", True
        return "from rows of other loads too" if alike < min(OWN_ROWS, len(self._features)) else "", False

    @cached_property
    def _rows_of_load(self) -> Counter[str]:
        return Counter(kind_of_load(self._rows.row_cells(i)) for i in self._positions.tolist())

    def _features_of(self, cells: Mapping[str, str]) -> RowFeatures | None:
        return row_features(self._rows.kernel_type, cells, self._cores)

    def _predict(self, model: KernelModel, features: Sequence[RowFeatures], with_rows: bool) -> list[Prediction]:
        fitted = len(model.fits)
        with _one_blas_thread():
            predicted = model.predict(features)
        if len(model.fits) > fitted:
            # Where the user's cache cannot be written, they are fitted again next time.
            with suppress(OpAtlasError):
                write_bytes(self._path, msgspec.msgpack.encode(_StoredModel(self._found, model.fits)))
        middle = np.exp(predicted.log_us)
        # As of a row of many machines: the model is of medians.
        other = machine_half_widths(np.array([[np.inf], [np.nan]]), middle, self._rows.usual_deviation)
        factor = np.exp(np.hypot(predicted.half_width, 0.0 if self._same_machine else other))
        numbers = (middle, middle / factor, middle * factor, predicted.asked)
        found = []
        for i, (us, low, high, asked) in enumerate(zip(*(each.tolist() for each in numbers), strict=True)):
            how = How.EXTRAPOLATED if asked == Asked.BEYOND else How.INTERPOLATED
            rows = self._used(predicted.nearest[i], predicted.distance[i]) if with_rows else ()
            found.append(Prediction(us, (low, high), how, rows, _REASONS[Asked(asked)]))
        return found

    def _used(self, nearest: Sequence[int], distance: Sequence[float]) -> tuple[UsedRow, ...]:
        rows = [self._rows.found[self._positions[near]] for near in nearest]
        return tuple(each.used(float(far)) for each, far in zip(rows, distance, strict=True))

    @cached_property
    def _roofline(self) -> Floats:
        return fit_roofline(np.array([row.work for row in self._features]), np.log(self._duration_us))

    def _guess(self, features: Sequence[RowFeatures]) -> list[Prediction]:
        """Scales the duration of the most similar of few rows by a roofline of all of them."""
        work = np.log([row.work for row in self._features])
        own, factor = roofline_log_us(self._roofline, work), _FACTORS_OF_FEW[len(work) - 1]
        note = f"too few rows for a model ({len(work)}): scaled by bytes and operations"
        found = []
        for row in features:
            asked = np.log([row.work])
            near = int(np.abs(work - asked).sum(axis=1).argmin())
            us = float(self._duration_us[near] * np.exp(roofline_log_us(self._roofline, asked)[0] - own[near]))
            found.append(Prediction(us, (us / factor, us * factor), How.ANALYTIC, self._used([near], [0.0]), note))
        return found


def _scales(dtypes: Sequence[str], shapes: str) -> tuple[str, ...]:
    """Returns the axes of the slots after the factors of a product in FP8; nothing of other kernels."""
    return tuple(re.sub(r"\d+", "0", shapes).rstrip(";").split(";")[2:]) if FP8 & {*dtypes} else ()


def _width(features: RowFeatures) -> tuple[int, int, int]:
    return len(features.work), len(features.sizes), len(features.fills)


def _key(rows: AnsweringRows, cores: int, used: Mask) -> str:
    """Returns the name of a model: a hash of the code, and of the data that it is fitted to."""
    told = "\n".join((_code(), rows.kernel_type, str(cores), *rows.signatures)).encode()
    return blake2b(told + used.tobytes() + rows.duration_us.tobytes(), digest_size=16).hexdigest()


@cache
def _code() -> str:
    """Returns a digest of the code of features and fits, which have no other version."""
    here = Path(__file__).parent
    # The loads of experts are in `inputs`.
    return code_digest([here, *(here.parents[1] / name for name in ("row", "run/inputs"))])


def _load(path: Path) -> _StoredModel | None:
    """Returns a stored model; None if there is none that can be read."""
    try:
        return msgspec.msgpack.decode(read_safely(path, _LARGEST_BYTES), type=_StoredModel)
    except (OSError, OpAtlasError, msgspec.MsgspecError):
        return None


#: Looks for the libraries of this process once.
_thread_pools = cache(ThreadpoolController)


def _one_blas_thread() -> AbstractContextManager[object]:
    """Limits numpy's BLAS to one thread.

    The matrices are too small to gain from several threads, which spin while they wait: on cores that others use, fits
    with them take more than twice as long.
    """
    return _thread_pools().limit(limits=1, user_api="blas")
