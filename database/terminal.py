"""Pieces of what commands print, in lines that fit a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

_COLUMNS = 80
_PROBLEMS_SHOWN = 20


def problem_lines(texts: Sequence[str]) -> str:
    """What the user should see to, one line each; the first ones of many."""
    lines = [f"error: {text}" for text in texts[:_PROBLEMS_SHOWN]]
    if len(texts) > _PROBLEMS_SHOWN:
        lines.append(f"error: and {len(texts) - _PROBLEMS_SHOWN:,} more")
    return "\n".join(lines)


def count_lines(counts: Iterable[tuple[str, int, str]]) -> list[str]:
    """What was counted, how many, and more about it: `rows               2,463   2,422 ingested, 41 left out`."""
    return [f"{what:14}{count:>10,}   {more}".rstrip() for what, count, more in counts]


def counted(number: int, noun: str) -> str:
    """`1 row`, `2,410 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shortened(text: str, width: int) -> str:
    """`text`, or its beginning and `..`, in `width` columns."""
    return text if len(text) <= width else text[: width - 2] + ".."


def folded(text: str, indent: int) -> str:
    """`text` in indented lines, broken at blanks; further lines are indented twice as far."""
    return textwrap.fill(
        text,
        _COLUMNS,
        initial_indent=" " * indent,
        subsequent_indent=" " * (2 * indent),
        break_long_words=False,
        break_on_hyphens=False,
    )
