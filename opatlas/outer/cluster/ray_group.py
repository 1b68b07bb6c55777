"""A group whose ranks run on hosts of a Ray cluster: an actor of each host keeps the ranks of the host.

The hosts are reserved together by a placement group, and each actor launches its part of the group as a node of
--nnodes does. The ranks meet at the address of the first host.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from opatlas.errors import OpAtlasError
from opatlas.outer.cluster.dealer import BEAT_S, SILENCE_S, Pulse
from opatlas.outer.cluster.ray_actor import HostActor, beat, first_line, future, ray, sent, start_actor
from opatlas.row.errors import DeviceGone, GroupTimeout
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, available_devices
from opatlas.run.devices.device_lock import DeviceWaits
from opatlas.run.group import GroupSpec, communication_variables
from opatlas.run.groups.pool import GroupNodes
from opatlas.run.groups.process import GroupProcess
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, ProcessDied, RowOutcome
from opatlas.run.process.child import EndIfInterrupted
from opatlas.run.scheduler import InTurn

#: Longest time in which hosts become free, and in which an actor gives its first sign of life, in seconds.
_START_S = 300.0
#: Time for the other hosts after one has failed: they end their ranks, and report how these ended.
_OTHERS_S = 15.0
#: Hosts begin a job at slightly different times: their failures within this time, in seconds, may have any order.
_TOGETHER_S = 1.0
#: Longest time in which ranks end by themselves.
_END_S = 30.0
#: A row that loses a host so often has no further try.
_TRIES = 2


@dataclass(frozen=True)
class HostAnswer:
    """The answer of a host for its part of a group.

    Attributes:
        outcome: of a job.
        device: of the first rank, if the group is open.
        failed_after_s, late_step: as in GroupProcess.
        gone: why the ranks of the host cannot run a job; "" if they can.
        is_late: whether ranks did not join in time.
        lacks_nodes: whether the ranks of other hosts did not.
        lost: why the host gives no answer; "" if it gives one.
        address, port: where ranks may meet.
    """

    outcome: RowOutcome | None = None
    device: DeviceDescription | None = None
    failed_after_s: float = math.inf
    late_step: int = 0
    gone: str = ""
    is_late: bool = False
    lacks_nodes: bool = False
    lost: str = ""
    address: str = ""
    port: int = 0

    @property
    def is_good(self) -> bool:
        """Whether the other hosts can go on."""
        failed = self.outcome is not None and self.outcome.status is not Status.MEASURED
        return not (self.lost or self.gone or failed)

    @property
    def leaves_open(self) -> bool:
        """Whether the ranks of several hosts, of which this is one, are ready for the next job."""
        return self.is_good and not (self.outcome is not None and self.outcome.changed)


class GroupActor(HostActor):
    """Keeps the ranks of one host."""

    def __init__(
        self,
        device: str | None,
        specs: Sequence[DeviceSpec],
        variables: Mapping[str, str],
        session: str,
        paths: Sequence[str],
    ) -> None:
        """
        Args:
            specs: the devices of a conftest.py; empty: they are looked for.
            variables: for the libraries that communicate.
        """
        super().__init__(device, session, paths)
        os.environ.update(variables)
        self._specs = specs
        self._said = ""
        self._waits = DeviceWaits(self._keep_line)
        self._group: GroupProcess | None = None

    @sent
    def meet(self) -> HostAnswer:
        """Returns the address of this host, and a free port."""
        with socket.socket() as free:
            free.bind(("", 0))
            return HostAnswer(address=ray().util.get_node_ip_address(), port=free.getsockname()[1])

    @sent
    def open(self, spec: GroupSpec, nodes: GroupNodes, settings: MeasureSettings) -> HostAnswer:
        """Launches the ranks of this host, and waits until the group has met.

        Args:
            spec: the group, with the number of this host.
            nodes: the facts that the hosts have in common.
        """
        self._end()
        try:
            found = self._specs or in_order(available_devices(self._device))
            if len(found) < len(nodes.devices):
                return HostAnswer(gone=f"{len(found)} of {len(nodes.devices)} devices are there")
            devices = found[: len(nodes.devices)]
            own = replace(nodes, devices=devices).devices_of(spec, devices)
            self._group = GroupProcess(spec, own, settings, self._waits)
            device = self._group.describe()
        except (DeviceGone, OpAtlasError) as error:
            return self._gone(error)
        return HostAnswer(device=device)

    @sent
    def look(self) -> HostAnswer:
        """Looks whether all ranks of this host wait for a job."""
        is_idle = self._group is not None and self._group.is_idle()
        return HostAnswer(gone="" if is_idle else "a rank has ended")

    @sent
    def run(self, job: Job) -> HostAnswer:
        """Runs a job."""
        group = self._group
        assert group is not None
        try:
            self._expect_same_files(job)
            outcome = self._with_printed(group.run(job))
        except DeviceGone as error:
            return self._gone(error)
        return HostAnswer(outcome, group.describe(), group.failed_after_s, group.late_step)

    @sent
    def close(self) -> str:
        """Lets the ranks end."""
        self._end()
        return ""

    def _end(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _line(self) -> str:
        """Returns whom a row or the start of the group waits for; "" if nothing was said since the last call."""
        said, self._said = self._said, ""
        return super()._line() or said

    def _keep_line(self, text: str) -> None:
        self._said = text

    def _gone(self, error: OpAtlasError) -> HostAnswer:
        is_late = isinstance(error, GroupTimeout)
        text = f"{error}\n{self._take_printed()}".strip()
        return HostAnswer(gone=text, is_late=is_late, lacks_nodes=isinstance(error, GroupTimeout) and error.nodes)


def in_order(devices: Iterable[DeviceSpec]) -> list[DeviceSpec]:
    """Returns devices by their numbers, from which their links follow; Ray lists them in any order."""
    numbered = [(device.pinned[1] if device.pinned else "", device) for device in devices]
    return [device for _, device in sorted(numbered, key=lambda each: (len(each[0]), each[0]))]


@dataclass(frozen=True)
class GroupHost:
    """A host that may take part in groups.

    Attributes:
        node_id: of its node of Ray.
        name: of the machine.
        resources: its devices, by Ray's names.
        devices: the same, as the host has found them.
        is_given: whether a conftest.py names them.
    """

    node_id: str
    name: str
    resources: Mapping[str, float]
    devices: Sequence[DeviceSpec]
    is_given: bool = False


@dataclass
class _Member:
    """A host of a group.

    Attributes:
        actor: keeps the ranks of the host.
        ranks: the ranks in words.
        pulse: the signs of life of the actor.
    """

    host: GroupHost
    actor: Any
    ranks: str
    pulse: Pulse

    def look(self) -> str:
        """Asks for a sign of life; returns why the host counts as lost, "" while it does not."""
        silent_s = self.pulse.silence_s()
        is_lost = silent_s > (SILENCE_S if self.pulse.lives else _START_S)
        return f"no sign of life for {silent_s:.0f} s" if is_lost else ""


class RayGroup(InTurn):
    """The scheduler of a group on hosts of a cluster."""

    def __init__(
        self,
        spec: GroupSpec,
        nodes: GroupNodes,
        hosts: Sequence[GroupHost],
        device: str | None,
        settings: MeasureSettings,
        tell: Callable[[str], None],
    ) -> None:
        """
        Args:
            spec: the group, with the number of its hosts.
            nodes: the facts that the hosts have in common.
            hosts: those that may take part; the first of them that live do.
            device: name or kind of the devices.
            tell: shows the user a line.
        """
        super().__init__()
        self._spec = spec
        self._nodes = nodes
        self._hosts = hosts
        self._device = device
        self._settings = settings
        self._tell = tell
        self._reservation: Any = None
        #: In order of the ranks.
        self._members: list[_Member] = []
        self._is_open = False
        self._description: DeviceDescription | None = None
        self._release_if_interrupted = EndIfInterrupted(self._release)

    def describe(self) -> DeviceDescription:
        if self._description is None:
            self.prepare()
        assert self._description is not None
        return self._description

    def prepare(self) -> None:
        with self._release_if_interrupted:
            if self._is_open and self._spec.nnodes > 1:
                # A rank may have died since the last row; the ranks of the other hosts would wait for it.
                self._is_open = all(answer.is_good for answer in self._ask(lambda rank, actor: actor.look.remote()))
            if not self._is_open:
                self._open()

    def _run(self, job: Job) -> RowOutcome:
        for _ in range(_TRIES):
            self.prepare()
            with self._release_if_interrupted:
                answers = self._ask(lambda rank, actor: actor.run.remote(job))
                _expect_ranks(answers)
            lost = _lost(answers)
            if not lost:
                # A host whose rank fails ends its ranks. Several hosts launch a group together.
                alone = self._spec.nnodes == 1
                self._is_open = self._is_open and (alone or all(answer.leaves_open for answer in answers))
                return combined([answer for answer in answers if answer.outcome is not None])
            self._tell(f"{lost}; the row runs again")
        raise ProcessDied(f"{lost}, as in the try before")

    def close(self) -> None:
        """Lets the ranks end, and frees the hosts."""
        wait([future(member.actor.close.remote(), str) for member in self._members], _END_S)
        self._release()

    def _open(self) -> None:
        """Launches the group. Raises DeviceGone."""
        if not self._members:
            self._reserve()
        spec = self._spec
        if spec.nnodes > 1:
            answers = self._ask(lambda rank, actor: actor.meet.remote())
            self._expect_start(answers)
            spec = replace(spec, in_cluster=True, master_addr=answers[0].address, master_port=answers[0].port)
        answers = self._ask(
            lambda rank, actor: actor.open.remote(replace(spec, node_rank=rank), self._nodes, self._settings)
        )
        self._expect_start(answers)
        names = ", ".join(dict.fromkeys(member.host.name for member in self._members))
        device = answers[0].device
        assert device is not None
        self._description = replace(device, facts={**device.facts, "host": names})
        self._is_open = True

    def _expect_start(self, answers: Sequence[HostAnswer]) -> None:
        """Raises DeviceGone where a host cannot take part."""
        _expect_ranks(answers)
        if lost := _lost(answers):
            raise DeviceGone(f"the {self._spec} did not start: {lost}")

    def _reserve(self) -> None:
        """Takes hosts that live, all at once, and starts their actors. Raises DeviceGone where they are not there."""
        spec = self._spec
        alive = {node["NodeID"] for node in ray().nodes() if node["Alive"]}
        hosts = [host for host in self._hosts if host.node_id in alive][: spec.nnodes]
        if len(hosts) < spec.nnodes:
            lost = ", ".join(host.name for host in self._hosts if host.node_id not in alive)
            raise DeviceGone(f"the {spec} did not start: {lost} is lost, and {len(hosts)} of its hosts are left")
        names = ", ".join(dict.fromkeys(host.name for host in hosts))
        self._reservation = ray().util.placement_group(
            # Ray knows nothing of the devices of a conftest.py, and takes no empty bundle.
            [dict(host.resources) or {"memory": 1} for host in hosts],
            strategy="STRICT_PACK" if spec.nnodes == 1 else "STRICT_SPREAD",
            bundle_label_selector=[{"ray.io/node-id": host.node_id} for host in hosts],
        )
        for _ in range(round(_START_S / BEAT_S)):
            if self._reservation.wait(BEAT_S):
                break
            self._tell(f"waiting for {names}, whose devices others of the cluster use")
        else:
            raise DeviceGone(f"the {spec} did not start: {names} were not free within {_START_S:g} s")
        strategy = ray().util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for rank, host in enumerate(hosts):
            place = strategy(self._reservation, rank)
            given = host.devices if host.is_given else ()
            actor = start_actor(GroupActor, host.resources, place, self._device, given, communication_variables())
            ranks = replace(spec, node_rank=rank).rank_names(range(spec.local_ranks))
            pulse = Pulse(partial(beat, actor), lambda text, name=host.name: self._tell(f"{name}: {text}"))  # type: ignore[misc]
            self._members.append(_Member(host, actor, ranks, pulse))

    def _release(self) -> None:
        """Ends all processes of the group, and frees the hosts."""
        for member in self._members:
            # The keepers end the ranks when their parent is gone.
            ray().kill(member.actor)
        if self._reservation is not None:
            ray().util.remove_placement_group(self._reservation)
        self._members, self._reservation, self._is_open = [], None, False

    def _ask(self, call: Callable[[int, Any], Any]) -> list[HostAnswer]:
        """Calls the actors of all hosts, and returns their answers in order of the ranks.

        After a bad answer the others have some seconds. If one is missing or a host is lost, all hosts are freed.

        Args:
            call: gets the number of a host and its actor, and returns Ray's reference.
        """
        answers: dict[int, HostAnswer] = {}
        pending: dict[Future[HostAnswer], int] = {}
        for rank, member in enumerate(self._members):
            member.pulse.since = time.monotonic()
            pending[future(call(rank, member.actor), HostAnswer)] = rank
        looked, deadline = time.monotonic(), math.inf
        while pending and time.monotonic() < deadline:
            done, _ = wait(pending, min(BEAT_S, max(deadline - time.monotonic(), 0.0)), FIRST_COMPLETED)
            found = {each: _answer(each) for each in done}
            if time.monotonic() - looked >= BEAT_S:
                looked = time.monotonic()
                silent = {each: self._members[rank].look() for each, rank in pending.items()}
                found = {each: HostAnswer(lost=reason) for each, reason in silent.items() if reason} | found
            for each, answer in found.items():
                rank = pending.pop(each)
                member = self._members[rank]
                why = f"{member.host.name} with {member.ranks} is lost: {answer.lost}" if answer.lost else ""
                gone = f"{member.host.name}: {answer.gone}" if answer.gone else ""
                answers[rank] = replace(answer, lost=why, gone=gone)
                if not answer.is_good:
                    deadline = min(deadline, time.monotonic() + _OTHERS_S)
        found_all = [answers.get(rank, HostAnswer()) for rank in range(len(self._members))]
        if pending or _lost(found_all):
            self._release()
        return found_all


def _answer(done: Future[HostAnswer]) -> HostAnswer:
    if (error := done.exception()) is not None:
        return HostAnswer(lost=first_line(error))
    return done.result()


def _lost(answers: Sequence[HostAnswer]) -> str:
    """Returns which hosts are lost, and why; "" if none is."""
    return "; ".join(answer.lost for answer in answers if answer.lost)


def _expect_ranks(answers: Sequence[HostAnswer]) -> None:
    """Raises DeviceGone where ranks of a host cannot run a job."""
    if gone := next((answer for answer in answers if answer.gone), None):
        raise GroupTimeout(gone.gone, nodes=gone.lacks_nodes) if gone.is_late else DeviceGone(gone.gone)


def combined(answers: Sequence[HostAnswer]) -> RowOutcome:
    """Combines the outcomes of a job on the hosts, which are in order of the ranks."""
    failed = [answer for answer in answers if not answer.is_good]
    if failed:
        # Later failures may be consequences. Where ranks wait for each other, those with the lowest step are late.
        first_s = min(answer.failed_after_s for answer in failed)
        together = [answer for answer in failed if answer.failed_after_s <= first_s + _TOGETHER_S]
        cause = min(together, key=lambda answer: (not _has_crashed(answer), answer.late_step, answer.failed_after_s))
        assert cause.outcome is not None
        return cause.outcome
    outcomes = [answer.outcome for answer in answers if answer.outcome is not None]
    first, measured = outcomes[0], [outcome.measurement for outcome in outcomes if outcome.measurement is not None]
    assert first.measurement is not None
    measurement = replace(
        # All ranks have combined their samples.
        first.measurement,
        checked_elements=sum(each.checked_elements for each in measured),
        total_elements=sum(each.total_elements for each in measured),
        throttled="; ".join(each.throttled for each in measured if each.throttled),
    )
    return replace(first, measurement=measurement, changed=tuple(text for each in outcomes for text in each.changed))


def _has_crashed(answer: HostAnswer) -> bool:
    return answer.outcome is not None and answer.outcome.status is Status.CRASHED
