"""Ends a session as `kill -9` does, when its process is about to do to a file what KILLED_WHEN says.

`os.rename Toy.csv`: an event of Python's audit hooks, and a pattern of the file's name; a renamed file has its new one.
"""

import os
import signal
import sys
from fnmatch import fnmatch

EVENT, _, PATTERN = os.environ.get("KILLED_WHEN", "").partition(" ")
PROCESS = os.getpid()


def kill(event, arguments):
    if event == EVENT and os.getpid() == PROCESS:
        path = arguments[event == "os.rename"]
        if isinstance(path, (str, os.PathLike)) and fnmatch(os.path.basename(path), PATTERN):
            os.kill(PROCESS, signal.SIGKILL)


sys.addaudithook(kill)
