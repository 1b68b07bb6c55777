"""Typed decoding: what is not of the type named is an error with its place, whatever the text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from opatlas.typed_json import DecodeError, decode


@dataclass(frozen=True)
class Example:
    name: str
    samples_us: tuple[float, ...] = ()
    cells: Mapping[str, str] = field(default_factory=dict)


def test_a_value_of_the_type_is_decoded_and_unknown_fields_are_ignored() -> None:
    text = b'{"name": "a", "samples_us": [1, 2.5], "cells": {"b": "c"}, "later": [1]}'
    assert decode(text, Example, "f") == Example("a", (1.0, 2.5), {"b": "c"})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\0" * 100,
        b'{"name": 1}',
        b'{"name": "a", "cells": []}',
        b'{"name": "a", "cells": {"b": 1}}',
        b'{"name": "a", "samples_us": "1"}',
        b'{"name": "a", "samples_us": [NaN]}',
        b'{"name": "a", "samples_us": [1e999]}',
        b'{"name": "a", "samples_us": [' + b"9" * 5000 + b"]}",
        b'{"name": "\\udcff"}',
        b'{"name": "\xff"}',
        b'{"name": "a", "later": ' + b"[" * 100_000,
    ],
)
def test_anything_else_is_an_error_with_its_place(text: bytes) -> None:
    with pytest.raises(DecodeError) as raised:
        decode(text, Example, "file:3")
    assert raised.value.place == "file:3"


@given(st.binary())
def test_no_bytes_raise_another_error(text: bytes) -> None:
    try:
        decode(text, Example, "f")
    except DecodeError:
        return
