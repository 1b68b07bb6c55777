"""Runs candidates: judges their source before, and the end of their process after it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from signal import Signals

from opatlas.outer.candidates.error_class import CandidateFailure, Phase, classify
from opatlas.outer.candidates.judgement import Judgement
from opatlas.outer.candidates.static_rules import static_check, static_notes
from opatlas.row.status import Status
from opatlas.run.job import Job, RowOutcome

#: Characters of stderr that are read.
_LONGEST = 64 << 10


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
        return RowOutcome(Status.FAILED, f"{path}: cannot be read ({error.strerror})")
    helpers = tuple(name for helper in job.source.helpers if (name := Path(helper).stem))
    refused, notes = _judge_source(text, path, helpers, language)
    if refused is not None:
        return _outcome(refused)
    outcome = run(job)
    if outcome.judged is None and outcome.status.crash:
        outcome = _judged_end(outcome, job)
    _remove_logs(job)
    judgement = Judgement.of(outcome)
    if judgement is None or not notes:
        return outcome
    judged = replace(judgement, notes=(*notes, *judgement.notes)).judged
    reason = "; ".join(filter(None, (outcome.reason, *notes))) if judgement.passed else outcome.reason
    return replace(outcome, judged=judged, reason=reason)


@lru_cache(maxsize=16)
def _judge_source(
    text: str, path: Path, helpers: tuple[str, ...], language: str
) -> tuple[Judgement | None, tuple[str, ...]]:
    """Returns the judgement of a source that breaks a rule, else None, and its notes. Many cases have one source."""
    return static_check(text, path, helpers=helpers, language=language), static_notes(text, path)


def _outcome(judgement: Judgement) -> RowOutcome:
    return RowOutcome(Status.FAILED, f"{judgement.name}: {judgement.text}", judged=judgement.judged)


def _judged_end(outcome: RowOutcome, job: Job) -> RowOutcome:
    """Returns the outcome of a candidate whose process ended without a verdict."""
    stderr, phase = _read(job.log)[-_LONGEST:], _read(job.phase_file)
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


def _read(name: str) -> str:
    with contextlib.suppress(OSError):
        return Path(name).read_text(encoding="utf-8", errors="replace")
    return ""


def _remove_logs(job: Job) -> None:
    for each in (job.log, job.phase_file) if job.log else ():
        Path(each).unlink(missing_ok=True)
