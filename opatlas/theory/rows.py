"""Theory rows: kernel calls that no profiler has recorded, as single rows or as batches of thousands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from opatlas.row.columns import BASE
from opatlas.row.signature import signature
from opatlas.row.slots import Slot
from opatlas.theory.patterns import Form, Ints

#: Dtypes that profilers write with the prefix DT_; FLOAT and the integers have none.
_PREFIXED = frozenset({"BF16"})
_TEXT = pa.large_string()


@dataclass(frozen=True)
class TheoryRow:
    """One call.

    Attributes:
        kernel_type: the profiler's name of the kernel, which is also the name of its CSV.
        inputs, outputs: tensor slots in the kernel's order.
        op_state, core: OP State and Accelerator Core of comparable captured rows; "" if there are none.
        more: further columns and their cells, such as the Runtime columns of attention kernels.
    """

    kernel_type: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    op_state: str = ""
    core: str = ""
    more: tuple[tuple[str, str], ...] = ()

    def cells(self) -> dict[str, str]:
        """Returns the base columns of a compute CSV and the columns of `more`."""
        cells = [self.op_state, self.core]
        for slots in (self.inputs, self.outputs):
            cells.append(";".join(",".join(map(str, slot.shape)) for slot in slots))
            cells += _words([slot.dtype for slot in slots], [slot.format for slot in slots])
        return {**dict(zip(BASE, cells, strict=True)), **dict(self.more)}

    def signature(self) -> str:
        """Returns the signature of the row (opatlas/row/signature.py)."""
        return signature(self.kernel_type, self.cells())


@dataclass(frozen=True)
class Batch:
    """Many calls of one form.

    Attributes:
        inputs, outputs: the dimensions of each slot, each a number or an array of `count` numbers; None for an absent
            slot.
        more: further columns: one text for all rows, an array of numbers, or a list of texts.
        bytes: bytes of all tensors of a row: one number, or an array of `count` numbers.
    """

    kernel_type: str
    form: Form
    inputs: Sequence[tuple[Ints, ...] | None]
    outputs: Sequence[tuple[Ints, ...] | None]
    more: Mapping[str, str | Ints | Sequence[str]]
    count: int
    bytes: Ints

    def frame(self) -> pd.DataFrame:
        """Returns the columns that `TheoryRow.cells` gives for one row."""
        form = self.form
        columns: list[str | Ints | Sequence[str]] = [form.op_state, form.core]
        columns += [self._shapes(self.inputs), *_words(form.input_dtypes, form.input_formats)]
        columns += [self._shapes(self.outputs), *_words(form.output_dtypes, form.output_formats)]
        texts = {**dict(zip(BASE, columns, strict=True)), **self.more}
        frame: pd.DataFrame = pd.DataFrame({name: self._column(value) for name, value in texts.items()})
        return frame

    def row_bytes(self) -> np.ndarray:
        """Returns the bytes of all tensors, for each row."""
        return np.broadcast_to(self.bytes, (self.count,))

    def _column(self, value: str | Ints | Sequence[str]) -> np.ndarray | Sequence[str]:
        if isinstance(value, str):
            return np.full(self.count, value, dtype=object)
        if isinstance(value, np.ndarray) and value.dtype != object:
            return np.broadcast_to(value, (self.count,)).astype(str).astype(object)
        return value

    def _shapes(self, slots: Sequence[tuple[Ints, ...] | None]) -> np.ndarray | str:
        pieces: list[pa.LargeStringScalar | pa.LargeStringArray] = []
        known: dict[int, pa.LargeStringArray] = {}
        text = ""
        for i, dims in enumerate(slots):
            text += ";" if i else ""
            for j, dim in enumerate(dims or ()):
                text += "," if j else ""
                if not isinstance(dim, np.ndarray):
                    text += str(dim)
                    continue
                if text:
                    pieces.append(pa.scalar(text, type=_TEXT))
                    text = ""
                if id(dim) not in known:
                    known[id(dim)] = pa.array(np.broadcast_to(dim, (self.count,))).cast(_TEXT)
                pieces.append(known[id(dim)])
        if not pieces:
            return text
        joined = pc.binary_join_element_wise(*pieces, pa.scalar(text, type=_TEXT), pa.scalar("", type=_TEXT))
        cells: np.ndarray = joined.to_numpy(zero_copy_only=False)
        return cells


def tensor(dtype: str, *shape: int) -> Slot:
    """Returns the slot of a tensor in format ND."""
    return Slot(shape, dtype, "ND")


def _words(dtypes: Sequence[str], formats: Sequence[str]) -> tuple[str, str]:
    """Returns the dtypes cell and the formats cell, as profilers write them."""
    return (
        ";".join((f"DT_{name}" if name in _PREFIXED else name) or "DT_UNDEFINED" for name in dtypes),
        ";".join(name or "NULL" for name in formats),
    )
