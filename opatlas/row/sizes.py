"""The sizes of a row by the names of the field: M, N and K of products, sequences, heads and keys of attention.

--where, queries and the features of their models read sizes here, so that a name means the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from opatlas.errors import CellError
from opatlas.row.columns import ATTENTION_TYPES, MESSAGE, RUNTIME_PREFIX
from opatlas.row.roofline import PRODUCTS, operations, tensor_bytes
from opatlas.row.siblings import base_type
from opatlas.row.slots import Slot, known_dtype, row_slots
from opatlas.text import parse_whole

#: Input slots of FusedInferAttentionScore.
_QUERY, _KEY, _VALUE, _BLOCK_TABLE, _QUERY_ROPE = 0, 1, 2, 14, 24
_RING = "RINGMLAPrefillBF16Kernel"
#: Its input slots after the query and the query's rotary part.
_RING_KEY, _RING_MASK = 2, 5
#: Sparse modes in which a query reads the keys before it only.
_CAUSAL = ("2", "3")


@dataclass(frozen=True, slots=True)
class ProductSizes:
    """The sizes of a matrix product: `batch` products of (m, k) and (k, n)."""

    batch: int
    m: int
    n: int
    k: int


def product_sizes(kernel_type: str, inputs: Sequence[Slot], outputs: Sequence[Slot]) -> ProductSizes | None:
    """Returns the sizes of a matrix product, whatever is transposed; None where the row does not have them."""
    if base_type(kernel_type) not in PRODUCTS:
        return None
    done = operations(kernel_type, inputs, outputs)
    if done is None or len(outputs[0].shape) < 2 or outputs[0].format not in ("ND", ""):
        return None
    *batch, m, n = outputs[0].shape
    return ProductSizes(math.prod(batch), m, n, done // (2 * math.prod(outputs[0].shape)))


@dataclass(frozen=True, slots=True)
class GroupedSizes:
    """The sizes of products of experts: m rows in all, each multiplied by the (k, n) of one of the groups."""

    groups: int
    m: int
    n: int
    k: int

    @property
    def used(self) -> int:
        """The most groups that have rows."""
        return min(self.groups, self.m)


#: Their first input is (m, k); the second one has the weights of all groups, whatever their format.
_GROUPED = ("GroupedMatmul", "GroupedMatmulSwigluQuant")


def grouped_sizes(kernel_type: str, inputs: Sequence[Slot]) -> GroupedSizes | None:
    """Returns the sizes of products of experts; None where the row does not have them."""
    if kernel_type not in _GROUPED or len(inputs) < 2 or len(inputs[0].shape) != 2 or len(inputs[1].shape) < 3:
        return None
    m, k = inputs[0].shape
    groups, *others = inputs[1].shape
    n = math.prod(others) // max(k, 1)
    return GroupedSizes(groups, m, n, k) if min(groups, m, n, k) else None


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """The sizes of a call of attention.

    Attributes:
        sequences: the number of sequences.
        queries, keys: of all sequences together.
        pairs: of a query and a key that it reads, for one head.
        heads, kv_heads, head_size: of queries, of keys, and the elements of a head (with its rotary part).
        value_size: the elements of a head of the values, and of the result.
        latent: whether the values are parts of the keys, as in multi-head latent attention.
        pages: of the block table; 0 without one.
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

    @property
    def operations(self) -> int:
        """The operations of the two products of attention."""
        return 2 * self.pairs * self.heads * (self.head_size + self.value_size)

    @property
    def read_elements(self) -> int:
        """The elements of all queries, keys and values, each once."""
        of_cache = self.head_size + (0 if self.latent else self.value_size)
        return self.queries * self.heads * self.head_size + self.keys * self.kv_heads * of_cache

    @property
    def moved_elements(self) -> int:
        """The same, with the elements of the result."""
        return self.read_elements + self.queries * self.heads * self.value_size


