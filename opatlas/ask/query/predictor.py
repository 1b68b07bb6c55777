"""Predicts the durations of rows that are not stored, from the rows of a kernel type in one implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from opatlas.arrays import Mask
from opatlas.ask.query import model_cache
from opatlas.ask.query.answering_rows import AnsweringRows
from opatlas.ask.query.features import RowFeatures, row_features
from opatlas.ask.query.kernel_model import LEAST_ROWS, Asked, KernelModel
from opatlas.ask.query.result import How, UsedRow
from opatlas.row.communication import is_communication
from opatlas.row.quality import NOISE_LIMIT

#: The rows that an answer names.
_NAMED = 8
#: The interval of a duration that comes from few rows: a factor.
_FACTOR_OF_FEW = 3.0
_REASONS = {
    Asked.NEAR: "no row of this signature",
    Asked.NEW_SITE: "no row that predicts it has these sizes besides the number of tokens",
    Asked.GAP: "the rows that predict it have fewer or more tokens only",
    Asked.BEYOND: "a size is outside of those of the rows that predict it",
}


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


def predicting_rows(rows: AnsweringRows) -> Mask:
    """Returns which rows take part in predictions of others.

    Those with noisy samples, and those whose last run did not measure them, do not, unless too few others are left.
    Of messages of collectives, whose samples differ much, those do whose mean is known well.
    """
    error = rows.numbers("std_us") / rows.duration_us / np.sqrt(np.fmax(rows.numbers("samples"), 1))
    known = is_communication(rows.kernel_type) & (error <= NOISE_LIMIT / 2)
    # The samples of a capture are launches in different places of a step.
    noisy = rows.noisy & ~np.array(rows.captured, dtype=bool)
    good: Mask = (~noisy | known) & np.array([status is None for status in rows.lost], dtype=bool)
    return good if good.sum() >= LEAST_ROWS else np.ones(len(rows), dtype=bool)


class Predictor:
    """Predicts the durations of a kernel type from its `predicting_rows`. The model is fitted when needed."""

    def __init__(self, rows: AnsweringRows, cores: int, floor: float) -> None:
        """
        Args:
            rows: the stored rows.
            cores: multiprocessors or AI cores of the device.
            floor: the relative difference of equal rows on another machine; 0 on the machine that measured them.
        """
        self._rows, self._cores, self._floor = rows, cores, floor
        found = [row_features(rows.kernel_type, row.cells, cores) for row in rows]
        self._used_rows = predicting_rows(rows).tolist()
        widths = [
            _width(each) if each is not None and used else None
            for each, used in zip(found, self._used_rows, strict=True)
        ]
        usual = max(set(widths) - {None}, key=widths.count, default=None)
        self._positions = np.array([i for i, width in enumerate(widths) if width and width == usual], dtype=np.intp)
        self._features = [each for i in self._positions if (each := found[i]) is not None]
        self._width = usual
        self._model: KernelModel | None = None

    def model(self) -> KernelModel | None:
        """Returns the model, fitted or as the cache has it; None for fewer than LEAST_ROWS rows."""
        if self._model is None and len(self._features) >= LEAST_ROWS:
            duration_us = self._rows.duration_us[self._positions]
            names = "\n".join(name for name, used in zip(self._rows.signatures, self._used_rows, strict=True) if used)
            key = model_cache.model_key(self._rows.kernel_type, self._cores, names, duration_us)
            stored = model_cache.load(key)
            with _one_blas_thread():
                self._model = KernelModel(self._features, duration_us, stored)
            if stored is None:
                model_cache.store(key, self._model.fit)
        return self._model

    def predict(self, cells: Sequence[Mapping[str, str]], *, with_rows: bool = False) -> list[Prediction | None]:
        """Returns the durations of rows; None where the cells mean no tensors, or no stored row helps.

        Args:
            cells: the cells of each row by column.
            with_rows: whether to name the rows that the durations come from.
        """
        if self._width is None:
            return [None] * len(cells)
        asked = [row_features(self._rows.kernel_type, each, self._cores) for each in cells]
        usable = [i for i, each in enumerate(asked) if each is not None and _width(each) == self._width]
        found: list[Prediction | None] = [None] * len(asked)
        if usable:
            features = [each for i in usable if (each := asked[i]) is not None]
            predicted = self._predict(features, with_rows) if self.model() else self._guess(features)
            for i, prediction in zip(usable, predicted, strict=True):
                found[i] = prediction
        return found

    def correlations(self, cells: Sequence[Mapping[str, str]]) -> npt.NDArray[np.float64] | None:
        """Returns how the errors of the predictions of rows are correlated; None unless a model predicts them all."""
        features = [row_features(self._rows.kernel_type, each, self._cores) for each in cells]
        known = [each for each in features if each is not None and _width(each) == self._width]
        model = self.model()
        if model is None or len(known) < len(features):
            return None
        with _one_blas_thread():
            return model.correlations(known, model.predict(known))

    def _predict(self, features: Sequence[RowFeatures], with_rows: bool) -> list[Prediction]:
        model = self.model()
        assert model is not None
        with _one_blas_thread():
            predicted = model.predict(features)
        middle = np.exp(predicted.log_us)
        half = np.hypot(predicted.half_width, self._floor)
        found = []
        for i, (us, low, high, asked) in enumerate(
            zip(
                middle.tolist(),
                (middle * np.exp(-half)).tolist(),
                (middle * np.exp(half)).tolist(),
                predicted.asked.tolist(),
                strict=True,
            )
        ):
            how = How.EXTRAPOLATED if asked == Asked.BEYOND else How.INTERPOLATED
            rows = self._used(predicted.nearest[i], predicted.distance[i]) if with_rows else ()
            found.append(Prediction(us, (low, high), how, rows, _REASONS[Asked(asked)]))
        return found

    def _used(self, nearest: Sequence[int], distance: Sequence[float]) -> tuple[UsedRow, ...]:
        used = []
        for near, far in zip(nearest[:_NAMED], distance[:_NAMED], strict=True):
            position = int(self._positions[near])
            rows = self._rows
            used.append(
                UsedRow(rows.case_id(position), rows.run_id[position], float(rows.duration_us[position]), float(far))
            )
        return tuple(used)

    def _guess(self, features: Sequence[RowFeatures]) -> list[Prediction]:
        """Scales the duration of the most similar of few rows by the work; the launch is a part of it."""
        duration_us = self._rows.duration_us[self._positions]
        work = np.log([row.work for row in self._features])
        found = []
        for row in features:
            asked = np.log(row.work)
            near = int(np.abs(work - asked).sum(axis=1).argmin())
            us = float(max(duration_us[near] * np.exp((asked - work[near]).max()), duration_us.min()))
            interval = us / _FACTOR_OF_FEW, us * _FACTOR_OF_FEW
            note = f"too few rows for a model ({len(self._features)}): scaled by bytes and operations"
            found.append(Prediction(us, interval, How.ANALYTIC, self._used([near], [0.0]), note))
        return found


def _width(features: RowFeatures) -> tuple[int, int, int]:
    return len(features.work), len(features.sizes), len(features.fills)


#: Looks for the libraries of this process once.
_thread_pools = cache(ThreadpoolController)


def _one_blas_thread() -> AbstractContextManager[object]:
    """Limits numpy's BLAS to one thread.

    The matrices are too small to gain from several threads, which spin while they wait: on cores that others use, fits
    with them take more than twice as long.
    """
    limited: AbstractContextManager[object] = _thread_pools().limit(limits=1, user_api="blas")
    return limited
