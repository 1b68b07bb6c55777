"""Finds threads that a candidate has started and that are still alive when its call has returned."""

from __future__ import annotations

import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType

import torch

from opatlas.outer.candidates.judgement import CandidateRejected, ErrorClass

#: Modules that leave threads for later compilations.
_COMPILERS = ("torch._inductor", "triton")
#: Folders of the code that threads of compilers run.
_LIBRARIES = tuple(
    {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(torch.__file__).parents[1]),
    }
)


class ThreadWatch:
    """The threads of this process, as they are when this object is made."""

    def __init__(self) -> None:
        self._known = frozenset(threading.enumerate())
        self._count = threading.active_count()

    def expect_same(self) -> None:
        """Raises CandidateRejected if there are further threads, other than idle ones of a compiler."""
        if threading.active_count() <= self._count:
            return
        started = [thread for thread in threading.enumerate() if thread not in self._known]
        if any(name in sys.modules for name in _COMPILERS):
            frames = sys._current_frames()
            started = [thread for thread in started if not _waits_for_compilations(frames.get(thread.ident or 0))]
        if started:
            names = ", ".join(thread.name for thread in started[:3])
            raise CandidateRejected(
                ErrorClass.HACK,
                "thread",
                f"the candidate left a thread running ({names}): end the work before the call returns",
            )


def _waits_for_compilations(frame: FrameType | None) -> bool:
    """Returns whether a thread runs code of installed libraries alone, and no task of a pool."""
    if frame is None:
        return True
    is_task = frame.f_code.co_filename.endswith("concurrent/futures/thread.py") and frame.f_code.co_name == "run"
    files = []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    # A thread without code of a library besides `threading` calls a function in C, or only waits.
    return (
        not is_task
        and all(file.startswith(("<frozen", *_LIBRARIES)) for file in files)
        and not all(file == threading.__file__ for file in files)
    )
