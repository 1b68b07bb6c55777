"""A theory row: a kernel call that no profiler has seen yet."""

from __future__ import annotations

from dataclasses import dataclass

from database.schema import (
    ACCELERATOR_CORE,
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    OP_STATE,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
)
from database.signature import signature
from database.slots import Slot

#: Dtypes that profilers write with a prefix; `FLOAT` and the integers have none.
_PREFIXED = frozenset({"BF16"})


@dataclass(frozen=True)
class TheoryRow:
    """One call.

    Attributes:
        kernel_type: the profiler's name of the kernel, and of its CSV.
        inputs, outputs: tensor slots in the kernel's order.
        op_state, core: as in the rows of the profiler that this row stands beside; empty where
            there are none.
    """

    kernel_type: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    op_state: str = ""
    core: str = ""

    def cells(self) -> dict[str, str]:
        """The base columns of a compute CSV."""
        return {
            OP_STATE: self.op_state,
            ACCELERATOR_CORE: self.core,
            INPUT_SHAPES: _shapes(self.inputs),
            INPUT_DTYPES: _dtypes(self.inputs),
            INPUT_FORMATS: _formats(self.inputs),
            OUTPUT_SHAPES: _shapes(self.outputs),
            OUTPUT_DTYPES: _dtypes(self.outputs),
            OUTPUT_FORMATS: _formats(self.outputs),
        }

    def signature(self) -> str:
        return signature(self.kernel_type, self.cells())


def tensor(dtype: str, *shape: int) -> Slot:
    """A tensor in the plain format."""
    return Slot(shape, dtype, "ND")


def _shapes(slots: tuple[Slot, ...]) -> str:
    return ";".join(",".join(map(str, slot.shape)) for slot in slots)


def _dtypes(slots: tuple[Slot, ...]) -> str:
    return ";".join(f"DT_{slot.dtype}" if slot.dtype in _PREFIXED else slot.dtype for slot in slots)


def _formats(slots: tuple[Slot, ...]) -> str:
    return ";".join(slot.format for slot in slots)
