"""Theory rows that a device's kernel was found to refuse (database/constraints.py) are not added."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from database.constraints import MoeShape, load_constraints
from database.schema import EP_SIZE, INPUT_DTYPES, INPUT_SHAPES
from database.slots import split_cell

#: Which rows of a frame a device's kernel takes.
Accepts = Callable[[pd.DataFrame], np.ndarray]


def accepted_by(database: Path, kernel_type: str) -> Accepts:
    """What the kernel of a database's device takes, as far as it was tried. Raises OpAtlasError."""
    constraints = load_constraints(database) if kernel_type == "DispatchFFNCombine" else None
    if constraints is None or not constraints.trials:
        return lambda frame: np.ones(len(frame), dtype=bool)

    def accepts(frame: pd.DataFrame) -> np.ndarray:
        cells = zip(frame[INPUT_SHAPES], frame[INPUT_DTYPES], frame[EP_SIZE], strict=True)
        return np.array(
            [
                constraints.accepts(_shape(shapes), ep_size=int(ep_size), weights=split_cell(dtypes)[1])
                for shapes, dtypes, ep_size in cells
            ],
            dtype=bool,
        )

    return accepts


def _shape(shapes: str) -> MoeShape:
    """From x (M, H), each token's experts (M, k), and the scales (E, N) of the first weights."""
    slots = [[int(size) for size in words.split(",")] for words in split_cell(shapes)]
    (m, h), (_, top_k), (experts, n) = slots[0], slots[3], slots[4]
    return MoeShape(m=m, h=h, n=n, experts=experts, top_k=top_k)
