"""The rules on the source of a candidate: what fails, what is a note, what is neither; docs/candidates.md has each."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.outer.judging.judgement import TORCH_WORKS, ErrorClass, Level
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
    judgement, _ = judge_source(source, PATH, language=language)
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
        ("import torch\n这是 代码 的\n", "syntax: syntax_error"),
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
    ],
)
def test_the_rule_that_fails_a_candidate(source: str, expected: str) -> None:
    assert rule_of(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        in_forward("try:\n    f()\nexcept Exception as e:\n    raise RuntimeError from e"),
        in_forward("try:\n    f()\nfinally:\n    g()"),
        in_forward("'The forward pass, with a try: and except.'"),
    ],
)
def test_what_looks_alike_passes(source: str) -> None:
    assert rule_of(source) == ""


def test_the_language_that_was_asked_for_is_required() -> None:
    torch_only = in_forward("x = torch.relu(x)")
    assert rule_of(torch_only, "triton") == "rule: no_triton_kernel"
    assert rule_of(torch_only, "cuda") == "rule: no_cuda_kernel"
    assert rule_of(TRITON + LAUNCH, "triton") == rule_of(CUDA, "cuda") == ""


def test_notes_fail_nothing() -> None:
    source = in_forward("x = torch.relu(x)")
    assert rule_of(source) == ""
    assert any(text.startswith("no_kernel:") for text in judge_source(source, PATH)[1])


def test_a_failed_candidate_keeps_its_notes() -> None:
    judgement, _ = judge_source(in_forward("x = torch.relu(x)\ntry: f()\nexcept: pass"), PATH)
    assert judgement is not None
    assert any(note.startswith("no_kernel:") for note in judgement.notes)


@pytest.mark.parametrize(
    ("code", "calls_it"),
    [
        ("torch.where(x > 0, x, 0)", False),
        ("torch.relu(x)", True),
        ("torch.ops.aten.relu.default(x)", True),
        ("x.relu()", True),
        ("torch.nn.functional.relu(x)", True),
    ],
)
def test_where_torch_is_the_language_only_a_call_of_the_operator_itself_is_torchs_work(
    code: str, calls_it: bool
) -> None:
    source = f"import torch\n\n\ndef relu__default_kernel_impl(x):\n    return {code}\n"
    refused, notes = judge_source(source, PATH, language="torch")
    assert refused is None
    assert any(TORCH_WORKS in note for note in notes) is calls_it


FALLS_BACK = "try:\n    f()\nexcept Exception:\n    pass\n"


@pytest.mark.parametrize(
    ("test", "rule"),
    [
        ("if __name__ == '__main__':", ""),
        ("if TYPE_CHECKING:", ""),
        ("if False:", ""),
        ("if '__main__' == __name__:\n    pass\nelse:", "rule: fallback"),
        ("if __name__ != '__main__':", "rule: fallback"),
    ],
)
def test_rules_judge_the_code_that_an_import_runs(test: str, rule: str) -> None:
    body = "".join(f"    {line}\n" for line in FALLS_BACK.splitlines())
    assert rule_of(f"import torch\n{test}\n{body}") == rule


PAGE = (Path(__file__).parents[2] / "docs" / "candidates.md").read_text("utf-8").splitlines()


def test_the_table_of_rules_is_that_of_the_code() -> None:
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in PAGE if line.startswith("| `")]
    on_page = [tuple(row[:4]) for row in cells if len(row) > 3 and row[1] in {"note", *map(str, ErrorClass)}]
    assert on_page == [(f"`{rule.name}`", str(rule.error_class or "note"), rule.source, rule.finds) for rule in RULES]


@pytest.mark.parametrize("error_class", list(ErrorClass))
def test_each_class_has_a_line(error_class: ErrorClass) -> None:
    assert any(line.startswith(f"| `{error_class}` | L") for line in PAGE)
