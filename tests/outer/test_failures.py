"""The classes of failures of candidates, from messages as compilers and devices write them, and from ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opatlas.outer.judging.failures import CandidateFailure, Phase, classify, run_candidate
from opatlas.outer.judging.judgement import Judgement, Level
from opatlas.outer.judging.results import mismatch_sub_class
from opatlas.row.status import Status
from opatlas.run.implementation import KernelSource
from opatlas.run.job import Job, RowOutcome

IMPORT, MADE, CALL, LATER = Phase.IMPORT, Phase.CONSTRUCTION, Phase.FIRST_CALL, Phase.LATER_CALL
VECTOR_CORE = (
    "ACL stream synchronize failed, error code:507035\n"
    "[ERROR] rtStreamSynchronize execute failed, reason=[vector core exception]"
)
FAILURES: list[tuple[str, Phase, str, str, dict[str, Any]]] = [
    ("syntax/syntax_error", IMPORT, "SyntaxError", "invalid syntax", {}),
    ("import/missing_module", IMPORT, "ModuleNotFoundError", "No module named 'x'", {}),
    ("import/import_error", IMPORT, "ImportError", "cannot import name 'f' from 'torch'", {}),
    ("init-args", MADE, "TypeError", "ModelNew.__init__() missing 1 required positional argument", {}),
    ("init-args", MADE, "TypeError", "__init__() takes 1 positional argument but 2 were", {"functions": ("__init__",)}),
    ("runtime/TypeError", MADE, "TypeError", "g() missing 1 required", {"functions": ("__init__", "build")}),
    ("interface/arguments", CALL, "TypeError", "forward() takes 2 positional arguments but 3 were given", {}),
    ("compile/dtype", CALL, "CompilationError", "at 3:4: unsupported ptr type <['256'], i64>", {}),
    ("compile/other", CALL, "UnsupportedLanguageConstruct", "at 2:1: lambda", {}),
    ("compile/assertion", CALL, "CompileTimeAssertionFailure", "at 9:4:", {}),
    ("compile/shared-memory", CALL, "OutOfResources", "out of resource: shared memory, Required: 294912", {}),
    ("compile/ub-overflow", CALL, "MLIRCompilationError", "ub overflow, requires 39 bits while 15 bits available!", {}),
    ("compile/dtype", CALL, "RuntimeError", "///---[ERROR][Triton][BEG]---\nUnsupported data type: fp64", {}),
    ("compile/other", IMPORT, "RuntimeError", "Error building extension 'norm'", {}),
    ("compile/other", CALL, "CalledProcessError", "Command '['ptxas', '-v']' returned non-zero exit status 255.", {}),
    ("compile/assertion", CALL, "", "", {"signal": "SIGABRT", "stderr": "F.cpp:12: Assertion `n > 0' failed."}),
    ("compile/assertion", CALL, "", "", {"signal": "SIGSEGV", "stderr": "LLVM ERROR: cannot select\n"}),
    ("crash/SIGSEGV", CALL, "", "", {"signal": "SIGSEGV", "stderr": "Segmentation fault"}),
    ("timeout/later call", LATER, "", "", {"timed_out": True, "signal": "SIGKILL"}),
    ("runtime/Ascend 507035", CALL, "RuntimeError", VECTOR_CORE, {}),
    ("runtime/other", CALL, "RuntimeError", "ACL stream synchronize failed", {}),
    ("runtime/CUDA 700", CALL, "AcceleratorError", "CUDA error: an illegal memory access was encountered", {}),
    ("oom", CALL, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", {}),
]


@pytest.mark.parametrize(("name", "phase", "exception", "text", "more"), FAILURES)
def test_the_class_of_a_failure(name: str, phase: Phase, exception: str, text: str, more: dict[str, Any]) -> None:
    judgement = classify(CandidateFailure(phase, exception, text, **more))
    assert judgement.name == name
    assert judgement.level is (Level.COMPILE if phase is LATER else Level.STATIC)
    # A compiler's last words are the text.
    words = more.get("stderr", "").strip() if name == "compile/assertion" else ""
    assert judgement.text.startswith(f"{phase}: {words}")


SOURCE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
CRASHED = RowOutcome(Status.CRASHED, "the device process died", exit_code=-6)


@pytest.mark.parametrize(
    ("source", "phase", "stderr", "outcome", "name", "level"),
    [
        (SOURCE, CALL, "LLVM ERROR: Cannot select: t5\n", CRASHED, "compile/assertion", Level.STATIC),
        (SOURCE, CALL, "", CRASHED, "crash/SIGABRT", Level.STATIC),
        (SOURCE, LATER, "", CRASHED, "crash/SIGABRT", Level.COMPILE),
        (SOURCE, IMPORT, "", RowOutcome(Status.CRASHED, "died", exit_code=0), "crash/exit 0", Level.STATIC),
        (SOURCE, LATER, "", RowOutcome(Status.TIMEOUT, "runs"), "timeout/later call", Level.COMPILE),
        # A source that breaks a rule is not run.
        (SOURCE.replace("return x", "return x x"), CALL, "", CRASHED, "syntax/syntax_error", Level.ANSWER),
    ],
)
def test_the_source_the_log_and_the_end_decide(tmp_path, source, phase, stderr, outcome, name, level) -> None:
    path = tmp_path / "relu.py"
    path.write_text(source)

    def run(job: Job) -> RowOutcome:
        """Its process ends: it leaves a log, a step and an outcome."""
        Path(job.log).write_text(stderr)
        Path(job.phase_file).write_text(phase.value)
        return outcome

    kernel = KernelSource("mine 1", "", str(path), "ModelNew")
    found = run_candidate(run, Job("m", "m.py", "f", "tasks.relu", {}, 1, source=kernel, log=str(tmp_path / "log")))
    judgement = Judgement.of(found)
    assert (judgement.name, judgement.level) == (name, level)
    assert found.status is (Status.FAILED if level is Level.ANSWER else outcome.status)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["relu.py"]


EXPECTED = np.random.default_rng(0).normal(size=64)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (np.where(np.arange(64) == 3, np.nan, EXPECTED), "nan"),
        (np.where(np.arange(64) == 3, np.inf, EXPECTED), "inf"),
        (EXPECTED * 0, "all-zero"),
        (EXPECTED * 0 + 1, "constant"),
        (EXPECTED[::-1], "permuted"),
        (EXPECTED * 2, "scaled"),
        (-EXPECTED, "scaled"),
        (EXPECTED + 5e-4 * (-1.0) ** np.arange(64), "precision"),
        (EXPECTED + 1.0 * (np.arange(64) % 3), "other"),
        (np.where(np.arange(64) == 3, 9.0, EXPECTED), "other"),
    ],
)
def test_the_sub_class_of_a_mismatch(result: np.ndarray, expected: str) -> None:
    assert mismatch_sub_class(result, EXPECTED, 1e-4) == expected


def test_one_of_many_elements_that_is_slightly_off_is_no_permutation() -> None:
    expected = np.linspace(-1, 1, 100_001)
    assert mismatch_sub_class(expected + 2e-4 * (np.arange(100_001) == 70_000), expected, 1e-4) == "precision"
