"""Runs candidates, and finds the class of a failure by exact rules (levels L2 and L3).

The rules are tried in the order of `ErrorClass`; the first one that fits decides. A failure is described by the phase,
the exception, the standard error and the end of the process. The tables of device errors are in
opatlas/run/devices/fatal_errors.py.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from signal import Signals

import opatlas
from opatlas.outer.judging.judgement import CourtVerdict, ErrorClass, Judgement, Level, failed_outcome, sentenced
from opatlas.outer.judging.rules import judge_source
from opatlas.row.columns import ARGUMENTS
from opatlas.row.errors import MissingPrecondition, ReplayError
from opatlas.row.status import Status
from opatlas.run.devices.fatal_errors import fatal_device_error, is_out_of_memory
from opatlas.run.job import Job, RowOutcome, outcome_of
from opatlas.run.process.child import Child
from opatlas.run.process.fresh_python import import_paths, module_command
from opatlas.run.process.messages import ChannelBroken, ProcessMessage, Run
from opatlas.text import Word


class Phase(Word):
    """What the process did with the candidate when it failed."""

    IMPORT = "import"
    CONSTRUCTION = "construction"
    FIRST_CALL = "first call"
    LATER_CALL = "later call"
    CHECK = "check"


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


def run_candidate(run: Callable[[Job], RowOutcome], job: Job, language: str = "") -> RowOutcome:
    """Runs a candidate, unless its source breaks a rule. Raises the errors of `run`.

    Args:
        run: runs the job.
        language: the language whose kernels the candidate must have ("triton", "cuda"); "": any.
    """
    assert job.source is not None
    path = Path(job.source.path)
    try:
        # Some editors begin a file with a byte order mark, which Python skips.
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        return outcome_of(ReplayError(f"{path}: cannot be read ({error.strerror})"))
    helpers = tuple(name for helper in job.source.helpers if (name := Path(helper).stem))
    refused, notes = _judge_source(text, path, helpers=helpers, language=language)
    if refused is not None:
        return refused.outcome()
    outcome = run_judged(run, job)
    if outcome.judged is None and outcome.status.crash:
        outcome = _judged_end(outcome, job)
    for each in (job.log, job.phase_file) if job.log else ():
        Path(each).unlink(missing_ok=True)
    judgement = Judgement.of(outcome)
    if judgement is not None and not judgement.passed and (arguments := job.cells.get(ARGUMENTS)):
        # Whoever repairs a kernel of an operator must know the call.
        judgement = replace(judgement, text=f"called with {arguments}: {judgement.text}")
        outcome = replace(outcome, judged=judgement.judged)
    if judgement is None or not notes:
        return outcome
    judged = replace(judgement, notes=(*notes, *judgement.notes)).judged
    reason = "; ".join(filter(None, (outcome.reason, *notes))) if judgement.passed else outcome.reason
    return replace(outcome, judged=judged, reason=reason)


def run_judged(run: Callable[[Job], RowOutcome], job: Job) -> RowOutcome:
    """Runs a candidate with inputs from the court, whose verdict decides. Raises the errors of `run`."""
    court, files = court_process(), _files_at_first()
    if own_files() != files:
        why = "files of OpAtlas were changed since the first candidate ran: run the session again"
        return outcome_of(MissingPrecondition(why))
    outcome = run(replace(job, court=court.begin(job, _TASKS if job.subject is not None else _CASES)))
    found = sentenced(outcome, court.verdict())
    if changed := sorted(path for path, _ in files ^ own_files()):
        text = f"{changed[0]} was changed while the candidate ran: restore it, and run the session again"
        hack = Judgement(ErrorClass.HACK, "edited-files", Level.COMPILE, text)
        return replace(failed_outcome(hack), ends_process=True)
    return found


@lru_cache(maxsize=1)
def _files_at_first() -> frozenset[tuple[Path, int]]:
    return own_files()


def own_files() -> frozenset[tuple[Path, int]]:
    """Returns the files that processes of OpAtlas run or read, and when each was changed last."""
    roots = list(opatlas.__path__)
    own = (roots[0], *(os.path.join(root, folder) for root in roots for folder in ("bench", "plugins", "shapes")))
    walked = [(folder, name) for root in own for folder, _, names in os.walk(root) for name in names]
    paths = {Path(folder, name) for folder, name in walked if name.endswith(_SUFFIXES)}
    # Every Python that starts runs these, wherever they lie on its import path.
    for folder in map(Path, filter(None, sys.path)):
        paths.update(each for pattern in ("*customize.py", "*.pth", "conftest.py") for each in folder.glob(pattern))
    # A program cannot set this time (ctime).
    return frozenset((path, path.stat().st_ctime_ns) for path in paths)


#: Endings of the files that decide about a row: an extension is imported before a source of its name. Data and pages
#: are left out.
_SUFFIXES = (".py", ".so", ".ini", ".json", ".yaml")


#: What makes the referee of a job.
_TASKS, _CASES = "opatlas.outer.tasks.task_replay:referee", "opatlas.outer.suites.replay:referee"
#: Many cases have one source.
_judge_source = lru_cache(maxsize=16)(judge_source)


def _judged_end(outcome: RowOutcome, job: Job) -> RowOutcome:
    """Returns the outcome of a candidate whose process ended without a verdict."""
    stderr, phase = tail(job.log), tail(job.phase_file)
    if stderr:
        print(stderr, file=sys.stderr)
    code = outcome.exit_code
    failure = CandidateFailure(
        Phase(phase) if phase in set(Phase) else Phase.IMPORT,
        stderr=stderr,
        signal=Signals(-code).name if code is not None and code < 0 else "",
        exit_code=code if code is not None and code >= 0 else None,
        timed_out=outcome.status is Status.TIMEOUT,
    )
    judgement = classify(failure)
    said = f"{judgement.name}: {judgement.text} ({outcome.reason})"
    return replace(outcome, reason=said, judged=judgement.judged)


#: Bytes at the end of a log that are shown, and read for the class of an error.
_LONGEST = 16 << 10


@contextmanager
def logged(log: str) -> Iterator[None]:
    """Writes stderr of this process into a file too: the process may end before it can report them."""
    if not log:
        yield
        return
    sys.stderr.flush()
    original = os.dup(2)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.write(original, Path(log).read_bytes()[-_LONGEST:])
        os.close(original)


def tail(log: str) -> str:
    """Returns the end of a log; "" if there is none."""
    with suppress(OSError):
        return Path(log).read_bytes()[-_LONGEST:].decode("utf-8", errors="replace")
    return ""


#: Longest waits for the process: its start imports torch.
START_TIMEOUT_S, ANSWER_TIMEOUT_S = 300.0, 30.0
_MODULE = "opatlas.outer.judging.court_process"


class RowToJudge(ProcessMessage, frozen=True):
    """A row to judge; `referee` makes the referee of a job ("module:function")."""

    run: Run
    referee: str
    sys_path: tuple[str, ...]


class Leave(ProcessMessage, frozen=True):
    """The candidate's process has ended, or has left the row."""


