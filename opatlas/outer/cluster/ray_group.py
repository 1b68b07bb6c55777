"""A group whose ranks run on hosts of a Ray cluster: an actor of each host keeps the ranks of the host.

The head drives all ranks as those of one node (GroupProcess). The hosts are reserved together by a placement group, and
each actor launches its part of the group as a node of --nnodes does. The ranks meet at the address of the first host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from msgspec import structs

from opatlas.outer.cluster.dealer import BEAT_S, SILENCE_S, Pulse
from opatlas.outer.cluster.ray_actor import (
    GroupActor,
    Heard,
    beat,
    first_line,
    future,
    ray,
    start_actor,
    with_printed,
)
from opatlas.row.errors import DeviceGone
from opatlas.run.devices.device import DeviceDescription, DeviceSpec
from opatlas.run.devices.device_lock import DeviceWaits
from opatlas.run.group import GroupSpec, communication_variables
from opatlas.run.group_pool import GroupNodes
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, ProcessDied, RowOutcome
from opatlas.run.process.device_process import GroupProcess
from opatlas.run.process.messages import Finished, NotReady, Ready, Start
from opatlas.run.process.ranks import RanksDied, UnexpectedMessage

#: Longest time in which hosts become free, and in which an actor gives its first sign of life, in seconds.
_START_S = 300.0
#: Longest time in which ranks end by themselves.
_END_S = 30.0
#: A row that loses a host so often has no further try.
_TRIES = 2


class HostLost(ProcessDied):
    """A host of a group gives no answer."""


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


@dataclass(eq=False)
class _Member:
    """A host of a group.

    Attributes:
        number: of the host, in order of the ranks.
        actor: keeps the ranks of the host.
        ranks: the ranks in words.
        pulse: the signs of life of the actor.
        running: the number of its ranks that have not finished the job.
    """

    number: int
    host: GroupHost
    actor: Any
    ranks: str
    pulse: Pulse
    running: int = 0

    def lost(self, why: str) -> HostLost:
        return HostLost(f"{self.host.name} with {self.ranks} is lost: {why}")

    def expect_life(self) -> None:
        """Asks for a sign of life. Raises HostLost after a long silence."""
        silent_s = self.pulse.silence_s()
        if silent_s > (SILENCE_S if self.pulse.lives else _START_S):
            raise self.lost(f"no sign of life for {silent_s:.0f} s")


@dataclass
class HostRanks:
    """The ranks of a group on hosts, which a GroupProcess drives in place of the `Ranks` of its node.

    Attributes:
        spec: the group, with the number of its hosts.
        nodes: the facts that the hosts have in common.
        hosts: those that may take part; the first of them that live do.
        device: name or kind of the devices.
        tell: shows the user a line.
        members: those that take part, in order of the ranks.
    """

    spec: GroupSpec
    nodes: GroupNodes
    hosts: Sequence[GroupHost]
    device: str | None
    tell: Callable[[str], None]
    #: As of `Ranks`: hosts tell it in words only.
    exit_code: int | None = field(default=None, init=False)
    members: list[_Member] = field(default_factory=list, init=False)
    _reservation: Any = field(default=None, init=False)
    _starts: Sequence[Start] = field(default=(), init=False)
    #: What hosts were asked for, and have not answered.
    _pending: dict[Future[Heard], _Member] = field(default_factory=dict, init=False)
    _looked: float = field(default=0.0, init=False)

    def of(self, spec: GroupSpec, starts: Sequence[Start], waits: DeviceWaits, launcher: object) -> HostRanks:
        """Returns the ranks for another launch, as the constructor of `Ranks` does."""
        self._starts = starts
        return self

    def launch(self) -> DeviceDescription | NotReady:
        """Launches the ranks of all hosts. Raises DeviceGone where a host is lost."""
        if not self.members:
            self._reserve()
        spec, start = self.spec, self._starts[0]
        try:
            if spec.nnodes > 1:
                first = self.members[0]
                [(_, (address, port))] = self._answers([first], lambda _: first.actor.meet.remote(), tuple[str, int])
                spec = replace(spec, in_cluster=True, master_addr=address, master_port=port)

            def launch(member: _Member) -> Any:
                own = replace(spec, node_rank=member.number)
                return member.actor.launch.remote(own, self.nodes, start.settings, start.spec.sees_no_other)

            found: dict[int, DeviceDescription] = {}
            for member, answer in self._answers(self.members, launch, Ready | NotReady):
                if isinstance(answer, NotReady):
                    return structs.replace(answer, reason=f"{member.host.name}: {answer.reason}")
                found[member.number] = answer.device
        except HostLost as lost:
            raise DeviceGone(f"the {self.spec} did not start: {lost}") from None
        names = ", ".join(dict.fromkeys(member.host.name for member in self.members))
        return replace(found[0], facts={**found[0].facts, "host": names})

    def expect_idle(self) -> None:
        """Raises HostLost where a host or a rank of it has ended."""
        list(self._answers(self.members, lambda each: each.actor.call.remote("expect_idle"), None))

    def send(self, job: Job) -> None:
        """Sends a job to all ranks."""
        for member in self.members:
            member.running, member.pulse.since = self.spec.local_ranks, time.monotonic()
        self._pending = {future(member.actor.run.remote(job), Heard): member for member in self.members}

    def used(self) -> AbstractContextManager[None]:
        return nullcontext()

    def messages(self, limit_s: float) -> list[tuple[int, Any]]:
        """Waits for messages of ranks; may return none before `limit_s`.

        Raises:
            RanksDied, UnexpectedMessage: as of `Ranks`.
            HostLost: a host gives no answer.
            DeviceGone: a host lacks a file of the job.
        """
        waiting = set(self._pending.values())
        for member in self.members:
            if member.running and member not in waiting:
                self._pending[future(member.actor.hear.remote(), Heard)] = member
        messages: list[tuple[int, Any]] = []
        died: list[int] = []
        for member, heard in self._next(self._pending, limit_s):
            first = member.number * self.spec.local_ranks
            if heard.gone:
                raise DeviceGone(f"{member.host.name}: {heard.gone}")
            if heard.wrong is not None:
                raise UnexpectedMessage(first + heard.wrong[0], heard.wrong[1])
            messages += [(first + rank, message) for rank, message in heard.messages]
            member.running -= sum(isinstance(message, Finished) for _, message in heard.messages)
            died += [first + rank for rank in heard.died]
        if died and not messages:
            raise RanksDied(died)
        return messages

    def describe_ends(self, ranks: Iterable[int]) -> str:
        return ", ".join(self._of_ranks("describe_ends", ranks))

    def write_stacks(self, ranks: Iterable[int]) -> None:
        self._of_ranks("write_stacks", ranks)

    def printed(self) -> str:
        """Returns what the ranks have printed since the last call."""
        asked = self._answers(self.members, lambda each: each.actor.printed.remote(), str)
        return "".join(text for _, text in asked)

    def end(self, *, at_once: bool = False) -> None:
        """Ends the ranks; frees the hosts where one does not answer."""
        ended = [future(member.actor.call.remote("end", at_once=at_once), None) for member in self.members]
        done, late = wait(ended, _END_S)
        if late or any(each.exception() for each in done):
            self.kill()

    def kill(self) -> None:
        """Ends all processes of the group, and frees the hosts."""
        for member in self.members:
            # The keepers end the ranks when their parent is gone.
            ray().kill(member.actor)
        if self._reservation is not None:
            ray().util.remove_placement_group(self._reservation)
        self.members, self._reservation = [], None

    def _of_ranks(self, method: str, ranks: Iterable[int]) -> list[Any]:
        """Calls a method of the ranks of each host with the numbers of its own among some ranks."""
        own: dict[int, list[int]] = {}
        for rank in ranks:
            own.setdefault(rank // self.spec.local_ranks, []).append(rank % self.spec.local_ranks)
        members = [self.members[number] for number in own]
        asked = self._answers(members, lambda each: each.actor.call.remote(method, own[each.number]), str | None)
        return [answer for _, answer in asked]

    def _answers(
        self, members: Sequence[_Member], call: Callable[[_Member], Any], kind: Any
    ) -> Iterator[tuple[_Member, Any]]:
        """Calls the actors of hosts, and yields their answers as they come. Raises HostLost."""
        pending: dict[Future[Any], _Member] = {}
        for member in members:
            member.pulse.since = time.monotonic()
            pending[future(call(member), kind)] = member
        while pending:
            yield from self._next(pending, math.inf)

    def _next(self, pending: dict[Future[Any], _Member], limit_s: float) -> list[tuple[_Member, Any]]:
        """Takes the next answers, and asks the hosts for signs of life. Raises HostLost."""
        done, _ = wait(pending, min(BEAT_S, max(limit_s, 0.0)), FIRST_COMPLETED)
        found = []
        for each in done:
            member = pending.pop(each)
            if (error := each.exception()) is not None:
                raise member.lost(first_line(error))
            found.append((member, each.result()))
        if time.monotonic() - self._looked >= BEAT_S:
            self._looked = time.monotonic()
            for member in pending.values():
                member.expect_life()
        return found

    def _living(self) -> Sequence[GroupHost]:
        """Returns the first hosts that live. Raises DeviceGone where they are too few."""
        spec = self.spec
        alive = {node["NodeID"] for node in ray().nodes() if node["Alive"]}
        hosts = [host for host in self.hosts if host.node_id in alive][: spec.nnodes]
        if len(hosts) < spec.nnodes:
            lost = ", ".join(host.name for host in self.hosts if host.node_id not in alive)
            raise DeviceGone(f"the {spec} did not start: {lost} is lost, and {len(hosts)} of its hosts are left")
        return hosts

    def _reserve(self) -> None:
        """Takes hosts that live, all at once, and starts their actors. Raises DeviceGone where they are not there."""
        spec, hosts = self.spec, list[GroupHost]()
        for _ in range(round(_START_S / BEAT_S)):
            # Ray hears of the loss of a host some seconds after its actors.
            if (living := self._living()) != hosts:
                self.kill()
                hosts, names = list(living), ", ".join(dict.fromkeys(host.name for host in living))
                self._reservation = ray().util.placement_group(
                    # Ray knows nothing of the devices of a conftest.py, and takes no empty bundle.
                    [dict(host.resources) or {"memory": 1} for host in hosts],
                    strategy="STRICT_PACK" if spec.nnodes == 1 else "STRICT_SPREAD",
                    bundle_label_selector=[{"ray.io/node-id": host.node_id} for host in hosts],
                )
            if self._reservation.wait(BEAT_S):
                break
            self.tell(f"waiting for {names}, whose devices others of the cluster use")
        else:
            raise DeviceGone(f"the {spec} did not start: {names} were not free within {_START_S:g} s")
        strategy = ray().util.scheduling_strategies.PlacementGroupSchedulingStrategy
        for number, host in enumerate(hosts):
            place = strategy(self._reservation, number)
            given = host.devices if host.is_given else ()
            actor = start_actor(GroupActor, host.resources, place, self.device, given, communication_variables())
            ranks = replace(spec, node_rank=number).rank_names(range(spec.local_ranks))
            pulse = Pulse(partial(beat, actor), lambda text, name=host.name: self.tell(f"{name}: {text}"))  # type: ignore[misc]
            self.members.append(_Member(number, host, actor, ranks, pulse))


class RayGroup(GroupProcess):
    """The scheduler of a group on hosts of a cluster."""

    def __init__(self, ranks: HostRanks, settings: MeasureSettings) -> None:
        """`ranks` are those of the group."""
        size, device = ranks.spec.ranks, ranks.nodes.devices[0]
        of_one_node = replace(ranks.spec, nnodes=1)
        super().__init__(
            of_one_node, [device] * size, settings, DeviceWaits(ranks.tell), ranks_of=cast("Any", ranks.of)
        )
        self._hosts = ranks

    def _run(self, job: Job) -> RowOutcome:
        for _ in range(_TRIES):
            try:
                return super()._run(job)
            except HostLost as error:
                lost = error
                self._hosts.tell(f"{lost}; the row runs again")
        raise ProcessDied(f"{lost}, as in the try before")

    def _outcome(self, job: Job) -> RowOutcome:
        outcome = super()._outcome(job)
        with suppress(HostLost):
            outcome = with_printed(outcome, self._hosts.printed)
        return outcome

    def _described(self, first: DeviceDescription) -> DeviceDescription:
        device = super()._described(first)
        return replace(device, facts={**device.facts, "nodes": self._hosts.spec.nnodes})

    def close(self) -> None:
        super().close()
        self._hosts.kill()
