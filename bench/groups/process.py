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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from bench.devices.visible import environment_of
from bench.errors import DeviceGone, GroupLate
from bench.groups.messages import Hello, Joined, Launch, Launching, NotLaunched, Opened, RanksEnded, Reached
from bench.groups.spec import GroupSpec
from bench.job import DeviceDescription, DeviceSpec, Job, MeasureSettings, Outcome
from bench.processes.child import PAUSES_S, TRIES, how_it_ended, open_end, start
from bench.processes.device_messages import NotReady, Start, Started, Waiting
from bench.processes.fresh_python import import_paths, module_command
from database.schema import Status
from database.terminal import shown

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
#: More ranks than these are counted.
_NAMED = 3
#: After one rank has failed: the others may be about to fail for the same reason, or wait for it for ever.
_OTHERS_FAIL_WITHIN_S = 5.0
#: What faulthandler needs to write the stacks of a rank.
_STACKS_S = 0.2
#: Statuses after which all ranks are ready for the next job, if all of them say so.
_IN_STEP = {Status.MEASURED, Status.FAILED, Status.INVALID, Status.UNSUPPORTED, Status.SKIPPED}


class _Step(IntEnum):
    """How far a rank is on its way into the group, or the launcher on its way to it."""

    NOT_STARTED = 0
    STARTED = 1
    OPENED = 2
    JOINED = 3


#: What a rank does that has come so far.
_DOES = {_Step.NOT_STARTED: "start", _Step.STARTED: "open a device", _Step.OPENED: "meet the others"}


class _RanksDied(Exception):
    """Some ranks of this node have ended, by local rank."""

    def __init__(self, local_ranks: Iterable[int]) -> None:
        super().__init__(local_ranks)
        self.local_ranks = sorted(local_ranks)


def _to_stderr(text: str) -> None:
    print(shown(f"opatlas: {text}"), file=sys.stderr, flush=True)