class Open(ProcessMessage, frozen=True):
    """The court listens in this folder."""

    folder: str


#: The messages of pytest, and those to it.
OF_PYTEST = RowToJudge | Leave
TO_PYTEST = Open | CourtVerdict


class CourtProcess:
    """pytest's control of the process. It runs from the first row to the end of the session."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def begin(self, job: Job, referee: str) -> str:
        """Returns the folder in which the court of a row listens. Raises ReplayError if it does not start."""
        for _ in range(2):
            try:
                if self._child is None:
                    self._child = Child(partial(module_command, _MODULE), {}, TO_PYTEST)
                self._child.channel.send(RowToJudge(Run.of(job), referee, import_paths()))
                answer = self._child.channel.receive(START_TIMEOUT_S, self._child.ends)
            except (EOFError, OSError, ChannelBroken):
                answer = None
            if isinstance(answer, Open):
                return answer.folder
            self.close()
        raise ReplayError("the process that judges results did not start")

    def verdict(self) -> CourtVerdict | None:
        """Returns the verdict on the row; None if the process has ended."""
        assert self._child is not None
        try:
            self._child.channel.send(Leave())
            answer = self._child.channel.receive(ANSWER_TIMEOUT_S, self._child.ends)
        except (EOFError, OSError, ChannelBroken):
            answer = None
        if isinstance(answer, CourtVerdict):
            return answer
        self.close()
        return None

    def close(self) -> None:
        """Ends the process."""
        if self._child is not None:
            self._child.end()
            self._child = None


@lru_cache(maxsize=1)
def court_process() -> CourtProcess:
    """Returns the court of this process."""
    found = CourtProcess()
    atexit.register(found.close)
    return found
