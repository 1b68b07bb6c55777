"""A group of ranks, seen from pytest: launched, fed a job at a time, watched, launched anew.

As with a device process, whatever becomes of a rank costs the one row in flight: the whole group is
ended, which leaves no process behind, and the next row gets a new one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from opatlas.devices.device import KINDS, DeviceDescription, DeviceSpec
from opatlas.devices.device_lock import DeviceWaits, LockWait
from opatlas.engine.group_spec import GroupSpec
from opatlas.engine.job import Job, RowOutcome
from opatlas.instruments.instrument import MeasureSettings
from opatlas.isolation.channel import Answer, ChannelBroken, LockTaken, NotReady, Start, Waiting
from opatlas.isolation.child import (
    PAUSES_S,
    TRIES,
    EndIfInterrupted,
    print_to_stderr,
)
from opatlas.isolation.device_process import Launcher
from opatlas.isolation.fresh_python import import_paths
from opatlas.isolation.groups.messages import StepReport
from opatlas.isolation.groups.running import RanksDied, RunningGroup, UnexpectedMessage
from opatlas.model.errors import DeviceGone
from opatlas.model.schema import Status

#: After one rank has failed: the others may be about to fail for the same reason, or wait for it for ever.
_OTHERS_FAIL_WITHIN_S = 5.0
#: Statuses after which all ranks are ready for the next job, if all of them say so.
_IN_STEP = {Status.MEASURED, Status.FAILED, Status.NOISY, Status.INVALID, Status.UNSUPPORTED, Status.SKIPPED}


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
            launcher: what each rank of this node runs under; its command may hold RANK_PLACEHOLDER.
            waits: times the waits for devices, and shows the user lines; None: nobody asks how long they were.
        """
        if len(devices) != spec.local_ranks:
            raise ValueError(f"{len(devices)} devices for {spec.local_ranks} ranks of a node")
        self.spec = spec
        self._launcher = launcher
        self._waits = waits or DeviceWaits(print_to_stderr)
        #: Why ranks see all devices, and not their own alone; "" while they do not.
        self._not_alone = ""
        self._starts = [Start(device, settings, import_paths()) for device in devices]
        self._running: RunningGroup | None = None
        self._device: DeviceDescription | None = None
        self._uninterrupted = EndIfInterrupted(self._kill)

    def describe(self) -> DeviceDescription:
        if self._device is None:
            with self._uninterrupted:
                self._open()
        assert self._device is not None
        return self._device

    def prepare(self) -> None:
        if self._running is None:
            with self._uninterrupted:
                self._open()

    def run(self, job: Job) -> RowOutcome:
        with self._uninterrupted, self._waits:
            for _ in range(TRIES):
                running = self._running or self._open()
                try:
                    running.expect_idle()
                    running.send(job)
                except (ChannelBroken, EOFError, OSError):
                    # A rank died before it took the job: the row is not to blame.
                    self._end(running)
                    continue
                return self._await(job, running)
        raise DeviceGone(f"a rank of a {self.spec} died before it took a row, {TRIES} times")

    def close(self) -> None:
        """Lets the ranks end by themselves, then makes them."""
        if self._running is not None:
            self._running.let_end()
            self._kill()

    def _end(self, running: RunningGroup) -> None:
        """Ends all processes of the group, which is not in step any more; a launcher writes what it has recorded."""
        if self._launcher is not None:
            running.kill_ranks()
            running.let_end()
        self._kill()

    def _kill(self) -> None:
        """Ends all processes of the group, if there are any, and waits until they are gone and their devices free."""
        if self._running is not None:
            self._running.kill()
            self._running = None

    def _await(self, job: Job, running: RunningGroup) -> RowOutcome:
        """What became of a job that was sent to all ranks; the group is ended where it is not in step any more.

        Raises:
            DeviceGone: another session has had a device for too long.
        """
        outcomes: dict[int, RowOutcome] = {}
        reached = dict.fromkeys(range(self.spec.local_ranks), StepReport(0, "before its first call"))
        # One rank that waits for its device keeps all of them from beginning.
        waiting: dict[int, LockWait] = {}
        deadline = time.monotonic() + job.timeout_s
        while len(outcomes) < self.spec.local_ranks:
            now = time.monotonic()
            failed = any(outcome.status is not Status.MEASURED for outcome in outcomes.values())
            waits = [] if failed else list(waiting.values())
            if now >= deadline and not waits:
                return self._ended(running, outcomes) if failed else self._hung(job, running, reached, outcomes)
            try:
                messages = running.messages(min((lock.left_s() for lock in waits), default=deadline - now))
            except RanksDied as died:
                return self._died(running, died.local_ranks)
            except UnexpectedMessage as message:
                return self._not_understood(running, message)
            for lock in waits:
                if not messages and lock.left_s() == 0:
                    lock.check_limit()
            for local_rank, answer in messages:
                if not isinstance(answer, Answer) or answer.job_id != job.id or local_rank in outcomes:
                    unexpected = UnexpectedMessage(local_rank, "an answer that was not asked for came")
                    return self._not_understood(running, unexpected)
                content = answer.content
                if isinstance(content, Waiting):
                    waiting[local_rank] = self._waits.begin(content.holder)
                elif isinstance(content, LockTaken):
                    if local_rank in waiting:
                        waiting.pop(local_rank).end()
                    deadline = time.monotonic() + job.timeout_s
                elif isinstance(content, StepReport):
                    reached[local_rank] = content
                else:
                    outcomes[local_rank] = content
                    if content.status is not Status.MEASURED:
                        deadline = min(deadline, time.monotonic() + _OTHERS_FAIL_WITHIN_S)
        return self._ended(running, outcomes)

    def _ended(self, running: RunningGroup, outcomes: dict[int, RowOutcome]) -> RowOutcome:
        """The outcome of a row from those of its ranks; not all may have one."""
        statuses = {outcome.status for outcome in outcomes.values()}
        in_step = len(outcomes) == self.spec.local_ranks and len(statuses) == 1 and statuses <= _IN_STEP
        if self.spec.nnodes > 1 and statuses != {Status.MEASURED}:
            # Another node may have lost its ranks, and wait for these to come together anew.
            in_step = False
        name = self.spec.rank_name
        changed = tuple(f"{name(rank)} {what}" for rank in sorted(outcomes) for what in outcomes[rank].changed)
        if not in_step or changed:
            self._end(running)
        if statuses == {Status.MEASURED}:
            first = outcomes[0]
            if len({outcome.pending for outcome in outcomes.values()}) > 1:
                return RowOutcome(Status.FAILED, "the ranks launched other numbers of samples of one and the same call")
            assert first.measurement is not None
            of_ranks = {rank: o.measurement for rank, o in sorted(outcomes.items()) if o.measurement is not None}
            throttled = [f"{name(rank)}: {one.throttled}" for rank, one in of_ranks.items() if one.throttled]
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
        return replace(outcome, reason=f"{name(local_rank)}: {outcome.reason}", changed=changed)

    def _died(self, running: RunningGroup, local_ranks: Sequence[int]) -> RowOutcome:
        # A launcher does not tell how the rank has ended that it ran.
        how = (
            running.how_they_ended(local_ranks)
            if self._launcher is None
            else f"{self.spec.rank_names(local_ranks)} died"
        )
        self._end(running)
        return RowOutcome(Status.CRASHED, f"{how}; the group was ended")

    def _not_understood(self, running: RunningGroup, message: UnexpectedMessage) -> RowOutcome:
        self._end(running)
        who = self.spec.rank_name(message.local_rank)
        return RowOutcome(Status.CRASHED, f"{who}: {message.what}; the group was ended")

    def _hung(
        self, job: Job, running: RunningGroup, reached: dict[int, StepReport], outcomes: dict[int, RowOutcome]
    ) -> RowOutcome:
        left = {rank: step for rank, step in sorted(reached.items()) if rank not in outcomes}
        least = min(step.step for step in left.values())
        late = [rank for rank, step in left.items() if step.step == least]
        who = f"all {len(late)} ranks" if len(late) == self.spec.ranks > 1 else self.spec.rank_names(late)
        others = "; the others wait" if len(late) < self.spec.local_ranks else ""
        where = " or ".join(dict.fromkeys(left[rank].what for rank in late))
        running.write_stacks(left)
        self._end(running)
        return RowOutcome(
            Status.TIMEOUT,
            f"still running after {job.timeout_s:g} s, {who} {where}{others}; the group was ended (their stacks are in "
            "the output)",
        )

    def _open(self) -> RunningGroup:
        """Launches the group, all of whose devices compute what they should. Raises DeviceGone after the last try."""
        for pause_s in (*PAUSES_S, 0.0):
            self._running = running = RunningGroup(self.spec, self._starts, self._waits, self._launcher)
            try:
                answer = running.launch()
            except OSError as error:
                # No more processes, no more files, or no room for them.
                answer = NotReady(str(error), unhealthy=False)
            if not isinstance(answer, NotReady):
                self._device = self._described(answer)
                return running
            failure = answer
            self._kill()
            if not answer.alone and not self._not_alone and self._show_all_devices(answer.reason):
                continue
            if not answer.unhealthy and self._device is None:
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

    def _described(self, first: DeviceDescription) -> DeviceDescription:
        """The device of the first rank, with what is known of the group."""
        shown = {"all_devices_visible": self._not_alone} if self._not_alone else {}
        return replace(first, facts={**first.facts, "ranks": self.spec.ranks, "nodes": self.spec.nnodes, **shown})
