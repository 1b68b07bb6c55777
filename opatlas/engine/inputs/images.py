"""Feature maps, filters and windows: what a row of a convolution or a pooling says about its call.

An NPU stores channels in blocks of C0 (32 bytes; in pooling 16 numbers, whatever their dtype), the
last block padded, so captures hold feature maps as NC1HWC0 (N, C1, H, W, C0) and filters as
FRACTAL_Z (C1 * KH * KW, N1, 16, C0). A row does not say how many of the last block's channels are
padding, and a kernel computes them like the others: all are taken for channels, C = C1 * C0. The
tensors are made in the logical shapes, (N, C, H, W), and on an NPU cast to the row's formats.

Strides and paddings are not in a row either: they are found from the sizes of source and result
(`windows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opatlas.model.schema import INPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_SHAPES
from opatlas.model.slots import Slot

if TYPE_CHECKING:
    import torch

    from opatlas.engine.inputs.replay_row import ReplayRow

Shape = tuple[int, ...]
Pair = tuple[int, int]

BLOCKED = ("NC1HWC0", "FRACTAL_Z", "FRACTAL_NZ")

#: `distinct_map` has no number twice in a window of this many places a side.
DISTINCT = 16


@dataclass(frozen=True)
class Place:
    """A slot of a row, and the column of its shape."""

    slot: Slot
    column: str


@dataclass(frozen=True)
class Windows:
    """How windows slide over a feature map: kernel sizes, strides and paddings of both axes."""

    kernel: Pair
    stride: Pair
    padding: Pair

    def assume_in(self, row: ReplayRow) -> None:
        """Tells in the row's record what its shapes were taken to mean."""
        sizes = (f"{name} {h}x{w}" for name, (h, w) in vars(self).items())
        row.assume(f"windows: {', '.join(sizes)}")


@dataclass(frozen=True)
class Convolution:
    """A convolution of an image (N, C, H, W) with a weight (O, C / groups, KH, KW) to (N, O, ...)."""

    image: Shape
    weight: Shape
    result: Shape
    stride: Pair
    padding: Pair
    groups: int


def input_of(row: ReplayRow, slot: int) -> Place:
    """Raises InvalidRow where the row has no such input slot."""
    row.shape(slot)
    return Place(row.input_slots[slot], INPUT_SHAPES)


def output_of(row: ReplayRow, like: int) -> Place:
    """Output slot 0. Raises InvalidRow where it is missing, or not of the dtype of input slot `like`."""
    row.output_shape()
    dtype = row.input_dtype(like)
    if row.output_dtype() != dtype:
        raise row.refuse(
            OUTPUT_DTYPES, f"output 0 of {row.kernel_type} is {dtype} for these inputs", "correct one of the dtypes"
        )
    return Place(row.output_slots[0], OUTPUT_SHAPES)


def layout(slot: Slot) -> str:
    """A slot's format without what a profiler writes after a colon (`NC1HWC0:1`)."""
    return slot.format.partition(":")[0]


