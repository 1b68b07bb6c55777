"""A table that is being changed: by columns, because pandas is slow cell by cell."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from opatlas.model.schema import INPUT_SHAPES, OUTPUT_SHAPES, with_columns
from opatlas.model.slots import EMPTY_SHAPE

Key = TypeVar("Key", bound=Hashable)


def positions_by(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """The positions of the rows that have a key in common (a signature, say), by that, in the order of the rows."""
    positions: dict[Key, list[int]] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, []).append(position)
    return positions


class TableEdit:
    """Columns that are asked for become lists; the others stay as they were read."""

    def __init__(self, frame: pd.DataFrame, columns: Sequence[str] | None = None) -> None:
        """
        Args:
            frame: text cells of the rows that are there.
            columns: the columns of the result, where they are more than those of `frame`.
        """
        self._frame = frame
        self._columns = [str(name) for name in (frame.columns if columns is None else columns)]
        self._taken: dict[str, list[str]] = {}
        self._appended: list[Mapping[str, str]] = []

    def __len__(self) -> int:
        return len(self._frame) + len(self._appended)

    def __getitem__(self, name: str) -> list[str]:
        """The cells of a column, to be read or changed in place; empty ones where there is no such column."""
        cells = self._taken.get(name)
        if cells is None:
            there = name in self._frame.columns
            cells = self._frame[name].tolist() if there else [""] * len(self._frame)
            cells += [row.get(name, "") for row in self._appended]
            self._taken[name] = cells
        return cells

    def append(self, row: Mapping[str, str]) -> int:
        """Adds a row at the end; gives its position.

        A shape cell with nothing in it, of a lone 0-dim tensor, becomes `""`, as profilers have it: pandas reads an
        empty cell as a missing one, and msmodeling's loader fails at that.
        """
        row = {**row, **{name: EMPTY_SHAPE for name in (INPUT_SHAPES, OUTPUT_SHAPES) if row.get(name) == ""}}
        for name, cells in self._taken.items():
            cells.append(row.get(name, ""))
        self._appended.append(row)
        return len(self) - 1

    def frame(self) -> pd.DataFrame:
        """The table with its changes: no column lost, none moved, new ones that hold something where their group is."""
        held = [name for name, cells in self._taken.items() if any(cells)]
        appended_names = dict.fromkeys(name for row in self._appended for name in row)
        columns = with_columns(self._columns, [*held, *appended_names])
        cells = {name: self._taken[name] for name in columns if name in self._taken}
        # Plain objects: a hundred columns of pandas' own strings take ten times as long to make.
        appended: dict[str, Any] = {
            name: np.array([row.get(name, "") for row in self._appended], dtype=object) for name in columns
        }
        if self._frame.empty:
            only: pd.DataFrame = pd.DataFrame({name: cells.get(name, appended[name]) for name in columns}, dtype=object)
            return only
        changed = {name: column[: len(self._frame)] for name, column in cells.items()}
        frame: pd.DataFrame = self._frame.assign(**changed).reindex(columns=columns, fill_value="")
        if self._appended:
            added = pd.DataFrame(
                {name: cells[name][len(self._frame) :] if name in cells else appended[name] for name in columns}
            )
            frame = pd.concat([frame, added.astype(str)], ignore_index=True)
        return frame
