"""Controls processes from pytest that all run the same job: starts them, sends them one job at a time, replaces them.

Whatever a kernel does to its process (a segfault, a hang in C with the GIL held, an exit, a kill for lack of memory, a
fatal device error) affects only the current row: the processes are ended with all that they started, and the next row
gets new ones, whose devices are probed first. A device has one process, a group one for each device.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from opatlas.row.errors import DeviceGone, ReplayError
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, kind_named
from opatlas.run.devices.device_lock import DeviceWaits, LockWait
from opatlas.run.group import GroupSpec
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, ProcessDied, RanTooLong, RowOutcome
from opatlas.run.process.child import PAUSES_S, TRIES, EndIfInterrupted, Launcher, print_to_stderr
from opatlas.run.process.messages import ChannelBroken, Finished, LockTaken, NotReady, OfJob, Start, StepReport, Waiting
from opatlas.run.process.ranks import Ranks, RanksDied, UnexpectedMessage
from opatlas.run.scheduler import InTurn

#: Maximum time that a process takes to start. Imports of torch (and torch_npu) from a cold disk take tens of seconds.
_START_TIMEOUT_S = 300.0
#: Time for the other ranks after one has failed: they may fail for the same reason, or wait for it without end.
_OTHERS_FAIL_WITHIN_S = 5.0


class Processes(InTurn):
    """Runs each job in all processes together: they start on first use, and end where a wait is interrupted."""

    def __init__(
        self,
        spec: GroupSpec,
        devices: Sequence[DeviceSpec],
        settings: MeasureSettings,
        waits: DeviceWaits | None,
        launcher: Launcher | None,
    ) -> None:
        """
        Args:
            spec: the group.
            devices: of this node, one for each process.
            waits: keeps the waits for devices, and shows the user lines; None: lines go to stderr.
            launcher: runs each process; its command may hold RANK_PLACEHOLDER; None: nothing does.
        """
        super().__init__()
        self.spec = spec
        self._waits = waits or DeviceWaits(print_to_stderr)
        starts = [Start(device, settings, ()) for device in devices]
        self._new_ranks = lambda: Ranks(spec, starts, self._waits, launcher)
        self._ranks: Ranks | None = None
        #: Whether the processes have opened their devices.
        self._is_ready = False
        #: The description of the device, since the processes were started first.
        self._device: DeviceDescription | None = None
        self._end_if_interrupted = EndIfInterrupted(self._kill)

    def describe(self) -> DeviceDescription:
        if self._device is None:
            self.prepare()
        assert self._device is not None
        return self._device

    def begin(self) -> None:
        with self._end_if_interrupted, contextlib.suppress(OSError, DeviceGone):
            # A failure is reported when the device is opened.
            self._ranks = self._ranks or self._new_ranks()
            self._ranks.spawn()

    def prepare(self) -> None:
        with self._end_if_interrupted:
            if not self._is_ready:
                self._open()

    def _run(self, job: Job) -> RowOutcome:
        with self._end_if_interrupted, self._waits:
            for attempt in range(TRIES):
                ranks = self._ranks if self._ranks is not None and self._is_ready else self._open()
                try:
                    ranks.expect_idle()
                    ranks.send(job)
                    with ranks.used():
                        outcomes = self._wait_for_answers(job, ranks, takes_late=attempt > 0)
                except (ChannelBroken, EOFError, OSError):
                    # A process died before it took the job, or another than it has answered: the row is not the cause.
                    self._end()
                    continue
                return self._combine(job, outcomes)
        raise DeviceGone(f"{self._name} died before it took a row, {TRIES} times")

    def _wait_for_answers(self, job: Job, ranks: Ranks, *, takes_late: bool) -> dict[int, RowOutcome]:
        """Waits for the answers of all processes to a job, for seconds after one has failed; ends them if one is lost.

        Args:
            takes_late: whether an answer to an earlier job is a fault of this one.

        Raises:
            ProcessDied, RanTooLong: a process is lost, or does not answer in time.
            ChannelBroken: the job was not taken, or an answer to an earlier job came: it may run again.
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
                    break
                late = {rank: step for rank, step in sorted(steps.items()) if rank not in outcomes}
                ranks.write_stacks(late)
                self._end()
                raise RanTooLong(f"still running after {job.timeout_s:g} s{self._where(late)}")
            try:
                left_s = min((lock.left_s() for lock in waits), default=deadline - now)
                for local_rank, answer in ranks.messages(left_s):
                    if len(outcomes) == self.spec.local_ranks:
                        # All have answered, and one says more: the next row gets new processes.
                        self._end()
                        return outcomes
                    if isinstance(answer, OfJob) and answer.job_id < job.id and not takes_late:
                        raise ChannelBroken  # A leftover process of an earlier row sent it.
                    if not isinstance(answer, OfJob) or answer.job_id != job.id or local_rank in outcomes:
                        raise UnexpectedMessage(local_rank, "an unexpected answer came over the connection")
                    if isinstance(answer, Waiting):
                        waiting[local_rank] = self._waits.begin(answer.holder)
                    elif isinstance(answer, LockTaken):
                        if local_rank in waiting:
                            self._waits.end(waiting.pop(local_rank))
                        deadline = time.monotonic() + job.timeout_s
                    elif isinstance(answer, StepReport):
                        steps[local_rank] = answer
                    elif isinstance(answer, Finished):
                        outcomes[local_rank] = answer.whole
                        if answer.outcome.status is not Status.MEASURED:
                            deadline = min(deadline, time.monotonic() + _OTHERS_FAIL_WITHIN_S)
            except RanksDied as died:
                if not died.took_job:
                    raise ChannelBroken from None
                how = ranks.describe_ends(died.local_ranks)
                self._end()
                raise ProcessDied(how, ranks.exit_code) from None
            except UnexpectedMessage as wrong:
                self._end()
                raise ProcessDied(f"{self.spec.rank_name(wrong.local_rank)}: {wrong.text}") from None
        return outcomes

    @abstractmethod
    def _combine(self, job: Job, outcomes: dict[int, RowOutcome]) -> RowOutcome:
        """Returns the outcome from those of the processes; ends these if they cannot run the next job."""

    def _where(self, late: dict[int, StepReport]) -> str:
        """Returns where the processes are that have not answered, for a reason."""
        return " (--case-timeout)"

    @property
    def _name(self) -> str:
        """The processes, for a message."""
        return f"the {self.spec}"

    def _open(self) -> Ranks:
        """Starts the processes; every device passes its probe. Raises DeviceGone after the last try."""
        for pause_s in (*PAUSES_S, 0.0):
            ranks = self._ranks = self._ranks or self._new_ranks()
            try:
                answer = ranks.launch()
            except OSError as error:
                answer = NotReady(f"no process can be started: {error}")
            if not isinstance(answer, NotReady):
                self._device, self._is_ready = self._described(answer), True
                return ranks
            failure = answer
            self._kill()
            if not answer.may_recover and self._device is None:
                # The device has never been available: further attempts are useless.
                break
            time.sleep(pause_s)
        tries = f", {TRIES} times, each in new processes" if failure.may_recover else ""
        raise DeviceGone(f"{self._name} did not start{tries}: {failure.reason}")

    def _described(self, device: DeviceDescription) -> DeviceDescription:
        """Returns the description, given that of the first device."""
        return device

    def close(self) -> None:
        """Waits for the processes to end by themselves, and then kills the remaining ones."""
        self._ended(lambda ranks: ranks.end())

    def _end(self) -> None:
        """Ends processes that cannot run the next job; launchers (msprof) still write their records."""
        self._ended(lambda ranks: ranks.end(at_once=True))

    def _kill(self) -> None:
        self._ended(lambda ranks: ranks.kill())

    def _ended(self, end: Callable[[Ranks], None]) -> None:
        if self._ranks is not None:
            end(self._ranks)
        self._ranks, self._is_ready = None, False


