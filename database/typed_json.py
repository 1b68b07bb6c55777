"""Decodes JSON that OpAtlas wrote into typed values, so that damaged or foreign text fails here and nowhere later."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

from database.errors import OpAtlasError

T = TypeVar("T")


class DecodeError(OpAtlasError):
    """JSON text that is malformed, or has not the fields and types that it should have.

    Attributes:
        place: the file, or file and line, that holds the text.
        problem: what is wrong with it, and at which field.
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
    # mypy does not take a type[T] for hashable.
    hashable: Any = kind
    try:
        value: T = _decoder(hashable).decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise DecodeError(place, str(error)) from None
    return value


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
