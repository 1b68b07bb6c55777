"""Maps exceptions of a replay to outcomes of its row."""

from __future__ import annotations

import os
import re
import sys
import traceback
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opatlas.row.errors import MissingPrecondition, ReplayError
from opatlas.row.status import Status
from opatlas.run.devices.device import device_kinds
from opatlas.run.devices.fatal_errors import fatal_device_error, is_out_of_memory
from opatlas.run.job import RowOutcome
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


def outcome_from_error(error: BaseException) -> RowOutcome:
    """Returns the outcome for an exception of a replay. KeyboardInterrupt and SystemExit are raised again."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    if isinstance(error, ReplayError):
        return RowOutcome(error.status, exception_message(error))
    reason = exception_line(error)
    text = error_text(error)
    if is_out_of_memory(text):
        return RowOutcome(Status.OOM, reason)
    detail = user_traceback(error)
    if poison := fatal_device_error(text):
        return RowOutcome(Status.DEVICE_ERROR, f"{poison}: {reason}", detail)
    if lacking := next(filter(None, (kind.error_of(text) for kind in device_kinds().values())), None):
        return RowOutcome(lacking.status, str(lacking), detail)
    if isinstance(error, NotImplementedError) or _NOT_IMPLEMENTED.search(reason):
        return RowOutcome(Status.UNSUPPORTED, reason, detail)
    return RowOutcome(Status.FAILED, reason, detail)


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