def attention_sizes(kernel_type: str, inputs: Sequence[Slot], cells: Mapping[str, str]) -> AttentionSizes | None:
    """Returns the sizes of a call of attention; None where the row does not have them."""
    if kernel_type == _RING:
        return _ring_sizes(inputs)
    if kernel_type not in ATTENTION_TYPES or len(inputs) <= _KEY or len(inputs[_QUERY].shape) < 3:
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
    causal = cells.get(RUNTIME_PREFIX + "sparse_mode", "").strip() in _CAUSAL
    pairs = sum(q * kv - (q * (q - 1) // 2 if causal else 0) for q, kv in zip(of_queries, of_keys, strict=False))
    rope = inputs[_QUERY_ROPE].shape if len(inputs) > _QUERY_ROPE else ()
    of_key, of_value = (math.prod(slot.shape) for slot in (inputs[_KEY], inputs[min(_VALUE, len(inputs) - 1)]))
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
    )


def row_sizes(kernel_type: str, cells: Mapping[str, str]) -> dict[str, object]:
    """Returns the sizes, dtype and format of a row, with or without a duration, and its operations if they are counted.

    A row whose cells cannot be read has none.
    """
    if set(MESSAGE[:2]) <= cells.keys():
        return {name.lower(): parse_whole(cells.get(name, "")) or cells.get(name, "") for name in MESSAGE}
    try:
        inputs, outputs = row_slots(kernel_type, cells)
    except CellError:
        return {}
    found: dict[str, object] = {}
    product = product_sizes(kernel_type, inputs, outputs)
    grouped = grouped_sizes(kernel_type, inputs)
    attention = attention_sizes(kernel_type, inputs, cells)
    if product is not None:
        found = {**asdict(product), "operations": 2 * product.batch * product.m * product.n * product.k}
    elif grouped is not None:
        found = {**asdict(grouped), "operations": 2 * grouped.m * grouped.n * grouped.k}
    elif attention is not None:
        found = {**asdict(attention), "operations": attention.operations}
    first = next((slot for slot in inputs if not slot.absent), None)
    if first is not None:
        found |= {"dtype": first.dtype, "format": first.format}
    moved = tensor_bytes((*inputs, *outputs))
    if attention is not None and first is not None:
        dtype = known_dtype(first.dtype)
        moved = attention.moved_elements * dtype.bytes if dtype is not None and dtype.bytes else moved
    return {**found, "bytes": moved}


def _ring_sizes(inputs: Sequence[Slot]) -> AttentionSizes | None:
    """Returns the sizes of a call with one sequence; with a mask a query reads the keys before it only."""
    if len(inputs) <= _RING_KEY or min(len(slot.shape) for slot in inputs[: _RING_KEY + 1]) < 3:
        return None
    (queries, heads, size), rope, (keys, kv_heads, _) = (inputs[i].shape for i in range(_RING_KEY + 1))
    causal = len(inputs) > _RING_MASK and bool(inputs[_RING_MASK].shape)
    pairs = queries * keys - (queries * (queries - 1) // 2 if causal else 0)
    return AttentionSizes(1, queries, keys, max(pairs, 1), heads, kv_heads, size + rope[-1], size, False, 0)


def _keys_of_each(cells: Mapping[str, str], inputs: Sequence[Slot], table: Sequence[int], count: int) -> int:
    average = _number(cells, "avg_seq_len")
    if average:
        return average
    if len(table) == 2:
        return table[1] * (_number(cells, "block_size") or 128)
    return max(inputs[_KEY].shape[0] // count, 1) if inputs[_KEY].shape else 1


def _number(cells: Mapping[str, str], name: str) -> int:
    return parse_whole(cells.get(RUNTIME_PREFIX + name, "").strip()) or 0


def _numbers(cells: Mapping[str, str], name: str) -> list[int]:
    words = cells.get(RUNTIME_PREFIX + name, "").replace(" ", "").strip("[]\"'").split(",")
    numbers = [parse_whole(word) for word in words]
    return [] if None in numbers else [number for number in numbers if number is not None]


def _differences(ends: Sequence[int]) -> list[int]:
    return [max(end - start, 0) for start, end in zip([0, *ends], ends, strict=False)]
