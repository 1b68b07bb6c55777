"""Mutations of good inputs, drawn from a seed: the same seed gives the same inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

#: Words that parsers take badly: numbers out of range, other digits, marks of formats, bytes that are not UTF-8.
WORDS = (
    *(b"", b"0", b"-1", b"-0", b"1.5", b"1e3", b"1e309", b"1e999999999", b"nan", b"inf", b"Infinity", b"NaN"),
    *(b"9" * 25, b"9" * 5000, b"0" * 300, b"1e" + b"9" * 30, b"0x10", b"1_000", b" 1", b"null", b"true", b"[]", b"{}"),
    *(letters.encode() for letters in ("\uff11\uff12", "\u0663", "\u00b2", "\U0001d7d9", "\u2028", "\x85", "\u00e9")),
    *(b"\xff", b"\xc3", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\xef\xbb\xbf", b"\x00", b"\x1b[2J", b"\x7f"),
    *(b"\r", b"\n", b"\r\n", b"\n\n", b"\x0b", b"\x0c", b"\t", b'"', b'""', b"'", b",", b";", b":", b"#", b"|", b"\\"),
    *(b"[" * 3000, b'{"a":' * 3000, b"]", b"}", b"=1+1", b"../x", b"/", b"N/A", b"$x^$", b"x" * 5000, b"&a", b"*a"),
)
#: Where words begin and end.
_WORD = re.compile(rb"[\w.+-]+|[^\w\s]")
#: Longer inputs say nothing that these do not.
MOST_BYTES = 1 << 16


class Mutator:
    """Draws inputs."""

    def __init__(self, seed: int, seeds: Sequence[bytes], words: Sequence[bytes] = ()) -> None:
        """
        Args:
            seed: of the inputs.
            seeds: good inputs.
            words: words of the parser's own language.
        """
        self._random = Random(seed)
        self._seeds = [good[:MOST_BYTES] for good in seeds]
        # As often as those that are bad for every parser.
        self._words = [*WORDS, *(list(words) * (1 + len(WORDS) // max(len(words), 1)))]
        self._mutations: list[Callable[[bytes], bytes]] = [
            *[self._word_replaced] * 6,
            *[self._word_inserted] * 2,
            *[self._swapped_words] * 2,
            *(self._cut, self._doubled, self._truncated, self._spliced, self._byte, self._bytes),
        ]

    def draw(self) -> bytes:
        """The next input; a good one as it is now and then."""
        data = self._random.choice(self._seeds)
        for _ in range(min(int(self._random.expovariate(0.5)), 12)):
            data = self._random.choice(self._mutations)(data)[:MOST_BYTES]
        return data

    def _place(self, data: bytes) -> int:
        return self._random.randint(0, len(data))

    def _slice(self, data: bytes) -> tuple[int, int]:
        start = self._place(data)
        return start, min(len(data), start + 1 + int(self._random.expovariate(1 / 20)))

    def _word(self, data: bytes) -> tuple[int, int]:
        """A word at or after some place; a slice if there is none."""
        found = _WORD.search(data, self._place(data))
        return found.span() if found else self._slice(data)

    def _word_replaced(self, data: bytes) -> bytes:
        start, end = self._word(data)
        return data[:start] + self._random.choice(self._words) + data[end:]

    def _word_inserted(self, data: bytes) -> bytes:
        at = self._word(data)[self._random.randint(0, 1)]
        return data[:at] + self._random.choice(self._words) + data[at:]

    def _swapped_words(self, data: bytes) -> bytes:
        start, end = self._word(data)
        other_start, other_end = self._word(data)
        return data[:start] + data[other_start:other_end] + data[end:]

    def _cut(self, data: bytes) -> bytes:
        start, end = self._slice(data)
        return data[:start] + data[end:]

    def _doubled(self, data: bytes) -> bytes:
        start, end = self._slice(data)
        return data[:end] + data[start:end] * self._random.choice((1, 1, 2, 50)) + data[end:]

    def _truncated(self, data: bytes) -> bytes:
        return data[: self._place(data)]

    def _spliced(self, data: bytes) -> bytes:
        other = self._random.choice(self._seeds)
        return data[: self._place(data)] + other[self._place(other) :]

    def _byte(self, data: bytes) -> bytes:
        if not data:
            return data
        at = self._random.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self._random.randrange(8)]) + data[at + 1 :]

    def _bytes(self, data: bytes) -> bytes:
        at = self._place(data)
        return data[:at] + self._random.randbytes(self._random.randint(1, 4)) + data[at:]
