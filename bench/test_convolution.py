"""Replays of convolutions and poolings of feature maps, and of their gradients.

`opatlas.run.inputs.images` finds their arguments and windows.
"""

from __future__ import annotations

from math import prod

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import images
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("Conv2D", "DepthwiseConv2D", npu="torch.conv2d")
def test_conv2d(row, replay):
    """Reads the slots feature map, weight, perhaps a bias. A depthwise convolution has a group for each channel."""
    row.expect_inputs(2, 3)
    channels = row.shape(2) if len(row.input_slots) == 3 else ()
    row.expect(len(row.input_slots) != 3 or len(channels) == 1, INPUT_SHAPES, "slot 2 (the bias) must have one axis")
    found = images.find_convolution(
        row,
        images.input_slot(row, 0),
        images.input_slot(row, 1),
        images.output_slot(row, like=0),
        channels=channels[0] if channels else None,
    )
    # As large as the sum of products, so that a missing bias shows.
    reach = max(prod(found.weight[1:]), 1) ** 0.5
    image = images.feature_map(row, 0, found.image)
    replay(
        impl.conv2d,
        image,
        images.feature_map(row, 1, found.weight),
        # The kernel takes a FLOAT bias with half-precision maps; the call takes one dtype and casts the bias.
        row.tensor(2, -reach, reach).to(image.dtype) if channels else None,
        found.stride,
        found.padding,
        (1, 1),
        found.groups,
        output_slots=[None],
        expected=formulas.conv2d,
    )


@replays("Conv2DBackpropFilter", npu="torch.ops.aten.convolution_backward")
def test_conv2d_backprop_filter(row, replay):
    """Reads the slots feature map, sizes of the weight, gradient of the result."""
    row.expect_inputs(3)
    row.expect_list(1, 4, "the weight's sizes")
    weight = images.output_slot(row, like=0)
    found = images.find_convolution(row, images.input_slot(row, 0), weight, images.input_slot(row, 2))
    x, gradient = images.feature_map(row, 0, found.image), images.feature_map(row, 2, found.result)
    # The call reads the shape of this tensor only.
    unused = images.in_layout(row, weight.slot, x.new_zeros(found.weight))
    _backward(replay, found, gradient, x, unused, [False, True, False], formulas.conv2d_weight_gradient)


@replays("Conv2DBackpropInput", npu="torch.ops.aten.convolution_backward")
def test_conv2d_backprop_input(row, replay):
    """Reads the slots sizes of the feature map, weight, gradient of the result."""
    row.expect_inputs(3)
    row.expect_list(0, 4, "the feature map's sizes")
    image = images.output_slot(row, like=1)
    found = images.find_convolution(row, image, images.input_slot(row, 1), images.input_slot(row, 2))
    weight, gradient = images.feature_map(row, 1, found.weight), images.feature_map(row, 2, found.result)
    unused = images.in_layout(row, image.slot, weight.new_zeros(found.image))
    _backward(replay, found, gradient, unused, weight, [True, False, False], formulas.conv2d_image_gradient)


def _backward(replay, found, gradient, image, weight, wanted, formula):
    replay(
        impl.convolution_backward,
        gradient,
        image,
        weight,
        None,
        found.stride,
        found.padding,
        (1, 1),
        False,
        (0, 0),
        found.groups,
        wanted,
        output_slots=[None],
        expected=formula,
    )


@replays("MaxPoolWithArgmaxV1", "MaxPoolWithArgmaxV1AiCore", npu="torch.ops.aten.max_pool2d_with_indices")
def test_max_pool(row, replay, npu):
    """Finds the kernel size in output 1, a mask (N, C1, positions of the kernel, blocks of 16 results plus one, 16).

    torch returns indices in place of the mask. No formula exists for the mask, so it is not checked.
    """
    row.expect_inputs(1)
    output, mask = images.output_slot(row, like=0), row.output_shape(1)
    source, result = images.map_shape(row, images.input_slot(row, 0)), images.map_shape(row, output)
    windows = _windows(row, source, result, mask, OUTPUT_SHAPES, "output slot 1")
    replay(
        impl.max_pool2d,
        images.distinct_map(row, 0, source),
        *windows,
        output_slots=[None] if npu else [None, None],
        expected=formulas.max_pool2d,
    )


