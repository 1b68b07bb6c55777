"""Which implementations answer for the steps of a model, as an engine runs them: a stack.

A stack is an ordered list. The first of its implementations with rows of a kernel type answers for that kernel type,
so that neighbouring sizes have durations of the same implementation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from opatlas.ask.query.implementation_answers import ImplementationAnswers
from opatlas.errors import OpAtlasError
from opatlas.files import read_safely

#: The implementation that is fastest for each call, in place of a stack.
FASTEST = "fastest"
#: The file of a default database that names the stack of its device: implementations in their order, with commas.
STACK = "stack.txt"
_LARGEST_BYTES = 1 << 16


def default_stack(answers: ImplementationAnswers) -> tuple[str, ...]:
    """Returns the stack that a database names; of others the default implementation, then those next to it.

    Implementations without a database are left out.

    Raises:
        OpAtlasError: the file cannot be read, or names no implementation that has a database.
    """
    measured = tuple(answers.implementations)
    path: Path = answers.path / STACK
    try:
        text = read_safely(path, _LARGEST_BYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return measured
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check its permissions") from None
    named = [word.strip() for word in text.replace("\n", ",").split(",") if word.strip()]
    found = tuple(name for name in dict.fromkeys(named) if name in measured)
    if not found:
        raise OpAtlasError(f"{path}: {text.strip()!r} names none of {', '.join(measured)}: name some, with commas")
    return found


def levels(stack: Sequence[str], answers: ImplementationAnswers) -> Iterator[Collection[str]]:
    """Yields the implementations that answer together, one level after the other: all of them for FASTEST."""
    if FASTEST in stack:
        yield answers.implementations
    else:
        yield from ((name,) for name in stack)
