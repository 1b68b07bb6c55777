"""The leader of a device process's group: sees to it that nothing which the process has started outlives pytest.

Run as `python -m opatlas.isolation.keeper PARENT FD COMMAND...`: starts the command, which inherits FD, and ends
as it ends. Before that, when pytest asks for it, and when pytest has died, the keeper ends all descendants. Linux gives
it every descendant whose own parent has ended, so that none gets away, whatever process group or session it is in.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from opatlas.isolation.process_end import adopt_orphans, children_of, die_with_parent

#: pytest asks for the end of everything. (SIGTERM is what a kernel sends to its process group.)
END = signal.SIGUSR1
#: Linux sends it when pytest has died: it wakes a keeper that was stopped, and can be waited for.
_PARENT_DIED = signal.SIGCONT
_WATCHED = (END, _PARENT_DIED, signal.SIGTERM, signal.SIGCHLD)
#: How long a process may take to end after SIGKILL; one that waits for a driver may take longer than anybody waits.
END_TIMEOUT_S = 10.0
#: How long the command may take to end after a SIGTERM that came from somewhere, perhaps to the whole group.
_TERM_TIMEOUT_S = 1.0
_LOOK_S = 0.005


def main(parent: int, fd: int, command: list[str], forgives: Callable[[], bool] = lambda: False) -> NoReturn:
    """Keeps `command` until it ends, and ends as it has ended.

    Args:
        forgives: asked when the command has ended: whether its exit code does not count, and 0 is that of the keeper.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    # Ctrl-C is pytest's to answer: it decides what becomes of the row that runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    die_with_parent(parent, _PARENT_DIED)
    kept = _Kept(os.posix_spawn(command[0], command, os.environ, setsigmask=()))
    # The other end must see the file closed when the command ends.
    os.close(fd)
    while True:
        number = signal.sigwait(_WATCHED)
        if number == signal.SIGTERM:
            kept.wait(_TERM_TIMEOUT_S)
        elif number != END and kept.is_running() and os.getppid() == parent:
            continue
        kept.end_all()
        if kept.exit_code is not None and forgives():
            end_as(0)
        end_as(-signal.SIGKILL if kept.exit_code is None else kept.exit_code)


class _Kept:
    """The command, and all its descendants."""

    def __init__(self, pid: int) -> None:
        self.exit_code: int | None = None
        self._pid = pid

    def is_running(self) -> bool:
        """Whether the command has not ended. Takes note of every child that has."""
        self._reap()
        return self.exit_code is None

    def wait(self, seconds: float) -> None:
        """Until the command has ended."""
        deadline = time.monotonic() + seconds
        while self.is_running() and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def end_all(self) -> None:
        """Kills all descendants, and waits until they are gone and their devices free.

        A child's pid is nobody else's before the keeper has reaped it, and the children of one that was killed are the
        keeper's own the next time.
        """
        if sys.platform != "linux":
            if self.exit_code is None:
                os.killpg(0, signal.SIGKILL)
            return
        deadline = time.monotonic() + END_TIMEOUT_S
        while self._reap() and time.monotonic() < deadline:
            for child in children_of(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(_LOOK_S)

    def _reap(self) -> bool:
        """Whether there are children left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self._pid:
                    self.exit_code = os.waitstatus_to_exitcode(status)
                if not pid:
                    return True
        except ChildProcessError:
            return False


def end_as(code: int) -> NoReturn:
    """Ends this process with an exit code, or, where it is negative, by that signal."""
    if code < 0:
        # The command has left its core, if it was to leave one.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
