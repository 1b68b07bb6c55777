"""The rules on the source of a candidate: what fails, what is a note, what is neither; docs/candidates.md has each."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.outer.judging.judgement import ErrorClass, Level
from opatlas.outer.judging.rules import RULES, judge_source

PATH = Path("/nonexistent/candidate.py")

TRITON = """\
import torch, triton
import triton.language as tl
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)
"""
LAUNCH = """\
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(8,)](x, y, x.numel(), 1024)
        return y
"""
CUDA = """\
import torch
from torch.utils.cpp_extension import load_inline
ext = load_inline("ext", cuda_sources=["__global__ void twice(float* x) { x[0] *= 2; }"])
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return ext.twice(x)
"""


def rule_of(source: str, language: str = "") -> str:
    """The class and rule that fail a source; "" where none does."""
    judgement, _ = judge_source(source, PATH, language=language, installed=lambda module: module != "absent")
    if judgement is None:
        return ""
    assert judgement.level is Level.ANSWER
    return f"{judgement.error_class}: {judgement.sub_class}"


def in_forward(body: str, head: str = "import torch\n") -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return f"{head}class ModelNew(torch.nn.Module):\n    def forward(self, x):\n{lines}        return x\n"


@pytest.mark.parametrize("source", [TRITON + LAUNCH, CUDA, in_forward("x = torch.relu(x)")])
def test_plain_candidates_pass(source: str) -> None:
    assert rule_of(source) == ""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", "syntax: empty_code"),
        ("# no code\n'a string'\n", "syntax: empty_code"),
        ("def f(:\n", "syntax: syntax_error"),
        ("return 1\n", "syntax: syntax_error"),
        ("a = 1\0", "syntax: syntax_error"),
        ("import torch\n这是代码\n", "syntax: stray_chinese_text"),
        ("import torch\n这是 代码 的\n", "syntax: syntax_error"),
        ("import absent.part\n", "import: missing_module"),
        ("import torch, triton\n" + LAUNCH, "rule: no_triton_kernel"),
        (TRITON + in_forward("x = x.neg()", ""), "rule: triton_kernel_not_called"),
        (TRITON + LAUNCH.replace("return y", "return y @ y"), "rule: torch_api_instead_of_kernel"),
        (TRITON + LAUNCH.replace("return y", "return x.softmax(-1)"), "rule: torch_api_instead_of_kernel"),
        (
            TRITON + LAUNCH.replace("return y", "return self.f(y)\n    def f(self, y): return torch.mm(y, y)"),
            "rule: torch_api_instead_of_kernel",
        ),
        (in_forward("try:\n    x = f(x)\nexcept Exception:\n    x = torch.relu(x)"), "rule: fallback"),
        (
            in_forward("with suppress(Exception): f(x)", "import torch\nfrom contextlib import suppress\n"),
            "rule: fallback",
        ),
        ("from task import Model\nclass ModelNew(Model): pass\n", "rule: inherited_forward"),
        ("class Model: ...\nModelNew = Model\n", "rule: inherited_forward"),
        (in_forward("Thread(target=f).start()", "import torch\nfrom threading import Thread\n"), "hack: thread"),
        (CUDA.replace("__global__", "#include <thread>\\nvoid g() { std::thread t; } __global__"), "hack: thread"),
        ("import torch\ntorch.cuda.synchronize = print\n", "hack: patched_function"),
        ("from torch.cuda import Event\nEvent.record = print\n", "hack: patched_function"),
        ("import time\nsetattr(time, 'perf_counter', f)\n", "hack: patched_function"),
        ("import torch\ntorch.__dict__['allclose'] = f\n", "hack: patched_function"),
        (in_forward("os._exit(0)", "import os, torch\n"), "hack: ends_process"),
        (in_forward("raise SystemExit"), "hack: ends_process"),
    ],
)
def test_the_rule_that_fails_a_candidate(source: str, expected: str) -> None:
    assert rule_of(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "x = '这是一段文字'  # 这是注释\n",
        "x = f'矩阵维度不匹配: {len([])} 和一些文字'\n",
        "try:\n    import absent\nexcept ImportError:\n    absent = None\n",
        "def f():\n    import absent\n",
        "from opatlas import implements, Prepared\n",
        in_forward("try:\n    f()\nexcept Exception as e:\n    raise RuntimeError from e"),
        in_forward("try:\n    f()\nfinally:\n    g()"),
        in_forward("'The forward pass, with a try: and except.'"),
        "import os\nos.environ['TORCH_CUDA_ARCH_LIST'] = '9.0'\n",
        "import threading\nlock = threading.Lock()\n",
    ],
)
def test_what_looks_alike_passes(source: str) -> None:
    assert rule_of(source) == ""


def test_the_language_that_was_asked_for_is_required() -> None:
    torch_only = in_forward("x = torch.relu(x)")
    assert rule_of(torch_only, "triton") == "rule: no_triton_kernel"
    assert rule_of(torch_only, "cuda") == "rule: no_cuda_kernel"
    assert rule_of(TRITON + LAUNCH, "triton") == rule_of(CUDA, "cuda") == ""


def test_modules_beside_the_candidate_are_there(tmp_path: Path) -> None:
    (tmp_path / "_beside_candidate.py").write_text("", "utf-8")
    source = "from _beside_candidate import kernel\nimport given\n"
    assert judge_source(source, tmp_path / "a.py", helpers=["given"])[0] is None
    judgement, _ = judge_source(source, PATH, helpers=["given"])
    assert judgement is not None
    assert judgement.error_class is ErrorClass.IMPORT


@pytest.mark.parametrize(
    ("source", "note"),
    [
        (in_forward("x = torch.relu(x)"), "no_kernel"),
        (in_forward("x = torch.relu(x)"), "torch_operator"),
        ("import torch.nn as nn\nc = nn.Conv2d(3, 3, 3)\n", "torch_operator"),
    ],
)
def test_notes_fail_nothing(source: str, note: str) -> None:
    assert rule_of(source) == ""
    assert any(text.startswith(f"{note}:") for text in judge_source(source, PATH)[1])


def test_a_failed_candidate_keeps_its_notes() -> None:
    judgement, _ = judge_source(in_forward("x = torch.relu(x)\nraise SystemExit"), PATH)
    assert judgement is not None
    assert any(note.startswith("torch_operator:") for note in judgement.notes)


ENDS = "import sys\nimport torch\nclass ModelNew(torch.nn.Module):\n    pass\n"
GUARD = 'if __name__ == "__main__":\n    sys.exit(0)\n'


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        (GUARD, ""),
        ("if '__main__' == __name__:\n    sys.exit(0)\nelse:\n    torch.backends.cudnn.benchmark\n", ""),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from opatlas.run import job\n", ""),
        ("if False:\n    import os\n    os._exit(0)\n", ""),
        (f"print(torch.add.__name__)\n{GUARD}", ""),
        ("if __name__ == '__main__':\n    pass\nelse:\n    sys.exit(0)\n", "hack: ends_process"),
        ("if __name__ != '__main__':\n    sys.exit(0)\n", "hack: ends_process"),
    ],
)
def test_rules_judge_the_code_that_an_import_runs(source: str, rule: str) -> None:
    assert rule_of(ENDS + source) == rule


PAGE = (Path(__file__).parents[2] / "docs" / "candidates.md").read_text("utf-8").splitlines()


def test_the_table_of_rules_is_that_of_the_code() -> None:
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in PAGE if line.startswith("| `")]
    on_page = [tuple(row[:4]) for row in cells if len(row) > 3 and row[1] in {"note", *map(str, ErrorClass)}]
    assert on_page == [(f"`{rule.name}`", str(rule.error_class or "note"), rule.source, rule.finds) for rule in RULES]


@pytest.mark.parametrize("error_class", list(ErrorClass))
def test_each_class_has_a_line(error_class: ErrorClass) -> None:
    assert any(line.startswith(f"| `{error_class}` | L") for line in PAGE)
