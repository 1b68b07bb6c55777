"""A call of attention: the sequences of its batch, as users write them, the Runtime cells of its row, and its sizes."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Annotated, NamedTuple

import msgspec

from opatlas.errors import UsageError
from opatlas.row import columns as col
from opatlas.row.quality import number_cell
from opatlas.row.slots import Slot, known_dtype, split_cell
from opatlas.text import MOST_DIGITS, parse_whole

COMPLETENESS = col.RUNTIME_PREFIX + "metadata_completeness"
#: The input slots of attention, of 31, whose shapes describe the batch.
SHAPE_SLOTS = {
    col.RUNTIME_PREFIX + "actual_seq_lengths_shape": 5,
    col.RUNTIME_PREFIX + "actual_seq_lengths_kv_shape": 6,
    col.RUNTIME_PREFIX + "block_table_shape": 14,
}
Shape = tuple[int, ...]
RAW_SHAPES = col.RUNTIME_PREFIX + "operator_input_shapes_raw"
#: Slots of FusedInferAttentionScore's 31 inputs.
_QUERY, _KEY, _VALUE, _MASK, _KV_LENGTHS, _BLOCK_TABLE, _QUERY_ROPE = 0, 1, 2, 4, 6, 14, 24
#: The kernel of a prompt of latent attention, and its input slots after the query and the query's rotary part.
_RING = "RINGMLAPrefillBF16Kernel"
_RING_KEY, _RING_MASK = 2, 5
#: Sparse modes in which a query reads the keys before it only.
_CAUSAL = ("2", "3", "4")
AVG_SEQ_LEN = col.RUNTIME_PREFIX + "avg_seq_len"
VALID_BLOCKS = col.RUNTIME_PREFIX + "block_table_valid_blocks"
Q_VALUES, KV_VALUES, _, _, _MODE, _LAYOUT, _, PRE_TOKENS = col.RUNTIME_IN_SIGNATURE
#: The sparse mode in which a query reads its own key and `pre_tokens` before it.
WINDOW = 4

#: Sizes and lengths have fewer digits than MOST_DIGITS.
_Size = Annotated[int, msgspec.Meta(ge=0, lt=10**MOST_DIGITS)]
_Sizes = tuple[_Size, ...]
#: Sequences with at most so many queries are decoded, perhaps with drafted tokens to verify; others are prompts.
_MOST_DECODED = 8
_SEQUENCES = re.compile(r"(?:(\d{1,6})x)?(\d{1,9})@(\d{1,9})", re.ASCII)
_EXAMPLE = "63x1@4096+1x2048@6144: 63 sequences of 1 query at 4096 keys, and 1 of 2048 queries at 6144"


class Sequences(NamedTuple):
    """`n` sequences with as many new tokens (queries) and tokens in all (keys, with the new ones) each."""

    n: int
    queries: int
    keys: int

    def __str__(self) -> str:
        return f"{self.n}x{self.queries}@{self.keys}"

    @property
    def is_prompt(self) -> bool:
        return self.queries > _MOST_DECODED or self.queries == self.keys > 1


def read_sequences(text: str) -> list[Sequences]:
    """Reads `63x1@4096+1x2048@6144`. Raises UsageError: the text has another form, or a number is impossible."""
    found = []
    for word in text.split("+"):
        match = _SEQUENCES.fullmatch(word.strip())
        group = Sequences(*(int(number or 1) for number in match.groups())) if match else Sequences(0, 0, 0)
        if not 0 < group.queries <= group.keys or not group.n:
            raise UsageError(f"{word.strip()!r} are no sequences: give at most 999,999, as in {_EXAMPLE}")
        found.append(group)
    return found


def queries_of(sequences: Sequence[Sequences]) -> list[int]:
    """Returns the number of queries of each sequence."""
    return [each.queries for each in sequences for _ in range(each.n)]


def keys_of(sequences: Sequence[Sequences]) -> list[int]:
    """Returns the number of keys of each sequence."""
    return [each.keys for each in sequences for _ in range(each.n)]


class JoinKey(NamedTuple):
    """The facts that both a capture and a recorded call have. None stands for a missing tensor or list."""

    query: Shape | None
    key: Shape | None
    value: Shape | None
    kv_sequences: int | None
    mask: Shape | None
    block_table: Shape | None

    def __str__(self) -> str:
        named = zip(self._fields, self, strict=True)
        return "; ".join(f"{name.replace('_', ' ')} {_cell(part) or 'none'}" for name, part in named)


class CallRecord(msgspec.Struct, frozen=True):
    """A call of attention. Each field may be null or missing; other fields are ignored.

    Attributes:
        query_shape, key_shape, value_shape, atten_mask_shape, block_table_shape: lists of dimensions.
        actual_seq_lengths, actual_seq_lengths_kv: lists of lengths, as passed to the call.
        block_table_valid_blocks: blocks in use: one number, or one a sequence.
        num_heads, num_key_value_heads, sparse_mode, input_layout, block_size, pre_tokens: arguments of the call.
    """

    query_shape: _Sizes | None = None
    key_shape: _Sizes | None = None
    value_shape: _Sizes | None = None
    atten_mask_shape: _Sizes | None = None
    block_table_shape: _Sizes | None = None
    actual_seq_lengths: _Sizes | None = None
    actual_seq_lengths_kv: _Sizes | None = None
    block_table_valid_blocks: _Size | _Sizes | None = None
    num_heads: _Size | None = None
    num_key_value_heads: _Size | None = None
    sparse_mode: _Size | None = None
    #: `BSND`, `TND_NTD`. A signature drops blanks, quotes and brackets, so that no row would have such a layout.
    input_layout: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]*\Z")] | None = None
    block_size: _Size | None = None
    pre_tokens: _Size | None = None

    @property
    def key(self) -> JoinKey:
        sequences = None if self.actual_seq_lengths_kv is None else len(self.actual_seq_lengths_kv)
        shapes = self.query_shape, self.key_shape, self.value_shape
        return JoinKey(*shapes, sequences, self.atten_mask_shape, self.block_table_shape)

    def cells(self) -> dict[str, str]:
        """Returns the Runtime cells of the call's row."""
        lengths, kv_lengths = self.actual_seq_lengths, self.actual_seq_lengths_kv
        values = (
            *(lengths, kv_lengths, self.num_heads),
            # 0 means as many key heads as query heads.
            *(self.num_key_value_heads or self.num_heads, self.sparse_mode, self.input_layout, self.block_size),
            self.pre_tokens if self.sparse_mode == WINDOW else None,
        )
        shapes = (
            None if lengths is None else len(lengths),
            None if kv_lengths is None else len(kv_lengths),
            self.block_table_shape,
        )
        return {
            **{name: _cell(value) for name, value in zip(col.RUNTIME_IN_SIGNATURE, values, strict=True)},
            AVG_SEQ_LEN: self._average(),
            VALID_BLOCKS: _cell(self.block_table_valid_blocks),
            **{name: _cell(shape) for name, shape in zip(SHAPE_SLOTS, shapes, strict=True)},
        }

    def _average(self) -> str:
        """Returns the mean number of keys of a sequence."""
        lengths = self.actual_seq_lengths_kv
        if not lengths:
            return ""
        # Lengths of TND without a block table are cumulative sums.
        is_sum = self.input_layout == "TND" and self.block_table_shape is None
        return number_cell((lengths[-1] if is_sum else sum(lengths)) / len(lengths))


