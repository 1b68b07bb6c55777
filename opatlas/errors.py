"""Errors a user can mend, each naming the place and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opatlas.text import printable_lines


class OpAtlasError(Exception):
    """An error whose message is meant for the user: shown without a traceback, and printable whatever it quotes."""

    def __str__(self) -> str:
        return printable_lines(super().__str__())


def describe_error(error: Exception, place: Path | str, remedy: str) -> str:
    """Tells a user about an error that costs one file and no other.

    Args:
        place: the file, which an OpAtlasError names by itself.
        remedy: what the user can do; an OpAtlasError says that, too.
    """
    if isinstance(error, OpAtlasError):
        return str(error)
    said = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    return f"{place}: {said}: {remedy}"


class TableError(OpAtlasError):
    """A CSV file that cannot be read or written as a table of the database."""

    def __init__(self, path: Path | str, problem: str, remedy: str, *, line: int | None = None) -> None:
        self.path = Path(path)
        self.line = line
        self.problem = problem
        self.remedy = remedy
        place = f"{path}:{line}" if line is not None else f"{path}"
        super().__init__(f"{place}: {problem}. {remedy}")


class CellError(OpAtlasError):
    """A cell whose text does not mean what its column holds."""

    def __init__(self, column: str, value: str, problem: str) -> None:
        self.column = column
        self.value = value
        self.problem = problem
        super().__init__(f"column '{column}': {problem}: {value!r}")


class UsageError(OpAtlasError):
    """A command that was told to do what cannot be done, and has done nothing."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Makes a UsageError of the OpAtlasErrors of what looks at the arguments, before anything is done."""
    try:
        yield
    except OpAtlasError as error:
        raise UsageError(str(error)) from None
