"""The facts that the duration of a row depends on: work, sizes, and which rows are comparable.

One function serves stored rows and questions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opatlas.errors import CellError, OpAtlasError
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
from opatlas.row.roofline import (
    GroupedSizes,
    Work,
    attention_sizes,
    grouped_sizes,
    product_sizes,
    row_work,
    tensor_bytes,
)
from opatlas.row.slots import Slot, known_dtype, row_slots
from opatlas.text import parse_whole

#: The lengths of keys, the layout of attention, and the layouts whose sizes are read from shapes.
_LENGTHS, _LAYOUT = RUNTIME_PREFIX + "actual_seq_lengths_kv_values", RUNTIME_PREFIX + "input_layout"
_LAYOUTS = ("TND", "BNSD")
#: Rows and columns of the tiles of a product for which the fill of the last wave is a feature.
_TILES = ((64, 128), (128, 128), (128, 256))
#: Elements that a group of threads takes: kernels write the last, partial one element by element.
_BLOCKS = (512, 1024, 2048)


@dataclass(frozen=True, slots=True)
class RowFeatures:
    """The facts that a row's duration depends on.

    Attributes:
        work: amounts whose cost adds up or overlaps: bytes, operations, elements, steps; at least 1 each, those that
            matter most first.
        sizes: the sizes as logarithms to base 2.
        fills: how full tiles and waves are, of a product; of other kernels the last block, and whether axes move. Empty
            for attention and messages.
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
        # One after the other, a core adds up k products.
        work = (moved, done, float(product.k))
        return RowFeatures(work, logs, tuple(_fills(product.m, product.n, product.batch, cores)), regime, dims)
    grouped = grouped_sizes(kernel_type, inputs)
    if grouped is not None:
        load = " ".join(cells.get(EXPERT_LOAD, "").lower().split())
        if load:
            regime += "|counted" if load[0].isdecimal() else f"|{load}"
        dims = (grouped.m, grouped.n, grouped.k, grouped.groups)
        return RowFeatures(*_of_groups(grouped, load, inputs[1], moved), regime, dims)
    attention = attention_sizes(kernel_type, inputs, cells)
    if attention is not None:
        layout = cells.get(RUNTIME_PREFIX + "input_layout", "").strip()
        decode = "decode" if attention.queries == attention.sequences else "prefill"
        numbers = (
            attention.queries,
            attention.sequences,
            max(attention.keys, 1) / attention.sequences,
            attention.heads,
            attention.kv_heads,
            attention.head_size,
            attention.operations,
        )
        dims = (attention.queries, attention.sequences, attention.keys, attention.heads, attention.kv_heads)
        return RowFeatures(
            (2.0 * attention.moved_elements, float(attention.operations), float(attention.sequences)),
            tuple(math.log2(max(number, 1)) for number in numbers),
            (),
            f"{regime}|{layout}|{decode}",
            dims,
        )
    return RowFeatures(*_generic(slots, outputs, moved), regime, dims)


def _regime(inputs: Sequence[Slot], outputs: Sequence[Slot]) -> str:
    words = [f"{len(slot.shape)}{slot.dtype}{'' if slot.format in ('ND', '') else slot.format}" for slot in inputs]
    return ";".join(words) + ">" + ";".join(f"{len(slot.shape)}{slot.dtype}" for slot in outputs)


def _rough_bytes(slots: Sequence[Slot]) -> int:
    """Returns the bytes where a dtype is unknown, or has two elements in a byte."""
    known = [(math.prod(slot.shape), known_dtype(slot.dtype)) for slot in slots if slot.shape]
    return sum(elements * (dtype.bytes if dtype else 2) for elements, dtype in known) or 1


def _fills(m: int, n: int, batch: int, cores: int) -> list[float]:
    """Returns for each tiling the share of the last wave's cores that have work, and the logarithm of the waves."""
    found = []
    for rows, columns in _TILES:
        tiles = batch * math.ceil(m / rows) * math.ceil(n / columns)
        waves = math.ceil(tiles / cores)
        found += [tiles / (waves * cores), m / (math.ceil(m / rows) * rows)]
    return [*found, math.log2(max(tiles / cores, 2**-8))]


def _of_groups(
    sizes: GroupedSizes, load: str, weights: Slot, moved: float
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    used: float = min(sizes.groups, sizes.m)
    if load:
        # Few rows have a load, and this import takes as long as that of features.
        from opatlas.run.inputs.experts import used_experts

        used = used_experts(load, sizes.groups, sizes.m)
    # Weights of groups without rows are not read.
    read = max(moved - _rough_bytes((weights,)) * (1 - used / sizes.groups), 1.0)
    done = 2.0 * sizes.m * sizes.n * sizes.k
    numbers = (sizes.m, sizes.n, sizes.k, sizes.groups, used, sizes.m / used, done / read)
    return (read, done, float(used)), tuple(map(math.log2, numbers)), ()


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
    return work, sizes, (*(written % block / block for block in _BLOCKS), float(moves))


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
        features = row_features(kernel_type, cells, 1) if grouped_sizes(kernel_type, inputs) is not None else None
        if features is not None:
            moved, operations, _ = features.work
            return Work(int(moved), int(moved), int(operations), inputs[0].dtype)
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