@replays(
    "MaxPoolGradWithArgmaxV1", "MaxPoolGradWithArgmaxV1AiCore", npu="torch.ops.aten.max_pool2d_with_indices_backward"
)
def test_max_pool_gradient(row, replay):
    """Reads the slots pooled feature map, gradient of the result, mask (see `test_max_pool`)."""
    row.expect_inputs(3)
    source, result = (images.map_shape(row, images.input_slot(row, slot)) for slot in (0, 1))
    gradient = images.map_shape(row, images.output_slot(row, like=0))
    row.expect(gradient == source, OUTPUT_SHAPES, "the gradient must have the shape of slot 0")
    windows = _windows(row, source, result, row.shape(2), INPUT_SHAPES, "slot 2")
    x = images.distinct_map(row, 0, source)
    replay(
        impl.max_pool2d_backward,
        images.feature_map(row, 1, result),
        x,
        *windows,
        impl.max_pool2d(x, *windows)[1],
        output_slots=[None],
        expected=formulas.max_pool2d_backward,
    )


@replays("AdaptiveAvgPool3d", "AdaptiveAvgPool3dAiCore", npu="torch.ops.aten._adaptive_avg_pool3d")
def test_adaptive_average_pool(row, replay):
    """Reads a slot and an output with the channels last, (N, D, H, W, C)."""
    row.expect_inputs(1)
    if images.layout(row.input_slots[0]) not in ("", "ND", "NDHWC"):
        raise Unsupported(f"{row.kernel_type} is replayed with channels last, in the formats ND and NDHWC")
    row.sizes("n,d,h,w,c -> n,D,H,W,c")
    images.output_slot(row, like=0)
    replay(
        impl.adaptive_average_pool3d,
        row.tensor(0).permute(0, 4, 1, 2, 3),
        row.output_shape()[1:4],
        output_slots=[None],
        expected=formulas.adaptive_average_pool3d,
    )


@replays("AdaptiveAvgPool3dGrad", "AdaptiveAvgPool3dGradAiCore", npu="torch.ops.aten._adaptive_avg_pool3d_backward")
def test_adaptive_average_pool_gradient(row, replay):
    """Reads the slots gradient (OD, OH, OW, N C), pooled volume (N, C, D, H, W). Output: (D, H, W, N C)."""
    row.expect_inputs(2)
    *size, planes, n, c = row.sizes("D,H,W,planes; n,c,d,h,w -> d,h,w,planes")[:6]
    row.expect(planes == n * c, INPUT_SHAPES, f"slot 0 has {planes} planes, and slot 1 {n} x {c}")
    images.output_slot(row, like=0)
    replay(
        impl.adaptive_average_pool3d_backward,
        row.tensor(0).permute(3, 0, 1, 2).reshape(n, c, *size),
        row.tensor(1),
        output_slots=[None],
        expected=formulas.adaptive_average_pool3d_backward,
    )


def _windows(row, source, result, mask, column, name):
    """Returns size, stride, padding, dilation and rounding of the windows of a pooling with a `mask` of this shape.

    `source` and `result` are (N, C, H, W).
    """
    n, c, *size = source
    area = mask[2] if len(mask) > 2 else 0
    sixteens = images.block_count(result[2] * result[3], 16) + 1
    row.expect(
        result[:2] == (n, c) and mask[:1] == (n,) and mask[-2:] == (sixteens, 16),
        column,
        f"{name} is {mask}, but the mask from {source} to {result} is (N, C1, positions of the kernel, {sixteens}, 16)",
    )
    windows = images.find_windows(size, result[2:], images.kernel_sizes(area))
    if windows is None:
        raise row.refuse(column, f"no kernel of {area} positions pools {source} to {result}", "correct a shape")
    if max(windows.kernel) > images.DISTINCT:
        raise Unsupported(f"kernels of more than {images.DISTINCT} positions a side are not replayed")
    windows.assume_in(row)
    return windows.kernel, windows.stride, windows.padding, (1, 1), False


@replays("ResizeBilinearV2", npu="torch.nn.functional.interpolate")
def test_resize_bilinear(row, replay):
    """Reads the slots image (N, C, H, W), perhaps the size of the result. A capture does not record its corners."""
    row.expect_inputs(1, 2)
    *_, height, width = row.sizes("n,c,rows,columns; ?2 -> n,c,height,width")
    row.assume("corners are not aligned")
    replay(impl.interpolate, row.tensor(0), (height, width), mode="bilinear", expected=formulas.resize_bilinear)
