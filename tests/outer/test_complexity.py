"""Classes C1 to C4 of tasks."""

from __future__ import annotations

import pytest

from opatlas.outer.tasks.task import CLASSES, class_of_score, complexity_of_task


def task(forward: str, init: str = "pass") -> str:
    return (
        "import torch, torch.nn as nn\nimport torch.nn.functional as F\nclass Model(nn.Module):\n"
        f"    def __init__(self):\n        {init}\n    def forward(self, x):\n        {forward}\n"
        "def get_inputs():\n    return [torch.randn(8).cumsum(0) @ torch.ones(8)]\n"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (task("return torch.relu(x) + 1"), "C1"),
        (task("return max(x, 0)"), "C1"),
        (task("return x.softmax(-1)"), "C2"),
        (task("return x.sort().values.sum()"), "C2"),
        (task("return F.max_pool2d(x, 2)"), "C2"),
        (task("return x @ x.T"), "C3"),
        (task("return self.l(x)", "self.l = nn.Linear(8, 8)"), "C3"),
        (task("return (x @ x).softmax(-1)"), "C3"),
        (task("return self.c(x)", "self.c = nn.ConvTranspose2d(3, 3, 3)"), "C4"),
        (task("return F.scaled_dot_product_attention(x, x, x)"), "C4"),
        (task("return F.cross_entropy(x, x)"), "C4"),
        (task("return nn.SmoothL1Loss()(x, x)"), "C4"),
    ],
)
def test_the_class_of_a_task(source: str, expected: str) -> None:
    assert complexity_of_task(source) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("numpy/54_conv_standard_3D", "C4"),
        ("100_hingeloss", "C4"),
        ("5_matrix_scalar_multiplication", "C3"),
        ("45_average_pooling_2d", "C2"),
        ("matmul/19_ReLU", "C1"),
        ("convert_layout", "C1"),
    ],
)
def test_a_name_tells_what_the_operators_do_not(name: str, expected: str) -> None:
    assert complexity_of_task(task("return x + x"), name) == expected


def test_limits_belong_to_the_lower_class() -> None:
    assert [class_of_score(score) for score in (2.0, 3.0, 4.0, 4.25)] == list(CLASSES)
