"""The processes of a group on this node, from launch to end: which ranks have joined, answered or died.

pytest ─┬─ keeper ── rank 0
        └─ keeper ── rank 1

The process of one device is a rank that meets no other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from msgspec import structs

from opatlas.files import TemporaryFolder
from opatlas.row.errors import GroupTimeout
from opatlas.run.devices.device import DeviceDescription, device_environment
from opatlas.run.devices.device_lock import DeviceWaits
from opatlas.run.group import GroupSpec
from opatlas.run.inputs.experts import HCCL_BUFFER_VARIABLE
from opatlas.run.job import Job
from opatlas.run.process.child import MASTER_PORT, MEETING, UNDER_LAUNCHER, Child, Launcher, readable, write_stacks
from opatlas.run.process.fresh_python import import_paths, module_command
from opatlas.run.process.keeper import END
from opatlas.run.process.messages import RANK_PLACEHOLDER, ChannelBroken, DeviceOpened, NotReady, Ready, Run, Start

#: When the user first sees the reason of the wait of a starting group; most groups have started by then.
SHOWN_AFTER_S = 10.0
#: Time between further lines about it.
SHOWN_EVERY_S = 30.0
#: Time within which a rank is gone that was asked to end, or has closed its connection: torch's cleanup takes a while.
END_TIMEOUT_S = 20.0
#: The same for a rank under a launcher, whose libraries a profiler has hooked.
PROFILED_END_TIMEOUT_S = 60.0
#: Stands for the descriptor of a rank in the command of a launcher, which is made once for all ranks.
_FD = "${fd}"


class RanksDied(Exception):
    """Ranks of this node have ended.

    Attributes:
        local_ranks: their numbers on this node.
        took_job: whether one of them may have read the job that was sent last.
    """

    def __init__(self, local_ranks: Iterable[int], *, took_job: bool = True) -> None:
        super().__init__(local_ranks)
        self.local_ranks = sorted(local_ranks)
        self.took_job = took_job


class UnexpectedMessage(Exception):
    """A rank has sent a message that is not an answer to its job."""

    def __init__(self, local_rank: int, text: str) -> None:
        super().__init__(local_rank, text)
        self.local_rank = local_rank
        self.text = text


class Ranks:
    """One launch of the ranks of this node. After `end` all their processes are gone.

    Attributes:
        exit_code: of the last rank whose end was described; None if it is not known.
    """

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
        #: By local rank.
        self._ranks: dict[int, Child] = {}
        self._devices: dict[int, DeviceDescription] = {}
        self.exit_code: int | None = None

    def launch(self) -> DeviceDescription | NotReady:
        """Starts the ranks, and waits until they have joined.

        Returns:
            The device of the first rank, or why the ranks have not joined.

        Raises:
            GroupTimeout: the ranks have not joined in time.
            OSError: no more processes or files can be made.
        """
        began = time.monotonic()
        self.spawn()
        for rank, start in zip(self._ranks.values(), self._starts, strict=True):
            with contextlib.suppress(OSError):
                # If the rank has ended meanwhile, that is seen below. The collection of pytest may add to the path.
                rank.channel.send(structs.replace(start, sys_path=import_paths()))
        return self._wait_for_ranks(began)

    def spawn(self) -> None:
        """Starts the processes, unless they run, which import torch meanwhile. Raises OSError and DeviceGone."""
        if self._ranks:
            return
        command = module_command("opatlas.run.process.device_main", _FD)
        if not self._spec.is_device:
            self._folder = TemporaryFolder("group")
            # On one node the ranks meet in a file of this user: a port is open to everybody who reaches this machine.
            of_one_node = self._spec.nnodes == 1 and self._spec.master_port is None
            command.append(f"{MEETING}{self._folder.path / 'store' if of_one_node else MASTER_PORT}")
        if self._launcher is not None:
            command = self._launcher.command([*command, UNDER_LAUNCHER])
        for local_rank, start in enumerate(self._starts):
            own = [word.replace(RANK_PLACEHOLDER, str(local_rank)) for word in command]
            self._ranks[local_rank] = Child(
                partial(_with_descriptor, own), {**device_environment(start.spec), **self._variables(local_rank)}
            )

    def expect_idle(self) -> None:
        """Raises ChannelBroken, EOFError or OSError where a rank has ended, or has sent an unexpected message."""
        for rank in self._ranks.values():
            if not rank.channel.is_silent() or readable(rank.ends, 0):
                raise ChannelBroken

    def send(self, job: Job) -> None:
        """Sends a job to all ranks. Raises OSError."""
        for rank in self._ranks.values():
            rank.channel.send(Run.of(job))

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """A context in which the ranks run a job."""
        with contextlib.ExitStack() as stack:
            for rank in self._ranks.values():
                stack.enter_context(rank.used())
            yield

    def messages(self, limit_s: float) -> list[tuple[int, Any]]:
        """Waits for messages of ranks; returns none after `limit_s`.

        Raises:
            RanksDied: ranks have ended, and all messages were taken.
            UnexpectedMessage: bytes arrived that are no message.
        """
        # A fork of a rank may hold the connection open.
        waited = [end for rank in self._ranks.values() for end in (rank.channel.fileno(), *rank.ends)]
        ready = readable(waited, max(limit_s, 0))
        messages = []
        unread: set[int] = set()
        died = {number for number, rank in self._ranks.items() if ready.intersection(rank.ends)}
        for number, rank in self._ranks.items():
            try:
                while (message := rank.channel.take()) is not None:
                    messages.append((number, message))
            except ConnectionResetError:
                unread.add(number)
            except (EOFError, OSError):
                died.add(number)
            except ChannelBroken as broken:
                raise UnexpectedMessage(number, str(broken)) from None
        if (died or unread) and not messages:
            raise RanksDied(died | unread, took_job=not died <= unread)
        return messages

    def describe_ends(self, local_ranks: Iterable[int]) -> str:
        """Ends ranks that have died, and returns how: `rank 1 of 2 died: SIGKILL (signal 9)`."""
        ends = []
        for number in local_ranks:
            rank, patience_s = self._ranks.pop(number), END_TIMEOUT_S
            if self._launcher is not None:
                patience_s = self._launcher.patience_s if rank.wait_for_end(PROFILED_END_TIMEOUT_S) else 0.0
            self.exit_code = rank.end(patience_s)
            ends.append(f"{self._spec.rank_name(number)} {rank.describe_end(self.exit_code)}")
        return ", ".join(ends)

    def write_stacks(self, local_ranks: Iterable[int]) -> None:
        """Makes ranks write the stacks of their threads to their output, one after the other: they share a file."""
        for number in local_ranks:
            if (pid := self._ranks[number].pid) is not None:
                write_stacks(pid)

    def end(self, *, at_once: bool = False) -> None:
        """Ends all processes of the group, and waits until they are gone and their devices are free.

        Args:
            at_once: whether ranks are killed, and not let end by themselves; launchers still write their records.
        """
        if at_once and self._launcher is None:
            # With its connection still open: a rank would print that it cannot send.
            self.kill()
            return
        self.release()
        patience_s = END_TIMEOUT_S
        if any(rank.pid is None for rank in self._ranks.values()):
            # One that has not opened its device has nothing to write.
            patience_s = 0.0
        elif self._launcher is not None:
            if at_once:
                self._kill_ranks()
            deadline = time.monotonic() + PROFILED_END_TIMEOUT_S
            ended = [rank.wait_for_end(max(deadline - time.monotonic(), 0)) for rank in self._ranks.values()]
            patience_s = self._launcher.patience_s if all(ended) else 0.0
        self.kill(patience_s)

    def release(self) -> None:
        """Lets the ranks end, and does not wait for it."""
        for rank in self._ranks.values():
            rank.channel.close()

    def kill(self, patience_s: float = 0.0) -> None:
        """Ends all processes with their launchers, which have some seconds to end by themselves."""
        deadline = time.monotonic() + patience_s
        if not patience_s:
            for rank in self._ranks.values():
                # All at once, before the wait for each.
                rank.keeper.send_signal(END)
        for rank in self._ranks.values():
            rank.end(max(deadline - time.monotonic(), 0.0))
        self._ranks.clear()
        if self._folder is not None:
            self._folder.remove()

    def _kill_ranks(self) -> None:
        """Kills the ranks, but not their launchers."""
        for rank in self._ranks.values():
            for end in rank.ends[1:]:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(end, signal.SIGKILL)

    def _variables(self, local_rank: int) -> dict[str, str]:
        """Returns the variables that torchrun sets for a rank, which kernels may read."""
        spec = self._spec
        if spec.is_device:
            return {}
        variables = {
            "RANK": str(spec.rank_of(local_rank)),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(spec.ranks),
            "LOCAL_WORLD_SIZE": str(spec.local_ranks),
            "MASTER_ADDR": spec.master_addr,
        }
        if spec.master_port is not None:
            variables[MASTER_PORT] = str(spec.master_port)
        if spec.hccl_buffer_mib is not None and HCCL_BUFFER_VARIABLE not in os.environ:
            variables[HCCL_BUFFER_VARIABLE] = str(spec.hccl_buffer_mib)
        return variables

    def _wait_for_ranks(self, began: float) -> DeviceDescription | NotReady:
        """Waits until every rank of this node has joined. Raises GroupTimeout."""
        deadline, tell_at = began + self._spec.join_limit_s, began + SHOWN_AFTER_S
        while len(self._devices) < self._spec.local_ranks:
            try:
                messages = self.messages(min(tell_at, deadline) - time.monotonic())
            except RanksDied as died:
                told = f"{self.describe_ends(died.local_ranks)} before it was ready"
                return NotReady(told, may_recover=self._spec.is_device)
            except UnexpectedMessage as wrong:
                return NotReady(f"{self._spec.rank_name(wrong.local_rank)}: {wrong.text}")
            for number, message in messages:
                if isinstance(message, NotReady):
                    return structs.replace(message, reason=f"{self._spec.rank_name(number)}: {message.reason}")
                if isinstance(message, DeviceOpened):
                    self._ranks[number].opened(message.pid)
                elif isinstance(message, Ready):
                    self._devices[number] = message.device
                    if self._ranks[number].pid is None:
                        self._ranks[number].opened(message.pid)
            if not messages and time.monotonic() >= deadline:
                raise GroupTimeout(
                    f"the {self._spec} did not start: {self._timeout_reason()}", nodes=self._waits_for_other_nodes()
                )
            if not messages and time.monotonic() >= tell_at:
                who = self._spec.other_nodes if self._waits_for_other_nodes() else " to ".join(self._slowest())
                self._waits.tell(f"waiting for {who}, {deadline - time.monotonic():.0f} s left")
                tell_at = time.monotonic() + SHOWN_EVERY_S
        return self._devices[0]

    def _waits_for_other_nodes(self) -> bool:
        """Returns whether all ranks of this node are there, and ranks of others are not."""
        return self._spec.nnodes > 1 and all(rank.pid is not None for rank in self._ranks.values())

    def _slowest(self) -> tuple[str, str]:
        """Returns the slowest ranks of this node, and what they have still to do."""
        opening = [number for number, rank in self._ranks.items() if rank.pid is None]
        if opening:
            return self._spec.rank_names(opening), "open a device"
        left = [number for number in self._ranks if number not in self._devices]
        return self._spec.rank_names(left), "meet the others"

    def _timeout_reason(self) -> str:
        """Returns why the group has not started in time."""
        limit = f"within {self._spec.join_limit_s:g} s"
        if self._waits_for_other_nodes():
            return f"no {self._spec.other_nodes} {limit}: run the same command there, with its --node-rank"
        who, what = self._slowest()
        return f"{who} did not join {limit}: still to {what}"


def _with_descriptor(words: Sequence[str], fd: str) -> list[str]:
    """Returns a command that names a descriptor."""
    return [word.replace(_FD, fd) for word in words]
