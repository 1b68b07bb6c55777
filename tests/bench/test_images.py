"""The arguments of convolutions and poolings are found from shapes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies
from replaying import replay_row
from sample_rows import ROWS

from opatlas.row.columns import INPUT_SHAPES
from opatlas.run.inputs.images import Windows, distinct_map, find_windows, kernel_sizes
from opatlas.run.inputs.replay_row import ReplayRow

#: Layers of well-known networks: source, result, places of the kernel, parts of the layer.
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
    row = ReplayRow("Any", {INPUT_SHAPES: "2,3,20,37", "Input Data Types": "DT_BF16"}, torch.device("cpu"))
    plane = distinct_map(row, 0, (2, 3, 20, 37))
    assert plane.dtype is torch.bfloat16
    assert plane.shape == (2, 3, 20, 37)
    places = torch.nn.functional.unfold(plane.float(), (16, 16))
    assert (places.view(2, 3, 256, -1).sort(dim=2).values.diff(dim=2) > 0).all()
    assert not torch.equal(plane[0, 0], plane[0, 1])


def test_the_record_has_the_arguments():
    outcome = replay_row("Conv2D", ROWS["Conv2D"][0])
    (windows,) = outcome.measurement.assumptions
    assert all(argument in windows for argument in ("kernel 3x3", "stride 1x1", "padding 1x1"))
