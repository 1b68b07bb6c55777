"""Finds the class of a failure of a candidate by exact rules (levels L2 and L3).

The rules are tried in the order of `ErrorClass`; the first one that fits decides. A failure is described by the phase,
the exception, the standard error and the end of the process. The tables of device errors are in
opatlas/run/devices/fatal_errors.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from opatlas.outer.candidates.judgement import ErrorClass, Judgement, Level
from opatlas.run.devices.fatal_errors import fatal_device_error, is_out_of_memory


class Phase(str, Enum):
    """What the process did with the candidate when it failed."""

    IMPORT = "import"
    CONSTRUCTION = "construction"
    FIRST_CALL = "first call"
    LATER_CALL = "later call"
    CHECK = "check"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class CandidateFailure:
    """How a candidate failed.

    Attributes:
        phase: what the process did.
        exception: name of the exception's type, without its module ("CompilationError"); "" without an exception.
        text: message of the exception, with those of its causes.
        functions: names of the candidate's own functions in the traceback, the outermost first.
        stderr: end of the standard error of the process.
        signal: name of the signal that ended the process ("SIGABRT"); "" if none did.
        exit_code: exit status of a process that ended without a verdict; None if it goes on, or a signal ended it.
        timed_out: whether a deadline passed.
    """

    phase: Phase
    exception: str = ""
    text: str = ""
    functions: tuple[str, ...] = ()
    stderr: str = ""
    signal: str = ""
    exit_code: int | None = None
    timed_out: bool = False


_ARGUMENTS = re.compile(r"\(\) (?:missing \d+ required|takes .*positional|got an unexpected keyword)")
#: Exceptions of Triton, of Triton-Ascend and of their calls of ptxas.
_COMPILERS = frozenset(
    [
        "CompilationError",
        "UnsupportedLanguageConstruct",
        "CompileTimeAssertionFailure",
        "MLIRCompilationError",
        "OutOfResources",
        "PTXASError",
    ]
)
_COMPILER_PROGRAM = re.compile(r"\b(?:ptxas|bishengir-compile|nvcc)\b")
_UB_OVERFLOW = re.compile(r"ub overflow, requires \d+ bits while \d+ bits", re.IGNORECASE)
_COMPILE_TEXT = re.compile(r"encounters error:|///---\[ERROR\]\[Triton\]\[BEG\]|Error building extension")
_COMPILER_DIED = re.compile(r"LLVM ERROR|Assertion .* failed|PLEASE submit a bug report", re.IGNORECASE)
_SHARED_MEMORY = re.compile(r"out of resources?: shared memory|uses too much shared data|too much shared memory", re.I)
_DTYPE = re.compile(
    r"unsupported (?:data ?|element |operand |pointer |ptr )?d?types?\b|\bd?types? .*(?:not|un)[ -]?support"
    r"|\b(?:fp8|fp16|fp32|fp64|bf16|[iu]?int\d+|float\d+|i\d+|f\d+)\b.*(?:not|un)[ -]?support"
    r"|not support\w* .*d?type|IncompatibleTypeErrorImpl|invalid operands of type|must have (?:the )?same d?type"
    r"|Both operands must be same dtype|cannot (?:be )?(?:cast|convert)",
    re.IGNORECASE,
)
_STREAM = re.compile(r"ACL stream synchronize failed", re.IGNORECASE)
_CODE = re.compile(r"(CUDA|Ascend) error (\d+)")


def classify(failure: CandidateFailure) -> Judgement:
    """Returns the judgement of a failure, without what a check of results would add."""
    error_class, sub_class = _class(failure)
    passed = Level.COMPILE if failure.phase in (Phase.LATER_CALL, Phase.CHECK) else Level.STATIC
    said = f"{failure.exception}: {failure.text}" if failure.exception else failure.text
    if error_class is ErrorClass.COMPILE and not failure.exception:
        said = failure.stderr.strip() or said
    if error_class is ErrorClass.RUNTIME and (device := fatal_device_error(failure.text)):
        said = f"{device}: {said}"
    return Judgement(error_class, sub_class, passed, f"{failure.phase}: {said or _end(failure)}")


def _end(failure: CandidateFailure) -> str:
    if failure.timed_out:
        return "the deadline passed"
    if failure.signal:
        return f"the process ended with {failure.signal}"
    return f"the process ended with exit status {failure.exit_code}, without a verdict"


def _class(failure: CandidateFailure) -> tuple[ErrorClass, str]:
    phase, text = failure.phase, f"{failure.exception}: {failure.text}"
    if phase is Phase.IMPORT and failure.exception in ("SyntaxError", "IndentationError", "TabError"):
        return ErrorClass.SYNTAX, "syntax_error"
    if phase is Phase.IMPORT and failure.exception in ("ImportError", "ModuleNotFoundError"):
        return ErrorClass.IMPORT, "missing_module" if failure.exception == "ModuleNotFoundError" else "import_error"
    if failure.exception == "TypeError" and _ARGUMENTS.search(failure.text):
        if phase is Phase.CONSTRUCTION and failure.functions[-1:] in ((), ("__init__",)):
            return ErrorClass.INIT_ARGS, ""
        if phase is Phase.FIRST_CALL and not failure.functions:
            return ErrorClass.INTERFACE, "arguments"
    if phase is not Phase.CHECK and _is_compilation(failure, text):
        return ErrorClass.COMPILE, compile_sub_class(f"{text}\n{failure.stderr}")
    if device := fatal_device_error(text):
        code = _CODE.match(device)
        return ErrorClass.RUNTIME, f"{code[1]} {code[2]}" if code else "other"
    if _STREAM.search(text):
        return ErrorClass.RUNTIME, "other"
    if is_out_of_memory(text):
        return ErrorClass.OOM, ""
    if failure.timed_out:
        return ErrorClass.TIMEOUT, str(phase)
    if failure.signal or failure.exit_code is not None:
        return ErrorClass.CRASH, failure.signal or f"exit {failure.exit_code}"
    return ErrorClass.RUNTIME, failure.exception or "other"


def _is_compilation(failure: CandidateFailure, text: str) -> bool:
    """Returns whether a compiler failed. A kernel may be compiled again in a later call, for other shapes."""
    if failure.signal in ("SIGABRT", "SIGSEGV") and _COMPILER_DIED.search(failure.stderr):
        return True
    return (
        failure.exception in _COMPILERS
        or (failure.exception == "CalledProcessError" and _COMPILER_PROGRAM.search(failure.text) is not None)
        or _COMPILE_TEXT.search(text) is not None
        or _UB_OVERFLOW.search(text) is not None
    )


def compile_sub_class(text: str) -> str:
    """Returns the sub-class of a failed compilation: ub-overflow, shared-memory, assertion, dtype or other."""
    for name, pattern in (
        ("ub-overflow", _UB_OVERFLOW),
        ("shared-memory", _SHARED_MEMORY),
        ("assertion", re.compile(rf"{_COMPILER_DIED.pattern}|CompileTimeAssertionFailure", re.IGNORECASE)),
        ("dtype", _DTYPE),
    ):
        if pattern.search(text):
            return name
    return "other"


#: A mismatch below this many tolerances is one of precision.
_PRECISION = 16.0


def mismatch_sub_class(result: NDArray[np.float64], expected: NDArray[np.float64], tolerance: float) -> str:
    """Returns the sub-class of a wrong result.

    The first that fits of: nan, inf, all-zero, constant, permuted, scaled, precision (below 16 tolerances), other.

    Args:
        result, expected: all elements of one result, or the elements at the same positions, in float64.
        tolerance: the allowed error as a share of |expected| + rms(expected).
    """
    result, expected = result.ravel(), expected.ravel()
    if np.any(np.isnan(result) & ~np.isnan(expected)):
        return "nan"
    if np.any(np.isinf(result) & (result != expected)):
        return "inf"
    finite = np.isfinite(result) & np.isfinite(expected)
    if not finite.any():
        return "other"
    result, expected = result[finite], expected[finite]
    scale = np.abs(expected) + np.sqrt(np.mean(expected**2))
    allowed = tolerance * np.maximum(scale, np.finfo(np.float64).tiny)
    if not result.any():
        return "all-zero"
    if result.size > 1 and np.ptp(result) == 0 < np.ptp(expected):
        return "constant"
    far = np.abs(result - expected) >= _PRECISION * allowed
    order = np.argsort(expected)
    # One of many values that is slightly off is near its place in the order, too.
    if far.sum() > 1 and np.all(np.abs(np.sort(result) - expected[order]) <= allowed[order]):
        return "permuted"
    power = float(expected @ expected)
    factor = float(result @ expected) / power if power else 0.0
    if expected.size > 1 and factor and np.all(np.abs(result - factor * expected) <= abs(factor) * allowed):
        return "scaled"
    return "other" if far.any() else "precision"
