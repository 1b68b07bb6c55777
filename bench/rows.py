"""From the slots of a row to the tensors of a call."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property

import torch

from bench.errors import InvalidRow
from database.dtypes import Dtype, known_dtype
from database.errors import CellError
from database.schema import (
    INPUT_DTYPES,
    INPUT_SHAPES,
    INPUT_SLOTS,
    OUTPUT_DTYPES,
    OUTPUT_SHAPES,
    OUTPUT_SLOTS,
)
from database.slots import Slot, parse_slots


class ReplayRow:
    """One row of the database, on the device that replays it.

    The tensors it makes are born on the device, from a seed that is the row's own: the same row
    gets the same values again.
    """

    def __init__(self, kernel_type: str, cells: Mapping[str, str], place: str, device: torch.device) -> None:
        """`place` names the row's file and line for errors."""
        self.kernel_type = kernel_type
        self.cells = cells
        self.place = place
        self.device = device
        seed = hashlib.blake2b("|".join((kernel_type, *cells.values())).encode(), digest_size=7).digest()
        self.seed = int.from_bytes(seed, "little")
        self._generator = torch.Generator(device=device).manual_seed(self.seed)

    @cached_property
    def input_slots(self) -> tuple[Slot, ...]:
        """Input slots in order, absent ones in between included. Raises InvalidRow."""
        return self._slots(INPUT_SLOTS)

    @cached_property
    def output_slots(self) -> tuple[Slot, ...]:
        """Output slots in order. Raises InvalidRow."""
        return self._slots(OUTPUT_SLOTS)

    def inputs(self, low: float = -1.0, high: float = 1.0) -> list[torch.Tensor]:
        """Random tensors for all input slots that are there; see `tensor`."""
        return [self.tensor(i, low, high) for i, slot in enumerate(self.input_slots) if not slot.absent]

    def tensor(self, slot: int, low: float = -1.0, high: float = 1.0) -> torch.Tensor:
        """A random tensor for an input slot, 0-dim for an empty shape with a dtype.

        Real numbers are uniform in [low, high); integers are uniform in 1 ... 8, so that they can
        be divisors and exponents; booleans are true or false with equal odds.
        """
        shape, dtype = self.shape(slot), self._dtype(self._input(slot), INPUT_DTYPES)
        torch_dtype = getattr(torch, dtype.torch_name)
        if dtype.is_float:
            return self._uniform(shape, torch_dtype, low, high)
        if torch_dtype is torch.bool:
            return torch.rand(shape, generator=self._generator, device=self.device) < 0.5
        return self._integers(shape, torch_dtype, 1, 9)

    def indices(self, slot: int, below: int, *, distinct: bool = False) -> torch.Tensor:
        """Legal indices for an input slot: whole numbers in 0 ... below - 1."""
        shape = self.shape(slot)
        torch_dtype = getattr(torch, self._dtype(self._input(slot), INPUT_DTYPES).torch_name)
        if below < 1:
            raise self.refuse(
                INPUT_SHAPES, f"slot {slot} indexes a dimension of size {below}", "correct the source's shape"
            )
        if not distinct:
            return self._integers(shape, torch_dtype, 0, below)
        count = torch.Size(shape).numel()
        if count > below:
            raise self.refuse(
                INPUT_SHAPES,
                f"slot {slot} holds {count} distinct indices below {below}",
                "correct one of the two shapes",
            )
        chosen = torch.randperm(below, generator=self._generator, device=self.device)[:count]
        return chosen.to(torch_dtype).reshape(shape)

    def shape(self, slot: int) -> tuple[int, ...]:
        """Shape of an input slot. Raises InvalidRow where the row has no such slot."""
        return self._input(slot).shape

    def output_shape(self, slot: int = 0) -> tuple[int, ...]:
        """Shape of an output slot. Raises InvalidRow where the row has no such slot."""
        return self._output(slot).shape

    def output_dtype(self, slot: int = 0) -> torch.dtype:
        """torch's dtype of an output slot. Raises InvalidRow."""
        dtype: torch.dtype = getattr(torch, self._dtype(self._output(slot), OUTPUT_DTYPES).torch_name)
        return dtype

    def expect_inputs(self, *counts: int) -> None:
        """Refuses a row whose number of input slots is not one of `counts`."""
        if len(self.input_slots) not in counts:
            wanted = " or ".join(map(str, counts))
            raise self.refuse(
                INPUT_SHAPES,
                f"{len(self.input_slots)} tensors, where {self.kernel_type} takes {wanted}",
                "restore the missing slots from the capture",
            )

    def refuse(self, column: str, problem: str, remedy: str) -> InvalidRow:
        """The error that says which cell keeps the row from being replayed; raise what it returns."""
        return InvalidRow(f"{self.place}: column {column!r} is {self.cells.get(column, '')!r}: {problem}; {remedy}")

    def bytes(self) -> int:
        """Bytes of all input and output tensors."""
        total = 0
        for slots, column in ((self.input_slots, INPUT_DTYPES), (self.output_slots, OUTPUT_DTYPES)):
            for slot in slots:
                if not slot.absent:
                    total += torch.Size(slot.shape).numel() * self._dtype(slot, column).bytes
        return total

    def _slots(self, columns: tuple[str, str, str]) -> tuple[Slot, ...]:
        try:
            shapes, dtypes, formats = (self.cells.get(column, "") for column in columns)
            return parse_slots(shapes, dtypes, formats, columns)
        except CellError as error:
            raise InvalidRow(f"{self.place}: {error}; correct the cell, or ingest the capture again") from None

    def _input(self, slot: int) -> Slot:
        if slot >= len(self.input_slots) or self.input_slots[slot].absent:
            raise self.refuse(INPUT_SHAPES, f"input slot {slot} is missing", "restore it from the capture")
        return self.input_slots[slot]

    def _output(self, slot: int) -> Slot:
        if slot >= len(self.output_slots) or self.output_slots[slot].absent:
            raise self.refuse(OUTPUT_SHAPES, f"output slot {slot} is missing", "restore it from the capture")
        return self.output_slots[slot]

    def _dtype(self, slot: Slot, column: str) -> Dtype:
        dtype = known_dtype(slot.dtype)
        if dtype is None:
            raise self.refuse(column, f"{slot.dtype!r} is not a dtype that can be replayed", "correct the cell")
        return dtype

    def _uniform(self, shape: tuple[int, ...], dtype: torch.dtype, low: float, high: float) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device).uniform_(low, high, generator=self._generator)

    def _integers(self, shape: tuple[int, ...], dtype: torch.dtype, low: int, high: int) -> torch.Tensor:
        # randint has no kernel for the wider unsigned types.
        drawn = torch.int64 if dtype in (torch.uint16, torch.uint32, torch.uint64) else dtype
        values = torch.randint(low, high, shape, dtype=drawn, device=self.device, generator=self._generator)
        return values.to(dtype)