class DeviceProcess(Processes):
    """Runs jobs in a process that owns a device."""

    def __init__(
        self,
        spec: DeviceSpec,
        settings: MeasureSettings,
        launcher: Launcher | None = None,
        waits: DeviceWaits | None = None,
    ) -> None:
        """`launcher` is the program under which the process runs; None: no program."""
        alone = GroupSpec(1, is_device=True, join_timeout_s=_START_TIMEOUT_S)
        super().__init__(alone, [spec], settings, waits, launcher)
        self._device_spec = spec
        self._new_process = lambda: DeviceProcess(spec, settings, launcher, self._waits)
        #: The process of jobs that run elsewhere, once there was one.
        self._other: DeviceProcess | None = None

    def _run(self, job: Job) -> RowOutcome:
        if not job.elsewhere:
            return super()._run(job)
        self._other = self._other or self._new_process()
        try:
            return self._other._run(replace(job, elsewhere=False))
        except DeviceGone as error:
            raise ProcessDied(f"the device has no other process: {error}") from None

    def _combine(self, job: Job, outcomes: dict[int, RowOutcome]) -> RowOutcome:
        outcome = outcomes[0]
        if outcome.status is Status.DEVICE_ERROR:
            # Every later call in this process would fail.
            self._end()
        elif outcome.changed or outcome.ends_process or job.is_alone:
            # The next row must not be measured in the changed state.
            self.close()
        return outcome

    @property
    def _name(self) -> str:
        return f"the {self._device_spec} {self.spec}"

    def release(self) -> None:
        # The next job would get a new process.
        if self._ranks is not None:
            self._ranks.release()
        if self._other is not None:
            self._other.release()

    def close(self) -> None:
        if self._other is not None:
            self._other.close()
        super().close()


