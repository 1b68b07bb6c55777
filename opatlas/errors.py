"""Errors that a user can mend. Each names the place and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opatlas.text import printable_lines

#: Characters of a wrong cell in a message.
_SHOWN = 200


class OpAtlasError(Exception):
    """An error that is shown without a traceback. Its message is printable, whatever text it quotes."""

    def __str__(self) -> str:
        return printable_lines(super().__str__())


def describe_error(error: Exception, place: Path | str, remedy: str) -> str:
    """Returns the message for an error that affects one file only.

    Args:
        place: the file.
        remedy: what the user can do.

    The message of an OpAtlasError is returned as it is: it names its place and remedy already.
    """
    if isinstance(error, OpAtlasError):
        return str(error)
    reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    return f"{place}: {reason}: {remedy}"


class TableError(OpAtlasError):
    """A file, a line or a cell that cannot be read or written as a table of a database."""

    def __init__(
        self, path: Path | str, problem: str, remedy: str, *, line: int | None = None, column: str = "", value: str = ""
    ) -> None:
        self.path = Path(path)
        self.line = line
        self.column = column
        self.value = value
        self.problem = problem
        self.remedy = remedy
        place = f"{path}:{line}" if line is not None else f"{path}"
        cell = f"column '{column}' is {value[:_SHOWN]!r}: " if column else ""
        super().__init__(f"{place}: {cell}{problem}. {remedy}")


class CellError(OpAtlasError):
    """A cell with a text that its column cannot hold."""

    def __init__(self, column: str, value: str, problem: str) -> None:
        self.column = column
        self.value = value
        self.problem = problem
        super().__init__(f"column '{column}': {problem}: {value!r}")


class UsageError(OpAtlasError):
    """Wrong arguments of a command, which has done nothing."""


@contextmanager
def noted(problems: list[str], kind: type[OpAtlasError] = OpAtlasError) -> Iterator[None]:
    """A context that an error of a kind ends, and that adds the error's message to the problems."""
    try:
        yield
    except kind as error:
        problems.append(str(error))


@contextmanager
def described(problems: list[str], place: Path | str, remedy: str) -> Iterator[None]:
    """A context that any error ends, and that adds what `describe_error` says of the error to the problems."""
    try:
        yield
    except Exception as error:
        problems.append(describe_error(error, place, remedy))


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns an OpAtlasError into a UsageError, for code that checks arguments before anything is done."""
    try:
        yield
    except OpAtlasError as error:
        raise UsageError(str(error)) from None
