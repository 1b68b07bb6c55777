"""Finds the lengths of the sequences of attention kernels: recorded lengths, or else assumed lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opatlas.row.columns import ATTENTION_TYPES, INPUT_SHAPES, RUNTIME_PREFIX

if TYPE_CHECKING:
    import torch

    from opatlas.run.inputs.replay_row import ReplayRow


def split_evenly(total: int, count: int) -> list[int]:
    """Returns `count` shares of `total`, as equal as whole numbers can be, the larger shares first."""
    return [total // count + (i < total % count) for i in range(count)]


def assign_pages(row: ReplayRow, table: tuple[int, int], blocks: int, block_size: int) -> list[int]:
    """Returns assumed lengths of the sequences of a block table.

    The first possible choice: the blocks of `Runtime block_table_valid_blocks`, all full; `avg_seq_len` tokens for
    every sequence (the column may have the prefix); an equal share of the blocks of the cache, all full, at most a
    line of the table.
    """
    count, width = table
    valid = runtime_numbers(row, "block_table_valid_blocks")
    if valid is not None:
        row.assume(f"sequences fill their {valid} blocks of {block_size} tokens")
        return [number * block_size for number in valid * (count if len(valid) == 1 else 1)]
    average = runtime_number(row, "avg_seq_len") or _number(row, "avg_seq_len")
    if average is not None and average > 0:
        row.assume(f"every sequence has {average} keys, the recorded average")
        return [average] * count
    length = max(min(width, blocks // count), 1) * block_size
    known_by = RUNTIME_PREFIX + "block_table_valid_blocks"
    if row.kernel_type in ATTENTION_TYPES:
        known_by = f"{RUNTIME_PREFIX}actual_seq_lengths_kv_values, which opatlas ingest --attention-records fills,"
    row.assume(f"every sequence has {length} keys, its share of the cache ({known_by} would tell)")
    return [length] * count


def runtime_number(row: ReplayRow, name: str) -> int | None:
    """Returns the whole number of a Runtime column; None for an empty cell. Raises InvalidRow."""
    return _number(row, RUNTIME_PREFIX + name)


def runtime_numbers(row: ReplayRow, name: str) -> list[int] | None:
    """Returns the numbers of a Runtime column (`40,998` or `[40, 998]`); None for an empty cell. Raises InvalidRow."""
    return _numbers(row, RUNTIME_PREFIX + name)


def expect_slots(row: ReplayRow, needed: Sequence[int], optional: Sequence[int] = ()) -> None:
    """Refuses a row that lacks one of the `needed` input slots, or has a slot that is neither needed nor `optional`."""
    for slot in range(max(len(row.input_slots), max(needed) + 1)):
        if slot in needed and not row.has(slot):
            raise row.refuse(INPUT_SHAPES, f"slot {slot} is missing", "restore it from the capture")
        if slot not in needed and slot not in optional and row.has(slot):
            raise row.refuse(INPUT_SHAPES, f"slot {slot} is used, which is not replayed", "correct it, if it is wrong")


def lengths_tensor(row: ReplayRow, lengths: Sequence[int] | Sequence[Sequence[int]], *, host: bool) -> torch.Tensor:
    """Returns lengths as calls take them, int32: on the host, or on the device of the row."""
    import torch

    return torch.tensor(lengths, dtype=torch.int32, device="cpu" if host else row.device)


def spread_positions(row: ReplayRow, shape: tuple[int, ...], seen: Sequence[int]) -> torch.Tensor:
    """Returns the positions that each query reads, int32 and ascending, below `seen[i]` for query i.

    The positions are at even distances, from a random first one on. `shape` is (queries, ..., count); -1 fills the end
    of a line where a query sees fewer than `count` tokens.
    """
    import torch

    count = shape[-1]
    drawn = torch.rand((*shape[:-1], 1), dtype=torch.float64, generator=torch.Generator().manual_seed(row.seed))
    visible = torch.tensor(seen, dtype=torch.int64).reshape(-1, *[1] * (len(shape) - 1))
    position = torch.arange(count)
    spread = ((position + drawn) * visible / count).floor().to(torch.int64)
    few = torch.where(position < visible, position, -1)
    return torch.where(visible > count, spread.minimum(visible - 1), few).to(torch.int32).to(row.device)


def _number(row: ReplayRow, column: str) -> int | None:
    numbers = _numbers(row, column)
    if numbers and len(numbers) > 1:
        raise row.refuse(column, f"{len(numbers)} numbers instead of one", "correct the cell")
    return numbers[0] if numbers else None


def _numbers(row: ReplayRow, column: str) -> list[int] | None:
    words = row.cells.get(column, "").translate({ord(c): " " for c in "[](){}\"',;"}).split()
    try:
        # pandas writes 16.0 for 16, and an average may have a fraction.
        return [round(float(word)) for word in words] or None
    except (OverflowError, ValueError):
        raise row.refuse(column, "not numbers", "correct the cell, or empty it") from None
