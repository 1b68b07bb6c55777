"""The rows that a user chose of a database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
from _pytest.mark.expression import Expression

from opatlas.combine.provenance import Staleness
from opatlas.store.write_back import UpdateMode
from opatlas.text import closest

from .row_variables import RowVariables
from .where import Where

#: A row that crashed or timed out in so many sessions in a row is not run again by itself: each time
#: costs a device process, and a row that hangs its whole deadline.
GIVEN_UP_AFTER = 2


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count` of a collection, from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def holds(self, row_digest: str) -> bool:
        """Whether a row belongs to this part; it depends on nothing but the row."""
        return int(row_digest, 16) % self.count == self.index - 1


@dataclass(frozen=True)
class Choice:
    """Which rows of a database the user chose.

    Attributes:
        mode: which rows run, by the durations that they have.
        ops: the only kernel types wanted; empty: all.
        shard: the only part of the rows wanted; None: all.
        retry_failed: whether rows are run that were given up.
        where: what the cells of a row must say; None: anything.
        strict: whether rows that failed before fail again, instead of being xfail.
    """

    mode: UpdateMode = UpdateMode.ALL
    ops: frozenset[str] = frozenset()
    shard: Shard | None = None
    retry_failed: bool = False
    where: Where | None = None
    strict: bool = False

    def selects(self, row: RowVariables) -> bool:
        """Returns whether a row is wanted, by its cells."""
        return self.where is None or self.where.selects(row)

    def leaves_out(self, *, replayed: bool, captured: bool, staleness: Staleness | None) -> bool:
        """Whether the update mode leaves out a row that has a replayed duration, or only a captured one.

        Args:
            staleness: of the replayed duration, in the mode that asks for it.
        """
        if self.mode is UpdateMode.MISSING_ONLY:
            return replayed or captured
        if self.mode is UpdateMode.STALE:
            return staleness is None or not staleness.is_stale
        return self.mode is UpdateMode.UNREPLAYED and replayed


def keyword_filter(expression: str) -> Callable[[str], bool]:
    """Whether -k selects a text. Raises pytest.UsageError for an expression that pytest refuses too."""
    if not expression:
        return lambda text: True
    try:
        compiled = Expression.compile(expression)
    except Exception as error:  # SyntaxError, and a class of pytest's own before pytest 9
        said = getattr(error, "msg", None) or str(error)
        raise pytest.UsageError(
            f"-k {expression!r} is no expression ({said}): join parts of names by 'and', 'or', 'not'"
        ) from None

    def selected(text: str) -> bool:
        def contains(word: str, /, **_: str | int | bool | None) -> bool:
            return word.lower() in text.lower()

        return compiled.evaluate(contains)

    return selected


def meant(expression: str, names: Iterable[str]) -> str:
    """` (did you mean ...?)` for the words of -k that are part of no name; "" where nothing is like them."""
    known = list(names)
    words = [word for word in re.findall(r"[^\s()]+", expression) if word not in ("and", "or", "not")]
    return "".join(closest(word, known) for word in words if not any(word.lower() in name.lower() for name in known))
