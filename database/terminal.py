"""Pieces of what commands print."""

from __future__ import annotations

from collections.abc import Sequence

_PROBLEMS_SHOWN = 20


def problem_lines(texts: Sequence[str]) -> str:
    """What the user should see to, one line each; the first ones of many."""
    lines = [f"error: {text}" for text in texts[:_PROBLEMS_SHOWN]]
    if len(texts) > _PROBLEMS_SHOWN:
        lines.append(f"error: and {len(texts) - _PROBLEMS_SHOWN:,} more")
    return "\n".join(lines)


def shortened(text: str, width: int) -> str:
    """`text`, or its beginning and `..`, in `width` columns."""
    return text if len(text) <= width else text[: width - 2] + ".."


def counted(number: int, noun: str) -> str:
    """`1 row`, `2,410 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
