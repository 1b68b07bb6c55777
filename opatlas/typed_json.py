"""Decodes JSON that OpAtlas wrote into typed values, so that damaged text fails at decoding and not later."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec

from opatlas.errors import OpAtlasError

T = TypeVar("T")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

#: A count in a file: from 0 to the largest signed 64-bit integer.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class DecodeError(OpAtlasError):
    """JSON text that is malformed, or lacks the expected fields and types.

    Attributes:
        place: the file, or file and line, that holds the text.
        problem: what is wrong, and at which field.
    """

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        self.problem = problem
        super().__init__(f"{place}: {problem}")


def decode(text: bytes | str, kind: type[T], place: str) -> T:
    """Decodes one JSON value.

    Args:
        text: the JSON value, UTF-8 where it is bytes.
        kind: a dataclass, or any other type that msgspec decodes. Fields that `kind` lacks are ignored.
        place: names the text in an error.

    Raises:
        DecodeError: the text is malformed, nested too deeply, not UTF-8, holds a number out of range or a lone
            surrogate, or does not fit `kind`.
    """
    # mypy does not know that type[T] is hashable.
    hashable: Any = kind
    try:
        value: T = _decoder(hashable).decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise DecodeError(place, str(error)) from None
    return value


def json_line(values: Mapping[str, Any]) -> str:
    """Returns values as one line of JSON that `decode` reads, with lone surrogates escaped.

    Raises:
        ValueError: a number is infinite or NaN.
    """
    line = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return escape_lone_surrogates(line) or line


def escape_lone_surrogates(text: bytes | str) -> str | None:
    """Returns the same JSON value with each lone surrogate as six characters of text (`\\udcff`).

    Returns:
        None if the text has no lone surrogate, or is not JSON.
    """
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        if "\\ud" not in plain.lower():
            return None
        plain = json.dumps(json.loads(plain), separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    if not _LONE_SURROGATE.search(plain):
        return None
    return _LONE_SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", plain)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
