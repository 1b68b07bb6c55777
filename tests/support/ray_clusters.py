"""Sessions on clusters of Ray (fixture `cluster` of tests/chaos), whose nodes are raylets of this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from sessions import Running, Sessions, wait_for


def start(sessions: Sessions, cluster: Any, *options: str, devices: int = 1) -> Running:
    """A session on each node's simulated devices; on the CPU without any."""
    return sessions.start(f"--ray={cluster.address}", *options, alone=True, SIMULATED_DEVICES=str(devices))


def left(sessions: Sessions) -> list[bytes]:
    """The actors, keepers and device processes that are still there some time after a session has ended."""
    wait_for(lambda: not _of_devices(sessions), seconds=20)
    return _of_devices(sessions)


def hosts_in_report(path: Path) -> set[str | None]:
    """The hosts that a JUnit report names."""
    return {each.get("value") for each in ElementTree.parse(path).iter("property") if each.get("name") == "host"}


def _of_devices(sessions: Sessions) -> list[bytes]:
    commands = map(command_of, sessions.processes())
    return [each for each in commands if b"opatlas.run.process" in each or b"Actor" in each]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def ancestor(pid: int, word: bytes) -> int:
    """The process above another one whose command has a word."""
    while word not in command_of(pid):
        pid = _parent(pid)
    return pid


def tree(top: int) -> list[int]:
    """A process, and all below it."""
    return [pid for pid in map(int, _numbers()) if _is_below(pid, top)]


def _numbers() -> list[str]:
    return [path.name for path in Path("/proc").glob("[0-9]*")]


def _is_below(pid: int, top: int) -> bool:
    while pid > 1 and pid != top:
        try:
            pid = _parent(pid)
        except OSError:
            return False
    return pid == top


def _parent(pid: int) -> int:
    return int(re.findall(r"PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])
