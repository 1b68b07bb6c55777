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
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from multiprocessing.connection import wait
from typing import Any

from bench.devices.device_lock import DeviceWaits, LockWait
from bench.devices.kinds import KINDS
from bench.devices.visible import environment_of
from bench.errors import DeviceGone, GroupLate
from bench.groups.address import listen
from bench.groups.messages import Hello, Joined, Launch, Launching, NotLaunched, Opened, RanksEnded, Reached
from bench.groups.rank_keeper import end_of_group
from bench.groups.spec import GroupSpec
from bench.job import DeviceDescription, DeviceSpec, Job, MeasureSettings, Outcome
from bench.processes.channel import Channel, ChannelBroken
from bench.processes.child import PAUSES_S, TRIES, Uninterrupted, end, how_it_ended, open_end, start, tell_on_stderr
from bench.processes.device_messages import Answer, NotReady, Start, Started, Waiting
from bench.processes.device_process import PROFILED_END_TIMEOUT_S, UNDER_LAUNCHER, Launcher
from bench.processes.fresh_python import import_paths, module_command
from database.schema import Status
from database.temporary import TemporaryFolder

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
_IN_STEP = {Status.MEASURED, Status.FAILED, Status.NOISY, Status.INVALID, Status.UNSUPPORTED, Status.SKIPPED}


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


class _RankBabbles(Exception):
    """A rank has sent something that is no answer to what it was asked."""

    def __init__(self, local_rank: int, what: str) -> None:
        super().__init__(local_rank, what)
        self.local_rank = local_rank
        self.what = what


