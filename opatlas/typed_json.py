"""Decodes JSON that OpAtlas wrote into typed values, so that damaged text fails at decoding and not later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec

from opatlas.errors import OpAtlasError

T = TypeVar("T")

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
        return _decoder(hashable).decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise DecodeError(place, str(error)) from None


def json_line(values: Mapping[str, Any]) -> str:
    """Returns values as one line of JSON that `decode` reads, with `?` for each lone surrogate.

    Raises:
        ValueError: a number is infinite or NaN.
    """
    line = json.dumps(values, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return line.encode(errors="replace").decode()


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
