"""Replays of convolutions and their gradients; `opatlas.run.inputs.images` finds their arguments."""

from __future__ import annotations

from math import prod

from opatlas.row.columns import INPUT_SHAPES
from opatlas.run.inputs import images
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("Conv2D", npu="torch.conv2d")
def test_conv2d(row, replay):
    """Reads the slots feature map, weight, perhaps a bias."""
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
