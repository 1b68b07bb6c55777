"""Text of programs and exceptions, made fit to be a reason: one line, printable, and not too long."""

from __future__ import annotations

from database.terminal import printable, shown

#: Of a reason, which becomes a cell of a CSV and a line on the terminal.
MOST_CHARACTERS = 1_000
#: Of the detail of a failure, such as a traceback with a message of megabytes.
MOST_CHARACTERS_OF_DETAIL = 100_000
#: For the line that says how much was left out.
_ROOM_FOR_NOTE = 60


def first_line(text: str) -> str:
    """The first line that is not empty; "no message" if there is none."""
    return _lines(text)[0]


def last_line(text: str) -> str:
    """The last line, in which a program that fails says why; "no message" if there is none."""
    return _lines(text)[-1]


def in_a_line(error: BaseException) -> str:
    """The type of an exception, and the first line of its message."""
    return f"{type(error).__name__}: {first_line(message_of(error))}"


def message_of(error: BaseException) -> str:
    """The message of an exception, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as unreadable:
        return f"its message cannot be read: __str__ raised {type(unreadable).__name__}"


def as_reason(text: str) -> str:
    """Printable text of one line and at most MOST_CHARACTERS, the last of which is an ellipsis if text is missing."""
    # The beginning alone first: a text of megabytes takes seconds to escape.
    text = printable(" ".join(text[: MOST_CHARACTERS + 1].splitlines()))
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


def as_detail(text: str) -> str:
    """Printable text of several lines and at most MOST_CHARACTERS_OF_DETAIL; a longer text loses its middle."""
    text = without_middle(text, MOST_CHARACTERS_OF_DETAIL)
    return without_middle(shown(text), MOST_CHARACTERS_OF_DETAIL)


def without_middle(text: str, most: int) -> str:
    """A text of at most `most` characters; of a longer one the beginning, the end, and how much was between them.

    Args:
        most: at least 200.
    """
    if len(text) <= most:
        return text
    kept = most - _ROOM_FOR_NOTE
    end = kept // 2
    return f"{text[: kept - end]}\n[... {len(text) - kept} characters left out ...]\n{text[len(text) - end :]}"


def _lines(text: str) -> list[str]:
    return text.strip().splitlines() or ["no message"]
