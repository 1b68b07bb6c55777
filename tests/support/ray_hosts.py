"""Hosts of a Ray cluster: network namespaces of this machine, each with a name and a network card of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_BRIDGE = f"oab{os.getpid() % 100_000}"
_NETWORK = f"10.{77 + os.getpid() % 100}.{os.getpid() // 100 % 256}"


class Hosts:
    """Hosts whose network may be cut.

    Attributes:
        address: that of the head, which runs outside of all namespaces.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._cards: dict[str, str] = {}

    def add(self, name: str, *command_before: str, **environment: str) -> None:
        """Starts a node with one core. `command_before` runs Ray's command as its arguments."""
        number = len(self._cards) + 2
        card = self._cards[name] = f"{_BRIDGE}-{number}"
        _ip("netns", "add", name)
        _ip("link", "add", card, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", card, "master", _BRIDGE, "up")
        own = f"{_NETWORK}.{number}"
        _ip("-n", name, "address", "add", f"{own}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", name, "link", "set", device, "up")
        _ip("-n", name, "route", "add", "default", "via", f"{_NETWORK}.1")
        # Ray's command makes the processes of the node, and ends.
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={self.address}"]
        words += [f"--node-ip-address={own}", "--num-cpus=1", "--object-store-memory=80000000"]
        named = ["unshare", "--uts", "--mount", "sh", "-c", f'hostname {name}; exec "$@"', "sh", *command_before]
        subprocess.run(
            ["ip", "netns", "exec", name, *named, *words],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
            check=True,
        )

    def cut(self, name: str) -> None:
        """Takes the network from a host."""
        _ip("link", "set", self._cards[name], "down")

    def processes(self, name: str) -> list[int]:
        """All processes of a host."""
        done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
        return [int(word) for word in done.stdout.split()]

    def close(self) -> None:
        """Ends all hosts."""
        for name, card in self._cards.items():
            for pid in self.processes(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # The namespace goes with its last process, some time later.
            _ip("link", "delete", card)
            _ip("netns", "delete", name)


@contextmanager
def hosts(address: str) -> Iterator[Hosts]:
    """A network of hosts. Raises OSError where this process may not make namespaces."""
    try:
        _ip("link", "add", _BRIDGE, "type", "bridge")
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise OSError(f"no network namespace can be made: {error}") from None
    made = Hosts(address)
    try:
        _ip("address", "add", f"{_NETWORK}.1/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        yield made
    finally:
        made.close()
        _ip("link", "delete", _BRIDGE)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, check=True)
