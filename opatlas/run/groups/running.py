"""The processes of a group on this node, from launch to end: which ranks have joined, answered or died.

pytest ── keeper ── agent (torchrun's) ─┬─ keeper ── rank 0
   │                                    └─ keeper ── rank 1
   └── a socket to the agent and to every rank, so that a rank that dies or hangs is known by name
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from multiprocessing.connection import wait
from typing import Any

import msgspec

from opatlas.files import TemporaryFolder
from opatlas.row.errors import GroupTimeout
from opatlas.run.devices.device import DeviceDescription, device_environment
from opatlas.run.devices.device_lock import DeviceWaits
from opatlas.run.group_spec import GroupSpec
from opatlas.run.job import Job
from opatlas.run.process.channel import Channel, ChannelBroken, listen
from opatlas.run.process.child import UNDER_LAUNCHER, Child, describe_exit, open_pidfd, write_stacks
from opatlas.run.process.device_process import PROFILED_END_TIMEOUT_S, Launcher
from opatlas.run.process.fresh_python import module_command
from opatlas.run.process.keeper import mark_group_ended
from opatlas.run.process.messages import (
    DeviceOpened,
    LauncherReady,
    LaunchRanks,
    NotReady,
    RankHello,
    RanksEnded,
    Ready,
    Run,
    Start,
)

#: When the user first sees the reason of the wait of a starting group; most groups have started by then.
SHOWN_AFTER_S = 10.0
#: Time between further lines about it.
SHOWN_EVERY_S = 30.0
#: The launcher waits for other nodes so much longer than pytest, whose message names the missing node.
_LAUNCHER_LATER_S = 60.0
#: Time within which a rank that was asked to end, or killed, is gone.
_END_TIMEOUT_S = 20.0
#: Time within which the launcher reports the end of a rank: it looks ten times a second, and ends the others first.
_REPORT_TIMEOUT_S = 5.0


class _Step(IntEnum):
    """The steps of a rank until it has joined the group."""

    NOT_STARTED = 0
    STARTED = 1
    OPENED = 2
    JOINED = 3


#: The next action of a rank after a step.
_NEXT = {_Step.NOT_STARTED: "start", _Step.STARTED: "open a device", _Step.OPENED: "meet the others"}
#: The remedy for the user where other nodes do not join, by whether the session launches their ranks (`--ray`).
_NODE_REMEDY = {
    False: "run the same command there, with its --node-rank",
    True: "let the hosts of the cluster reach each other, on the network of GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME",
}


class RanksDied(Exception):
    """Ranks of this node have ended.

    Attributes:
        local_ranks: their numbers on this node.
    """

    def __init__(self, local_ranks: Iterable[int]) -> None:
        super().__init__(local_ranks)
        self.local_ranks = sorted(local_ranks)


class UnexpectedMessage(Exception):
    """A rank has sent a message that is not an answer to its job."""

    def __init__(self, local_rank: int, text: str) -> None:
        super().__init__(local_rank, text)
        self.local_rank = local_rank
        self.text = text


def end_reason(spec: GroupSpec, exit_codes: Mapping[int, int], missing: Collection[int]) -> str:
    """Returns which ranks ended before they had joined, and how.

    The first rank of `exit_codes` ended by itself. The launcher kills the others, unless they end first.

    Args:
        exit_codes: by local rank, in the order in which the launcher saw them end; empty: all ended with 0.
        missing: local ranks that have not joined.
    """
    first, *others = exit_codes or dict.fromkeys(sorted(missing), 0)
    codes = {rank: exit_codes.get(rank, 0) for rank in (first, *others)}
    own = [first, *(rank for rank in others if codes[rank] not in (-signal.SIGKILL, -signal.SIGTERM))]
    how = ", ".join(f"{spec.rank_name(rank)} ended: {describe_exit(codes[rank])}" for rank in own)
    return f"{how} before it had joined"


class RunningGroup:
    """One launch of a group. After `kill` all its processes are gone."""

    def __init__(self, spec: GroupSpec, starts: Sequence[Start], waits: DeviceWaits, launcher: Launcher | None) -> None:
        """
        Args:
            spec: the group.
            starts: the first message to each rank of this node.
            waits: shows the user the reason of the wait.
            launcher: runs each rank; its command may hold RANK_PLACEHOLDER.
        """
        self._spec = spec
        self._starts = starts
        self._waits = waits
        self._launcher = launcher
        self._folder: TemporaryFolder | None = None
        self._listener: socket.socket | None = None
        self._agent: Child | None = None
        #: By local rank.
        self._ranks: dict[int, Channel] = {}
        self._hellos: dict[int, RankHello] = {}
        #: The local rank of each pidfd (`open_pidfd`).
        self._pidfds: dict[int, int] = {}
        self._steps = dict.fromkeys(range(spec.local_ranks), _Step.NOT_STARTED)
        #: Whether the launcher has imported torch, and meets the other nodes.
        self._launching = False

    def launch(self) -> DeviceDescription | NotReady:
        """Starts the ranks, and waits until they have joined.

        Returns:
            The device of the first rank, or why the ranks have not joined.

        Raises:
            GroupTimeout: the ranks have not joined in time.
            OSError: no more processes or files can be made.
        """
        self._folder = TemporaryFolder("group")
        address = self._folder.path / "ranks"
        self._listener = listen(address, self._spec.local_ranks)
        # rank_main.py shows each rank only the device that its Start names.
        environment = device_environment(dataclasses.replace(self._starts[0].spec, pinned=None))
        rank = module_command("opatlas.run.groups.rank_main", str(address))
        command = rank if self._launcher is None else self._launcher.command([*rank, UNDER_LAUNCHER])
        self._agent = Child(lambda fd: module_command("opatlas.run.groups.agent", fd), environment)
        try:
            join_timeout_s = self._spec.join_limit_s + _LAUNCHER_LATER_S
            self._agent.channel.send(LaunchRanks(self._spec, tuple(command), str(self._folder.path), join_timeout_s))
        except OSError:
            return NotReady("the launcher ended at once")
        return self._wait_for_ranks(time.monotonic())

    def expect_idle(self) -> None:
        """Raises ChannelBroken, EOFError or OSError where a rank has ended, or has sent an unexpected message."""
        for channel in self._ranks.values():
            if not channel.is_silent():
                raise ChannelBroken

    def send(self, job: Job) -> None:
        """Sends a job to all ranks. Raises ChannelBroken or OSError."""
        for channel in self._ranks.values():
            channel.send(Run.of(job))

    def used(self) -> AbstractContextManager[None]:
        """Returns a context in which the ranks run a job."""
        assert self._agent is not None
        return self._agent.used()

    def messages(self, limit_s: float | None) -> list[tuple[int, Any]]:
        """Waits for messages of ranks; returns none after `limit_s`. Raises RanksDied, UnexpectedMessage."""
        ready = wait([*(channel.fileno() for channel in self._ranks.values()), *self._pidfds], limit_s)
        messages = []
        # A fork of a rank may hold the connection open.
        died = {rank for rank_end, rank in self._pidfds.items() if rank_end in ready}
        for rank, channel in self._ranks.items():
            try:
                while (message := channel.take()) is not None:
                    messages.append((rank, message))
            except (EOFError, OSError):
                died.add(rank)
            except ChannelBroken as broken:
                raise UnexpectedMessage(rank, str(broken)) from None
        if died:
            raise RanksDied(died)
        return messages

    def describe_ends(self, local_ranks: Sequence[int]) -> str:
        """Returns how ranks ended, such as `rank 1 of 2 died: SIGKILL (signal 9)`, from the launcher's report."""
        # The launcher reports no exit code of a rank that ends with 0, and lets the others go on.
        codes = dict.fromkeys(local_ranks, 0)
        with contextlib.suppress(ChannelBroken, EOFError, OSError):
            while self._agent is not None and (message := self._agent.channel.receive(_REPORT_TIMEOUT_S)) is not None:
                codes |= message.exit_codes if isinstance(message, RanksEnded) else {}
        return ", ".join(f"{self._spec.rank_name(rank)} died: {describe_exit(codes[rank])}" for rank in local_ranks)

    def write_stacks(self, local_ranks: Iterable[int]) -> None:
        """Makes ranks write the stacks of their threads to their output."""
        for local_rank in local_ranks:
            # One after the other, because they share a file.
            write_stacks(self._hellos[local_rank].pid)

    def wait_for_end(self) -> None:
        """Waits until the ranks and their launchers have ended by themselves, with any exit codes."""
        assert self._agent is not None
        assert self._folder is not None
        with contextlib.suppress(OSError):
            mark_group_ended(self._folder.path)
        for channel in self._ranks.values():
            channel.close()
        patience_s = _END_TIMEOUT_S
        if self._launcher is not None:
            patience_s = self._launcher.patience_s if self._have_ended(PROFILED_END_TIMEOUT_S) else 0.0
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent.keeper.wait(patience_s)

    def kill_ranks(self) -> None:
        """Kills the ranks, but not their launchers."""
        for end_of_rank in self._pidfds:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(end_of_rank, signal.SIGKILL)

    def kill(self) -> None:
        """Ends all processes of the group, and waits until they are gone and their devices are free."""
        if self._agent is not None:
            # The agent, the keepers, the ranks, and all processes that kernels have started.
            self._agent.end()
        self._close_ranks(list(self._ranks))
        if self._listener is not None:
            self._listener.close()
        if self._folder is not None:
            self._folder.remove()
        self._agent = self._listener = self._folder = None
        self._hellos.clear()

    def _have_ended(self, within_s: float) -> bool:
        """Returns whether all ranks of this node (not only their launchers) end in time."""
        left, deadline = set(self._pidfds), time.monotonic() + within_s
        while left and (ended := wait(list(left), max(deadline - time.monotonic(), 0))):
            left.difference_update(end for end in ended if isinstance(end, int))
        return not left

    def _close_ranks(self, local_ranks: Iterable[int]) -> None:
        """Closes the connections and pidfds of ranks."""
        for local_rank in local_ranks:
            self._ranks.pop(local_rank).close()
            for rank_end in [each for each, rank in self._pidfds.items() if rank == local_rank]:
                del self._pidfds[rank_end]
                os.close(rank_end)

    def _wait_for_ranks(self, began: float) -> DeviceDescription | NotReady:
        """Waits until every rank of this node has joined. Raises GroupTimeout."""
        listener, agent = self._listener, self._agent
        assert listener is not None
        assert agent is not None
        joined: dict[int, DeviceDescription] = {}
        unknown: list[Channel] = []
        deadline, tell_at = began + self._spec.join_limit_s, began + SHOWN_AFTER_S
        while len(joined) < self._spec.local_ranks:
            channels = [agent.channel, *unknown, *self._ranks.values()]
            waited = [listener.fileno(), *(channel.fileno() for channel in channels)]
            now = time.monotonic()
            ready = wait(waited, max(min(tell_at, deadline) - now, 0))
            if not ready and time.monotonic() >= deadline:
                raise GroupTimeout(
                    f"the {self._spec} did not start: {self._timeout_reason()}", nodes=self._waits_for_other_nodes()
                )
            if not ready:
                self._waits.tell(f"waiting for {self._awaited()}, {deadline - time.monotonic():.0f} s left")
                tell_at = time.monotonic() + SHOWN_EVERY_S
            if listener.fileno() in ready:
                with contextlib.suppress(OSError):
                    # If the rank has ended meanwhile, the launcher reports it.
                    unknown.append(Channel(listener.accept()[0]))
            for channel in (*unknown, *self._ranks.values()):
                if failure := self._receive(channel, unknown, joined):
                    return failure
            if failure := self._receive_from_launcher(joined):
                return failure
        return joined[0]

    def _receive(
        self, channel: Channel, unknown: list[Channel], joined: dict[int, DeviceDescription]
    ) -> NotReady | None:
        """Receives messages of a rank that has not joined; returns why it cannot join, if so.

        Args:
            unknown: connections without a RankHello so far.
            joined: the devices of the ranks that have joined, by local rank.
        """
        local_rank = next((rank for rank, own in self._ranks.items() if own is channel), None)
        who = "a rank" if local_rank is None else self._spec.rank_name(local_rank)
        try:
            while (message := channel.take()) is not None:
                if isinstance(message, RankHello):
                    local_rank = message.local_rank
                    self._start_rank(channel, message)
                    unknown.remove(channel)
                elif isinstance(message, NotReady):
                    return msgspec.structs.replace(message, reason=f"{who}: {message.reason}")
                elif local_rank is not None:
                    if isinstance(message, Ready):
                        joined[local_rank] = message.device
                    self._steps[local_rank] = _Step.OPENED if isinstance(message, DeviceOpened) else _Step.JOINED
        except ChannelBroken as broken:
            return NotReady(f"{who}: {broken}")
        except (EOFError, OSError):
            if local_rank is not None:
                return NotReady(f"{self.describe_ends([local_rank])} before it had joined")
            unknown.remove(channel)
        return None

    def _start_rank(self, channel: Channel, hello: RankHello) -> None:
        """Sends a rank its Start, which names its device. Raises OSError if the rank has ended."""
        self._ranks[hello.local_rank] = channel
        self._hellos[hello.local_rank] = hello
        self._steps[hello.local_rank] = _Step.STARTED
        if (end_of_rank := open_pidfd(hello.pid)) is not None:
            self._pidfds[end_of_rank] = hello.local_rank
        channel.send(self._starts[hello.local_rank])

    def _receive_from_launcher(self, joined: dict[int, DeviceDescription]) -> NotReady | None:
        """Receives a message of the launcher; returns why the group cannot start, if so."""
        assert self._agent is not None
        try:
            message = self._agent.channel.take()
        except (ChannelBroken, EOFError, OSError):
            return NotReady("the launcher died")
        if message is None:
            return None
        if isinstance(message, LauncherReady):
            self._launching = True
            return None
        if isinstance(message, NotReady):
            return message
        if not isinstance(message, RanksEnded):
            return NotReady("the launcher sent a wrong answer")
        return NotReady(end_reason(self._spec, message.exit_codes, set(self._steps) - set(joined)))

    def _waits_for_other_nodes(self) -> bool:
        """Returns whether the launcher waits for other nodes; it starts no rank before."""
        return self._spec.nnodes > 1 and self._launching and not self._hellos

    def _slowest_ranks(self) -> tuple[_Step, list[int]]:
        """Returns the last step of the slowest ranks of this node, and these ranks."""
        least = min(self._steps.values())
        return least, [rank for rank, step in self._steps.items() if step is least]

    def _awaited(self) -> str:
        """Returns the object of the wait: "node 1 at 10.0.0.1:29500", "rank 1 of 2 to open a device"."""
        if not self._launching:
            return "torchrun's launcher to start"
        if self._waits_for_other_nodes():
            return self._spec.other_nodes
        least, ranks = self._slowest_ranks()
        return f"{self._spec.rank_names(ranks)} to {_NEXT[least]}"

    def _timeout_reason(self) -> str:
        """Returns why the group has not started in time."""
        limit = f"within {self._spec.join_limit_s:g} s"
        if not self._launching:
            return f"torchrun's launcher did not {limit}"
        if self._waits_for_other_nodes():
            return f"no {self._spec.other_nodes} {limit}: {_NODE_REMEDY[self._spec.in_cluster]}"
        least, ranks = self._slowest_ranks()
        return f"{self._spec.rank_names(ranks)} did not join {limit}: still to {_NEXT[least]}"