class GroupProcess:
    """An Executor whose jobs run on all ranks of a group, which is launched on first use."""

    def __init__(
        self,
        spec: GroupSpec,
        devices: Sequence[DeviceSpec],
        settings: MeasureSettings,
        tell: Callable[[str], None] = _to_stderr,
    ) -> None:
        """
        Args:
            spec: the group.
            devices: of this node, one for each of its ranks.
            tell: shows the user a line, while a group comes together that takes long.
        """
        if len(devices) != spec.local_ranks:
            raise ValueError(f"{len(devices)} devices for {spec.local_ranks} ranks of a node")
        self.spec = spec
        self._tell = tell
        self._starts = [Start(device, settings, import_paths()) for device in devices]
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._listener: socket.socket | None = None
        self._agent: Connection | None = None
        #: By local rank.
        self._ranks: dict[int, Connection] = {}
        self._hellos: dict[int, Hello] = {}
        #: Of their processes; see `open_end`.
        self._ends: dict[int, int] = {}
        self._steps = dict.fromkeys(range(spec.local_ranks), _Step.NOT_STARTED)
        #: Whether the launcher has come so far that it meets the other nodes.
        self._launching = False
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

    def _names(self, local_ranks: Sequence[int]) -> str:
        if len(local_ranks) > _NAMED:
            return f"{len(local_ranks)} of {self.spec.ranks} ranks, {self._name(local_ranks[0])} among them,"
        return " and ".join(map(self._name, local_ranks))

    def _how_they_ended(self, local_ranks: Sequence[int]) -> str:
        """`rank 1 of 2 died: SIGKILL (signal 9)`. Asks the launcher, whose child it was."""
        # To the launcher, a rank that ends with 0 has done its work, and others may go on.
        codes = dict.fromkeys(local_ranks, 0)
        with contextlib.suppress(EOFError, OSError):
            while self._agent is not None and self._agent.poll(_LAST_WORDS_S):
                message = self._agent.recv()
                codes |= message.exit_codes if isinstance(message, RanksEnded) else {}
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
        self._process, self._agent = start(lambda fd: module_command("bench.groups.agent", fd), environment)
        try:
            join_timeout_s = self.spec.join_limit_s + _LAUNCHER_LATER_S
            self._agent.send(Launch(self.spec, address, str(self._folder), join_timeout_s))
        except OSError:
            return NotReady("the launcher ended at once", sick=False)
        return self._expect_all(time.monotonic())

    def _expect_all(self, began: float) -> DeviceDescription | NotReady:
        """Waits for every rank of this node to join. Raises GroupLate where that takes too long."""
        listener, agent = self._listener, self._agent
        assert listener is not None
        assert agent is not None
        joined: dict[int, DeviceDescription] = {}
        unknown: list[Connection] = []
        self._steps = dict.fromkeys(self._steps, _Step.NOT_STARTED)
        self._launching = False
        deadline, tell_at = began + self.spec.join_limit_s, began + _TOLD_AFTER_S
        while len(joined) < self.spec.local_ranks:
            waited: list[Any] = [listener, agent, *unknown, *self._ranks.values()]
            now = time.monotonic()
            ready = wait(waited, max(min(tell_at, deadline) - now, 0))
            if not ready and time.monotonic() >= deadline:
                raise GroupLate(f"the {self.spec} did not start: {self._late()}", nodes=self._waits_for_nodes())
            if not ready:
                self._tell(f"waiting for {self._missing()}, {deadline - time.monotonic():.0f} s left")
                tell_at = time.monotonic() + _TOLD_EVERY_S
            if listener in ready:
                unknown.append(Connection(listener.accept()[0].detach()))
            for connection in [c for c in (*unknown, *self._ranks.values()) if c in ready]:
                if failure := self._hear(connection, unknown, joined):
                    return failure
            if agent in ready and (failure := self._hear_launcher(joined)):
                return failure
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
                self._steps[message.local_rank] = _Step.STARTED
                if (end := open_end(message.pid)) is not None:
                    self._ends[end] = message.local_rank
                connection.send(self._starts[message.local_rank])
            elif isinstance(message, NotReady):
                who = "a rank" if local_rank is None else self._name(local_rank)
                return replace(message, reason=f"{who}: {message.reason}")
            else:
                assert local_rank is not None
                if isinstance(message, Joined):
                    joined[local_rank] = message.device
                self._steps[local_rank] = _Step.OPENED if isinstance(message, Opened) else _Step.JOINED
        except (EOFError, OSError):
            if local_rank is not None:
                return NotReady(f"{self._how_they_ended([local_rank])} before it had joined", sick=False)
            unknown.remove(connection)
        return None

    def _hear_launcher(self, joined: dict[int, DeviceDescription]) -> NotReady | None:
        """Takes a message of the launcher; gives why the group will not come together."""
        assert self._agent is not None
        try:
            message: Launching | RanksEnded | NotLaunched = self._agent.recv()
        except (EOFError, OSError):
            return NotReady("the launcher died", sick=False)
        if isinstance(message, Launching):
            self._launching = True
            return None
        if isinstance(message, NotLaunched):
            return NotReady(message.reason, sick=False)
        # By itself ended the first of them, and whichever was not killed: those that are left the launcher kills.
        first, *others = message.exit_codes or {rank: 0 for rank in self._steps if rank not in joined}
        codes = {rank: message.exit_codes.get(rank, 0) for rank in (first, *others)}
        left = [first, *(rank for rank in others if codes[rank] not in (-signal.SIGKILL, -signal.SIGTERM))]
        how = ", ".join(f"{self._name(rank)} ended: {how_it_ended(codes[rank])}" for rank in left)
        return NotReady(f"{how} before it had joined", sick=False)

    def _waits_for_nodes(self) -> bool:
        """Whether the launcher has not met the other nodes' yet: it starts no rank before."""
        return self.spec.nnodes > 1 and self._launching and not self._hellos

    def _last(self) -> tuple[_Step, list[int]]:
        """The ranks of this node that the others wait for, as far as is known here, and how far they are."""
        least = min(self._steps.values())
        return least, [rank for rank, step in self._steps.items() if step is least]

    def _missing(self) -> str:
        """For what the group waits: "node 1 at 10.0.0.1:29500", "rank 1 of 2 to open its device"."""
        if not self._launching:
            return "torchrun's launcher to start"
        if self._waits_for_nodes():
            return self.spec.other_nodes
        least, ranks = self._last()
        return f"{self._names(ranks)} to {_DOES[least]}"

    def _late(self) -> str:
        """Why the group is given up."""
        limit = f"within {self.spec.join_limit_s:g} s"
        if not self._launching:
            return f"torchrun's launcher did not {limit}"
        if self._waits_for_nodes():
            return f"no {self.spec.other_nodes} {limit}: run the same command there, with its --node-rank"
        least, ranks = self._last()
        return f"{self._names(ranks)} did not join {limit}: still to {_DOES[least]}"

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
