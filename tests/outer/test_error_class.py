"""The classes of failures of candidates, from messages as Triton, Triton-Ascend, torch and CANN write them."""

from __future__ import annotations

import numpy as np
import pytest

from opatlas.outer.judging.compare import mismatch_sub_class
from opatlas.outer.judging.failures import CandidateFailure, Phase, classify
from opatlas.outer.judging.judgement import Level

CALL = Phase.FIRST_CALL
VECTOR_CORE = (
    "ACL stream synchronize failed, error code:507035\n"
    "[ERROR] rtStreamSynchronize execute failed, reason=[vector core exception]"
)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (CandidateFailure(Phase.IMPORT, "SyntaxError", "invalid syntax"), "syntax/syntax_error"),
        (CandidateFailure(Phase.IMPORT, "ModuleNotFoundError", "No module named 'x'"), "import/missing_module"),
        (CandidateFailure(Phase.IMPORT, "ImportError", "cannot import name 'f' from 'torch'"), "import/import_error"),
        (CandidateFailure(Phase.IMPORT, "NameError", "name 'tl' is not defined"), "runtime/NameError"),
        (
            CandidateFailure(
                Phase.CONSTRUCTION, "TypeError", "ModelNew.__init__() missing 1 required positional argument"
            ),
            "init-args/",
        ),
        (
            CandidateFailure(
                Phase.CONSTRUCTION,
                "TypeError",
                "__init__() takes 1 positional argument but 2 were given",
                ("__init__",),
            ),
            "init-args/",
        ),
        (
            CandidateFailure(
                Phase.CONSTRUCTION,
                "TypeError",
                "g() missing 1 required positional argument: 'n'",
                ("__init__", "build"),
            ),
            "runtime/TypeError",
        ),
        (CandidateFailure(Phase.CONSTRUCTION, "TypeError", "'int' object is not iterable"), "runtime/TypeError"),
        (
            CandidateFailure(CALL, "TypeError", "forward() takes 2 positional arguments but 3 were given"),
            "interface/arguments",
        ),
        (CandidateFailure(CALL, "CompilationError", "at 3:4: unsupported ptr type <['256'], i64>"), "compile/dtype"),
        (CandidateFailure(CALL, "UnsupportedLanguageConstruct", "at 2:1: lambda"), "compile/other"),
        (CandidateFailure(CALL, "CompileTimeAssertionFailure", "at 9:4:"), "compile/assertion"),
        (
            CandidateFailure(
                CALL,
                "OutOfResources",
                "out of resource: shared memory, Required: 294912, Hardware limit: 232448.",
            ),
            "compile/shared-memory",
        ),
        (
            CandidateFailure(
                CALL, "MLIRCompilationError", "error: ub overflow, requires 3932160 bits while 1572864 bits available!"
            ),
            "compile/ub-overflow",
        ),
        (
            CandidateFailure(CALL, "RuntimeError", "///---[ERROR][Triton][BEG]------\nUnsupported data type: fp64"),
            "compile/dtype",
        ),
        (CandidateFailure(CALL, "Exception", "bishengir encounters error:\nunknown"), "compile/other"),
        (CandidateFailure(Phase.IMPORT, "RuntimeError", "Error building extension 'norm'"), "compile/other"),
        (
            CandidateFailure(
                CALL, "CalledProcessError", "Command '['ptxas', '-v']' returned non-zero exit status 255."
            ),
            "compile/other",
        ),
        (
            CandidateFailure(CALL, "CalledProcessError", "Command '['ls']' returned non-zero exit status 2."),
            "runtime/CalledProcessError",
        ),
        (
            CandidateFailure(
                CALL, signal="SIGABRT", stderr="python: Foo.cpp:12: void f(): Assertion `n > 0' failed.\n"
            ),
            "compile/assertion",
        ),
        (CandidateFailure(CALL, signal="SIGSEGV", stderr="LLVM ERROR: cannot select\n"), "compile/assertion"),
        (CandidateFailure(CALL, signal="SIGSEGV", stderr="Segmentation fault"), "crash/SIGSEGV"),
        (CandidateFailure(CALL, exit_code=0), "crash/exit 0"),
        (CandidateFailure(Phase.LATER_CALL, timed_out=True, signal="SIGKILL"), "timeout/later call"),
        (CandidateFailure(CALL, "RuntimeError", VECTOR_CORE), "runtime/Ascend 507035"),
        (CandidateFailure(CALL, "RuntimeError", "ACL stream synchronize failed"), "runtime/other"),
        (
            CandidateFailure(CALL, "AcceleratorError", "CUDA error: an illegal memory access was encountered"),
            "runtime/CUDA 700",
        ),
        (CandidateFailure(CALL, "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB"), "oom/"),
        (CandidateFailure(CALL, "RuntimeError", "mat1 and mat2 shapes cannot be multiplied"), "runtime/RuntimeError"),
    ],
)
def test_the_class_of_a_failure(failure: CandidateFailure, expected: str) -> None:
    judgement = classify(failure)
    assert f"{judgement.error_class}/{judgement.sub_class}" == expected
    assert judgement.level is (Level.COMPILE if failure.phase is Phase.LATER_CALL else Level.STATIC)
    assert judgement.text.startswith(f"{failure.phase}: ")


def test_a_compilers_last_words_are_the_text() -> None:
    words = "LLVM ERROR: cannot select"
    judgement = classify(CandidateFailure(CALL, signal="SIGABRT", stderr=f"{words}\n"))
    assert judgement.text == f"{CALL}: {words}"


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


def test_a_result_that_lacks_a_nan_is_wrong_in_another_way() -> None:
    assert mismatch_sub_class(np.ones(1), np.full(1, np.nan), 1e-4) == "other"
