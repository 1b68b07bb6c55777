"""Reads the slots of a row from its cells, and refuses cells that do not fit the kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from opatlas.errors import CellError
from opatlas.row import columns as col, slots as slot_cells
from opatlas.row.errors import InvalidRow, Unsupported
from opatlas.run.inputs import shape_rules
from opatlas.text import suggest

if TYPE_CHECKING:
    import torch

#: msmodeling's shape grid gives these types five shapes (offsets, sizes, axes, steps) and three dtypes.
_GRID_OF_FIVE = frozenset({"Slice", "SliceAiCore"})


class RowSlots:
    """A row of the database, without a device.

    Attributes:
        cells: cells by column name.
        assumptions: assumptions of the replay about properties that the row does not record.
    """

    def __init__(self, kernel_type: str, cells: Mapping[str, str]) -> None:
        self.kernel_type = kernel_type
        self.cells = cells
        self.assumptions: list[str] = []

    @cached_property
    def input_slots(self) -> tuple[slot_cells.Slot, ...]:
        """Returns the input slots in order, including absent slots. Raises InvalidRow."""
        return self._slots(col.INPUT_SLOTS, slot_cells.optional_inputs(self.kernel_type))

    @cached_property
    def output_slots(self) -> tuple[slot_cells.Slot, ...]:
        """Returns the output slots in order. Raises InvalidRow."""
        return self._slots(col.OUTPUT_SLOTS, slot_cells.optional_outputs(self.kernel_type))

    def has(self, slot: int) -> bool:
        """Returns whether the row has a tensor in an input slot."""
        return slot < len(self.input_slots) and not self.input_slots[slot].absent

    def assume(self, text: str) -> None:
        """Records an assumption about a property that the row does not record."""
        self.assumptions.append(text)

    def shape(self, slot: int) -> tuple[int, ...]:
        """Returns the shape of an input slot. Raises InvalidRow for an absent slot."""
        return self.input_slot(slot).shape

    def input_slot(self, slot: int) -> slot_cells.Slot:
        """Returns an input slot. Raises InvalidRow for an absent slot."""
        self.expect(self.has(slot), col.INPUT_SHAPES, f"input slot {slot} is missing", "restore it from the capture")
        return self.input_slots[slot]

    def input_dtype(self, slot: int) -> torch.dtype:
        """Returns the dtype of an input slot. Raises InvalidRow; Unsupported for a dtype that torch lacks."""
        return self.torch_dtype(self.input_slot(slot), col.INPUT_DTYPES)

    def index_dtype(self, slot: int) -> torch.dtype:
        """Returns the dtype of a slot that holds indices. Refuses other dtypes than integers."""
        found = self.input_dtype(slot)
        integers = not found.is_floating_point and self.input_slot(slot).dtype != "BOOL"
        self.expect(integers, col.INPUT_DTYPES, f"slot {slot} holds indices, which are integers", "correct its dtype")
        return found

    def output_shape(self, slot: int = 0) -> tuple[int, ...]:
        """Returns the shape of an output slot. Raises InvalidRow for an absent slot."""
        return self._output(slot).shape

    def output_dtype(self, slot: int = 0) -> torch.dtype:
        """Returns the dtype of an output slot. Raises InvalidRow, Unsupported."""
        return self.torch_dtype(self._output(slot), col.OUTPUT_DTYPES)

    def product_shape(self, rank: int | None = None) -> tuple[int, ...]:
        """Returns the shape of the matrices in output slot 0: (..., b * c, a * d) for (..., a, b, c, d) in FRACTAL_NZ.

        Args:
            rank: as for `ReplayRow.matrices`.
        """
        slot = self._output(0)
        return shape_rules.nz_shape(slot.shape) if is_blocked(slot, rank) else slot.shape

    def expect_inputs(self, *counts: int) -> None:
        """Refuses a row whose number of input slots is not one of `counts`."""
        count = len(self.input_slots)
        if count not in counts:
            wanted = " or ".join([", ".join(map(str, counts[:-1])), str(counts[-1])][len(counts) == 1 :])
            raise self.refuse(
                col.INPUT_SHAPES,
                f"{count} tensor{'s' * (count != 1)}, but {self.kernel_type} takes {wanted}",
                "restore the missing slots from the capture"
                if count < max(counts)
                else f"remove slots from {max(counts)} on, if they are not tensors of this kernel",
            )

    def expect_shape(self, slot: int, *shapes: tuple[int, ...], meaning: str = "") -> None:
        """Refuses a row whose input slot has none of these shapes; `meaning` describes the slot in the message."""
        named = f"slot {slot} ({meaning})" if meaning else f"slot {slot}"
        problem = f"{named} must have the shape {' or '.join(map(_cell, shapes))}"
        self.expect(self.shape(slot) in shapes, col.INPUT_SHAPES, problem, "correct its shape")

    def expect_shapes(self, shapes: Mapping[int, tuple[int, ...]]) -> None:
        """Refuses a row whose input slots have other shapes than these; absent slots pass."""
        for slot, shape in shapes.items():
            if self.has(slot):
                self.expect_shape(slot, shape)

    def sizes(self, layout: str) -> tuple[Any, ...]:
        """Returns the sizes of the axes of a layout of slots, in its order. Refuses a row with another layout.

        In `*all,width; width; ; ?*all,1 -> *all,width` a name has one size in all slots, and `*name` is the tuple of
        any number of sizes; a slot without a word may have any shape, and one with `?` may be absent.
        """
        found: dict[str, Any] = {}
        inputs, _, outputs = layout.partition("->")
        for column, slots, shape_of in (
            (col.INPUT_SHAPES, inputs, self.shape),
            (col.OUTPUT_SHAPES, outputs, self.output_shape),
        ):
            for slot, text in enumerate(slots.split(";")):
                words = text.strip().lstrip("?").split(",")
                if words == [""] or ("?" in text and not self.has(slot)):
                    continue
                known = [f"{name} {size}" for name, size in found.items() if {name, f"*{name}"} & {*words}]
                problem = f"{'slot' if column == col.INPUT_SHAPES else 'output'} {slot} must be ({', '.join(words)})"
                fits = _bind(words, shape_of(slot), found)
                self.expect(
                    fits, column, " with ".join(filter(None, [problem, ", ".join(known)])), "correct one of the shapes"
                )
        return tuple(found.values())

    def expect_scalar(self, slot: int) -> None:
        """Refuses a row whose input slot has dimensions."""
        scalar = f"slot {slot} must be a scalar (no dimensions)"
        self.expect(not self.shape(slot), col.INPUT_SHAPES, scalar, "correct its shape")

    def expect_dtype(self, slot: int, name: str) -> None:
        """Refuses a row whose input slot has another dtype."""
        fits = self.input_slot(slot).dtype == name
        self.expect(fits, col.INPUT_DTYPES, f"slot {slot} must be {name}", "correct its dtype")

    def expect_list(self, slot: int, length: int, meaning: str) -> None:
        """Refuses a row whose input slot is not a list of `length` numbers; an absent slot passes.

        A capture has the lengths of these lists (of sizes, of axes) without their values.
        """
        fits = slot >= len(self.input_slots) or self.shape(slot) == (length,)
        problem = f"slot {slot} lists {meaning} and must have the shape {length}"
        self.expect(fits, col.INPUT_SHAPES, problem, "correct one of the shapes")

    def expect_broadcast(self) -> None:
        """Refuses a row whose inputs do not broadcast to its output."""
        inputs = [slot.shape for slot in self.input_slots]
        common = shape_rules.broadcast(inputs)
        problem = "the shapes do not broadcast to a common shape"
        self.expect(common is not None, col.INPUT_SHAPES, problem, "correct one of them")
        problem, remedy = f"the inputs broadcast to {_cell(common or ())}", "correct this cell or the inputs' shapes"
        self.expect(common == self.output_shape(), col.OUTPUT_SHAPES, problem, remedy)

    def expect_slots(self, needed: Sequence[int], optional: Sequence[int] = ()) -> None:
        """Refuses a row that lacks a `needed` input slot, or has a slot that is neither needed nor `optional`."""
        for slot in range(max(len(self.input_slots), max(needed) + 1)):
            missing, unused = slot in needed and not self.has(slot), f"slot {slot} is used, which is not replayed"
            self.expect(not missing, col.INPUT_SHAPES, f"slot {slot} is missing", "restore it from the capture")
            known = slot in needed or slot in optional or not self.has(slot)
            self.expect(known, col.INPUT_SHAPES, unused, "correct it, if it is wrong")

    def runtime_number(self, name: str, *, prefix: str = col.RUNTIME_PREFIX) -> int | None:
        """Returns the whole number of a Runtime column; None for an empty cell. Raises InvalidRow."""
        numbers = self.runtime_numbers(name, prefix=prefix) or []
        self.expect(len(numbers) <= 1, prefix + name, f"{len(numbers)} numbers instead of one", "correct the cell")
        return numbers[0] if numbers else None

    def runtime_numbers(self, name: str, *, prefix: str = col.RUNTIME_PREFIX) -> list[int] | None:
        """Returns the numbers of a Runtime column (`40,998` or `[40, 998]`); None for an empty cell.

        Raises:
            InvalidRow: the cell does not hold numbers.
        """
        words = self.cells.get(prefix + name, "").translate({ord(c): " " for c in "[](){}\"',;"}).split()
        try:
            # pandas writes 16.0 for 16, and an average may have a fraction.
            return [round(float(word)) for word in words] or None
        except (OverflowError, ValueError):
            raise self.refuse(prefix + name, "not numbers", "correct the cell, or empty it") from None

    def expect(self, fits: object, column: str, problem: str, remedy: str = "correct what does not fit") -> None:
        """Refuses a row whose cell in `column` does not fit: `problem` describes the cell."""
        if not fits:
            raise self.refuse(column, problem, remedy)

    def refuse(self, column: str, problem: str, remedy: str) -> InvalidRow:
        """Returns the error for a row that cannot be replayed because of the cell in `column`."""
        return InvalidRow(f"column {column!r} is {self.cells.get(column, '')!r}: {problem}; {remedy}")

    def bytes(self) -> int:
        """Returns the bytes of all input and output tensors."""
        total = 0
        for slots, column in ((self.input_slots, col.INPUT_DTYPES), (self.output_slots, col.OUTPUT_DTYPES)):
            for slot in slots:
                if not slot.absent:
                    total += math.prod(slot.shape) * self._dtype(slot, column).bytes
        return total

    def _slots(self, columns: tuple[str, str, str], optional: slot_cells.SlotNumbers) -> tuple[slot_cells.Slot, ...]:
        try:
            shapes, dtypes, formats = (self.cells.get(column, "") for column in columns)
            if columns == col.INPUT_SLOTS and self.kernel_type in _GRID_OF_FIVE and dtypes.count(";") == 2:
                # The signature of a Slice contains the first slot only.
                shapes = ";".join(shapes.split(";")[:3]) if shapes.count(";") == 4 else shapes
            return slot_cells.parse_slots(shapes, dtypes, formats, columns, optional)
        except CellError as error:
            raise InvalidRow(f"{error}; correct the cell, or ingest the capture again") from None

    def _output(self, slot: int) -> slot_cells.Slot:
        present = slot < len(self.output_slots) and not self.output_slots[slot].absent
        self.expect(present, col.OUTPUT_SHAPES, f"output slot {slot} is missing", "restore it from the capture")
        found = self.output_slots[slot]
        if found.dtype != "INT4" or not found.shape:
            return found
        # torch has no INT4: the calls put eight numbers into an INT32.
        return replace(found, shape=(*found.shape[:-1], found.shape[-1] // 8), dtype="INT32")

    def _dtype(self, slot: slot_cells.Slot, column: str) -> slot_cells.Dtype:
        dtype = slot_cells.known_dtype(slot.dtype)
        if dtype is None:
            near = suggest(slot.dtype, slot_cells.DTYPE_NAMES)
            raise self.refuse(column, f"{slot.dtype!r} is not a dtype that can be replayed{near}", "correct the cell")
        return dtype

    def torch_dtype(self, slot: slot_cells.Slot, column: str) -> torch.dtype:
        """Returns torch's dtype of a slot. Errors, InvalidRow and Unsupported, name `column`."""
        # Here, because pytest's process reads slots without torch.
        import torch

        name = self._dtype(slot, column).torch_name
        if slot.dtype in slot_cells.FOUR_BITS or not hasattr(torch, name):
            raise Unsupported(f"column {column!r}: torch {torch.__version__} replays no tensors of {slot.dtype}")
        dtype: torch.dtype = getattr(torch, name)
        if dtype.is_complex:
            raise Unsupported(f"column {column!r}: complex numbers are not replayed")
        return dtype


def is_blocked(slot: slot_cells.Slot, rank: int | None) -> bool:
    """Returns whether a slot of matrices is in FRACTAL_NZ: by its axes, or by its format if `rank` is None."""
    return slot.format == "FRACTAL_NZ" if rank is None else len(slot.shape) == rank + 2


def _cell(shape: tuple[int, ...]) -> str:
    """Returns a shape in the notation of cells."""
    return ",".join(map(str, shape)) or "a scalar"


def _bind(words: Sequence[str], shape: tuple[Any, ...], found: dict[str, Any]) -> bool:
    """Returns whether a shape has the axes of some words, whose sizes are added to `found`; see `RowSlots.sizes`."""
    for place, word in enumerate(words):
        if word.startswith("*"):
            end = len(shape) - (len(words) - place - 1)
            shape = (*shape[:place], shape[place:end], *shape[end:]) if end >= place else ()
    return len(shape) == len(words) and all(
        size == (int(word) if word.isdecimal() else found.setdefault(word.lstrip("*"), size))
        for word, size in zip(words, shape, strict=True)
    )
