"""Sockets that are named by a file, however long the path of that file is."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path


def listen(path: Path, backlog: int) -> socket.socket:
    """A socket that listens there. Raises OSError."""
    end = _with_short_name(path, socket.socket.bind)
    end.listen(backlog)
    return end


def connect(path: Path) -> socket.socket:
    """A socket that is connected to the one that listens there.

    Raises:
        FileNotFoundError, ConnectionRefusedError: nobody listens there.
    """
    return _with_short_name(path, socket.socket.connect)


def _with_short_name(path: Path, use: Callable[[socket.socket, str], object]) -> socket.socket:
    """The name of a socket has some 100 characters at most; Linux has a short one for every folder that is open."""
    end = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform != "linux":
            use(end, str(path))
            return end
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            use(end, f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
    except BaseException:
        end.close()
        raise
    return end
