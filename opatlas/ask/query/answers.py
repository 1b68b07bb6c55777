"""The answers to many questions at once, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from opatlas.arrays import Floats, Positions
from opatlas.ask.query.answering_rows import AnsweringRows
from opatlas.ask.query.result import How, interval_of, leads
from opatlas.data.origin import joined
from opatlas.row.columns import CACHE_STATE, INSTRUMENT, QUALITY, RUN_ID

if TYPE_CHECKING:
    import pandas as pd

    from opatlas.ask.query.predictor import Prediction

#: The columns of `OpenDatabase.query_many`.
ANSWER_COLUMNS = (
    *("Duration(us)", "Low(us)", "High(us)", "How", "Implementation", QUALITY, RUN_ID, "Composition"),
    *("Device", CACHE_STATE, INSTRUMENT, "Machines", "Source"),
)
#: The words of the column Composition, by `QueryResult.composed`.
COMPOSITION_WORDS = {False: "no", True: "yes", None: "not told"}


class Answers:
    """The best answer so far to each question."""

    def __init__(self, count: int) -> None:
        self.duration_us, self.low_us, self.high_us = (np.full(count, np.nan) for _ in range(3))
        self._row_us = np.full(count, np.nan)
        self._words = {name: np.full(count, "", dtype=object) for name in ANSWER_COLUMNS[3:]}

    def take_measured(self, rows: AnsweringRows, positions: Positions, floors: Floats) -> None:
        """Takes stored rows where they are faster than the answers so far.

        Args:
            positions: the position of the row of each question; -1 without a row.
            floors: the relative difference of each row on the machine that is asked for.
        """
        hit = np.flatnonzero(positions >= 0)
        if not len(rows) or not len(hit):
            return
        found = positions[hit]
        duration_us = rows.duration_us[found]
        faster = ~(self.duration_us[hit] <= duration_us)
        hit, found, duration_us = hit[faster], found[faster], duration_us[faster]
        self._put(hit, duration_us, *interval_of(duration_us, rows.half_widths(floors)[found]))
        self._row_us[hit] = duration_us
        cells: dict[str, Sequence[object]] = {
            QUALITY: rows.quality,
            RUN_ID: rows.run_id,
            "Composition": [COMPOSITION_WORDS[each] for each in rows.composed],
            CACHE_STATE: rows.cache,
            INSTRUMENT: rows.instrument,
            "Device": rows.devices,
            "Source": rows.source,
            "Machines": ["" if count is None else count for count, _ in rows.machines],
        }
        for name, values in cells.items():
            self._words[name][hit] = np.array(values, dtype=object)[found]
        for name, word in (("How", How.MEASURED.value), ("Implementation", rows.label)):
            self._words[name][hit] = word

    def take_predicted(self, where: Positions, found: Sequence[Prediction | None], rows: AnsweringRows) -> None:
        """Takes predictions where they are faster than the answers so far.

        One goes before a stored row of another implementation only if it `leads`.

        Args:
            where: the questions that no row of the implementation answers, after all stored rows were taken.
            found: their predictions; None for a question without a prediction, or whose dtypes no row has where
                there is a stored row.
            rows: the rows that the predictions come from.
        """
        words = {
            "Implementation": rows.label,
            "Composition": COMPOSITION_WORDS[rows.any_composed],
            QUALITY: "",
            RUN_ID: "",
            "Machines": "",
            "Device": rows.device,
            "Source": joined(rows.source),
            CACHE_STATE: joined(rows.cache),
            INSTRUMENT: joined(rows.instrument),
        }
        for i, each in zip(where.tolist(), found, strict=True):
            if each is None or not leads(each.how, each.interval_us, self._row_us[i]):
                continue
            if self._words["How"][i] == How.MEASURED.value or not self.duration_us[i] <= each.duration_us:
                self.duration_us[i], (self.low_us[i], self.high_us[i]) = each.duration_us, each.interval_us
                self._words["How"][i] = each.how.value
                for name, word in words.items():
                    self._words[name][i] = word

    def _put(self, where: Positions, *values: npt.NDArray[np.float64]) -> None:
        for target, value in zip((self.duration_us, self.low_us, self.high_us), values, strict=True):
            target[where] = value

    def frame(self, index: pd.Index) -> pd.DataFrame:
        """Returns the answers as a table."""
        import pandas as pd

        numbers = dict(zip(ANSWER_COLUMNS, (self.duration_us, self.low_us, self.high_us), strict=False))
        table: pd.DataFrame = pd.DataFrame({**numbers, **self._words}, index=index)
        return table
