"""The messages for a task, and for a repair."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opatlas.outer.generation.models_file import KernelLanguage
from opatlas.outer.generation.prompt import Prompts, without_places
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level

SOURCE = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(16, 16384)]
"""
CODE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"


def prompts(language: KernelLanguage = KernelLanguage.TRITON) -> Prompts:
    return Prompts("level1/19_ReLU", SOURCE, "NVIDIA_H100_80GB_HBM3", "cuda", language, 5)


def test_the_messages_of_a_task_and_of_a_repair(golden: Callable[[str, str], None]) -> None:
    text = 'File "/home/somebody/run/demo/2.py", line 12, in forward\nRuntimeError: at 0x7f0011223344'
    mismatch = Judgement(ErrorClass.MISMATCH, "nan", Level.COMPILE, text)
    unread = Judgement(ErrorClass.ANSWER, text="no block of code")
    asked = {
        "first": prompts().first(),
        "repair of code": prompts().repair(2, CODE, mismatch),
        "repair without code": prompts(KernelLanguage.TORCH).repair(1, "", unread),
    }
    lines = [
        f"===== {name}: {message.role}\n{message.content}" for name, messages in asked.items() for message in messages
    ]
    golden("prompts.txt", "\n".join(lines))


@pytest.mark.parametrize("error_class", [each for each in ErrorClass if each is not ErrorClass.PASS])
def test_each_class_has_advice_in_each_language(error_class: ErrorClass) -> None:
    judged = [
        prompts(language).repair(1, CODE, Judgement(error_class, "unknown part", text="what"))[1].content
        for language in KernelLanguage
    ]
    assert len(set(judged)) == len(KernelLanguage)
    other = prompts().repair(1, CODE, Judgement(_another(error_class), text="what"))
    assert prompts().repair(1, CODE, Judgement(error_class, text="what")) != other


def _another(error_class: ErrorClass) -> ErrorClass:
    return ErrorClass.OOM if error_class is not ErrorClass.OOM else ErrorClass.CRASH


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ('File "/root/a b/x.py", line 3', 'File "x.py", line 3'),
        ('File "/root/.cache/x.py", line 3', 'File "x.py", line 3'),
        ("(/usr/lib/python3.11/site-packages/torch/nn.py:12)", "(nn.py:12)"),
        ("1/2 of a/b at 0x7fffdeadbeef", "1/2 of a/b at 0x..."),
        ("see https://host/page", "see https://host/page"),
    ],
)
def test_folders_and_addresses_are_left_out(text: str, plain: str) -> None:
    assert without_places(text) == plain
