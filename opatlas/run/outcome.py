"""The one place where what became of a job gets its status: `outcome_of`.

Whatever runs jobs raises: an error of the row (opatlas/row/errors.py), of the device, of a library, or one of the two
below about its process. `outcome_of` turns it into the outcome.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
import unittest
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from opatlas.row.errors import MissingPrecondition, ReplayError, Unsupported
from opatlas.row.status import Status
from opatlas.run.devices.device import device_kinds
from opatlas.run.devices.fatal_errors import fatal_device_error, is_out_of_memory
from opatlas.run.instruments.attribution import (
    AnotherCase,
    NoSamples,
    OwnKernel,
    ProfiledSamples,
    own_kernel,
    whole_call,
)
from opatlas.run.job import RowOutcome
from opatlas.run.stand_in import add_device_kernels
from opatlas.text import cut_middle, exception_line, exception_message

#: Longest searched part of an exception's message, because searching megabytes takes seconds.
_MOST_CHARACTERS = 100_000


def error_text(error: BaseException) -> str:
    """Returns type and message of an exception and of all its causes, the oldest first.

    The members of an exception group count as its causes.
    """
    texts: list[str] = []
    seen: set[int] = set()
    # Visited from the newest to the oldest, without recursion, because groups and causes may be nested to any depth.
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        text = "".join(traceback.format_exception_only(type(link), link))
        texts.append(cut_middle(text, _MOST_CHARACTERS))
        links.append(link.__cause__ or (None if link.__suppress_context__ else link.__context__))
        # By attribute, because Python 3.10 has no type ExceptionGroup.
        members = getattr(link, "exceptions", ())
        links += [each for each in members if isinstance(each, BaseException)] if isinstance(members, tuple) else []
    return "".join(reversed(texts))


#: The folder whose frames a traceback leaves out.
_ENGINE = str(Path(__file__).parent) + os.sep

#: torch's messages for an unsupported dtype; some operators raise a plain RuntimeError for it.
_NOT_IMPLEMENTED = re.compile(r"not implemented for '|bool.* not supported|not support bool", re.IGNORECASE)


class ProcessDied(ReplayError):
    """The process that ran the row ended, or its connection is of no use.

    Attributes:
        exit_code: below 0 for a signal; None if it is not known.
    """

    status = Status.CRASHED

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class RanTooLong(ReplayError):
    """The row still ran at its deadline."""

    status = Status.TIMEOUT


class GroupGone(ReplayError):
    """The group that the row needs did not start."""

    status = Status.DEVICE_ERROR


def outcome_of(error: BaseException, changed: tuple[str, ...] = ()) -> RowOutcome:
    """Returns the outcome of a job that raised an exception. KeyboardInterrupt and SystemExit are raised again.

    Args:
        changed: changes of the process's state by rows.
    """
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    status, reason, detail = _status_of(error)
    code = error.exit_code if isinstance(error, ProcessDied) else None
    return RowOutcome(status, reason, detail, changed=changed, exit_code=code)


def _status_of(error: BaseException) -> tuple[Status, str, str]:
    """Returns status, reason and detail."""
    if isinstance(error, ReplayError):
        return error.status, exception_message(error), ""
    reason, text = exception_line(error), error_text(error)
    if is_out_of_memory(text):
        return Status.OOM, reason, ""
    detail = user_traceback(error)
    if poison := fatal_device_error(text):
        return Status.DEVICE_ERROR, f"{poison}: {reason}", detail
    if lacking := next(filter(None, (kind.error_of(text) for kind in device_kinds().values())), None):
        return lacking.status, str(lacking), detail
    if isinstance(error, NotImplementedError) or _NOT_IMPLEMENTED.search(reason):
        return Status.UNSUPPORTED, reason, detail
    return Status.FAILED, reason, detail


def user_traceback(error: BaseException) -> str:
    """Returns a traceback without the frames of the engine, except the frame that raised the exception."""
    formatted = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = formatted
    while link is not None:
        link.stack[:-1] = [frame for frame in link.stack[:-1] if not frame.filename.startswith(_ENGINE)]
        link = link.__cause__ or link.__context__
    return "".join(formatted.format())


@contextmanager
def translated_pytest_exceptions() -> Iterator[None]:
    """Translates pytest's exceptions in the body of a replay into errors of the row.

    Raises:
        MissingPrecondition: the body called `pytest.skip` or raised `unittest.SkipTest`.
        ReplayError: the body called `pytest.xfail`.
    """
    try:
        yield
    except BaseException as error:
        # If pytest is not imported, the exception is not one of pytest's.
        pytest = sys.modules.get("pytest")
        if isinstance(error, unittest.SkipTest) or (pytest and isinstance(error, pytest.skip.Exception)):
            raise MissingPrecondition(exception_message(error) or "skipped by the replay, without a reason") from error
        if pytest and isinstance(error, pytest.xfail.Exception):
            raise ReplayError(
                f"pytest.xfail({exception_message(error)!r}): a replay cannot expect to fail; call pytest.skip where "
                "the row cannot run, and raise an exception where it should"
            ) from error
        raise


def add_profiled_samples(
    outcome: RowOutcome, kernel_type: str, cells: Mapping[str, str], found: ProfiledSamples | NoSamples
) -> RowOutcome:
    """Completes an outcome with the samples in a profile.

    Args:
        outcome: the outcome with pending samples.
        kernel_type, cells: the row.
        found: the row's samples in the profile.
    """
    assert outcome.measurement is not None
    execution = outcome.measurement.execution
    own: OwnKernel | AnotherCase | NoSamples
    if isinstance(found, NoSamples):
        own = found
    else:
        own = whole_call(found) if execution.is_library else own_kernel(kernel_type, cells, found)
    if isinstance(own, NoSamples):
        reason = f"launched and right, but not measured: {own.reason}"
        return outcome_of(ReplayError(reason), outcome.changed)
    if isinstance(own, AnotherCase):
        return outcome_of(Unsupported(own.reason), outcome.changed)
    measurement = replace(
        outcome.measurement,
        samples_us=own.durations_us,
        device_kernels=own.device_kernels,
        helper_kernels=own.helper_kernels,
        stand_in=add_device_kernels(outcome.measurement.stand_in, own.device_kernels),
        ran_as=own.ran_as,
        execution=replace(execution, kernel_names=own.kernel_names),
        counters=own.counters,
        assumptions=(*outcome.measurement.assumptions, *own.assumptions),
    )
    return replace(outcome, measurement=measurement, pending=None)
