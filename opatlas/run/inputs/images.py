"""Finds the feature maps, filters and windows of a convolution or a pooling from its row.

An NPU stores channels in blocks of C0 (32 bytes; in pooling 16 numbers of any dtype) and pads the last block. So
captures have feature maps as NC1HWC0 (N, C1, H, W, C0) and filters as FRACTAL_Z (C1 * KH * KW, N1, 16, C0). A row does
not record the number of padding channels, which a kernel computes like other channels: C = C1 * C0 is assumed. The
tensors are made in the logical shapes, (N, C, H, W), and cast to the formats of the row on an NPU.

A row does not record strides and paddings either; `find_windows` finds them from the sizes of source and result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.row.slots import Slot

if TYPE_CHECKING:
    import torch

    from opatlas.run.inputs.replay_row import ReplayRow

Shape = tuple[int, ...]
Pair = tuple[int, int]

BLOCKED = ("NC1HWC0", "FRACTAL_Z", "FRACTAL_NZ")

#: Longest side of the windows in which all numbers of `distinct_map` differ.
DISTINCT = 16


@dataclass(frozen=True)
class ColumnSlot:
    """A slot of a row, and the column of its shape, for errors."""

    slot: Slot
    column: str


@dataclass(frozen=True)
class Windows:
    """How windows slide over a feature map: kernel sizes, strides and paddings of both axes."""

    kernel: Pair
    stride: Pair
    padding: Pair

    def assume_in(self, row: ReplayRow) -> None:
        """Records these windows as an assumption of the row."""
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


def input_slot(row: ReplayRow, slot: int) -> ColumnSlot:
    """Returns an input slot and its column. Raises InvalidRow for an absent slot."""
    row.shape(slot)
    return ColumnSlot(row.input_slots[slot], INPUT_SHAPES)


def output_slot(row: ReplayRow, like: int) -> ColumnSlot:
    """Returns output slot 0 and its column. Raises an error for another dtype than that of input slot `like`.

    Raises:
        InvalidRow: the dtype is wrong.
        Unsupported: a cast between real numbers, as graph mode fuses it into the kernel.
    """
    row.output_shape()
    dtype = row.input_dtype(like)
    if row.output_dtype() != dtype:
        if len(row.output_slots) == 1 and dtype.is_floating_point and row.output_dtype().is_floating_point:
            raise Unsupported(f"{row.kernel_type} of {dtype} is replayed without a Cast to {row.output_dtype()}")
        raise row.refuse(OUTPUT_DTYPES, f"output 0 of {row.kernel_type} is {dtype} for these inputs", "correct a dtype")
    return ColumnSlot(row.output_slots[0], OUTPUT_SHAPES)


def layout(slot: Slot) -> str:
    """Returns the format of a slot without the suffix of profilers (`NC1HWC0:1`)."""
    return slot.format.partition(":")[0]


def block_count(size: int, block: int) -> int:
    """Returns the number of blocks that hold `size` numbers."""
    return -(-size // block)


def map_shape(row: ReplayRow, named: ColumnSlot) -> Shape:
    """Returns the shape (N, C, H, W) of a feature map. Raises InvalidRow."""
    slot = named.slot
    if len(slot.shape) == 5 and layout(slot) in ("", "NC1HWC0"):
        n, c1, h, w, c0 = slot.shape
        return n, c1 * c0, h, w
    if len(slot.shape) == 4 and layout(slot) in ("", "ND", "NCHW"):
        return slot.shape
    raise row.refuse(
        named.column,
        f"{slot.shape} in the format {slot.format or '(none)'} is not a feature map, which has 4 axes in NCHW or 5 in "
        "NC1HWC0",
        "correct the shape or the format",
    )


def find_convolution(
    row: ReplayRow, image: ColumnSlot, weight: ColumnSlot, result: ColumnSlot, channels: int | None = None
) -> Convolution:
    """Returns the convolution, without dilation, that fits three slots.

    Args:
        channels: number of channels of the result, if known from a bias.

    Raises:
        InvalidRow: no convolution fits.
    """
    n, c, *size = map_shape(row, image)
    result_n, stored_o, *result_size = map_shape(row, result)
    block = result.slot.shape[-1] if len(result.slot.shape) == 5 else 1
    o = stored_o if channels is None else channels
    fits = n == result_n and block_count(o, block) * block == stored_o
    row.expect(fits, result.column, f"the result needs {n} maps of {o} channels", "correct one of the shapes")
    kernels, groups = _kernels(weight.slot, c, o, row.kernel_type == "DepthwiseConv2D")
    fitting = find_windows(size, result_size, kernels)
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


def find_windows(source: Sequence[int], result: Sequence[int], kernels: Iterable[Pair]) -> Windows | None:
    """Returns the first kernel with strides and paddings that lead from `source` (H, W) to `result`; None if none does.

    Of several fitting strides and paddings the result is the first in this order: equal for both axes; the smallest
    unused part of the source; the smallest stride; the smallest padding.
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


