"""Fits all models of a database ahead of the first question."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opatlas.errors import OpAtlasError
from opatlas.progress import progress_over
from opatlas.query.database import OpenDatabase
from opatlas.query.kernel_model import Asked
from opatlas.query.predictor import FitSource


@dataclass(frozen=True)
class Fit:
    """The fit of a kernel type in an implementation.

    Attributes:
        kernel_type, implementation: what was fitted.
        rows: the rows that it rests on.
        source: whether it was fitted now; None if a file could not be read.
        errors: the median and the 90th percentile of the relative errors of rows that are predicted with others hidden,
            by class of questions; NaN where too few rows are left. Empty without a model.
        seconds: what it took.
        problem: why there is no fit; "" if there is one, or too few rows.
    """

    kernel_type: str
    implementation: str
    rows: int
    source: FitSource | None
    errors: npt.NDArray[np.float64]
    seconds: float
    problem: str = ""

    def p90(self, asked: Asked) -> float:
        """The 90th percentile of the errors of a class of questions; NaN if it is unknown."""
        return float(self.errors[asked, 1]) if len(self.errors) else float("nan")


def fit_models(database: OpenDatabase) -> Iterator[Fit]:
    """Fits the model of each kernel type and implementation that has rows, unless the cache has it. Yields each."""
    for kernel_type in progress_over(database.kernel_types(), "kernel types", label="fit"):
        for name in database.implementations:
            started = time.perf_counter()
            nothing = np.zeros((0, 2))
            try:
                rows = database.answers.stored_rows(kernel_type, name)
                if not len(rows):
                    continue
                predictor = database.answers.predictor(kernel_type, name)
                source, model = predictor.fit(), predictor.model()
            except OpAtlasError as error:
                yield Fit(kernel_type, name, 0, None, nothing, time.perf_counter() - started, str(error))
                continue
            errors = nothing if model is None else model.errors
            yield Fit(kernel_type, rows.label, len(rows), source, errors, time.perf_counter() - started)
