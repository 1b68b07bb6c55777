"""Tells from the words of an exception whether it poisoned the device's context or ran out of memory.

A poisoned context fails, or worse: silently drops, every later call of its process; only a new process helps. The
first error in a log is the cause, what follows echoes it. Numbers count only next to words that call them an error
code: a shape may well be 507015.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator

from bench.device_error_codes import ASCEND, ASCEND_MEMORY, CUDA
from bench.one_line import without_middle

#: Of one exception's message: to search megabytes takes seconds.
_MOST_CHARACTERS = 100_000
_BY_CODE = {(error.library, error.code): error for error in (*CUDA, *ASCEND)}
_BY_NAME = {name: error for error in _BY_CODE.values() for name in error.names}
_BY_WORDS = {words: error for error in _BY_CODE.values() for words in error.words}


def _any_of(choices: list[str]) -> str:
    # The longest first: "suspect device mem error" before "device mem error".
    return "|".join(re.escape(choice) for choice in sorted(choices, key=len, reverse=True))


_NAME = re.compile(rf"\b(?:{_any_of(list(_BY_NAME))})\b")
#: "CUDA error: 700", "CUDA driver error (700)", "cuda runtime error (700) :", "Cuda failure 700 '...'" (NCCL).
_CUDA_CODE = re.compile(
    r"\bcuda[ _]?(?:driver |runtime )?(?:error|failure|status)(?: code)?[\s=:(]{1,3}(\d{1,4})(?!\w|\.\d)", re.IGNORECASE
)
#: Whatever stands before them ("CUDA error:", "Triton Error [CUDA]:", "torch.cuda.CudaError:"), the line says CUDA.
_CUDA_WORDS = re.compile(rf"(?<![\w-])(?:{_any_of([e.words[0] for e in CUDA])})(?!\w)")
#: What an operator of a CUDA library says once a kernel failed, be it its own or an earlier one.
_LIBRARY_FAILED = re.compile(r"\b(?:CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_EXECUTION_FAILED\w*|CUFFT_EXEC_FAILED)\b")
#: "error code is 507015", "error code:507015", "ErrCode=507015", "retCode=0x7bc87", "runtime result = 507015",
#: "aclrtSynchronizeStream(stream) failed: 507015", "run failed with code 507015".
_ASCEND_CODE = re.compile(
    r"(?:\berr(?:or)?[ _]?code|\bret(?:urn)?[ _]?code|\bret(?=\s*[=:])|\bruntime result|\bacl ?error"
    r"|\bacl\w+(?:\([^()\n]*\))? failed|\bfailed with code)"
    r"\s*(?:is\b)?[\s=:,(\[]{0,3}(0x[0-9a-f]{1,8}|\d{1,9})(?!\w|\.\d)",
    re.IGNORECASE,
)
#: "reason=[aicore exception]", "reason=aicore exception", "retCode=0x26, [aicore exception]".
_ASCEND_WORDS = re.compile(
    rf"(?:\b(?:reason|desc)=\[?|\bretCode=0x[0-9a-f]+, \[)({_any_of([w for e in ASCEND for w in e.words])})(?!\w)"
    rf"|\b({_any_of([w for e in ASCEND for w in e.words if w.isupper()])})\b"
)
#: torch_npu's queue thread has ended: operators return at once from then on, without an error and without having run
#: (NPUQueue.cpp, Repository::Enqueue in the state CAN_EXIT).
_QUEUE_ENDED = re.compile(r"The process exits for this inner error(?:, and the ([^\n.]+))?")

_MEMORY = re.compile(
    # torch.OutOfMemoryError is one too; so is numpy's _ArrayMemoryError.
    r"(?i:\bout of memory\b)|MemoryError\b"
    r"|\bcudaErrorMemoryAllocation\b|\bCUDA_ERROR_OUT_OF_MEMORY\b|\bCU[A-Z]+_(?:STATUS_)?ALLOC_FAILED\b"
    r"|\bDefaultCPUAllocator: (?:can't allocate|not enough) memory|\bstd::bad_alloc\b|\bCannot allocate memory\b"
    # CANN: Memory_Allocation_Failure, Resource_Error_Insufficient_Host_Memory.
    r"|\bACL_ERROR_RT_(?:MEMORY_ALLOCATION|DEVICE_OOM)\b|\bEL00(?:04|18)\b"
)


def text_of(error: BaseException) -> str:
    """Type and message of an exception, after those of the exceptions that led to it, the oldest first.

    The members of an exception group led to the group.
    """
    texts: list[str] = []
    seen: set[int] = set()
    # From the newest to the oldest, without recursion: groups and causes may be nested to any depth.
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        text = "".join(traceback.format_exception_only(type(link), link))
        texts.append(without_middle(text, _MOST_CHARACTERS))
        links.append(link.__cause__ or (None if link.__suppress_context__ else link.__context__))
        # Not by its type, which Python 3.10 does not have.
        members = getattr(link, "exceptions", ())
        links += [each for each in members if isinstance(each, BaseException)] if isinstance(members, tuple) else []
    return "".join(reversed(texts))


def poisoned_by(text: str) -> str | None:
    """Code and meaning of the first error in the text that poisons the context; None if there is none.

    Such as "CUDA error 700 (an illegal memory access was encountered)" or "Ascend error 507015 (aicore exception)".
    """
    return min(_poisons(text), default=(0, None))[1]


def is_out_of_memory(text: str) -> bool:
    """Whether running out of memory, the device's or the host's, is the first device error in the text.

    Never where torch_npu's queue has ended, whatever ended it: a process without it must not go on.
    """
    if _QUEUE_ENDED.search(text):
        return False
    memory = min(_memory_failures(text), default=None)
    return memory is not None and all(memory < poison for poison, _ in _poisons(text))


def _poisons(text: str) -> Iterator[tuple[int, str]]:
    """Where errors that poison stand in the text, and their names."""
    for match in _NAME.finditer(text):
        yield match.start(), str(_BY_NAME[match[0]])
    for match in _CUDA_WORDS.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if "cuda" in line.lower():
            yield match.start(), str(_BY_WORDS[match[0]])
    for match in _ASCEND_WORDS.finditer(text):
        yield match.start(), str(_BY_WORDS[match[1] or match[2]])
    for library, pattern in (("CUDA", _CUDA_CODE), ("Ascend", _ASCEND_CODE)):
        for position, code in _codes(pattern, text):
            if error := _BY_CODE.get((library, code)):
                yield position, str(error)
    for match in _LIBRARY_FAILED.finditer(text):
        yield match.start(), f"{match[0]} (a kernel failed)"
    for match in _QUEUE_ENDED.finditer(text):
        yield match.start(), f"torch_npu's task queue ended ({match[1] or 'no operator named'})"


def _memory_failures(text: str) -> Iterator[int]:
    for match in _MEMORY.finditer(text):
        yield match.start()
    for position, code in _codes(_ASCEND_CODE, text):
        if code in ASCEND_MEMORY:
            yield position


def _codes(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    for match in pattern.finditer(text):
        digits = match[1].lower()
        yield match.start(1), int(digits, 16 if digits.startswith("0x") else 10)
