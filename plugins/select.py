"""The rows that a user chose: by shard, update mode, --where, named files and -k."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from opatlas.data.comparable import Staleness
from opatlas.data.update_mode import UpdateMode
from opatlas.text import suggest

from .pytest_internals import Expression
from .where import Where

#: A row that crashed or timed out in so many sessions in a row is not run again without --runxfail, because each
#: try costs a device process and perhaps a whole deadline.
GIVEN_UP_AFTER = 2


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count` of a collection, from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def holds(self, row_digest: str) -> bool:
        """Returns whether a row belongs to this part, by the row alone."""
        return int(row_digest, 16) % self.count == self.index - 1


@dataclass(frozen=True)
class Choice:
    """The rows of a database that the options choose.

    Attributes:
        mode: the rows to run, by the durations that they have.
        ops: the kernel types to run; empty: all.
        shard: the part of the rows to run; None: all rows.
        retry_failed: run rows that were given up.
        where: a condition on the cells of a row; None: no condition.
        strict: rows that failed before fail again, instead of being xfail.
    """

    mode: UpdateMode = UpdateMode.ALL
    ops: frozenset[str] = frozenset()
    shard: Shard | None = None
    retry_failed: bool = False
    where: Where | None = None
    strict: bool = False

    def excludes(self, *, replayed: bool, captured: bool, staleness: Staleness | None) -> bool:
        """Returns whether the update mode leaves out a row.

        Args:
            replayed: the row has a replayed duration.
            captured: the row has a captured duration and no replayed one.
            staleness: of the replayed duration, in the mode STALE.
        """
        if self.mode is UpdateMode.MISSING_ONLY:
            return replayed or captured
        if self.mode is UpdateMode.STALE:
            return staleness is None or not staleness.is_stale
        return self.mode is UpdateMode.UNREPLAYED and replayed


def keyword_filter(expression: str) -> Callable[[str], bool]:
    """Returns the test of a text by -k. Raises pytest.UsageError for an expression that pytest refuses, too."""
    if not expression:
        return lambda text: True
    try:
        compiled = Expression.compile(expression)
    except Exception as error:  # SyntaxError; before pytest 9 an error of pytest's own
        said = getattr(error, "msg", None) or str(error)
        raise pytest.UsageError(
            f"-k {expression!r} is not an expression ({said}): join parts of names by 'and', 'or', 'not'"
        ) from None

    def selected(text: str) -> bool:
        def contains(word: str, /, **_: str | int | bool | None) -> bool:
            return word.lower() in text.lower()

        return compiled.evaluate(contains)

    return selected


def meant(expression: str, names: Iterable[str]) -> str:
    """Returns ` (did you mean ...?)` for the words of -k that are part of no name; "" where no name is similar."""
    known = list(names)
    words = [word for word in re.findall(r"[^\s()]+", expression) if word not in ("and", "or", "not")]
    return "".join(suggest(word, known) for word in words if not any(word.lower() in name.lower() for name in known))


def named_paths(config: pytest.Config) -> list[Path]:
    """Returns the files and folders that a user named; none if a name is neither, such as that of a package."""
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return [path.resolve() for path in named] if all(path.exists() for path in named) else []


def requested_rows(config: pytest.Config, replays: Mapping[str, Any]) -> Callable[[str, str], bool]:
    """Returns whether the user requested a row, by kernel type and id, for rows that never become items of pytest.

    A row is requested if a named file replays its kernel type, and -k selects it.

    Args:
        replays: the replay functions by kernel type.
    """
    is_selected, paths = keyword_filter(config.option.keyword), named_paths(config)

    @cache
    def words_of(kernel_type: str) -> str | None:
        """Returns the words that -k searches for a kernel type; None where no named file holds its replay."""
        function = replays.get(kernel_type)
        if function is None:
            return None if any(path.is_file() for path in paths) else ""
        file = Path(inspect.getfile(function)).resolve()
        if paths and not any(path in (file, *file.parents) for path in paths):
            return None
        return f"{function.__module__} {function.__name__}"

    def is_requested(kernel_type: str, case_id: str) -> bool:
        words = words_of(kernel_type)
        return words is not None and is_selected(f"{case_id} {words}")

    return is_requested