def row_key(cells: Mapping[str, str]) -> JoinKey | None:
    """Returns the key of an attention row; None if a shape is invalid."""
    slots = split_cell(cells.get(RAW_SHAPES) or cells.get(col.INPUT_SHAPES, ""))
    try:
        shapes = [_shape(slots[at]) if at < len(slots) else None for at in range(_BLOCK_TABLE + 1)]
        _, kv_shape, table_shape = (_shape(split_cell(cells.get(name, ""))[0]) for name in SHAPE_SLOTS)
    except ValueError:
        return None
    kv_lengths = shapes[_KV_LENGTHS] or kv_shape
    sequences = None if kv_lengths is None else math.prod(kv_lengths)
    table = shapes[_BLOCK_TABLE] or table_shape
    return JoinKey(shapes[_QUERY], shapes[_KEY], shapes[_VALUE], sequences, shapes[_MASK], table)


def batch_cells(key: JoinKey, batch: Sequence[Sequences]) -> dict[str, str] | None:
    """Returns the Runtime cells of the rows of a key for the sequences of a batch; None if the rows are of another."""
    queries, keys, (query, cache, *_, table) = queries_of(batch), keys_of(batch), key
    if query is None or cache is None or not len(query) == len(cache) == 3 or sum(queries) != query[0]:
        return None
    if key.kv_sequences != len(keys) or not (table or sum(keys) == cache[0]):
        return None
    size = cache[1] if table else None
    cells = CallRecord(
        block_table_shape=table,
        actual_seq_lengths=tuple(accumulate(queries)),
        actual_seq_lengths_kv=tuple(keys if size else accumulate(keys)),
        block_table_valid_blocks=tuple(-(-length // size) for length in keys) if size else None,
        num_heads=query[1],
        num_key_value_heads=cache[2] // query[2] if size else cache[1],
        sparse_mode=3 if key.mask else 0,
        input_layout="TND",
        block_size=size,
    ).cells()
    return {**cells, COMPLETENESS: completeness(cells)}


def completeness(cells: Mapping[str, str]) -> str:
    """Returns whether the Runtime cells of a row state everything that the kernel's work depends on, as a cell."""
    # In other layouts the shape of the queries has their length, and in other modes there is no window.
    absent = {Q_VALUES: cells[_LAYOUT] != "TND", PRE_TOKENS: cells[_MODE] != str(WINDOW)}
    needed = [name for name in col.RUNTIME_IN_SIGNATURE if not absent.get(name)]
    return "complete" if all(cells[name] for name in needed) else "partial"


def case_of(cells: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the cells of RUNTIME_IN_SIGNATURE. Records with equal ones are the same case."""
    return tuple(cells[name] for name in col.RUNTIME_IN_SIGNATURE)


def _shape(word: str) -> Shape | None:
    return tuple(map(int, word.split(","))) if word else None


def _cell(value: int | str | Sequence[int] | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, (int, str)) else ",".join(map(str, value))


class AttentionSizes(NamedTuple):
    """The sizes of a call of attention.

    Attributes:
        sequences: the number of sequences.
        queries, keys: of all sequences together.
        pairs: of a query and a key that it reads, for one head.
        heads, kv_heads, head_size: of queries, of keys, and the elements of a head (with its rotary part).
        value_size: the elements of a head of the values, and of the result.
        latent: whether the values are parts of the keys, as in multi-head latent attention.
        pages: of the block table; 0 without one.
        lengths: how many sequences have as many queries and keys.
        cache_share: the bytes of an element of keys and values, as a share of those of a query.
        before: how many keys before its own a query reads at most; None for all. Keys that none reads count nowhere.
    """

    sequences: int
    queries: int
    keys: int
    pairs: int
    heads: int
    kv_heads: int
    head_size: int
    value_size: int
    latent: bool
    pages: int
    lengths: Mapping[tuple[int, int], int]
    cache_share: float = 1.0
    before: int | None = None

    @property
    def operations(self) -> int:
        """The operations of the two products of attention."""
        return 2 * self.pairs * self.heads * (self.head_size + self.value_size)

    @property
    def read_elements(self) -> int:
        """The elements of all queries, keys and values, each once; of a smaller cache as many as queries would have."""
        of_cache = self.head_size + self.value_size * (not self.latent)
        read = self.keys * self.kv_heads * of_cache
        return self.queries * self.heads * self.head_size + round(read * self.cache_share)

    @property
    def moved_elements(self) -> int:
        """The same, with the elements of the result."""
        return self.read_elements + self.queries * self.heads * self.value_size


def attention_sizes(kernel_type: str, inputs: Sequence[Slot], cells: Mapping[str, str]) -> AttentionSizes | None:
    """Returns the sizes of a call of attention; None where the row does not have them."""
    if kernel_type == _RING:
        return _ring_sizes(inputs)
    if kernel_type not in col.ATTENTION_TYPES or len(inputs) <= _KEY or len(inputs[_QUERY].shape) < 3:
        return None
    query = inputs[_QUERY].shape
    ragged = len(query) == 3
    heads = _number(cells, "num_heads") or query[-2 if ragged else 1]
    kv_heads = _number(cells, "num_key_value_heads") or heads
    table = inputs[_BLOCK_TABLE].shape if len(inputs) > _BLOCK_TABLE else ()
    of_queries = _numbers(cells, "actual_seq_lengths_values")
    of_keys = _numbers(cells, "actual_seq_lengths_kv_values")
    count = len(of_queries) or len(of_keys) or (table[0] if table else query[0])
    if not count:
        return None
    tokens = query[0] if ragged else math.prod(query) // (heads * query[-1] or 1)
    if of_queries and ragged:
        of_queries = _differences(of_queries)
    elif len(of_queries) != count:
        of_queries = [tokens // count] * count
    if of_keys and ragged and not table:
        of_keys = _differences(of_keys)
    elif len(of_keys) != count:
        of_keys = [_keys_of_each(cells, inputs, table, count)] * count
    mode = cells.get(_MODE, "").strip()
    before = _number(cells, "pre_tokens") if mode == str(WINDOW) else None
    if before is not None:
        of_keys = [min(kv, q + before) for q, kv in zip(of_queries, of_keys, strict=False)]
    pairs = sum(
        _pairs(q, kv, before) if mode in _CAUSAL else q * kv for q, kv in zip(of_queries, of_keys, strict=False)
    )
    rope = inputs[_QUERY_ROPE].shape if len(inputs) > _QUERY_ROPE else ()
    of_key, of_value = (math.prod(slot.shape) for slot in (inputs[_KEY], inputs[min(_VALUE, len(inputs) - 1)]))
    own, cached = (known_dtype(inputs[slot].dtype) for slot in (_QUERY, _KEY))
    return AttentionSizes(
        sequences=count,
        queries=sum(of_queries),
        keys=sum(of_keys),
        pairs=max(pairs, 1),
        heads=heads,
        kv_heads=kv_heads,
        head_size=query[-1] + (rope[-1] if rope else 0),
        value_size=query[-1] * of_value // of_key if of_key and of_value and not rope else query[-1],
        latent=bool(rope),
        pages=math.prod(table) if table else 0,
        lengths=Counter(zip(of_queries, of_keys, strict=False)),
        cache_share=cached.bytes / own.bytes if own and cached and own.bytes else 1.0,
        before=before,
    )


def _pairs(queries: int, keys: int, before: int | None) -> int:
    """Returns the pairs of a query and its own or an earlier key, at most `before` earlier ones; each key is read."""
    cut = max(keys - before - 1, 0) if before is not None else 0
    return queries * keys - (queries * (queries - 1) + cut * (cut + 1)) // 2


def _ring_sizes(inputs: Sequence[Slot]) -> AttentionSizes | None:
    """Returns the sizes for one sequence; with a mask a query reads the keys before it only."""
    if len(inputs) <= _RING_KEY or min(len(slot.shape) for slot in inputs[: _RING_KEY + 1]) < 3:
        return None
    (queries, heads, size), rope, (keys, kv_heads, _) = (inputs[i].shape for i in range(_RING_KEY + 1))
    causal = len(inputs) > _RING_MASK and bool(inputs[_RING_MASK].shape)
    pairs = queries * keys - (queries * (queries - 1) // 2 if causal else 0)
    sizes = (heads, kv_heads, size + rope[-1], size, False, 0, {(queries, keys): 1})
    return AttentionSizes(1, queries, keys, max(pairs, 1), *sizes)


def _keys_of_each(cells: Mapping[str, str], inputs: Sequence[Slot], table: Sequence[int], count: int) -> int:
    average = _number(cells, "avg_seq_len")
    if average:
        return average
    if len(table) == 2:
        return table[1] * (_number(cells, "block_size") or 128)
    return max(inputs[_KEY].shape[0] // count, 1) if inputs[_KEY].shape else 1


def _number(cells: Mapping[str, str], name: str) -> int:
    return parse_whole(cells.get(col.RUNTIME_PREFIX + name, "").strip()) or 0


def _numbers(cells: Mapping[str, str], name: str) -> list[int]:
    words = cells.get(col.RUNTIME_PREFIX + name, "").replace(" ", "").strip("[]\"'").split(",")
    numbers = [parse_whole(word) for word in words]
    return [] if None in numbers else [number for number in numbers if number is not None]


def _differences(ends: Sequence[int]) -> list[int]:
    return [max(end - start, 0) for start, end in zip([0, *ends], ends, strict=False)]
