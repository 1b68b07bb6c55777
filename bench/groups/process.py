"""A group of ranks, seen from pytest: launched, fed a job at a time, watched, launched anew.

As with a device process, whatever becomes of a rank costs the one row in flight: the whole group is
ended, which leaves no process behind, and the next row gets a new one. Processes, and what they are to
each other:

    pytest ── keeper ── agent (torchrun's) ─┬─ keeper ── rank 0
       │                                    └─ keeper ── rank 1
       └── a socket to the agent, and one to every rank: who died, and who hangs, is known by name
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from bench.devices.visible import environment_of
from bench.errors import DeviceGone
from bench.groups.messages import Hello, Joined, Launch, NotLaunched, RanksEnded, Reached
from bench.groups.spec import GroupSpec
from bench.job import DeviceDescription, DeviceSpec, Job, MeasureSettings, Outcome
from bench.processes.child import PAUSES_S, TRIES, how_it_ended, open_end, start
from bench.processes.device_messages import NotReady, Start, Started, Waiting
from database.schema import Status

#: Every rank imports torch, from a disk that may be cold, and then waits for the others.
_START_TIMEOUT_S = 300.0
#: A rank that was told to end, or killed, is gone within this time.
_END_TIMEOUT_S = 20.0
#: What the launcher takes to see that a rank has ended: it looks ten times a second, and ends the others first.
_LAST_WORDS_S = 5.0
#: After one rank has failed: the others may be about to fail for the same reason, or wait for it for ever.
_OTHERS_FAIL_WITHIN_S = 5.0
#: What faulthandler needs to write the stacks of a rank.
_STACKS_S = 0.2
#: Statuses after which all ranks are ready for the next job, if all of them say so.
_IN_STEP = {Status.MEASURED, Status.FAILED, Status.INVALID, Status.UNSUPPORTED, Status.SKIPPED}


class _RanksDied(Exception):
    """Some ranks of this node have ended, by local rank."""

    def __init__(self, local_ranks: Iterable[int]) -> None:
        super().__init__(local_ranks)
        self.local_ranks = sorted(local_ranks)


class GroupProcess:
    """An Executor whose jobs run on all ranks of a group, which is launched on first use."""

    def __init__(self, spec: GroupSpec, devices: Sequence[DeviceSpec], settings: MeasureSettings) -> None:
        """
        Args:
            spec: the group.
            devices: of this node, one for each of its ranks.
        """
        if len(devices) != spec.local_ranks:
            raise ValueError(f"{len(devices)} devices for {spec.local_ranks} ranks of a node")
        self.spec = spec
        self._starts = [Start(device, settings, tuple(sys.path)) for device in devices]
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._listener: socket.socket | None = None
        self._agent: Connection | None = None
        #: By local rank.
        self._ranks: dict[int, Connection] = {}
        self._hellos: dict[int, Hello] = {}
        #: Of their processes; see `open_end`.
        self._ends: dict[int, int] = {}
        self._device: DeviceDescription | None = None

    def describe(self) -> DeviceDescription:
        if self._device is None:
            self._open()
        assert self._device is not None
        return self._device

    def run(self, job: Job) -> Outcome:
        for _ in range(TRIES):
            if self._process is None:
                self._open()
            try:
                for connection in self._ranks.values():
                    connection.send(job)
            except OSError:
                # A rank died before it took the job: the row is not to blame.
                self._kill()
                continue
            try:
                return self._await(job)
            except BaseException:
                self._kill()
                raise
        raise DeviceGone(f"a rank of a {self.spec} died before it took a row, {TRIES} times")

    def close(self) -> None:
        """Lets the ranks end by themselves, then makes them."""
        if self._process is None:
            return
        self._forget(list(self._ranks))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_TIMEOUT_S)
        self._kill()

    def _await(self, job: Job) -> Outcome:
        """What became of a job that was sent to all ranks; the group is ended where it is not in step any more."""
        outcomes: dict[int, Outcome] = {}
        reached = dict.fromkeys(self._ranks, Reached(0, "before its first call"))
        # One rank that waits for its device keeps all of them from beginning.
        waiting: set[int] = set()
        deadline = time.monotonic() + job.timeout_s
        while len(outcomes) < len(self._ranks):
            now = time.monotonic()
            failed = any(outcome.status is not Status.MEASURED for outcome in outcomes.values())
            if now >= deadline:
                return self._hung(job, reached, outcomes) if not failed else self._ended(outcomes)
            try:
                messages = self._messages(None if waiting and not failed else deadline - now)
            except _RanksDied as died:
                return self._died(died.local_ranks)
            for local_rank, message in messages:
                if isinstance(message, Waiting):
                    waiting.add(local_rank)
                elif isinstance(message, Started):
                    waiting.discard(local_rank)
                    deadline = time.monotonic() + job.timeout_s
                elif isinstance(message, Reached):
                    reached[local_rank] = message
                else:
                    outcomes[local_rank] = message
                    if message.status is not Status.MEASURED:
                        deadline = min(deadline, time.monotonic() + _OTHERS_FAIL_WITHIN_S)
        return self._ended(outcomes)

    def _ended(self, outcomes: dict[int, Outcome]) -> Outcome:
        """The outcome of a row from those of its ranks; not all may have one."""
        statuses = {outcome.status for outcome in outcomes.values()}
        in_step = len(outcomes) == len(self._ranks) and len(statuses) == 1 and statuses <= _IN_STEP
        if self.spec.nnodes > 1 and statuses != {Status.MEASURED}:
            # Another node may have lost its ranks, and wait for these to come together anew.
            in_step = False
        if not in_step:
            self._kill()
        if statuses == {Status.MEASURED}:
            first = outcomes[0]
            assert first.measurement is not None
            checked = [o.measurement for o in outcomes.values() if o.measurement is not None]
            measurement = replace(
                first.measurement,
                checked_elements=sum(one.checked_elements for one in checked),
                total_elements=sum(one.total_elements for one in checked),
            )
            return replace(first, measurement=measurement)
        failed = {r: outcome for r, outcome in outcomes.items() if outcome.status is not Status.MEASURED}
        # Dictionaries keep the order: the first that failed; the others may only have noticed.
        local_rank, outcome = next(iter(failed.items()))
        if in_step and len({outcome.reason for outcome in failed.values()}) == 1:
            return outcome
        return replace(outcome, reason=f"{self._name(local_rank)}: {outcome.reason}")

    def _died(self, local_ranks: Sequence[int]) -> Outcome:
        how = self._how_they_ended(local_ranks)
        self._kill()
        return Outcome(Status.CRASHED, f"{how}; the group was ended")

    def _hung(self, job: Job, reached: dict[int, Reached], outcomes: dict[int, Outcome]) -> Outcome:
        running = {rank: reached[rank] for rank in sorted(self._ranks) if rank not in outcomes}
        least = min(step.step for step in running.values())
        late = [rank for rank, step in running.items() if step.step == least]
        if len(late) == len(self._ranks):
            who, others = f"all {len(late)} ranks", ""
        else:
            who, others = " and ".join(map(self._name, late)), "; the others wait"
        where = " or ".join(dict.fromkeys(running[rank].what for rank in late))
        self._write_stacks(running)
        self._kill()
        return Outcome(
            Status.TIMEOUT,
            f"still running after {job.timeout_s:g} s, {who} {where}{others}; the group was ended (their stacks are in "
            "the output)",
        )

    def _write_stacks(self, local_ranks: Iterable[int]) -> None:
        for local_rank in local_ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._hellos[local_rank].pid, signal.SIGUSR1)
            # One after the other: they share a file.
            time.sleep(_STACKS_S)

    def _name(self, local_rank: int) -> str:
        return f"rank {self.spec.rank_of(local_rank)} of {self.spec.ranks}"

    def _how_they_ended(self, local_ranks: Sequence[int]) -> str:
        """`rank 1 of 2 died: SIGKILL (signal 9)`. Asks the launcher, whose child it was."""
        # To the launcher, a rank that ends with 0 has done its work, and others may go on.
        codes = dict.fromkeys(local_ranks, 0)
        with contextlib.suppress(EOFError, OSError):
            if self._agent is not None and self._agent.poll(_LAST_WORDS_S):
                ended = self._agent.recv()
                codes |= ended.exit_codes if isinstance(ended, RanksEnded) else {}
        return ", ".join(f"{self._name(rank)} died: {how_it_ended(codes[rank])}" for rank in local_ranks)

    def _messages(self, limit_s: float | None) -> list[tuple[int, Any]]:
        """What ranks have sent, in time; empty where none has. Raises _RanksDied."""
        by_connection = {connection: rank for rank, connection in self._ranks.items()}
        ready = wait([*by_connection, *self._ends], limit_s)
        messages, died = [], set()
        for connection, rank in by_connection.items():
            if connection in ready:
                try:
                    messages.append((rank, connection.recv()))
                except (EOFError, OSError):
                    died.add(rank)
        # What a kernel has forked holds the connection open.
        died |= {rank for end, rank in self._ends.items() if end in ready and not self._ranks[rank].poll()}
        if died:
            raise _RanksDied(died)
        return messages

    def _open(self) -> None:
        """Launches the group, all of whose devices compute what they should. Raises DeviceGone after the last try."""
        for pause_s in (*PAUSES_S, 0.0):
            try:
                answer = self._launch()
            except BaseException:
                self._kill()
                raise
            if not isinstance(answer, NotReady):
                self._device = answer
                return
            failure = answer
            self._kill()
            if not answer.sick and self._device is None:
                # It never was there: trying again will not bring it.
                break
            time.sleep(pause_s)
        raise DeviceGone(f"the {self.spec} did not start: {failure.reason}")

    def _launch(self) -> DeviceDescription | NotReady:
        self._folder = Path(tempfile.mkdtemp(prefix="opatlas-group-"))
        address = str(self._folder / "ranks")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(self.spec.local_ranks)
        # Each rank is shown its own device by what it is told to own (rank_main.py).
        environment = environment_of(replace(self._starts[0].spec, pinned=None))
        self._process, self._agent = start(lambda fd: [sys.executable, "-m", "bench.groups.agent", fd], environment)
        try:
            self._agent.send(Launch(self.spec, address, str(self._folder), _START_TIMEOUT_S))
        except OSError:
            return NotReady("the launcher ended at once", sick=False)
        return self._expect_all(time.monotonic() + _START_TIMEOUT_S)

    def _expect_all(self, deadline: float) -> DeviceDescription | NotReady:
        """Waits for every rank of this node to join."""
        listener, agent = self._listener, self._agent
        assert listener is not None
        assert agent is not None
        joined: dict[int, DeviceDescription] = {}
        unknown: list[Connection] = []
        while len(joined) < self.spec.local_ranks:
            waited: list[Any] = [listener, agent, *unknown, *self._ranks.values()]
            ready = wait(waited, max(deadline - time.monotonic(), 0))
            if not ready:
                return NotReady(f"{self._missing(joined)} did not join within {_START_TIMEOUT_S:g} s", sick=False)
            if listener in ready:
                unknown.append(Connection(listener.accept()[0].detach()))
            for connection in [c for c in (*unknown, *self._ranks.values()) if c in ready]:
                if failure := self._hear(connection, unknown, joined):
                    return failure
            if agent in ready:
                return self._launcher_ended(joined)
        return self._described(joined)

    def _hear(
        self, connection: Connection, unknown: list[Connection], joined: dict[int, DeviceDescription]
    ) -> NotReady | None:
        """Takes a message of a rank that has not joined yet; gives why it will not.

        Args:
            unknown: connections of ranks that have not said Hello.
            joined: the devices of those that have joined, by local rank.
        """
        local_rank = next((rank for rank, own in self._ranks.items() if own is connection), None)
        try:
            message = connection.recv()
            if isinstance(message, Hello):
                unknown.remove(connection)
                self._ranks[message.local_rank] = connection
                self._hellos[message.local_rank] = message
                if (end := open_end(message.pid)) is not None:
                    self._ends[end] = message.local_rank
                connection.send(self._starts[message.local_rank])
            elif isinstance(message, NotReady):
                who = "a rank" if local_rank is None else self._name(local_rank)
                return replace(message, reason=f"{who}: {message.reason}")
            else:
                assert isinstance(message, Joined)
                assert local_rank is not None
                joined[local_rank] = message.device
        except (EOFError, OSError):
            if local_rank is not None:
                return NotReady(f"{self._how_they_ended([local_rank])} before it had joined", sick=False)
            unknown.remove(connection)
        return None

    def _launcher_ended(self, joined: dict[int, DeviceDescription]) -> NotReady:
        assert self._agent is not None
        try:
            message: RanksEnded | NotLaunched = self._agent.recv()
        except (EOFError, OSError):
            return NotReady("the launcher died", sick=False)
        if isinstance(message, NotLaunched):
            return NotReady(message.reason, sick=False)
        # Those that had not joined are to blame: the launcher ends the others itself.
        left = [rank for rank in range(self.spec.local_ranks) if rank not in self._ranks] or [
            rank for rank in message.exit_codes if rank not in joined
        ]
        how = ", ".join(f"{self._name(rank)} ended: {how_it_ended(message.exit_codes.get(rank, 0))}" for rank in left)
        return NotReady(f"{how} before it had joined", sick=False)

    def _missing(self, joined: dict[int, DeviceDescription]) -> str:
        return " and ".join(self._name(rank) for rank in range(self.spec.local_ranks) if rank not in joined)

    def _described(self, joined: dict[int, DeviceDescription]) -> DeviceDescription:
        first = joined[0]
        return replace(first, facts={**first.facts, "ranks": self.spec.ranks, "nodes": self.spec.nnodes})

    def _kill(self) -> None:
        """Ends all processes of the group, and waits until they are gone and their devices free."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                # The agent; with it go the keepers of the ranks, and with these the ranks.
                os.killpg(self._process.pid, signal.SIGKILL)
            for hello in self._hellos.values():
                # Each rank has a process group of its own, with whatever its kernels have started.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(hello.process_group, signal.SIGKILL)
            self._process.wait()
            self._wait_for_ranks()
        if self._agent is not None:
            self._agent.close()
        if self._listener is not None:
            self._listener.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._process = self._agent = self._listener = self._folder = None
        self._hellos.clear()

    def _wait_for_ranks(self) -> None:
        """Until their connections are closed, which they are at the latest with their processes."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        while self._ranks and time.monotonic() < deadline:
            try:
                self._messages(deadline - time.monotonic())
            except _RanksDied as died:
                self._forget(died.local_ranks)
        self._forget(list(self._ranks))

    def _forget(self, local_ranks: Iterable[int]) -> None:
        """Closes what leads to some ranks."""
        for local_rank in local_ranks:
            self._ranks.pop(local_rank).close()
            for end in [end for end, rank in self._ends.items() if rank == local_rank]:
                del self._ends[end]
                os.close(end)