def blocks(size: int, block: int) -> int:
    """How many blocks hold `size` numbers."""
    return -(-size // block)


def map_shape(row: ReplayRow, place: Place) -> Shape:
    """(N, C, H, W) of a feature map. Raises InvalidRow."""
    slot = place.slot
    if len(slot.shape) == 5 and layout(slot) in ("", "NC1HWC0"):
        n, c1, h, w, c0 = slot.shape
        return n, c1 * c0, h, w
    if len(slot.shape) == 4 and layout(slot) in ("", "ND", "NCHW"):
        return slot.shape
    raise row.refuse(
        place.column,
        f"{slot.shape} in the format {slot.format or '(none)'} is no feature map, which has 4 axes in NCHW or 5 in "
        "NC1HWC0",
        "correct the shape or the format",
    )


def convolution(row: ReplayRow, image: Place, weight: Place, result: Place, channels: int | None = None) -> Convolution:
    """The convolution, without dilation, that fits three slots.

    Args:
        channels: of the result, where they are known (a bias has one number for each).

    Raises:
        InvalidRow: none fits.
    """
    n, c, *size = map_shape(row, image)
    result_n, stored_o, *result_size = map_shape(row, result)
    block = result.slot.shape[-1] if len(result.slot.shape) == 5 else 1
    o = stored_o if channels is None else channels
    if n != result_n or blocks(o, block) * block != stored_o:
        raise row.refuse(result.column, f"it must hold {n} feature maps of {o} channels", "correct one of the shapes")
    kernels, groups = _kernels(weight.slot, c, o)
    fitting = windows(size, result_size, kernels)
    if fitting is None:
        raise row.refuse(
            weight.column,
            f"no convolution with weights {weight.slot.shape} ({weight.slot.format or 'no format'}) leads from "
            f"{(n, c, *size)} to {(n, o, *result_size)}",
            "correct one of the three shapes",
        )
    fitting.assume_in(row)
    return Convolution(
        image=(n, c, *size),
        weight=(o, c // groups, *fitting.kernel),
        result=(n, o, *result_size),
        stride=fitting.stride,
        padding=fitting.padding,
        groups=groups,
    )


def windows(source: Sequence[int], result: Sequence[int], kernels: Iterable[Pair]) -> Windows | None:
    """The first kernel for which strides and paddings lead from `source` (H, W) to `result`.

    Of these the ones that leave the least of the source over, then the smallest stride, then the
    smallest padding; such as both axes share, if there are any.
    """
    for kernel in kernels:
        h, w = (_slides(*sizes) for sizes in zip(source, result, kernel, strict=True))
        shared = {slide: h[slide] + w[slide] for slide in h.keys() & w.keys()}
        if shared:
            h = w = shared
        if h and w:
            of_h, of_w = (min(slides, key=lambda slide: (slides[slide], slide)) for slides in (h, w))
            return Windows(kernel, (of_h[0], of_w[0]), (of_h[1], of_w[1]))
    return None


def kernels_of(area: int) -> list[Pair]:
    """Kernels of so many places, the squarest first."""
    pairs = [(side, area // side) for side in range(1, area + 1) if area % side == 0]
    return sorted(pairs, key=lambda pair: abs(pair[0] - pair[1]))


def feature_map(row: ReplayRow, slot: int, shape: Shape) -> torch.Tensor:
    """A random feature map or weight of the logical `shape` for an input slot, in its layout."""
    return in_layout(row, row.input_slots[slot], row.tensor(slot, shape=shape))


def distinct_map(row: ReplayRow, slot: int, shape: Shape) -> torch.Tensor:
    """A feature map in which no window of up to 16 x 16 holds a number twice, so that one is the largest.

    Each plane repeats its own order of 256 numbers in [-1, 1), which half types tell apart.
    """
    n, c, h, w = shape
    order = row.tensor(slot, shape=(n, c, DISTINCT**2)).argsort(dim=-1)
    tile = (order / (DISTINCT**2 / 2) - 1).to(row.input_dtype(slot))
    plane = tile.reshape(n, c, DISTINCT, DISTINCT).repeat(1, 1, blocks(h, DISTINCT), blocks(w, DISTINCT))
    return in_layout(row, row.input_slots[slot], plane[:, :, :h, :w].contiguous())


def in_layout(row: ReplayRow, slot: Slot, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the slot's blocked format, on devices that have formats."""
    return row.in_format(layout(slot), tensor) if layout(slot) in BLOCKED else tensor


def _kernels(weight: Slot, c: int, o: int) -> tuple[list[Pair], int]:
    """Kernels that weights from C to O channels may have, and their groups; none where they do not fit."""
    if len(weight.shape) != 4 or not c or not o:
        return [], 1
    if layout(weight) != "FRACTAL_Z":
        own_o, own_c, *kernel = weight.shape
        groups = c // own_c if own_c and c % own_c == 0 else 0
        return ([(kernel[0], kernel[1])] if own_o == o and groups and o % groups == 0 else []), groups or 1
    places, o1, o0, c0 = weight.shape
    c1 = blocks(c, c0) if c0 else 0
    return (kernels_of(places // c1) if c1 and places % c1 == 0 and o0 and o1 == blocks(o, o0) else []), 1


def _slides(source: int, result: int, kernel: int) -> dict[Pair, int]:
    """What is left over of `source` by the strides and paddings with which it has `result` windows.

    Paddings are at most half a kernel.
    """
    found = {}
    for stride in range(1, max(source, kernel) + 1):
        for padding in range(kernel // 2 + 1):
            room = source + 2 * padding - kernel
            if room >= 0 and room // stride + 1 == result:
                found[stride, padding] = room % stride
    return found
