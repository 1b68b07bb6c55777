"""Recognizes fatal device errors and failed allocations in the text of an error.

After a fatal device error every later call of the process fails, or is silently dropped; only a new process helps. The
first error in a text is the cause of the others. A number is an error code only next to words that say so, because a
shape may well be 507015.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from opatlas.run.devices.device import device_kinds

#: Failed allocations of the host and of torch, which includes torch.OutOfMemoryError and numpy's _ArrayMemoryError.
_MEMORY = re.compile(
    r"(?i:\bout of memory\b)|MemoryError\b|\bDefaultCPUAllocator: (?:can't allocate|not enough) memory"
    r"|\bstd::bad_alloc\b|\bCannot allocate memory\b"
)


@dataclass(frozen=True)
class FatalErrors:
    """The errors of a library after which a process cannot use the device.

    Attributes:
        library: "CUDA" or "Ascend".
        errors: by code the names and the messages of each error, the best message first.
        number: finds a code, as its group.
        texts: finds names, as its first group, or messages, as another one.
        context: what precedes a message in its line, in small letters.
        failed: finds what says that an earlier kernel failed.
        ended: finds what says that no more work is taken, with the operator as its group; such a process must end.
        memory: finds failed allocations.
        memory_codes: codes of failed allocations.
    """

    library: str
    errors: Mapping[int, tuple[Iterable[str], Iterable[str]]]
    number: re.Pattern[str]
    texts: re.Pattern[str]
    memory: re.Pattern[str]
    context: str = ""
    failed: re.Pattern[str] | None = None
    ended: re.Pattern[str] | None = None
    memory_codes: frozenset[int] = frozenset()

    def found(self, text: str) -> Iterator[tuple[int, str]]:
        """Yields the positions and descriptions of fatal errors in a text."""
        for position, code in self._codes(text):
            if code in self.errors:
                yield position, self._described(code)
        for match in self.texts.finditer(text):
            line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
            if match[1] or self.context in line.lower():
                word = match[match.lastindex or 0]
                code = next(code for code, (names, words) in self.errors.items() if word in (*names, *words))
                yield match.start(), self._described(code)
        for match in self.failed.finditer(text) if self.failed else ():
            yield match.start(), f"{match[0]} (a kernel failed)"
        for match in self.ended.finditer(text) if self.ended else ():
            yield match.start(), f"{self.library}: the task queue ended ({match[1] or 'no operator named'})"

    def out_of_memory(self, text: str) -> Iterator[int]:
        """Yields the positions of failed allocations in a text."""
        yield from (match.start() for match in self.memory.finditer(text))
        yield from (position for position, code in self._codes(text) if code in self.memory_codes)

    def _codes(self, text: str) -> Iterator[tuple[int, int]]:
        for match in self.number.finditer(text):
            digits = match[1].lower()
            yield match.start(1), int(digits, 16 if digits.startswith("0x") else 10)

    def _described(self, code: int) -> str:
        return f"{self.library} error {code} ({next(iter(self.errors[code][1]))})"


def any_of(choices: Iterable[str]) -> str:
    """Returns a pattern of some texts, the longest first: "suspect device mem error" before "device mem error"."""
    return "|".join(re.escape(choice) for choice in sorted(choices, key=len, reverse=True))


def fatal_device_error(text: str) -> str | None:
    """Returns code and meaning of the first fatal device error in a text; None if there is none.

    Examples: "CUDA error 700 (an illegal memory access was encountered)", "Ascend error 507015 (aicore exception)".
    """
    return min((found for each in _libraries() for found in each.found(text)), default=(0, None))[1]


def is_out_of_memory(text: str) -> bool:
    """Returns whether the first device error in a text is a lack of device memory or host memory.

    False if a library takes no more work, because its process must not continue.
    """
    libraries = _libraries()
    if any(each.ended and each.ended.search(text) for each in libraries):
        return False
    of_devices = (position for each in libraries for position in each.out_of_memory(text))
    first = min((*of_devices, *(match.start() for match in _MEMORY.finditer(text))), default=None)
    return first is not None and all(first < position for each in libraries for position, _ in each.found(text))


def _libraries() -> list[FatalErrors]:
    return [kind.fatal_errors for kind in device_kinds().values() if kind.fatal_errors is not None]
