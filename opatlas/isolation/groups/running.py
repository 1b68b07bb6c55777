"""The processes of a group on this node, from their launch to their end: who has come, who speaks, who has died.

pytest ── keeper ── agent (torchrun's) ─┬─ keeper ── rank 0
   │                                    └─ keeper ── rank 1
   └── a socket to the agent, and one to every rank: who died, and who hangs, is known by name
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from multiprocessing.connection import wait
from typing import Any

from opatlas.devices.device import DeviceDescription
from opatlas.devices.device_lock import DeviceWaits
from opatlas.devices.discovery import device_environment
from opatlas.engine.group_spec import GroupSpec
from opatlas.engine.job import Job
from opatlas.files import TemporaryFolder
from opatlas.isolation.channel import Channel, ChannelBroken, NotReady, Start
from opatlas.isolation.child import (
    describe_exit,
    end,
    open_pidfd,
    start,
)
from opatlas.isolation.device_process import PROFILED_END_TIMEOUT_S, UNDER_LAUNCHER, Launcher
from opatlas.isolation.fresh_python import module_command
from opatlas.isolation.groups.messages import (
    DeviceOpened,
    LauncherReady,
    LaunchFailed,
    LaunchRequest,
    RankHello,
    RankJoined,
    RanksEnded,
    listen,
)
from opatlas.isolation.groups.rank_keeper import mark_group_ended
from opatlas.model.errors import GroupTimeout

#: Before the user is told for whom a group waits; most have come together by then.
_TOLD_AFTER_S = 10.0
#: And then so often.
_TOLD_EVERY_S = 30.0
#: The launcher gives other nodes up so much later than pytest does, which knows better whom to name.
_LAUNCHER_LATER_S = 60.0
#: A rank that was told to end, or killed, is gone within this time.
_END_TIMEOUT_S = 20.0
#: What the launcher takes to see that a rank has ended: it looks ten times a second, and ends the others first.
_LAST_WORDS_S = 5.0
#: What faulthandler needs to write the stacks of a rank.
_STACKS_S = 0.2


class _Step(IntEnum):
    """How far a rank is on its way into the group, or the launcher on its way to it."""

    NOT_STARTED = 0
    STARTED = 1
    OPENED = 2
    JOINED = 3


#: What a rank does that has come so far.
_DOES = {_Step.NOT_STARTED: "start", _Step.STARTED: "open a device", _Step.OPENED: "meet the others"}


class RanksDied(Exception):
    """Some ranks of this node have ended, by local rank."""

    def __init__(self, local_ranks: Iterable[int]) -> None:
        super().__init__(local_ranks)
        self.local_ranks = sorted(local_ranks)


class UnexpectedMessage(Exception):
    """A rank has sent something that is no answer to what it was asked."""

    def __init__(self, local_rank: int, what: str) -> None:
        super().__init__(local_rank, what)
        self.local_rank = local_rank
        self.what = what


class RunningGroup:
    """One launch of a group; after `kill` there is nothing left of it."""

    def __init__(self, spec: GroupSpec, starts: Sequence[Start], waits: DeviceWaits, launcher: Launcher | None) -> None:
        """
        Args:
            spec: the group.
            starts: what each rank of this node is told first.
            waits: shows the user for whom the group waits.
            launcher: what each rank runs under; its command may hold RANK_PLACEHOLDER.
        """
        self._spec = spec
        self._starts = starts
        self._waits = waits
        self._launcher = launcher
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: TemporaryFolder | None = None
        self._listener: socket.socket | None = None
        self._agent: Channel | None = None
        #: By local rank.
        self._ranks: dict[int, Channel] = {}
        self._hellos: dict[int, RankHello] = {}
        #: Of their processes; see `open_pidfd`.
        self._ends: dict[int, int] = {}
        self._steps = dict.fromkeys(range(spec.local_ranks), _Step.NOT_STARTED)
        #: Whether the launcher has come so far that it meets the other nodes.
        self._launching = False

    def launch(self) -> DeviceDescription | NotReady:
        """Starts the ranks, and waits until they have joined: the device of the first, or why they have not.

        Raises:
            GroupTimeout: they have not joined in time.
            OSError: no more processes, no more files, or no room for them.
        """
        self._folder = TemporaryFolder("group")
        address = self._folder.path / "ranks"
        self._listener = listen(address, self._spec.local_ranks)
        # Each rank is shown its own device by what it is told to own (rank_main.py).
        environment = device_environment(replace(self._starts[0].spec, pinned=None))
        rank = module_command("opatlas.isolation.groups.rank_main", str(address))
        command = rank if self._launcher is None else self._launcher.command([*rank, UNDER_LAUNCHER])
        self._process, self._agent = start(lambda fd: module_command("opatlas.isolation.groups.agent", fd), environment)
        try:
            join_timeout_s = self._spec.join_limit_s + _LAUNCHER_LATER_S
            self._agent.send(LaunchRequest(self._spec, tuple(command), str(self._folder.path), join_timeout_s))
        except OSError:
            return NotReady("the launcher ended at once", unhealthy=False)
        return self._expect_all(time.monotonic())

    def expect_idle(self) -> None:
        """Raises ChannelBroken, EOFError or OSError where a rank has ended, or says what nobody has asked for."""
        for channel in self._ranks.values():
            if channel.take() is not None or not channel.is_silent():
                raise ChannelBroken

    def send(self, job: Job) -> None:
        """Gives all ranks a job. Raises ChannelBroken or OSError."""
        for channel in self._ranks.values():
            channel.send(job)

    def messages(self, limit_s: float | None) -> list[tuple[int, Any]]:
        """What ranks have sent, in time; empty where none has. Raises RanksDied, UnexpectedMessage."""
        ready = wait([*(channel.fileno() for channel in self._ranks.values()), *self._ends], limit_s)
        messages = []
        # What a kernel has forked may hold the connection open.
        died = {rank for rank_end, rank in self._ends.items() if rank_end in ready}
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

    def how_they_ended(self, local_ranks: Sequence[int]) -> str:
        """`rank 1 of 2 died: SIGKILL (signal 9)`. Asks the launcher, whose child it was."""
        # To the launcher, a rank that ends with 0 has done its work, and others may go on.
        codes = dict.fromkeys(local_ranks, 0)
        with contextlib.suppress(ChannelBroken, EOFError, OSError):
            while self._agent is not None and (message := self._agent.receive(_LAST_WORDS_S)) is not None:
                codes |= message.exit_codes if isinstance(message, RanksEnded) else {}
        return ", ".join(f"{self._spec.rank_name(rank)} died: {describe_exit(codes[rank])}" for rank in local_ranks)

    def write_stacks(self, local_ranks: Iterable[int]) -> None:
        """Lets ranks write the stacks of their threads to their output."""
        for local_rank in local_ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._hellos[local_rank].pid, signal.SIGUSR1)
            # One after the other: they share a file.
            time.sleep(_STACKS_S)

    def let_end(self) -> None:
        """Waits until the ranks have ended by themselves, and what they run under; whatever their exit codes are."""
        assert self._process is not None
        assert self._folder is not None
        with contextlib.suppress(OSError):
            mark_group_ended(self._folder.path)
        for channel in self._ranks.values():
            channel.close()
        patience_s = _END_TIMEOUT_S
        if self._launcher is not None:
            patience_s = self._launcher.patience_s if self._have_ended(PROFILED_END_TIMEOUT_S) else 0.0
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)

    def kill_ranks(self) -> None:
        """Kills the ranks alone, and not what they run under."""
        for end_of_rank in self._ends:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(end_of_rank, signal.SIGKILL)

    def kill(self) -> None:
        """Ends all processes of the group, and waits until they are gone and their devices free."""
        if self._process is not None:
            # The agent, the keepers of the ranks, the ranks, and whatever their kernels have started.
            end(self._process)
        self._forget(list(self._ranks))
        if self._agent is not None:
            self._agent.close()
        if self._listener is not None:
            self._listener.close()
        if self._folder is not None:
            self._folder.remove()
        self._process = self._agent = self._listener = self._folder = None
        self._hellos.clear()

    def _have_ended(self, within_s: float) -> bool:
        """Whether all ranks of this node, and not only their launchers, end in time."""
        left, deadline = set(self._ends), time.monotonic() + within_s
        while left and (ended := wait(list(left), max(deadline - time.monotonic(), 0))):
            left.difference_update(end for end in ended if isinstance(end, int))
        return not left

    def _forget(self, local_ranks: Iterable[int]) -> None:
        """Closes what leads to some ranks."""
        for local_rank in local_ranks:
            self._ranks.pop(local_rank).close()
            for rank_end in [each for each, rank in self._ends.items() if rank == local_rank]:
                del self._ends[rank_end]
                os.close(rank_end)

    def _expect_all(self, began: float) -> DeviceDescription | NotReady:
        """Waits for every rank of this node to join. Raises GroupTimeout where that takes too long."""
        listener, agent = self._listener, self._agent
        assert listener is not None
        assert agent is not None
        joined: dict[int, DeviceDescription] = {}
        unknown: list[Channel] = []
        deadline, tell_at = began + self._spec.join_limit_s, began + _TOLD_AFTER_S
        while len(joined) < self._spec.local_ranks:
            channels = [agent, *unknown, *self._ranks.values()]
            waited = [listener.fileno(), *(channel.fileno() for channel in channels)]
            now = time.monotonic()
            ready = wait(waited, max(min(tell_at, deadline) - now, 0))
            if not ready and time.monotonic() >= deadline:
                raise GroupTimeout(f"the {self._spec} did not start: {self._late()}", nodes=self._waits_for_nodes())
            if not ready:
                self._waits.tell(f"waiting for {self._missing()}, {deadline - time.monotonic():.0f} s left")
                tell_at = time.monotonic() + _TOLD_EVERY_S
            if listener.fileno() in ready:
                with contextlib.suppress(OSError):
                    # A rank that has ended meanwhile, of which the launcher tells.
                    unknown.append(Channel(listener.accept()[0]))
            for channel in (*unknown, *self._ranks.values()):
                if failure := self._hear(channel, unknown, joined):
                    return failure
            if failure := self._hear_launcher(joined):
                return failure
        return joined[0]

    def _hear(self, channel: Channel, unknown: list[Channel], joined: dict[int, DeviceDescription]) -> NotReady | None:
        """Takes a message of a rank that has not joined yet; gives why it will not.

        Args:
            unknown: connections of ranks that have not said RankHello.
            joined: the devices of those that have joined, by local rank.
        """
        local_rank = next((rank for rank, own in self._ranks.items() if own is channel), None)
        who = "a rank" if local_rank is None else self._spec.rank_name(local_rank)
        try:
            while (message := channel.take()) is not None:
                if isinstance(message, RankHello):
                    local_rank = message.local_rank
                    self._welcome(channel, message)
                    unknown.remove(channel)
                elif isinstance(message, NotReady):
                    return replace(message, reason=f"{who}: {message.reason}")
                elif local_rank is not None:
                    if isinstance(message, RankJoined):
                        joined[local_rank] = message.device
                    self._steps[local_rank] = _Step.OPENED if isinstance(message, DeviceOpened) else _Step.JOINED
        except ChannelBroken as broken:
            return NotReady(f"{who}: {broken}", unhealthy=False)
        except (EOFError, OSError):
            if local_rank is not None:
                return NotReady(f"{self.how_they_ended([local_rank])} before it had joined", unhealthy=False)
            unknown.remove(channel)
        return None

    def _welcome(self, channel: Channel, hello: RankHello) -> None:
        """Tells a rank which device it is to own. Raises OSError where the rank has ended."""
        self._ranks[hello.local_rank] = channel
        self._hellos[hello.local_rank] = hello
        self._steps[hello.local_rank] = _Step.STARTED
        if (end_of_rank := open_pidfd(hello.pid)) is not None:
            self._ends[end_of_rank] = hello.local_rank
        channel.send(self._starts[hello.local_rank])

    def _hear_launcher(self, joined: dict[int, DeviceDescription]) -> NotReady | None:
        """Takes a message of the launcher; gives why the group will not come together."""
        assert self._agent is not None
        try:
            message: LauncherReady | RanksEnded | LaunchFailed | None = self._agent.take()
        except (ChannelBroken, EOFError, OSError):
            return NotReady("the launcher died", unhealthy=False)
        if message is None:
            return None
        if isinstance(message, LauncherReady):
            self._launching = True
            return None
        if isinstance(message, LaunchFailed):
            return NotReady(message.reason, unhealthy=False)
        # By itself ended the first of them, and whichever was not killed: those that are left the launcher kills.
        first, *others = message.exit_codes or {rank: 0 for rank in self._steps if rank not in joined}
        codes = {rank: message.exit_codes.get(rank, 0) for rank in (first, *others)}
        left = [first, *(rank for rank in others if codes[rank] not in (-signal.SIGKILL, -signal.SIGTERM))]
        how = ", ".join(f"{self._spec.rank_name(rank)} ended: {describe_exit(codes[rank])}" for rank in left)
        return NotReady(f"{how} before it had joined", unhealthy=False)

    def _waits_for_nodes(self) -> bool:
        """Whether the launcher has not met the other nodes' yet: it starts no rank before."""
        return self._spec.nnodes > 1 and self._launching and not self._hellos

    def _last(self) -> tuple[_Step, list[int]]:
        """The ranks of this node that the others wait for, as far as is known here, and how far they are."""
        least = min(self._steps.values())
        return least, [rank for rank, step in self._steps.items() if step is least]

    def _missing(self) -> str:
        """For what the group waits: "node 1 at 10.0.0.1:29500", "rank 1 of 2 to open its device"."""
        if not self._launching:
            return "torchrun's launcher to start"
        if self._waits_for_nodes():
            return self._spec.other_nodes
        least, ranks = self._last()
        return f"{self._spec.rank_names(ranks)} to {_DOES[least]}"

    def _late(self) -> str:
        """Why the group is given up."""
        limit = f"within {self._spec.join_limit_s:g} s"
        if not self._launching:
            return f"torchrun's launcher did not {limit}"
        if self._waits_for_nodes():
            return f"no {self._spec.other_nodes} {limit}: run the same command there, with its --node-rank"
        least, ranks = self._last()
        return f"{self._spec.rank_names(ranks)} did not join {limit}: still to {_DOES[least]}"
