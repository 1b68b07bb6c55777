"""Reads the call of a FusedInferAttentionScore row from its 31 input slots and its Runtime columns.

A capture has the shapes of the sequence lengths, and not their values, on which the duration depends. Values in the
Runtime columns come first. For empty Runtime columns, equal lengths are assumed:

- queries (TND), and keys without a block table: the tokens are split evenly between the sequences;
- keys in pages: see `assign_pages`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from opatlas.row import columns as col
from opatlas.row.attention import WINDOW
from opatlas.row.errors import Unsupported
from opatlas.row.slots import FP8

if TYPE_CHECKING:
    from opatlas.run.inputs.replay_row import ReplayRow

QUERY, KEY, VALUE, MASK = 0, 1, 2, 4
QUERY_LENGTHS, KV_LENGTHS, BLOCK_TABLE = 5, 6, 14
QUERY_ROPE, KEY_ROPE, SINK = 24, 25, 28

#: CANN's names of the input slots.
_NAMES = (
    "query key value pse_shift atten_mask actual_seq_lengths actual_seq_lengths_kv dequant_scale1 quant_scale1 "
    "dequant_scale2 quant_scale2 quant_offset2 antiquant_scale antiquant_offset block_table query_padding_size "
    "kv_padding_size key_antiquant_scale key_antiquant_offset value_antiquant_scale value_antiquant_offset "
    "key_shared_prefix value_shared_prefix actual_shared_prefix_len query_rope key_rope key_rope_antiquant_scale "
    "dequant_scale_query learnable_sink q_start_idx kv_start_idx"
)
_USED = {QUERY, KEY, VALUE, MASK, QUERY_LENGTHS, KV_LENGTHS, BLOCK_TABLE, QUERY_ROPE, KEY_ROPE, SINK}

#: Queries and keys are uniform in -2 ... 2. The scores then have a standard deviation of 4 / 3: no single key decides
#: a result, and a missing key shows.
RANGE = (-2.0, 2.0)

#: The remedy for lengths of sequences that are missing or contradict each other.
_LENGTHS = (
    f"fill {col.RUNTIME_PREFIX}actual_seq_lengths_values and {col.RUNTIME_PREFIX}actual_seq_lengths_kv_values with "
    f"opatlas ingest --attention-records (docs/captures.md), or correct the shapes"
)
#: The mask that means a causal mask of any lengths, or a window (sparse_mode 2 to 4).
CAUSAL_MASK = (2048, 2048)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of the call that are not tensors, and the shapes that a row may lack.

    Attributes:
        keywords: the arguments by name. input_layout is "TND" (tokens, heads, D), or "BNSD_NBSD": queries (batch,
            heads, S, D), results (heads, batch, S, D). actual_seq_lengths are cumulative numbers of queries, None for
            BNSD_NBSD; actual_seq_lengths_kv numbers of keys, of each sequence for keys in pages, else cumulative.
            sparse_mode 3 is causal, the last tokens of queries and keys aligned; 0 is no mask; with 4 a query sees its
            own key and `pre_tokens` before it.
        rope: whether there is a rope part (slots 24 and 25).
        mask_dtype: the profiler's name of the dtype of the mask; "" for a call without a mask.
        table: shape of the block table; None for keys without pages.
        used_blocks: number of blocks of the table that each sequence uses; () without a table.
        sinks: about the log-sum-exp of the most scores of a query, as large as which sinks count; None without sinks.
    """

    keywords: dict[str, Any]
    rope: bool
    mask_dtype: str
    table: tuple[int, int] | None
    used_blocks: list[int]
    sinks: float | None = None


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
    valid = row.runtime_numbers("block_table_valid_blocks")
    if valid is not None:
        row.assume(f"sequences fill their {valid} blocks of {block_size} tokens")
        return [number * block_size for number in valid * (count if len(valid) == 1 else 1)]
    average = row.runtime_number("avg_seq_len") or row.runtime_number("avg_seq_len", prefix="")
    if average is not None and average > 0:
        row.assume(f"every sequence has {average} keys, the recorded average")
        return [average] * count
    length = max(min(width, blocks // count), 1) * block_size
    known_by = col.RUNTIME_PREFIX + "block_table_valid_blocks"
    if row.kernel_type in col.ATTENTION_TYPES:
        known_by = f"{col.RUNTIME_PREFIX}actual_seq_lengths_kv_values, which opatlas ingest --attention-records fills,"
    row.assume(f"every sequence has {length} keys, its share of the cache ({known_by} would tell)")
    return [length] * count


def with_operator_shapes(row: ReplayRow) -> ReplayRow:
    """Returns the row with the shapes of `operator_input_shapes_raw`, if recorded, in place of the profiler's."""
    from opatlas.run.inputs.replay_row import ReplayRow

    raw = row.cells.get(_RAW, "").strip()
    if not raw:
        return row
    operator = ReplayRow(row.kernel_type, {**row.cells, col.INPUT_SHAPES: raw}, row.device)
    operator.assumptions = row.assumptions
    return operator


def read_attention(row: ReplayRow) -> AttentionCall:
    """Returns the call of a row (see `with_operator_shapes`). Raises InvalidRow for a row that no replayed family fits.

    The families: queries TND, keys in pages, a causal mask; queries BNSD with a rope part, keys in pages (multi-head
    latent attention); queries TND, keys TND.

    Raises:
        Unsupported: the row says that its lengths are not known.
    """
    column, cell = col.WITHOUT_LENGTHS
    if row.cells.get(column) == cell:
        raise Unsupported("lengths of the sequences are not known: opatlas ingest --attention-records, or --attention")
    if col.MEAN_LENGTHS in row.cells.items():
        row.assume("each sequence has the mean length of its step")
    return _AttentionReader(row).call()


_RAW = col.RUNTIME_PREFIX + "operator_input_shapes_raw"
_VALID_BLOCKS = col.RUNTIME_PREFIX + "block_table_valid_blocks"


def _name(slot: int) -> str:
    return dict(enumerate(_NAMES.split())).get(slot, "unknown")


class _AttentionReader:
    """Reads a row; each method reads one argument of the call."""

    def __init__(self, row: ReplayRow) -> None:
        self.row = row
        self.shapes_column = _RAW if row.cells.get(_RAW, "").strip() else col.INPUT_SHAPES

    def call(self) -> AttentionCall:
        for slot, tensor in enumerate(self.row.input_slots):
            unused = not tensor.shape or slot in _USED
            self.expect(unused, f"slot {slot} ({_name(slot)}) is used, which no replayed family uses")
        layout, table = self.layout(), self.table()
        self.expect_dtypes()
        query, key, value = (self.needed(slot) for slot in (QUERY, KEY, VALUE))
        heads = self.agreed("num_heads", query[1], "slot 0 has {} heads")
        has_mask = self.shape(MASK) is not None or self.recorded_mode() in (3, WINDOW)
        self.expect(layout != "TND" or table is None or has_mask, "keys in pages and queries TND need a mask in slot 4")
        kv_heads, block_size = self.cache(table, key, value, query[-1])
        self.expect(
            kv_heads and heads % kv_heads == 0,
            f"the number of query heads, {heads}, is not a multiple of the {kv_heads} key heads",
        )
        rope = self.rope(layout, query, key)
        sparse_mode = self.sparse_mode(layout)
        queries = self.query_lengths(layout, query, self.count(table))
        keys = self.kv_lengths(table, key, block_size, len(queries))
        blocks = [math.ceil(length / block_size) for length in keys] if table else []
        self.expect(
            not table or max(blocks) <= table[1],
            f"a sequence of {max(keys)} keys needs {max(blocks, default=0)} blocks, and a line of slot 14 has fewer",
            _LENGTHS,
        )
        self.expect(
            not sparse_mode or all(k >= q for q, k in zip(queries, keys, strict=True)),
            f"with a causal mask, a sequence has more queries than keys (queries {queries}, keys {keys})",
            _LENGTHS,
        )
        second = self.row.output_slots[1] if len(self.row.output_slots) > 1 else None
        with_lse = second is not None and second.shape not in ((), (0,), (1,))
        sinks = self.shape(SINK)
        fits = sinks is None or (sinks == (heads,) and not with_lse and not rope)
        self.expect(
            fits, f"slot 28 (learnable_sink) is replayed with a number for each of {heads} heads, and slot 0 alone"
        )
        keywords = {
            "actual_seq_lengths": list(accumulate(queries)) if layout == "TND" else None,
            "actual_seq_lengths_kv": keys if table else list(accumulate(keys)),
            "num_heads": heads,
            "scale": 1 / math.sqrt(query[-1] + rope),
            "input_layout": layout,
            "num_key_value_heads": kv_heads,
            "sparse_mode": sparse_mode,
            "block_size": block_size,
            "softmax_lse_flag": with_lse,
        }
        seen, before = max(keys), self.row.runtime_number("pre_tokens")
        if sparse_mode == WINDOW and before is not None:
            keywords |= {"pre_tokens": before, "next_tokens": 0}
            seen = min(seen, before + 1)
        size = None if sinks is None else math.log(seen) + 0.9
        return AttentionCall(keywords, rope > 0, self.mask_dtype(sparse_mode), table, blocks, size)

    def layout(self) -> str:
        query = self.needed(QUERY)
        inferred = {3: "TND", 4: "BNSD_NBSD"}.get(len(query), "")
        column = col.RUNTIME_PREFIX + "input_layout"
        recorded = self.row.cells.get(column, "").strip(" \"'").upper()
        known = recorded in ("", "TND", "BNSD_NBSD")
        self.row.expect(known, column, "only TND and BNSD_NBSD are replayed", "correct the cell, if it is wrong")
        fits = inferred and recorded in ("", inferred)
        self.expect(fits, f"a query of {len(query)} axes is not {recorded or 'TND nor BNSD'}")
        latent = self.shape(QUERY_ROPE) is not None and self.table() is not None
        self.expect(
            inferred == "TND" or latent,
            "queries BNSD are replayed with a rope part (slots 24, 25) and pages (slot 14) only",
        )
        return inferred

    def table(self) -> tuple[int, int] | None:
        shape = self.shape(BLOCK_TABLE)
        if shape is None:
            recorded = self.row.runtime_numbers("block_table_shape")
            if recorded is None:
                return None
            shape = tuple(recorded)
        self.expect(len(shape) == 2 and shape[0], "slot 14 (block_table) must have two axes, sequences and blocks")
        return shape[0], shape[1]

    def cache(self, table: tuple[int, int] | None, key: Shape, value: Shape, width: int) -> tuple[int, int]:
        """Returns the key heads and the block size; refuses keys and values that do not fit the queries."""
        self.expect(key[:-1] == value[:-1], "slots 1 and 2 (key, value) differ in more than their last axis")
        if table is None:
            fits = len(key) == 3 and key[-1] == width
            self.expect(fits, f"without a block table, keys are (tokens, heads, {width})")
            return self.agreed("num_key_value_heads", key[1], "slot 1 has {} heads"), 0
        self.expect(len(key) in (3, 4), f"slot 1 has {len(key)} axes, where a cache in pages has 3 or 4")
        if len(key) == 3:
            # (blocks, block size, heads x D)
            fits = key[-1] % width == 0 and key[-1] == value[-1]
            self.expect(fits, f"a page of slots 1 and 2 must hold heads of {width} numbers")
            heads, size = key[-1] // width, key[1]
        else:
            # (blocks, heads, block size, D)
            self.expect(key[-1] == width, f"a page of slot 1 must hold heads of {width} numbers")
            heads, size = key[1], key[2]
        self.expect(key[0] and size, "slot 1 is a cache without blocks")
        return (
            self.agreed("num_key_value_heads", heads, "slot 1 has {} heads"),
            self.agreed("block_size", size, "the blocks of slot 1 have {} tokens"),
        )

    def rope(self, layout: str, query: Shape, key: Shape) -> int:
        """Returns the width of the rope part; 0 without one."""
        of_query, of_key = self.shape(QUERY_ROPE) or (), self.shape(KEY_ROPE) or ()
        if not of_query and not of_key:
            return 0
        self.expect(
            layout != "TND" or self.table() is None,
            "queries TND with a rope part (slots 24, 25) are not replayed with keys in pages",
        )
        both = of_query and of_key
        self.expect(both, "the rope part of the queries or of the keys is missing (slots 24, 25)")
        self.expect(
            (of_query[:-1], of_key[:-1], of_query[-1]) == (query[:-1], key[:-1], of_key[-1]),
            "slots 24 and 25 (rope) must have the shapes of slots 0 and 1, but for one last axis",
        )
        return of_query[-1]

    def recorded_mode(self) -> int | None:
        return self.row.runtime_number("sparse_mode")

    def sparse_mode(self, layout: str) -> int:
        mask, recorded = self.shape(MASK), self.recorded_mode()
        mode = recorded if recorded is not None else (0 if mask is None else 3)
        column, remedy = col.RUNTIME_PREFIX + "sparse_mode", "correct it, if it is wrong"
        known = mode in (0, 3) or (mode == WINDOW and self.row.runtime_number("pre_tokens") is not None)
        problem = "only 0 (no mask), 3 (causal) and, with its pre_tokens, 4 (a window) are replayed"
        self.row.expect(known, column, problem, remedy)
        self.expect(
            mask is None or (mask[-2:] == CAUSAL_MASK and math.prod(mask[:-2]) == 1),
            "slot 4 (atten_mask) must have the shape 2048,2048, which means a causal mask",
        )
        applied = mask is None or mode > 0
        self.row.expect(
            applied, column, "slot 4 holds a causal mask, and sparse_mode 0 does not apply it", "correct it"
        )
        self.expect(layout == "TND" or mode == 0, "queries BNSD are replayed without a mask only")
        return mode

    def mask_dtype(self, sparse_mode: int) -> str:
        if not sparse_mode:
            return ""
        # The call needs a mask even if the row records the mode and not the mask.
        dtype = self.row.input_slots[MASK].dtype if self.shape(MASK) else "INT8"
        known = dtype in ("INT8", "UINT8", "BOOL")
        problem = f"slot 4 (atten_mask) is {dtype}, not INT8, UINT8 or BOOL"
        self.row.expect(known, col.INPUT_DTYPES, problem, "correct it")
        return dtype

    def expect_dtypes(self) -> None:
        named = (QUERY, KEY, VALUE, QUERY_ROPE, KEY_ROPE, SINK)
        dtypes = {slot: self.row.input_slots[slot].dtype for slot in named if self.shape(slot)}
        found, cached = {*dtypes.values()}, {dtypes.get(KEY), dtypes.get(VALUE)}
        if len(cached) == 1 and cached <= FP8 and self.table() and KEY_ROPE not in dtypes:
            if self.row.on_npu:
                raise Unsupported("a cache in FP8 without scales is replayed on GPUs")
            found -= cached
        self.row.expect(
            len(found) <= 1 and found <= {"BF16", "FLOAT16", "FLOAT"},
            col.INPUT_DTYPES,
            f"queries, keys and values are {', '.join(sorted(found))}; of others only FP8 in pages is replayed",
            "correct the dtypes, if they are wrong",
        )

    def count(self, table: tuple[int, int] | None) -> int:
        """Returns the number of sequences; refuses slots and columns that disagree."""
        counts = {}
        for slot, name in ((QUERY_LENGTHS, "actual_seq_lengths"), (KV_LENGTHS, "actual_seq_lengths_kv")):
            values = self.row.runtime_numbers(f"{name}_values")
            shape = self.shape(slot) or tuple(self.row.runtime_numbers(f"{name}_shape") or ())
            if values is not None:
                counts[f"{col.RUNTIME_PREFIX}{name}_values"] = len(values)
            elif shape:
                counts[f"slot {slot} ({name})"] = math.prod(shape)
        if table is not None:
            counts["slot 14 (block_table)"] = table[0]
        if len(self.needed(QUERY)) == 4:
            counts["slot 0 (query)"] = self.needed(QUERY)[0]
        self.expect(counts, "the number of sequences is not recorded (slots 5, 6)", _LENGTHS)
        detail = ", ".join(f"{count} in {where}" for where, count in counts.items())
        self.expect(len(set(counts.values())) == 1, f"the number of sequences differs: {detail}", _LENGTHS)
        return next(iter(counts.values()))

    def query_lengths(self, layout: str, query: Shape, count: int) -> list[int]:
        """Returns the number of queries of each sequence."""
        recorded = self.row.runtime_numbers("actual_seq_lengths_values")
        if layout == "TND":
            return self.lengths("actual_seq_lengths_values", recorded, query[0], count, QUERY)
        fits = recorded is None or set(recorded) == {query[2]}
        column = col.RUNTIME_PREFIX + "actual_seq_lengths_values"
        self.row.expect(fits, column, f"every sequence of slot 0 has {query[2]} queries", "correct one of them")
        return [query[2]] * count

    def kv_lengths(self, table: tuple[int, int] | None, key: Shape, block_size: int, count: int) -> list[int]:
        """Returns the number of keys of each sequence."""
        lengths = self.row.runtime_numbers("actual_seq_lengths_kv_values")
        if table is None:
            return self.lengths("actual_seq_lengths_kv_values", lengths, key[0], count, KEY)
        column = col.RUNTIME_PREFIX + "actual_seq_lengths_kv_values"
        if lengths is None:
            lengths, column = assign_pages(self.row, table, key[0], block_size), _VALID_BLOCKS
        differs = f"{len(lengths)} lengths, and the row has {count} sequences"
        self.row.expect(len(lengths) == count, column, differs, "correct it")
        self.row.expect(min(lengths) >= 1, column, "a sequence without keys has no attention", "correct the cell")
        return lengths

    def lengths(self, name: str, cumulative: Sequence[int] | None, tokens: int, count: int, slot: int) -> list[int]:
        """Returns the lengths of sequences that follow each other: recorded as their ends, or equal ones."""
        column = col.RUNTIME_PREFIX + name
        if cumulative is None:
            fits = count and tokens >= count
            self.expect(fits, f"the {tokens} tokens of slot {slot} cannot be split into {count} sequences", _LENGTHS)
            if count > 1:
                self.row.assume(
                    f"the {tokens} tokens of slot {slot} are dealt out evenly to {count} sequences ({column}, which "
                    f"opatlas ingest --attention-records fills, would tell)"
                )
            return split_evenly(tokens, count)
        lengths = [end - start for start, end in zip([0, *cumulative], cumulative, strict=False)]
        self.row.expect(
            min(lengths) >= 1 and cumulative[-1] == tokens,
            column,
            f"lengths must be cumulative for TND, and end with the {tokens} tokens of slot {slot}",
            "correct the lengths",
        )
        return lengths

    def agreed(self, name: str, inferred: int, words: str) -> int:
        recorded = self.row.runtime_number(name)
        fits = recorded in (None, inferred)
        self.row.expect(fits, col.RUNTIME_PREFIX + name, words.format(inferred), "correct one of the two")
        return inferred

    def shape(self, slot: int) -> Shape | None:
        """Returns the shape of a slot; None for an absent slot."""
        return self.row.input_slots[slot].shape if self.row.has(slot) else None

    def needed(self, slot: int) -> Shape:
        shape = self.shape(slot)
        self.expect(shape is not None, f"slot {slot} ({_name(slot)}) is missing")
        assert shape is not None
        return shape

    def expect(
        self, fits: object, problem: str, remedy: str = "correct the row, if it is wrong; no replay has this form"
    ) -> None:
        self.row.expect(fits, self.shapes_column, problem, remedy)