def kernel_sizes(area: int) -> list[Pair]:
    """Returns the kernels (height, width) of `area` positions, the kernel with the most similar sides first."""
    pairs = [(side, area // side) for side in range(1, area + 1) if area % side == 0]
    return sorted(pairs, key=lambda pair: abs(pair[0] - pair[1]))


def feature_map(row: ReplayRow, slot: int, shape: Shape) -> torch.Tensor:
    """Returns a random feature map or weight of the logical `shape` for an input slot, in the layout of the slot."""
    return in_layout(row, row.input_slots[slot], row.tensor(slot, shape=shape))


def distinct_map(row: ReplayRow, slot: int, shape: Shape) -> torch.Tensor:
    """Returns a feature map without equal numbers in any window of up to 16 x 16, so that the maximum is unique.

    Each plane repeats an order of 256 numbers in [-1, 1), which half types can distinguish.
    """
    n, c, h, w = shape
    order = row.tensor(slot, shape=(n, c, DISTINCT**2)).argsort(dim=-1)
    tile = (order / (DISTINCT**2 / 2) - 1).to(row.input_dtype(slot))
    plane = tile.reshape(n, c, DISTINCT, DISTINCT).repeat(1, 1, block_count(h, DISTINCT), block_count(w, DISTINCT))
    return in_layout(row, row.input_slots[slot], plane[:, :, :h, :w].contiguous())


def in_layout(row: ReplayRow, slot: Slot, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in the blocked format of the slot, on devices that have formats."""
    return row.in_format(layout(slot), tensor) if layout(slot) in BLOCKED else tensor


def _kernels(weight: Slot, c: int, o: int, depthwise: bool) -> tuple[list[Pair], int]:
    """Returns the kernels that weights from C to O channels may have, [] if the weights do not fit, and the groups.

    FRACTAL_Z of a depthwise convolution has C0 channels in a group of blocks, with O / C blocks of results.
    """
    if len(weight.shape) != 4 or not c or not o:
        return [], 1
    if layout(weight) != "FRACTAL_Z":
        own_o, own_c, *kernel = weight.shape
        groups = c // own_c if own_c and c % own_c == 0 and (own_c == 1 or not depthwise) else 0
        return ([(kernel[0], kernel[1])] if own_o == o and groups and o % groups == 0 else []), groups or 1
    positions, o1, o0, c0 = weight.shape
    c1 = block_count(c, c0) if c0 else 0
    blocks = block_count(o, c if depthwise else o0) if o0 else 0
    fits = c1 and positions % c1 == 0 and o1 == blocks
    return (kernel_sizes(positions // c1) if fits else []), c if depthwise else 1


def _slides(source: int, result: int, kernel: int) -> dict[Pair, int]:
    """Returns the unused part of `source` by stride and padding, for each pair that gives `result` windows.

    Paddings are at most half a kernel.
    """
    found = {}
    for stride in range(1, max(source, kernel) + 1):
        for padding in range(kernel // 2 + 1):
            room = source + 2 * padding - kernel
            if room >= 0 and room // stride + 1 == result:
                found[stride, padding] = room % stride
    return found
