"""The scheduler of a group: launches its ranks, sends them one job at a time, and combines their outcomes.

A rank that dies, hangs or sends nonsense costs the row that runs, as in a device process: all processes of the group
are ended, and the next row gets a new group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from msgspec import structs

from opatlas.row.errors import DeviceGone, ReplayError
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, kind_named
from opatlas.run.devices.device_lock import DeviceWaits, LockWait
from opatlas.run.group import GroupSpec
from opatlas.run.groups.ranks import Ranks, RanksDied, UnexpectedMessage
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, ProcessDied, RanTooLong, RowOutcome
from opatlas.run.process.child import PAUSES_S, TRIES
from opatlas.run.process.device_process import Launcher, Opened
from opatlas.run.process.fresh_python import import_paths
from opatlas.run.process.messages import ChannelBroken, Finished, LockTaken, NotReady, OfJob, Start, StepReport, Waiting

#: Time for the other ranks after one has failed: they may fail for the same reason, or wait for it without end.
_OTHERS_FAIL_WITHIN_S = 5.0
#: Statuses that leave ranks ready for the next job, if all ranks have the same one.
_READY_STATUSES = {Status.MEASURED, Status.FAILED, Status.INVALID, Status.UNSUPPORTED, Status.SKIPPED}


class GroupProcess(Opened):
    """Runs jobs on all ranks of a group, which is launched on first use."""

    def __init__(
        self,
        spec: GroupSpec,
        devices: Sequence[DeviceSpec],
        settings: MeasureSettings,
        waits: DeviceWaits | None = None,
        launcher: Launcher | None = None,
        ranks_of: Callable[[GroupSpec, Sequence[Start], DeviceWaits, Launcher | None], Ranks] = Ranks,
    ) -> None:
        """
        Args:
            spec: the group.
            devices: of this node, one for each of its ranks.
            launcher: runs each rank of this node; its command may hold RANK_PLACEHOLDER.
            waits: times the waits for devices, and shows the user lines; None: lines go to stderr.
            ranks_of: makes the ranks of a launch; those of a cluster have the methods of `Ranks`.
        """
        if len(devices) != spec.local_ranks:
            raise ValueError(f"{len(devices)} devices for {spec.local_ranks} ranks of a node")
        super().__init__(waits)
        self.spec = spec
        self._launcher = launcher
        #: Why each rank sees all devices; "" while it sees only its own.
        self._all_visible = ""
        self._starts = [Start(device, settings, import_paths()) for device in devices]
        self._ranks_of = ranks_of
        self._ranks: Ranks | None = None

    def _run(self, job: Job) -> RowOutcome:
        with self._end_if_interrupted, self._waits:
            for _ in range(TRIES):
                ranks = self._ranks or self._open()
                try:
                    ranks.expect_idle()
                    ranks.send(job)
                except (ChannelBroken, EOFError, OSError):
                    # A rank died before it took the job; the row did not cause it.
                    self._end()
                    continue
                with ranks.used():
                    return self._wait_for_answers(job, ranks)
        raise DeviceGone(f"a rank of a {self.spec} died before it took a row, {TRIES} times")

    def close(self) -> None:
        """Waits for the ranks to end by themselves, and then kills the remaining processes."""
        if self._ranks is not None:
            self._ranks.end()
            self._ranks = None

    def _end(self) -> None:
        """Ends a group whose ranks cannot run the next job; launchers (msprof) still write their records."""
        if self._ranks is not None:
            self._ranks.end(at_once=True)
            self._ranks = None

    def _kill(self) -> None:
        if self._ranks is not None:
            self._ranks.kill()
            self._ranks = None

    def _wait_for_answers(self, job: Job, ranks: Ranks) -> RowOutcome:
        """Waits for the answers of all ranks to a job, and combines them; ends the group if a rank has failed.

        Raises:
            DeviceGone: another session has held a device for too long.
        """
        outcomes: dict[int, RowOutcome] = {}
        steps = dict.fromkeys(range(self.spec.local_ranks), StepReport(job.id, 0, "before its first call"))
        # No rank begins while one of them waits for its device.
        waiting: dict[int, LockWait] = {}
        deadline = time.monotonic() + job.timeout_s
        while len(outcomes) < self.spec.local_ranks:
            now = time.monotonic()
            failed = any(outcome.status is not Status.MEASURED for outcome in outcomes.values())
            waits = [] if failed else list(waiting.values())
            if now >= deadline and not waits:
                if failed:
                    return self._combine(outcomes)
                self._timed_out(job, ranks, steps, outcomes)
            try:
                messages = ranks.messages(min((lock.left_s() for lock in waits), default=deadline - now))
            except RanksDied as died:
                self._died(ranks, died.local_ranks)
            except UnexpectedMessage as message:
                self._misunderstood(message)
            for lock in waits:
                if not messages and lock.left_s() == 0:
                    lock.check_limit()
            for local_rank, answer in messages:
                if not isinstance(answer, OfJob) or answer.job_id != job.id or local_rank in outcomes:
                    self._misunderstood(UnexpectedMessage(local_rank, "an unexpected answer"))
                if isinstance(answer, Waiting):
                    waiting[local_rank] = self._waits.begin(answer.holder)
                elif isinstance(answer, LockTaken):
                    if local_rank in waiting:
                        waiting.pop(local_rank).end()
                    deadline = time.monotonic() + job.timeout_s
                elif isinstance(answer, StepReport):
                    steps[local_rank] = answer
                elif isinstance(answer, Finished):
                    outcomes[local_rank] = answer.whole
                    if answer.outcome.status is not Status.MEASURED:
                        deadline = min(deadline, time.monotonic() + _OTHERS_FAIL_WITHIN_S)
        return self._combine(outcomes)

    def _combine(self, outcomes: dict[int, RowOutcome]) -> RowOutcome:
        """Combines the outcomes of the ranks, some of which may be missing; ends the group unless all are ready."""
        statuses = {outcome.status for outcome in outcomes.values()}
        is_ready = len(outcomes) == self.spec.local_ranks and len(statuses) == 1 and statuses <= _READY_STATUSES
        if self.spec.nnodes > 1 and statuses != {Status.MEASURED}:
            # Another node may have lost its ranks, and wait to launch the group again.
            is_ready = False
        name = self.spec.rank_name
        changed = tuple(f"{name(rank)} {change}" for rank in sorted(outcomes) for change in outcomes[rank].changed)
        if not is_ready or changed:
            self._end()
        if statuses == {Status.MEASURED}:
            first = outcomes[0]
            if len({outcome.pending for outcome in outcomes.values()}) > 1:
                raise ReplayError("the ranks launched different numbers of samples of the same call")
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
        # The first failure, in order of the answers; later ones may be consequences.
        local_rank, outcome = next(iter(failed.items()))
        if is_ready and len({outcome.reason for outcome in failed.values()}) == 1:
            return replace(outcome, changed=changed)
        return replace(outcome, reason=f"{name(local_rank)}: {outcome.reason}", changed=changed)

    def _died(self, ranks: Ranks, local_ranks: Sequence[int]) -> NoReturn:
        how = ranks.describe_ends(local_ranks)
        self._end()
        raise ProcessDied(f"{how}; the group was ended")

    def _misunderstood(self, message: UnexpectedMessage) -> NoReturn:
        self._end()
        who = self.spec.rank_name(message.local_rank)
        raise ProcessDied(f"{who}: {message.text}; the group was ended")

    def _timed_out(
        self, job: Job, ranks: Ranks, steps: dict[int, StepReport], outcomes: dict[int, RowOutcome]
    ) -> NoReturn:
        left = {rank: step for rank, step in sorted(steps.items()) if rank not in outcomes}
        least = min(step.step for step in left.values())
        late = [rank for rank, step in left.items() if step.step == least]
        who = f"all {len(late)} ranks" if len(late) == self.spec.ranks > 1 else self.spec.rank_names(late)
        others = "; the others wait" if len(late) < self.spec.local_ranks else ""
        where = " or ".join(dict.fromkeys(left[rank].text for rank in late))
        ranks.write_stacks(left)
        self._end()
        raise RanTooLong(
            f"still running after {job.timeout_s:g} s, {who} {where}{others}; the group was ended (their stacks are in "
            "the output)"
        )

    def _is_open(self) -> bool:
        return self._ranks is not None

    def _open(self) -> Ranks:
        """Launches the group; every device passes its probe. Raises DeviceGone after the last try."""
        for pause_s in (*PAUSES_S, 0.0):
            self._ranks = ranks = self._ranks_of(self.spec, self._starts, self._waits, self._launcher)
            try:
                answer = ranks.launch()
            except OSError as error:
                # No more processes or files can be made.
                answer = NotReady(str(error))
            if not isinstance(answer, NotReady):
                self._device = self._described(answer)
                return ranks
            failure = answer
            self._kill()
            if answer.did_not_meet and not self._all_visible and self._make_all_visible(answer.reason):
                continue
            if not answer.unhealthy and self._device is None:
                # The device was never available: another try is useless.
                break
            time.sleep(pause_s)
        raise DeviceGone(f"the {self.spec} did not start: {failure.reason}")

    def _make_all_visible(self, reason: str) -> bool:
        """Makes all devices visible to each rank from now on, as torchrun does; returns whether this changes anything.

        Args:
            reason: why the ranks did not meet while each saw only its own device.
        """
        specs = [each.spec for each in self._starts]
        if any(kind_named(spec.kind).backend != "hccl" or not spec.pinned for spec in specs):
            return False
        self._all_visible = reason
        self._starts = [structs.replace(each, spec=replace(each.spec, sees_no_other=False)) for each in self._starts]
        self._waits.tell(
            f"the {self.spec} did not meet: {reason}; it is tried again with all devices visible to its ranks"
        )
        return True

    def _described(self, first: DeviceDescription) -> DeviceDescription:
        """Returns the description of the first rank's device, with facts on the group."""
        shown = {"all_devices_visible": self._all_visible} if self._all_visible else {}
        return replace(first, facts={**first.facts, "ranks": self.spec.ranks, "nodes": self.spec.nnodes, **shown})
