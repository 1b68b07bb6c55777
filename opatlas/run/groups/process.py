"""The scheduler of a group: its ranks run each job together, and their outcomes are combined.

A rank that dies, hangs or sends nonsense costs the row that runs, as in a device process: all processes of the group
are ended, and the next row gets a new group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opatlas.row.errors import ReplayError
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, kind_named
from opatlas.run.devices.device_lock import DeviceWaits
from opatlas.run.group import GroupSpec
from opatlas.run.groups.ranks import Ranks
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.process.child import Launcher
from opatlas.run.process.device_process import Processes, RanksOf
from opatlas.run.process.messages import StepReport

#: Statuses that leave ranks ready for the next job, if all ranks have the same one.
_READY_STATUSES = {Status.MEASURED, Status.FAILED, Status.INVALID, Status.UNSUPPORTED, Status.SKIPPED}


class GroupProcess(Processes):
    """Runs jobs on all ranks of a group, which is launched on first use."""

    def __init__(
        self,
        spec: GroupSpec,
        devices: Sequence[DeviceSpec],
        settings: MeasureSettings,
        waits: DeviceWaits | None = None,
        launcher: Launcher | None = None,
        ranks_of: RanksOf = Ranks,
    ) -> None:
        """The arguments are those of `Processes`."""
        if len(devices) != spec.local_ranks:
            raise ValueError(f"{len(devices)} devices for {spec.local_ranks} ranks of a node")
        # HCCL connects processes that see all devices, as torchrun starts them.
        shown = [replace(each, sees_no_other=kind_named(each.kind).backend != "hccl") for each in devices]
        super().__init__(spec, shown, settings, waits, launcher, ranks_of)

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