#: Statuses that leave ranks ready for the next job, if all ranks have the same one.
_READY_STATUSES = {Status.MEASURED, Status.CHECKED, Status.FAILED, Status.INVALID, Status.UNSUPPORTED, Status.SKIPPED}


class GroupProcess(Processes):
    """Runs jobs on all ranks of a group, which is launched on first use.

    A rank that dies, hangs or sends nonsense costs the row that runs: all processes of the group are ended.
    """

    def __init__(
        self,
        spec: GroupSpec,
        devices: Sequence[DeviceSpec],
        settings: MeasureSettings,
        waits: DeviceWaits | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        """The arguments are those of `Processes`."""
        if len(devices) != spec.local_ranks:
            raise ValueError(f"{len(devices)} devices for {spec.local_ranks} ranks of a node")
        # HCCL connects processes that see all devices, as torchrun starts them.
        shown = [replace(each, sees_no_other=kind_named(each.kind).backend != "hccl") for each in devices]
        super().__init__(spec, shown, settings, waits, launcher)

    def _run(self, job: Job) -> RowOutcome:
        if job.elsewhere:
            # A device has one group at a time.
            self.close()
        return super()._run(replace(job, elsewhere=False))

    def _combine(self, job: Job, outcomes: dict[int, RowOutcome]) -> RowOutcome:
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

    def _where(self, late: dict[int, StepReport]) -> str:
        least = min(step.step for step in late.values())
        slowest = [rank for rank, step in late.items() if step.step == least]
        who = f"all {len(slowest)} ranks" if len(slowest) == self.spec.ranks > 1 else self.spec.rank_names(slowest)
        others = "; the others wait" if len(slowest) < self.spec.local_ranks else ""
        where = " or ".join(dict.fromkeys(late[rank].text for rank in slowest))
        return f", {who} {where}{others} (their stacks are in the output)"

    def _described(self, device: DeviceDescription) -> DeviceDescription:
        """Returns the description of the first rank's device, with facts on the group."""
        return replace(device, facts={**device.facts, "ranks": self.spec.ranks, "nodes": self.spec.nnodes})
