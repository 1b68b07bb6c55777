"""The leader of a device process's group: sees to it that nothing of the group outlives pytest.

Run as `python -m bench.processes.keeper PARENT FD COMMAND...`: starts the command, which inherits FD, and ends
as it ends. When its parent dies, it kills the group, and with it whatever a kernel has started.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import NoReturn

from bench.processes.parent import die_with_parent

_WATCHED = (signal.SIGTERM, signal.SIGCHLD)


def main(parent: int, fd: int, command: list[str]) -> NoReturn:
    """Keeps `command` until it ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    # Ctrl-C is pytest's to answer: it decides what becomes of the row that runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent, signal.SIGTERM)
    pid = os.posix_spawn(command[0], command, os.environ, setsigmask=())
    # The other end must see the file closed when the command ends.
    os.close(fd)
    while True:
        if signal.sigwait(_WATCHED) == signal.SIGTERM:
            os.killpg(0, signal.SIGKILL)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            end_as(os.waitstatus_to_exitcode(status))


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
