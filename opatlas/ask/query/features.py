"""The facts that the duration of a row depends on: work, sizes, and which rows are comparable.

One function serves stored rows and questions.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapreplace

from opatlas.errors import CellError, OpAtlasError
from opatlas.row.attention import AttentionSizes, attention_sizes
from opatlas.row.columns import (
    ATTENTION_TYPES,
    DTYPE,
    EXPERT_LOAD,
    MESSAGE_BYTES,
    NUM_DEVICES,
    RUNTIME_PREFIX,
    TOPOLOGY_TIER,
)
from opatlas.row.communication import is_communication
from opatlas.row.roofline import GroupedSizes, Work, grouped_sizes, product_sizes, row_work, tensor_bytes
from opatlas.row.slots import Slot, known_dtype, row_slots
from opatlas.text import parse_whole

#: The lengths of keys, the layout of attention, and the layouts whose sizes are read from shapes.
_LENGTHS, _LAYOUT = RUNTIME_PREFIX + "actual_seq_lengths_kv_values", RUNTIME_PREFIX + "input_layout"
_LAYOUTS = ("TND", "BNSD")
_ROPE_OF_TABLE = "_triton_rope"
#: Rows and columns of the tiles of a product for which the fill of the last wave is a feature.
_TILES = ((64, 64), (64, 128), (128, 128), (128, 192), (128, 256))
#: cuBLAS divides K in two if it is longer than this, by the bytes of an operand, and no core gets a second tile; of two
#: bytes also if K is this many times the tiles, of one only below so many results, and never with scales of tokens.
#: The names of 157 of 5,100 kernels of an H200 say otherwise.
_SPLIT_K, _SPLIT_BY_TILES, _SPLIT_RESULTS = {1: 5120, 2: 2048}, 100, 1 << 17
#: Tiles of products of experts by torch: small ones up to so many rows of each expert, or columns, and narrow products
#: in one byte; the rows and columns of the clusters of small, usual and narrow ones, of operands of two bytes and one
#: (aten/src/ATen/native/cuda/GroupMM.cu, ScaledGroupMM.cu). A cluster has 2 cores, or 4.
_SMALL, _NARROW = 128, 2048
_CLUSTERS = {2: ((128, 128), (256, 256)), 1: ((128, 256), (256, 256), (256, 512))}
#: Elements that a group of threads takes: kernels write the last, partial one element by element.
_GROUP = 1024
#: Attention: queries of a tile of a prompt, keys that are read at once, of a contiguous and of a paged cache; keys that
#: take as long as what a tile costs besides; the least keys of a part of a cache, and what a part of a latent cache has
#: by the keys of each core.
_ROWS, _BLOCK, _BLOCK_OF_PAGES, _KEYS_OF_TILE, _PAGE = 128, 64, 96, 128, 128
_LATENT_CHUNKS = ((8, 32), (16, 64), (32, 128), (64, 192))
#: With more tiles for each core, all cores are as busy as the average. A prompt has at most as many tiles. Both bound
#: the time.
_MOST_WAVES, _MOST_TILES = 16, 4096
#: Heads that share a key in decode on tensor cores (FlashInfer 0.5.3 as vLLM and SGLang call it).
_LEAST_HEADS = 4


@dataclass(frozen=True, slots=True)
class RowFeatures:
    """The facts that a row's duration depends on.

    Attributes:
        work: amounts whose cost adds up or overlaps: bytes, operations, elements, steps; at least 1 each, those that
            matter most first.
        sizes: the sizes as logarithms to base 2.
        fills: how full tiles and waves are, of a product, and whether K is divided; of attention how busy all cores
            are, and whether the keys are split; of other kernels the last group of threads, and columns of a power of
            two, and whether axes move. Empty for messages.
        regime: rows of other slots, dtypes or formats are comparable to a part only.
        dims: all dimensions, slot by slot; as many in all rows of a regime.
    """

    work: tuple[float, ...]
    sizes: tuple[float, ...]
    fills: tuple[float, ...]
    regime: str
    dims: tuple[int, ...]


def row_features(kernel_type: str, cells: Mapping[str, str], cores: int) -> RowFeatures | None:
    """Returns the features of a row; None where its cells mean no tensors.

    Args:
        cores: the number of multiprocessors or AI cores of the device.
    """
    if is_communication(kernel_type):
        return _message(cells)
    try:
        inputs, outputs = row_slots(kernel_type, cells)
    except CellError:
        return None
    if kernel_type == _ROPE_OF_TABLE and len(inputs) > 2 and inputs[0].shape and inputs[2].shape:
        # Of the lines of the table each token reads one.
        lines = (min(inputs[2].shape[0], inputs[0].shape[0]), *inputs[2].shape[1:])
        inputs = (*inputs[:2], replace(inputs[2], shape=lines), *inputs[3:])
    slots = (*inputs, *outputs)
    if not any(slot.shape for slot in slots):
        return None
    dims = tuple(size for slot in slots for size in slot.shape)
    regime = _regime(inputs, outputs)
    moved = float(tensor_bytes(slots) or _rough_bytes(slots))
    product = product_sizes(kernel_type, inputs, outputs)
    if product is not None and product.m and product.n and product.k:
        done = 2.0 * product.batch * product.m * product.n * product.k
        logs = tuple(map(math.log2, (product.m, product.n, product.k, product.batch, done / moved)))
        dims = (product.m, product.n, product.k, product.batch)
        # A core adds up k products for each of its tiles, one after the other.
        waves, halves = math.ceil(_tiles(dims, 128, 128) / cores), _is_split(inputs, dims, cores)
        work = (moved, done, product.k * waves / (1 + halves))
        return RowFeatures(work, logs, (*_fills(dims, cores), float(halves)), regime, dims)
    grouped = grouped_sizes(kernel_type, inputs)
    if grouped is not None:
        return _of_groups(grouped, cells, inputs[1], moved, cores, regime)
    attention = attention_sizes(kernel_type, inputs, cells)
    if attention is not None:
        layout = cells.get(RUNTIME_PREFIX + "input_layout", "").strip()
        decode = "decode" if attention.queries == attention.sequences else "prefill"
        # Engines compute few queries to a key without tensor cores.
        decode += " of few" * (decode == "decode" and attention.heads < _LEAST_HEADS * attention.kv_heads)
        dims = (attention.queries, attention.sequences, attention.keys, attention.heads, attention.kv_heads)
        return RowFeatures(*_of_attention(attention, cores), f"{regime}|{layout}|{decode}", dims)
    return RowFeatures(*_generic(slots, outputs, moved), regime, dims)


def kind_of_load(cells: Mapping[str, str]) -> str:
    """Returns the Expert Load of a row; "counted" where it has the number of rows of each expert."""
    load = " ".join(cells.get(EXPERT_LOAD, "").lower().split())
    return "counted" if load[:1].isdecimal() else load


def _regime(inputs: Sequence[Slot], outputs: Sequence[Slot]) -> str:
    words = [f"{len(slot.shape)}{slot.dtype}{'' if slot.format in ('ND', '') else slot.format}" for slot in inputs]
    return ";".join(words) + ">" + ";".join(f"{len(slot.shape)}{slot.dtype}" for slot in outputs)


def _rough_bytes(slots: Sequence[Slot]) -> int:
    """Returns the bytes where a dtype is unknown, or has two elements in a byte."""
    known = [(math.prod(slot.shape), known_dtype(slot.dtype)) for slot in slots if slot.shape]
    return sum(elements * (dtype.bytes if dtype else 2) for elements, dtype in known) or 1


def _tiles(dims: Sequence[int], rows: int, columns: int) -> int:
    m, n, _, batch = dims
    return batch * math.ceil(m / rows) * math.ceil(n / columns)


def _fills(dims: Sequence[int], cores: int) -> list[float]:
    """Returns for each tiling the share of the last wave's cores that have work and how full rows are, then whether
    more than 128 tokens end within eight (with other tiles), and the logarithm of the waves."""
    m, counts = dims[0], [_tiles(dims, *tile) for tile in _TILES]
    found = [tiles / (math.ceil(tiles / cores) * cores) for tiles in counts]
    found += [m / (math.ceil(m / rows) * rows) for rows, _ in _TILES]
    return [*found, float(m > 128 and m % 8 > 0), math.log2(max(counts[-1] / cores, 2**-8))]


def _is_split(inputs: Sequence[Slot], dims: Sequence[int], cores: int) -> bool:
    """Returns whether cuBLAS divides K in two."""
    m, n, k, _ = dims
    scales = [len(slot.shape) for slot in inputs[2:4]]
    edge = 128 if scales == [2, 2] else 64
    tiles = _tiles(dims, edge, edge)
    dtype = known_dtype(inputs[0].dtype)
    if dtype is not None and dtype.bytes == 1:
        return k > _SPLIT_K[1] and m * n < _SPLIT_RESULTS and 2 * tiles <= cores and scales != [1, 1]
    return k > _SPLIT_K[2] and (2 * tiles <= cores or k > _SPLIT_BY_TILES * tiles)


def _of_groups(
    sizes: GroupedSizes, cells: Mapping[str, str], weights: Slot, moved: float, cores: int, regime: str
) -> RowFeatures:
    """The work has bytes, the operations of the core with the most tiles, and experts with rows.

    Kinds of tiles are regimes of their own, and loads are not.
    """
    # This import takes as long as that of features.
    from opatlas.run.inputs.experts import load_shares, used_experts

    shares = load_shares(cells.get(EXPERT_LOAD, ""), sizes.groups, sizes.m)
    drawn = shares is not None and kind_of_load(cells) != "counted"
    shares = shares or [1 / min(sizes.groups, sizes.m)] * min(sizes.groups, sizes.m)
    # Of several draws a replay takes one with that many.
    used = max(round(used_experts(shares, sizes.m)), 1) if drawn else sum(share > 0 for share in shares)
    dtype = known_dtype(weights.dtype)
    width = 1 if dtype is not None and dtype.bytes == 1 else 2
    kind = _kind_of_tiles(sizes, width)
    rows, columns = _CLUSTERS[width][kind]
    of_rows = used + sum(
        count * _further_tiles(share, sizes.m, rows, drawn=drawn) for share, count in Counter(shares).items()
    )
    share_of_waves = of_rows * math.ceil(sizes.n / columns) * 4 / width / cores
    waves = math.ceil(share_of_waves)
    # Weights of groups without rows are not read.
    read = max(moved - _rough_bytes((weights,)) * (1 - used / sizes.groups), 1.0)
    done = 2.0 * sizes.m * sizes.n * sizes.k
    largest = max(shares) * used
    numbers = (sizes.m, sizes.n, sizes.k, sizes.groups, used, sizes.m / used, done / read, waves, largest)
    fills = (sizes.m / rows / of_rows, share_of_waves / waves, float(drawn))
    work = read, 2.0 * waves * rows * columns * width / 4 * sizes.k, float(used)
    dims = (sizes.m, sizes.n, sizes.k, sizes.groups)
    return RowFeatures(work, tuple(map(math.log2, numbers)), fills, f"{regime}|{kind}", dims)


def _kind_of_tiles(sizes: GroupedSizes, width: int) -> int:
    """Returns whether torch takes small tiles (0), usual ones (1), or those for narrow products in one byte (2)."""
    each = sizes.m // sizes.groups
    if each <= _SMALL or sizes.n <= _SMALL:
        return 0
    return 1 if width == 2 or sum(size >= _NARROW for size in (each, sizes.n, sizes.k)) > 1 else 2


@lru_cache(maxsize=1 << 14)
def _further_tiles(share: float, rows: int, size: int, *, drawn: bool) -> float:
    """Returns how many tiles of `size` rows an expert begins after its first, on average if its rows are drawn."""
    mean = share * rows
    if not drawn:
        return max(math.ceil(round(mean, 6) / size) - 1, 0)
    deviation = math.sqrt(2 * mean * (1 - share)) or 1.0
    later = range(1, int((mean + 4 * deviation) / size) + 1)
    return sum(math.erfc((each * size + 0.5 - mean) / deviation) / 2 for each in later)


def _of_attention(sizes: AttentionSizes, cores: int) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """The work has bytes, the operations of the core with the most keys, and keys.

    A decode step and latent attention have tiles of all queries with the same keys, and split the keys where there are
    fewer tiles than cores. A prompt has tiles of the queries of a head. FlashInfer plans so (attention/scheduler.cuh).
    """
    split = sizes.latent or sizes.queries == sizes.sequences
    tiles, slots, parts = (_split_tiles if split else _tiles_of_prompts)(sizes, cores)
    # Some kernels leave room for a second tile on a core.
    longest, of_two = max(_longest(tiles, slots), 1.0), _longest(tiles, 2 * slots)
    total = sum(count * sum(keys) for count, keys in tiles)
    per_key = 2.0 * _ROWS * (sizes.head_size + sizes.value_size)
    numbers = (
        *(sizes.queries, sizes.sequences, sizes.keys / sizes.sequences, sizes.heads, sizes.kv_heads, sizes.head_size),
        *(sizes.heads / max(sizes.kv_heads, 1), longest, of_two, parts),
    )
    return (
        (2.0 * sizes.moved_elements, longest * per_key, float(sizes.keys)),
        tuple(math.log2(max(number, 1)) for number in numbers),
        (total / slots / longest, float(parts > 1)),
    )


#: The keys of tiles of queries, with as many more as a tile costs; and how many tiles have these.
_Tiles = list[tuple[int, list[int]]]


def _split_tiles(sizes: AttentionSizes, cores: int) -> tuple[_Tiles, int, int]:
    """Returns the tiles of decode steps or of latent attention, those that run at once, and the most parts of keys."""
    together = max(sizes.heads // max(sizes.kv_heads, 1), 1)
    rows = 64 if sizes.queries * together <= 64 * sizes.sequences else 128
    slots = max(cores * 64 // rows, 1)
    counts = [
        (max(keys, 1), count * sizes.kv_heads * -(-queries * together // rows))
        for (queries, keys), count in sizes.lengths.items()
    ]
    most = max(keys for keys, _ in counts)
    if sizes.latent:
        share = -(-sum(keys * count for keys, count in counts) // slots)
        chunk = next((keys for least, keys in _LATENT_CHUNKS if share <= least), -(-share // 256) * 256)
    else:
        chunks = range(_PAGE, most + _PAGE, _PAGE)
        fits = bisect_left(
            chunks[:-1], True, key=lambda chunk: sum(count * -(-keys // chunk) for keys, count in counts) <= 2 * slots
        )
        chunk = chunks[fits]
    parts = [(count, [chunk] * (keys // chunk) + [keys % chunk] * (keys % chunk > 0)) for keys, count in counts]
    return [(count, [_in_blocks(keys, 64) for keys in each]) for count, each in parts], slots, -(-most // chunk)


def _tiles_of_prompts(sizes: AttentionSizes, cores: int) -> tuple[_Tiles, int, int]:
    """Returns the tiles of prompts, those that run at once, and the most tiles of a prompt."""
    block, found = _BLOCK_OF_PAGES if sizes.pages else _BLOCK, []
    causal = sizes.pairs < sum(queries * keys * count for (queries, keys), count in sizes.lengths.items())
    for (queries, keys), count in sorted(sizes.lengths.items(), key=lambda each: -each[0][1]):
        rows = max(_ROWS, -(-queries // _MOST_TILES))
        first, ends = keys - queries, range(-(-queries // rows) * rows, 0, -rows)
        reads = [min(keys, first + end) if causal else keys for end in ends]
        if sizes.before is not None:
            reads = [min(each, rows + sizes.before) for each in reads]
        found.append((count * sizes.heads, [_in_blocks(max(each, 1), block) * rows // _ROWS for each in reads]))
    return found, cores, max(len(keys) for _, keys in found)


def _in_blocks(keys: int, block: int) -> int:
    return -(-keys // block) * block + _KEYS_OF_TILE


def _longest(tiles: _Tiles, slots: int) -> float:
    """Returns the keys of the busiest of some slots, each of which takes the next tile when it has none."""
    if sum(count * len(keys) for count, keys in tiles) > _MOST_WAVES * slots:
        return sum(count * sum(keys) for count, keys in tiles) / slots
    busy = [0] * slots
    for count, keys in tiles:
        for each in keys * count:
            heapreplace(busy, busy[0] + each)
    return float(max(busy))


def _generic(
    slots: Sequence[Slot], outputs: Sequence[Slot], moved: float
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    shapes = [slot.shape for slot in slots if slot.shape]
    result = next((slot.shape for slot in outputs if slot.shape), shapes[0])
    elements = [math.prod(shape) for shape in shapes]
    columns = max(result[-1], 1)
    written = math.prod(result)
    rows = max(written // columns, 1)
    first, largest = max(elements[0], 1), max(*elements, 1)
    # Of a broadcast the second operand, of a transposition the axis that moves.
    second = max(elements[1], 1) if len(elements) > 1 else 1
    inner = max(shapes[0][-1], 1)
    work = (max(moved, 1.0), float(rows), float(first))
    sizes = tuple(map(math.log2, (rows, columns, max(moved, 1.0), first, largest, second, inner)))
    moves = elements[0] == written and _without_ones(shapes[0]) != _without_ones(result)
    # Triton's kernels take as many columns as the next power of two.
    fills = (written % _GROUP / _GROUP, columns / 2 ** math.ceil(math.log2(columns)), float(moves))
    return work, sizes, fills


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [size for size in shape if size != 1]


def _message(cells: Mapping[str, str]) -> RowFeatures | None:
    size, devices = (parse_whole(cells.get(name, "").strip()) for name in (MESSAGE_BYTES, NUM_DEVICES))
    if not size or not devices:
        return None
    regime = f"{cells.get(DTYPE, '')}|{cells.get(TOPOLOGY_TIER, '')}"
    return RowFeatures(
        (float(size), float(size * devices)), (math.log2(size), math.log2(devices)), (), regime, (size, devices)
    )


def kernel_work(kernel_type: str, cells: Mapping[str, str]) -> Work | None:
    """Returns the work of a kernel; None if it is unknown.

    Beside `row_work`: products of experts, with the weights of as many experts as may have tokens, and attention whose
    lengths of sequences are known, each key, value, query and result moved once.
    """
    work = row_work(kernel_type, cells)
    if work is not None:
        return work
    try:
        inputs, _ = row_slots(kernel_type, cells)
        grouped = grouped_sizes(kernel_type, inputs)
        features = row_features(kernel_type, cells, 1) if grouped is not None else None
        if grouped is not None and features is not None:
            moved = int(features.work[0])
            return Work(moved, moved, 2 * grouped.m * grouped.n * grouped.k, inputs[0].dtype)
    except OpAtlasError:
        return None
    if kernel_type in ATTENTION_TYPES and not (cells.get(_LENGTHS) and cells.get(_LAYOUT, "").startswith(_LAYOUTS)):
        return None
    sizes = attention_sizes(kernel_type, inputs, cells)
    dtype = known_dtype(inputs[0].dtype) if sizes is not None else None
    if sizes is None or dtype is None:
        return None
    read, moved = sizes.read_elements * dtype.bytes, sizes.moved_elements * dtype.bytes
    return Work(read, moved, sizes.operations, inputs[0].dtype)
