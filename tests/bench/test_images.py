"""Convolutions and poolings: their arguments, found from shapes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies
from replaying import OUTPUT, OUTPUT_TYPES, SHAPES, assert_refused, assert_wrong, replay_row, time_instead
from sample_rows import ROWS

from opatlas.engine.inputs.images import (
    Windows,
    distinct_map,
    find_windows,
    kernel_sizes,
)
from opatlas.engine.inputs.replay_row import ReplayRow

#: Layers of well-known networks: source, result, places of the kernel, what the layer has.
LAYERS = {
    "AlexNet 1": ((224, 224), (55, 55), 121, Windows((11, 11), (4, 4), (2, 2))),
    "AlexNet 2": ((27, 27), (27, 27), 25, Windows((5, 5), (1, 1), (2, 2))),
    "AlexNet pool": ((55, 55), (27, 27), 9, Windows((3, 3), (2, 2), (0, 0))),
    "ResNet 1": ((224, 224), (112, 112), 49, Windows((7, 7), (2, 2), (3, 3))),
    "ResNet pool": ((112, 112), (56, 56), 9, Windows((3, 3), (2, 2), (1, 1))),
    "ResNet downsampling": ((56, 56), (28, 28), 1, Windows((1, 1), (2, 2), (0, 0))),
    "VGG": ((224, 224), (224, 224), 9, Windows((3, 3), (1, 1), (1, 1))),
    "VGG pool": ((224, 224), (112, 112), 4, Windows((2, 2), (2, 2), (0, 0))),
    "Inception stem": ((299, 299), (149, 149), 9, Windows((3, 3), (2, 2), (0, 0))),
    "Inception 1x7": ((17, 17), (17, 17), 7, Windows((1, 7), (1, 1), (0, 3))),
    "ViT patches": ((224, 224), (14, 14), 256, Windows((16, 16), (16, 16), (0, 0))),
    "Whisper": ((1, 3000), (1, 1500), 3, Windows((1, 3), (1, 2), (0, 1))),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_arguments_of_known_layers_are_found(layer):
    source, result, area, found = LAYERS[layer]
    assert find_windows(source, result, kernel_sizes(area)) == found


SIDES = strategies.tuples(*[strategies.integers(1, 40)] * 2)


@given(SIDES, strategies.tuples(*[strategies.integers(1, 7)] * 2), SIDES, strategies.data())
def test_found_arguments_give_the_result(source, kernel, stride, data):
    padding = tuple(data.draw(strategies.integers(0, size // 2)) for size in kernel)
    if any(size + 2 * p < k for size, p, k in zip(source, padding, kernel, strict=True)):
        return
    pool = torch.nn.functional.max_pool2d
    result = pool(torch.zeros(1, *source), kernel, stride, padding).shape[1:]
    found = find_windows(source, result, [kernel])
    assert found is not None
    assert pool(torch.zeros(1, *source), found.kernel, found.stride, found.padding).shape[1:] == result


def test_no_window_holds_a_number_twice():
    row = ReplayRow("Any", {SHAPES: "2,3,20,37", "Input Data Types": "DT_BF16"}, torch.device("cpu"))
    plane = distinct_map(row, 0, (2, 3, 20, 37))
    assert plane.dtype is torch.bfloat16
    assert plane.shape == (2, 3, 20, 37)
    places = torch.nn.functional.unfold(plane.float(), (16, 16))
    assert (places.view(2, 3, 256, -1).sort(dim=2).values.diff(dim=2) > 0).all()
    assert not torch.equal(plane[0, 0], plane[0, 1])


CONTRADICTIONS = [
    ("Conv2D", "2,6,9,9;4,5,3,3 | FLOAT;FLOAT -> 2,4,9,9 | FLOAT", SHAPES, "no convolution with weights (4, 5, 3, 3)"),
    ("Conv2D", "2,6,9,9;4,6,3,3 | FLOAT;FLOAT -> 2,4,12,9 | FLOAT", SHAPES, "no convolution with weights"),
    ("Conv2D", "2,6,9,9;3,6,3,3 | FLOAT;FLOAT -> 2,4,9,9 | FLOAT", SHAPES, "no convolution with weights"),
    ("Conv2D", "2,6,9,9;4,6,3,3 | FLOAT;FLOAT -> 3,4,9,9 | FLOAT", OUTPUT, "must hold 2 feature maps of 4 channels"),
    ("Conv2D", "2,6,9,9;4,6,3,3;5 | FLOAT;FLOAT;FLOAT -> 2,4,9,9 | FLOAT", OUTPUT, "2 feature maps of 5 channels"),
    ("Conv2D", "2,6,9,9;4,6,3,3;4,1 | FLOAT;FLOAT;FLOAT -> 2,4,9,9 | FLOAT", SHAPES, "slot 2 (the bias)"),
    ("Conv2D", "2,6,9;4,6,3,3 | FLOAT;FLOAT -> 2,4,9,9 | FLOAT", SHAPES, "(2, 6, 9) in the format (none) is no"),
    (
        "Conv2D",
        "2,6,9,9;4,6,3,3 | FLOAT;FLOAT -> 2,4,9,9 | FLOAT16",
        OUTPUT_TYPES,
        "output 0 of Conv2D is torch.float32",
    ),
    (
        "Conv2D",
        "3,2,9,11,8;19,3,16,8;40 | FLOAT;FLOAT;FLOAT | NC1HWC0;FRACTAL_Z;NCHW -> 3,5,9,11,8 | FLOAT",
        SHAPES,
        "no convolution with weights (19, 3, 16, 8) (FRACTAL_Z)",
    ),
    (
        "Conv2DBackpropFilter",
        "2,6,9,9;3;2,4,9,9 | FLOAT;INT32;FLOAT -> 4,6,3,3 | FLOAT",
        SHAPES,
        "slot 1 lists the weight's sizes",
    ),
    ("Conv2DBackpropFilter", "2,6,9,9;4;2,4,9,9 | FLOAT;INT32;FLOAT -> 4,6,3 | FLOAT", OUTPUT, "no convolution"),
    ("Conv2DBackpropInput", "4;4,6,3,3 | INT32;FLOAT -> 2,6,9,9 | FLOAT", SHAPES, "2 tensors, where"),
    ("MaxPoolWithArgmaxV1", "2,5,7,7 | FLOAT -> 2,5,7,7 | FLOAT", OUTPUT, "output slot 1 is missing"),
    ("MaxPoolWithArgmaxV1", "2,5,7,7 | FLOAT -> 2,5,7,7;2,5,9,4,16 | FLOAT;UINT16", OUTPUT, "9, 4, 16) is no mask"),
    ("MaxPoolWithArgmaxV1", "2,5,7,7 | FLOAT -> 2,6,7,7;2,6,9,5,16 | FLOAT;UINT16", OUTPUT, "is no mask"),
    ("MaxPoolWithArgmaxV1", "2,5,7,7 | FLOAT -> 2,5,7,7;2,5,4,5,16 | FLOAT;UINT16", OUTPUT, "no kernel of 4 places"),
    ("MaxPoolWithArgmaxV1", "2,5,7,7 | FLOAT -> 2,5,7,7;2,5,9,5,16 | FLOAT16;UINT16", OUTPUT_TYPES, "is torch.float32"),
    (
        "MaxPoolGradWithArgmaxV1",
        "1,5,7,7;1,5,7,7;1,5,9,4,16 | FLOAT;FLOAT;UINT16 -> 1,5,7,7 | FLOAT",
        SHAPES,
        "slot 2 (1, 5, 9, 4, 16) is no mask",
    ),
    (
        "MaxPoolGradWithArgmaxV1",
        "1,5,7,7;1,5,7,7;1,5,9,5,16 | FLOAT;FLOAT;UINT16 -> 1,5,7,8 | FLOAT",
        OUTPUT,
        "the gradient must have the shape of slot 0",
    ),
    ("AdaptiveAvgPool3d", "2,5,7,11,3 | FLOAT -> 2,2,3,4,4 | FLOAT", OUTPUT, "cannot be pooled"),
    ("AdaptiveAvgPool3d", "2,5,7,11,3 | FLOAT -> 2,2,3,3 | FLOAT", OUTPUT, "cannot be pooled"),
    ("AdaptiveAvgPool3dGrad", "2,3,4,7;2,3,5,7,11 | FLOAT;FLOAT -> 5,7,11,7 | FLOAT", SHAPES, "slot 0 must be"),
    ("AdaptiveAvgPool3dGrad", "2,3,4,6;2,3,5,7,11 | FLOAT;FLOAT -> 5,7,6 | FLOAT", OUTPUT, "must have the shape (5, 7"),
]


@pytest.mark.parametrize(("kernel_type", "row", "column", "words"), CONTRADICTIONS)
def test_contradiction_is_refused(kernel_type, row, column, words):
    assert_refused(kernel_type, row, column, words)


def test_the_record_tells_the_arguments():
    outcome = replay_row("Conv2D", ROWS["Conv2D"][0])
    assert outcome.measurement.assumptions == ("windows: kernel 3x3, stride 1x1, padding 1x1",)


#: Mistakes in the arguments or in the order of axes, each in place of the right call.
MISTAKES = {
    "another padding": ("Conv2D", lambda x, w, b, s, p, *rest: torch.conv2d(x.roll(1, 3), w, b, s, p, *rest)),
    "transposed kernels": ("Conv2D", lambda x, w, *rest: torch.conv2d(x, w.mT.contiguous(), *rest)),
    "no bias": ("Conv2D", lambda x, w, b, *rest: torch.conv2d(x, w, None, *rest)),
    "flipped kernels": (
        "Conv2DBackpropInput",
        lambda g, x, w, *rest: torch.ops.aten.convolution_backward(g, x, w.flip(2, 3), *rest)[0],
    ),
    "averages": ("MaxPoolWithArgmaxV1", lambda x, *rest: (torch.nn.functional.avg_pool2d(x, *rest[:3]), x)),
    "places of another window": (
        "MaxPoolWithArgmaxV1",
        lambda x, *rest: (
            torch.ops.aten.max_pool2d_with_indices(x, *rest)[0],
            torch.ops.aten.max_pool2d_with_indices(-x, *rest)[1],
        ),
    ),
    "gradient of other places": (
        "MaxPoolGradWithArgmaxV1",
        lambda g, x, *rest: torch.ops.aten.max_pool2d_with_indices_backward(g, x, *rest[:-1], rest[-1].flip(3)),
    ),
    "gradient of a sum": (
        "AdaptiveAvgPool3dGrad",
        lambda g, x: 2 * torch.ops.aten._adaptive_avg_pool3d_backward(g, x),
    ),
    "images of another order": (
        "Conv2DBackpropFilter",
        lambda g, x, w, *rest: torch.ops.aten.convolution_backward(g.flip(0), x, w, *rest)[1],
    ),
}


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=[f"{kernel_type}-{mistake}" for mistake, (kernel_type, _) in MISTAKES.items()]
)
def test_mistake_is_caught(monkeypatch, mistake):
    kernel_type, wrong = MISTAKES[mistake]
    time_instead(monkeypatch, wrong)
    assert_wrong(kernel_type, ROWS[kernel_type][0])
