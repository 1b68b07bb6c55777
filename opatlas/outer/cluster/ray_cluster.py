"""The devices of a Ray cluster: starts or joins the cluster, and keeps an actor for each of its devices."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from opatlas.errors import OpAtlasError
from opatlas.installation import require_extra
from opatlas.outer.cluster import dealer
from opatlas.outer.cluster.dealer import Dealer, DeviceAnswer
from opatlas.outer.cluster.ray_actor import WATCH, DeviceActor, HostFacts, first_line, future, ray, software
from opatlas.row.location import device_kind
from opatlas.run.devices.device import DeviceSpec, device_kinds
from opatlas.run.devices.device_lock import SESSION_VARIABLE
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job
from opatlas.run.process.fresh_python import import_paths
from opatlas.run.scheduler import Scheduler
from opatlas.text import pluralize

#: Address of a cluster of this machine alone, which begins and ends with the session.
LOCAL = "local"
#: Longest time in which the actors of a cluster start, in seconds.
_START_S = 300.0


@dataclass(frozen=True)
class _Place:
    """The node of an actor, and its share of it: `resources` by Ray's names."""

    node_id: str
    node: str
    resources: Mapping[str, float]
    spec: DeviceSpec | None


class RayDevice:
    """A RemoteDevice (dealer.py) behind an actor.

    Attributes:
        place: where it is.
    """

    def __init__(self, place: _Place, device: str | None) -> None:
        """Starts the actor."""
        self.name = place.node
        self.place = place
        self._device = device
        self._settings = MeasureSettings()
        self._actor: Any = self._start()

    def look(self) -> Future[HostFacts]:
        """Returns the facts of the host."""
        return future(self._actor.look.remote(), HostFacts)

    def accept(self, facts: HostFacts, settings: MeasureSettings) -> None:
        """Takes the name of the device, and how rows are measured."""
        self.name = f"{facts.spec} of {facts.host}"
        self._settings = settings

    def open(self) -> Future[DeviceAnswer]:
        if self._actor is None:
            self._actor = self._start()
        return future(self._actor.open.remote(self._settings, dealer.LONELY_S), DeviceAnswer)

    def run(self, job: Job) -> Future[DeviceAnswer]:
        return future(self._actor.run.remote(job), DeviceAnswer)

    def beat(self) -> Future[str]:
        return future(self._actor.beat.options(concurrency_group=WATCH).remote(), str)

    def kill(self) -> None:
        if self._actor is not None:
            # The keeper ends the device process when its parent is gone.
            ray().kill(self._actor)
            self._actor = None

    def _start(self) -> Any:
        place, affinity = self.place, ray().util.scheduling_strategies.NodeAffinitySchedulingStrategy
        other = dict(place.resources)
        options = {
            "num_cpus": other.pop("CPU", 0),
            "num_gpus": other.pop("GPU", 0),
            "resources": other,
            "scheduling_strategy": affinity(place.node_id, soft=False),
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        actor = ray().remote(concurrency_groups={WATCH: 1})(DeviceActor).options(**options)
        return actor.remote(self._device, place.spec, os.environ.get(SESSION_VARIABLE, ""), import_paths())


class RayCluster:
    """A cluster, and an actor for each of its devices.

    Attributes:
        specs: the devices that are used, numbered over all hosts.
        notes: hosts and devices that are not used, with the reasons.
    """

    def __init__(self, address: str, device: str | None, own: Sequence[DeviceSpec], *, mixed: bool) -> None:
        """Joins the cluster, and starts an actor for each device.

        Args:
            address: `host:port`, `auto`, or LOCAL for a cluster of this machine that ends with the session.
            device: name or kind of the devices; None: the best kind that the cluster has.
            own: the devices that a conftest.py gives each host; empty: devices are looked for.
            mixed: whether CPUs may differ.

        Raises:
            OpAtlasError: there is no cluster, it has no device that fits, or its devices differ.
        """
        require_extra("ray", "--ray", "ray")
        _join(address)
        try:
            self._device = device
            self._devices = [RayDevice(place, device) for place in _places(device, own)]
            self._used, self.notes = self._choose(mixed=mixed)
        except BaseException:
            self.close()
            raise

    @property
    def specs(self) -> list[DeviceSpec]:
        return [
            DeviceSpec(facts.spec.kind, index, opener=facts.spec.opener, name=facts.spec.name)
            for index, (_, facts) in enumerate(self._used)
            if facts.spec is not None
        ]

    @property
    def cores(self) -> int | None:
        """The number of cores of each host; None where hosts differ."""
        found = {facts.cores for _, facts in self._used}
        return found.pop() if len(found) == 1 else None

    def scheduler(self, settings: MeasureSettings, tell: Callable[[str], None]) -> Scheduler:
        """Returns the scheduler of all rows; `tell` shows the user a line."""
        for device, facts in self._used:
            device.accept(facts, settings)
        return Dealer([device for device, _ in self._used], tell)

    def close(self) -> None:
        """Ends all actors, and leaves the cluster; a cluster of this session ends."""
        ray().shutdown()

    def _choose(self, *, mixed: bool) -> tuple[list[tuple[RayDevice, HostFacts]], list[str]]:
        """Returns the devices of equal hosts, and notes on the others, which end. Raises OpAtlasError without any."""
        found: list[tuple[RayDevice, HostFacts]] = []
        looks = [(each, each.look()) for each in self._devices]
        left_out: Counter[str] = Counter()
        for each, look in looks:
            try:
                found.append((each, look.result(_START_S)))
            except Exception as error:
                # Whatever keeps a host from answering costs that host alone.
                left_out[f"{each.name}: {first_line(error)}"] += 1
                each.kill()
        used = []
        reasons = differences([facts for _, facts in found], software(), mixed=mixed)
        for (each, facts), reason in zip(found, reasons, strict=True):
            if reason:
                left_out[f"{facts.host}: {reason}"] += 1
                each.kill()
            else:
                used.append((each, facts))
        notes = [f"--ray leaves out {pluralize(count, 'device')} of {reason}" for reason, count in left_out.items()]
        names = {facts.spec.name for _, facts in used if facts.spec is not None}
        if len(names) > 1:
            raise OpAtlasError(
                f"the devices of the cluster are {' and '.join(sorted(names))}, whose durations belong into separate "
                f"folders: name one with --device"
            )
        if not used:
            raise OpAtlasError("; ".join(["--ray: the cluster has no device to measure on", *notes]))
        return used, notes


def differences(hosts: Sequence[HostFacts], here: Mapping[str, str], *, mixed: bool) -> list[str]:
    """Returns why each host is not used; "" for a host that is.

    Args:
        here: the software of this machine, which all hosts have to have.
        mixed: whether CPUs may differ from those of most hosts.
    """
    known = Counter(each.hardware for each in hosts if each.spec is not None)
    most = max(sorted(known), key=known.__getitem__, default="")
    reasons = []
    for each in hosts:
        versions = {name: (version, each.software.get(name) or "(none)") for name, version in here.items() if version}
        other = [
            f"it has {name} {there}, and this machine has {version}: install the same"
            for name, (version, there) in versions.items()
            if there != version
        ]
        if each.hardware != most and not (mixed and each.spec is not None and each.spec.kind == "cpu"):
            other.append(
                f"it has {each.hardware or 'no known driver'}, and most hosts have {most} (--mixed mixes CPUs)"
            )
        reasons.append(each.problem or next(iter(other), ""))
    return reasons


def _join(address: str) -> None:
    """Starts or joins a cluster. Raises OpAtlasError."""
    if "://" in address:
        raise OpAtlasError(
            f"--ray {address}: pytest runs on a node of the cluster; give its HOST:PORT, auto or {LOCAL}"
        )
    # Set before the import. Nothing is sent to Ray's authors, and device processes get the priority of any other.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet = {"configure_logging": False, "log_to_driver": False}
    try:
        if address == LOCAL:
            ray().init(address=LOCAL, include_dashboard=False, **quiet)
        else:
            ray().init(address=address, **quiet)
    except Exception as error:
        # Ray raises errors of many kinds, from a refused connection to another version of Python.
        raise OpAtlasError(
            f"--ray {address}: the cluster cannot be joined ({first_line(error)}): `ray status` shows whether it runs; "
            f"start it with `ray start --head`, or give {LOCAL}"
        ) from None


def _places(device: str | None, own: Sequence[DeviceSpec]) -> list[_Place]:
    """Returns a place for each device of a kind. Raises OpAtlasError where there is none."""
    nodes = [node for node in ray().nodes() if node["Alive"]]
    names = [(str(node["NodeID"]), str(node["NodeName"])) for node in nodes]
    if own:
        return [_Place(node_id, name, {}, spec) for node_id, name in names for spec in own]
    kinds = {name: each.resource for name, each in device_kinds().items() if each.resource}
    kind = device if device in kinds else device_kind(device) if device else None
    present = {each for node in nodes for each, word in kinds.items() if node["Resources"].get(word, 0) >= 1}
    kind = kind or next((each for each in kinds if each in present), "cpu")
    if kind not in present:
        raise OpAtlasError(
            f"--ray: no node of the cluster has the resource {kinds[kind]}, so there is no {kind} device: start "
            f"nodes that have one, or give --device"
        )
    places = []
    for node, (node_id, name) in zip(nodes, names, strict=True):
        count = int(node["Resources"].get(kinds[kind], 0))
        if kind == "cpu":
            # All cores are one device.
            places += [_Place(node_id, name, {"CPU": count}, None)] if count else []
        else:
            places += [_Place(node_id, name, {kinds[kind]: 1}, None)] * count
    return places
