"""Evicts memory from all caches of the machine, line by line, by the instruction that x86 has for it.

What a read of other memory evicts depends on the sizes of caches and on what else reads; this instruction drops a line
from every cache of every core and socket, and writes it back first if it was changed. Python and torch offer no call.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path

#: Steps by which lines are dropped; those of x86 are so long.
_LINE_BYTES = 64
#: void evict(char *start, char *end), in the calling convention of Linux.
_CODE = bytes.fromhex(
    "660fae3f"  # next: clflushopt [rdi]
    "4883c740"  # add rdi, 64
    "4839f7"  # cmp rdi, rsi
    "72f3"  # jb next
    "0faef0"  # mfence
    "c3"  # ret
)


@cache
def evictor() -> Callable[[int, int], None] | None:
    """Returns what evicts `size` bytes from an address on; None where the machine or its system has no way."""
    if platform.machine() != "x86_64" or platform.system() != "Linux" or not _has_instruction():
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:  # a system that lets no process write code
        return None
    page.write(_CODE)
    code = ctypes.c_char.from_buffer(page)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(ctypes.addressof(code))
    # It keeps the page, which would be given back otherwise.
    function.code = code  # type: ignore[attr-defined]

    def evict(address: int, size: int) -> None:
        if size > 0:
            function(address - address % _LINE_BYTES, address + size)

    return evict


def _has_instruction() -> bool:
    try:
        return "clflushopt" in Path("/proc/cpuinfo").read_text().split("\n\n")[0].split()
    except OSError:
        return False