class GroupProcess:
    """An Executor whose jobs run on all ranks of a group, which is launched on first use."""

    def __init__(
        self,
        spec: GroupSpec,
        devices: Sequence[DeviceSpec],
        settings: MeasureSettings,
        waits: DeviceWaits | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        """
        Args:
            spec: the group.
            devices: of this node, one for each of its ranks.
            launcher: what each rank of this node runs under; its command may hold RANK_PLACE.
            waits: times the waits for devices, and shows the user lines; None: nobody asks how long they were.
        """
        if len(devices) != spec.local_ranks:
            raise ValueError(f"{len(devices)} devices for {spec.local_ranks} ranks of a node")
        self.spec = spec
        self._launcher = launcher
        self._waits = waits or DeviceWaits(tell_on_stderr)
        #: Why ranks see all devices, and not their own alone; "" while they do not.
        self._not_alone = ""
        self._starts = [Start(device, settings, import_paths()) for device in devices]
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: TemporaryFolder | None = None
        self._listener: socket.socket | None = None
        self._agent: Channel | None = None
        #: By local rank.
        self._ranks: dict[int, Channel] = {}
        self._hellos: dict[int, Hello] = {}
        #: Of their processes; see `open_end`.
        self._ends: dict[int, int] = {}
        self._steps = dict.fromkeys(range(spec.local_ranks), _Step.NOT_STARTED)
        #: Whether the launcher has come so far that it meets the other nodes.
        self._launching = False
        self._device: DeviceDescription | None = None
        self._uninterrupted = Uninterrupted(self._kill)

    def describe(self) -> DeviceDescription:
        if self._device is None:
            with self._uninterrupted:
                self._open()
        assert self._device is not None
        return self._device

    def prepare(self) -> None:
        if self._process is None:
            with self._uninterrupted:
                self._open()

    def run(self, job: Job) -> Outcome:
        with self._uninterrupted, self._waits:
            for _ in range(TRIES):
                if self._process is None:
                    self._open()
                try:
                    self._expect_idle()
                    for channel in self._ranks.values():
                        channel.send(job)
                except (ChannelBroken, EOFError, OSError):
                    # A rank died before it took the job: the row is not to blame.
                    self._end()
                    continue
                return self._await(job)
        raise DeviceGone(f"a rank of a {self.spec} died before it took a row, {TRIES} times")

    def close(self) -> None:
        """Lets the ranks end by themselves, then makes them."""
        if self._process is None:
            return
        self._let_end()
        self._kill()

    def _end(self) -> None:
        """Ends all processes of the group, which is not in step any more; a launcher writes what it has recorded."""
        if self._launcher is not None:
            for end_of_rank in self._ends:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(end_of_rank, signal.SIGKILL)
            self._let_end()
        self._kill()

    def _let_end(self) -> None:
        """Waits until the ranks have ended by themselves, and what they run under; whatever their exit codes are."""
        assert self._process is not None
        assert self._folder is not None
        with contextlib.suppress(OSError):
            end_of_group(self._folder.path)
        for channel in self._ranks.values():
            channel.close()
        patience_s = _END_TIMEOUT_S
        if self._launcher is not None:
            patience_s = self._launcher.patience_s if self._have_ended(PROFILED_END_TIMEOUT_S) else 0.0
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)

    def _have_ended(self, within_s: float) -> bool:
        """Whether all ranks of this node, and not only their launchers, end in time."""
        left, deadline = set(self._ends), time.monotonic() + within_s
        while left and (ended := wait(list(left), max(deadline - time.monotonic(), 0))):
            left.difference_update(end for end in ended if isinstance(end, int))
        return not left

    def _expect_idle(self) -> None:
        """Raises ChannelBroken, EOFError or OSError where a rank has ended, or says what nobody has asked for."""
        for channel in self._ranks.values():
            if channel.take() is not None or not channel.is_silent():
                raise ChannelBroken

    def _await(self, job: Job) -> Outcome:
        """What became of a job that was sent to all ranks; the group is ended where it is not in step any more.

        Raises:
            DeviceGone: another session has had a device for too long.
        """
        outcomes: dict[int, Outcome] = {}
        reached = dict.fromkeys(self._ranks, Reached(0, "before its first call"))
        # One rank that waits for its device keeps all of them from beginning.
        waiting: dict[int, LockWait] = {}
        deadline = time.monotonic() + job.timeout_s
        while len(outcomes) < len(self._ranks):
            now = time.monotonic()
            failed = any(outcome.status is not Status.MEASURED for outcome in outcomes.values())
            waits = [] if failed else list(waiting.values())
            if now >= deadline and not waits:
                return self._hung(job, reached, outcomes) if not failed else self._ended(outcomes)
            try:
                messages = self._messages(min((lock.left_s() for lock in waits), default=deadline - now))
            except _RanksDied as died:
                return self._died(died.local_ranks)
            except _RankBabbles as babbles:
                return self._babbled(babbles)
            for lock in waits:
                if not messages and lock.left_s() == 0:
                    lock.go_on()
            for local_rank, answer in messages:
                if not isinstance(answer, Answer) or answer.job_id != job.id or local_rank in outcomes:
                    return self._babbled(_RankBabbles(local_rank, "an answer that was not asked for came"))
                message = answer.content
                if isinstance(message, Waiting):
                    waiting[local_rank] = self._waits.begin(message.holder)
                elif isinstance(message, Started):
                    if local_rank in waiting:
                        waiting.pop(local_rank).end()
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
        changed = tuple(f"{self._name(rank)} {what}" for rank in sorted(outcomes) for what in outcomes[rank].changed)
        if not in_step or changed:
            self._end()
        if statuses == {Status.MEASURED}:
            first = outcomes[0]
            if len({outcome.launched for outcome in outcomes.values()}) > 1:
                return Outcome(Status.FAILED, "the ranks launched other numbers of samples of one and the same call")
            assert first.measurement is not None
            of_ranks = {rank: o.measurement for rank, o in sorted(outcomes.items()) if o.measurement is not None}
            throttled = [f"{self._name(rank)}: {one.throttled}" for rank, one in of_ranks.items() if one.throttled]
            measurement = replace(
                first.measurement,
                checked_elements=sum(one.checked_elements for one in of_ranks.values()),
                total_elements=sum(one.total_elements for one in of_ranks.values()),
                throttled="; ".join(throttled),
            )
            return replace(first, measurement=measurement, changed=changed)
        failed = {r: outcome for r, outcome in outcomes.items() if outcome.status is not Status.MEASURED}
        # Dictionaries keep the order: the first that failed; the others may only have noticed.
        local_rank, outcome = next(iter(failed.items()))
        if in_step and len({outcome.reason for outcome in failed.values()}) == 1:
            return replace(outcome, changed=changed)
        return replace(outcome, reason=f"{self._name(local_rank)}: {outcome.reason}", changed=changed)

    def _died(self, local_ranks: Sequence[int]) -> Outcome:
        # A launcher does not tell how the rank has ended that it ran.
        how = self._how_they_ended(local_ranks) if self._launcher is None else f"{self._names(local_ranks)} died"
        self._end()
        return Outcome(Status.CRASHED, f"{how}; the group was ended")

    def _babbled(self, babbles: _RankBabbles) -> Outcome:
        self._end()
        return Outcome(Status.CRASHED, f"{self._name(babbles.local_rank)}: {babbles.what}; the group was ended")

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
        self._end()
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
        with contextlib.suppress(ChannelBroken, EOFError, OSError):
            while self._agent is not None and (message := self._agent.receive(_LAST_WORDS_S)) is not None:
                codes |= message.exit_codes if isinstance(message, RanksEnded) else {}
        return ", ".join(f"{self._name(rank)} died: {how_it_ended(codes[rank])}" for rank in local_ranks)

    def _messages(self, limit_s: float | None) -> list[tuple[int, Any]]:
        """What ranks have sent, in time; empty where none has. Raises _RanksDied, _RankBabbles."""
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
                raise _RankBabbles(rank, str(broken)) from None
        if died:
            raise _RanksDied(died)
        return messages

    def _open(self) -> None:
        """Launches the group, all of whose devices compute what they should. Raises DeviceGone after the last try."""
        for pause_s in (*PAUSES_S, 0.0):
            try:
                answer = self._launch()
            except OSError as error:
                # No more processes, no more files, or no room for them.
                answer = NotReady(str(error), sick=False)
            if not isinstance(answer, NotReady):
                self._device = answer
                return
            failure = answer
            self._kill()
            if not answer.alone and not self._not_alone and self._show_all_devices(answer.reason):
                continue
            if not answer.sick and self._device is None:
                # It never was there: trying again will not bring it.
                break
            time.sleep(pause_s)
        raise DeviceGone(f"the {self.spec} did not start: {failure.reason}")

    def _show_all_devices(self, reason: str) -> bool:
        """Shows each rank all devices from now on, as torchrun does; whether there are others to show.

        Args:
            reason: why the ranks did not meet while each saw its own device alone.
        """
        specs = [each.spec for each in self._starts]
        if any(spec.kind not in KINDS or KINDS[spec.kind].backend != "hccl" or not spec.pinned for spec in specs):
            return False
        self._not_alone = reason
        self._starts = [replace(each, spec=replace(each.spec, alone=False)) for each in self._starts]
        self._waits.tell(
            f"the {self.spec} did not meet: {reason}; it is tried again with all devices visible to its ranks"
        )
        return True

    def _launch(self) -> DeviceDescription | NotReady:
        self._folder = TemporaryFolder("group")
        address = self._folder.path / "ranks"
        self._listener = listen(address, self.spec.local_ranks)
        # Each rank is shown its own device by what it is told to own (rank_main.py).
        environment = environment_of(replace(self._starts[0].spec, pinned=None))
        rank = module_command("bench.groups.rank_main", str(address))
        command = rank if self._launcher is None else self._launcher.command([*rank, UNDER_LAUNCHER])
        self._process, self._agent = start(lambda fd: module_command("bench.groups.agent", fd), environment)
        try:
            join_timeout_s = self.spec.join_limit_s + _LAUNCHER_LATER_S
            self._agent.send(Launch(self.spec, tuple(command), str(self._folder.path), join_timeout_s))
        except OSError:
            return NotReady("the launcher ended at once", sick=False)
        return self._expect_all(time.monotonic())

    def _expect_all(self, began: float) -> DeviceDescription | NotReady:
        """Waits for every rank of this node to join. Raises GroupLate where that takes too long."""
        listener, agent = self._listener, self._agent
        assert listener is not None
        assert agent is not None
        joined: dict[int, DeviceDescription] = {}
        unknown: list[Channel] = []
        self._steps = dict.fromkeys(self._steps, _Step.NOT_STARTED)
        self._launching = False
        deadline, tell_at = began + self.spec.join_limit_s, began + _TOLD_AFTER_S
        while len(joined) < self.spec.local_ranks:
            channels = [agent, *unknown, *self._ranks.values()]
            waited = [listener.fileno(), *(channel.fileno() for channel in channels)]
            now = time.monotonic()
            ready = wait(waited, max(min(tell_at, deadline) - now, 0))
            if not ready and time.monotonic() >= deadline:
                raise GroupLate(f"the {self.spec} did not start: {self._late()}", nodes=self._waits_for_nodes())
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
        return self._described(joined)

    def _hear(self, channel: Channel, unknown: list[Channel], joined: dict[int, DeviceDescription]) -> NotReady | None:
        """Takes a message of a rank that has not joined yet; gives why it will not.

        Args:
            unknown: connections of ranks that have not said Hello.
            joined: the devices of those that have joined, by local rank.
        """
        local_rank = next((rank for rank, own in self._ranks.items() if own is channel), None)
        who = "a rank" if local_rank is None else self._name(local_rank)
        try:
            while (message := channel.take()) is not None:
                if isinstance(message, Hello):
                    local_rank = message.local_rank
                    self._welcome(channel, message)
                    unknown.remove(channel)
                elif isinstance(message, NotReady):
                    return replace(message, reason=f"{who}: {message.reason}")
                elif local_rank is not None:
                    if isinstance(message, Joined):
                        joined[local_rank] = message.device
                    self._steps[local_rank] = _Step.OPENED if isinstance(message, Opened) else _Step.JOINED
        except ChannelBroken as broken:
            return NotReady(f"{who}: {broken}", sick=False)
        except (EOFError, OSError):
            if local_rank is not None:
                return NotReady(f"{self._how_they_ended([local_rank])} before it had joined", sick=False)
            unknown.remove(channel)
        return None

    def _welcome(self, channel: Channel, hello: Hello) -> None:
        """Tells a rank which device it is to own. Raises OSError where the rank has ended."""
        self._ranks[hello.local_rank] = channel
        self._hellos[hello.local_rank] = hello
        self._steps[hello.local_rank] = _Step.STARTED
        if (end_of_rank := open_end(hello.pid)) is not None:
            self._ends[end_of_rank] = hello.local_rank
        channel.send(self._starts[hello.local_rank])

    def _hear_launcher(self, joined: dict[int, DeviceDescription]) -> NotReady | None:
        """Takes a message of the launcher; gives why the group will not come together."""
        assert self._agent is not None
        try:
            message: Launching | RanksEnded | NotLaunched | None = self._agent.take()
        except (ChannelBroken, EOFError, OSError):
            return NotReady("the launcher died", sick=False)
        if message is None:
            return None
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
        shown = {"all_devices_visible": self._not_alone} if self._not_alone else {}
        return replace(first, facts={**first.facts, "ranks": self.spec.ranks, "nodes": self.spec.nnodes, **shown})

    def _kill(self) -> None:
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

    def _forget(self, local_ranks: Iterable[int]) -> None:
        """Closes what leads to some ranks."""
        for local_rank in local_ranks:
            self._ranks.pop(local_rank).close()
            for rank_end in [each for each, rank in self._ends.items() if rank == local_rank]:
                del self._ends[rank_end]
                os.close(rank_end)
