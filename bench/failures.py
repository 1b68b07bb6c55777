"""What an exception makes of the row whose replay raised it."""

from __future__ import annotations

import re
import sys
import traceback
import unittest
from collections.abc import Iterator
from contextlib import contextmanager

from bench.custom_opp import missing_kernel
from bench.device_errors import is_out_of_memory, poisoned_by, text_of
from bench.errors import MissingPrecondition, ReplayError
from bench.job import Outcome
from bench.one_line import in_a_line, message_of
from database.schema import Status

#: What torch says where an operator lacks a dtype; some operators raise a plain RuntimeError for it.
_NOT_IMPLEMENTED = re.compile(r"not implemented for '|bool.* not supported|not support bool", re.IGNORECASE)


def outcome_of(error: BaseException) -> Outcome:
    """The status that an exception gives its row. Only ends of the process itself are raised again."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    if isinstance(error, ReplayError):
        return Outcome(error.status, message_of(error))
    reason = in_a_line(error)
    text = text_of(error)
    if is_out_of_memory(text):
        return Outcome(Status.OOM, reason)
    detail = "".join(traceback.format_exception(error))
    if poison := poisoned_by(text):
        return Outcome(Status.DEVICE_ERROR, f"{poison}: {reason}", detail)
    if lacking := missing_kernel(text):
        return Outcome(lacking.status, str(lacking), detail)
    if isinstance(error, NotImplementedError) or _NOT_IMPLEMENTED.search(reason):
        return Outcome(Status.UNSUPPORTED, reason, detail)
    return Outcome(Status.FAILED, reason, detail)


@contextmanager
def pytest_verdicts() -> Iterator[None]:
    """Gives the functions of pytest that a body may call their meaning for a row.

    Raises:
        MissingPrecondition: the body called `pytest.skip`, or raised `unittest.SkipTest`.
        ReplayError: the body called `pytest.xfail`.
    """
    try:
        yield
    except BaseException as error:
        # Whoever raises an exception of pytest has imported pytest.
        pytest = sys.modules.get("pytest")
        if isinstance(error, unittest.SkipTest) or (pytest and isinstance(error, pytest.skip.Exception)):
            raise MissingPrecondition(message_of(error) or "skipped by the replay, without a reason") from error
        if pytest and isinstance(error, pytest.xfail.Exception):
            raise ReplayError(
                f"pytest.xfail({message_of(error)!r}): a replay cannot expect to fail; call pytest.skip where the row "
                "cannot run, and raise an exception where it should"
            ) from error
        raise
