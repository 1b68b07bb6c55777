"""The choice of hosts for a group, and the combination of their answers to a row."""

from __future__ import annotations

import pytest

from opatlas.outer.cluster.ray_group import HostAnswer, combined, in_order
from opatlas.row.record import Measurement
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.group import GroupSpec
from opatlas.run.groups.pool import GroupNodes
from opatlas.run.job import RowOutcome

GPUS = [DeviceSpec("cuda", index=index) for index in range(8)]
CPU = [DeviceSpec("cpu")]
HOSTS = GroupNodes(GPUS, cores=64, hosts=3)


@pytest.mark.parametrize(
    ("nodes", "spec", "hosts", "fits"),
    [
        (HOSTS, GroupSpec(8), 1, True),
        (HOSTS, GroupSpec(10), 2, True),
        (HOSTS, GroupSpec(24), 3, True),
        # Nine ranks on two hosts would be four and five.
        (HOSTS, GroupSpec(9), 3, True),
        (HOSTS, GroupSpec(16, nproc_per_node=4), 2, False),
        (HOSTS, GroupSpec(32), 2, False),
        (HOSTS, GroupSpec(13), 1, False),
        (HOSTS, GroupSpec(2, members=(0, 1)), 1, True),
        (HOSTS, GroupSpec(2, members=(0, 8)), 2, True),
        (HOSTS, GroupSpec(12, members=tuple(range(12))), 2, False),
        (HOSTS, GroupSpec(32, members=tuple(range(32))), 3, False),
        # Two ranks share a CPU, and eight a CPU of two cores where places are counted.
        (GroupNodes(CPU, cores=2, hosts=3), GroupSpec(4), 2, True),
        (GroupNodes(CPU, cores=2, hosts=3), GroupSpec(8, members=tuple(range(8))), 1, True),
        (GroupNodes(CPU, cores=2, hosts=3), GroupSpec(4, members=(0, 1, 8, 9)), 2, True),
    ],
)
def test_a_group_takes_the_fewest_hosts(nodes: GroupNodes, spec: GroupSpec, hosts: int, fits: bool) -> None:
    placed = nodes.placed(spec)
    assert placed.nnodes == hosts
    assert (nodes.shortage(placed, nodes.devices) == "") is fits
    if fits:
        own = [
            nodes.devices_of(GroupSpec(**{**vars(placed), "node_rank": rank}), nodes.devices) for rank in range(hosts)
        ]
        assert [len(each) for each in own] == [spec.ranks // hosts] * hosts


def test_nodes_without_a_cluster_are_those_of_the_options() -> None:
    spec = GroupSpec(16, nnodes=2, node_rank=1)
    assert GroupNodes(GPUS).placed(spec) is spec


def failed(status: Status, reason: str, after_s: float, step: int = 0) -> HostAnswer:
    return HostAnswer(RowOutcome(status, reason), failed_after_s=after_s, late_step=step)


def measured(checked: int, throttled: str = "") -> HostAnswer:
    taken = Measurement(
        (1.0, 2.0), "wall-clock", "cold", checked_elements=checked, total_elements=10, throttled=throttled
    )
    return HostAnswer(RowOutcome(Status.MEASURED, measurement=taken))


def test_hosts_give_one_measurement_with_the_checks_of_all_ranks() -> None:
    outcome = combined([measured(3), measured(4, "rank 3 of 4: too hot")])
    assert outcome.status is Status.MEASURED
    assert outcome.measurement is not None
    assert outcome.measurement.samples_us == (1.0, 2.0)
    assert (outcome.measurement.checked_elements, outcome.measurement.total_elements) == (7, 20)
    assert outcome.measurement.throttled == "rank 3 of 4: too hot"


@pytest.mark.parametrize(
    "answers",
    [
        # The ranks of the other host lose their peers when the failed host ends its own.
        [failed(Status.FAILED, "lost a peer", 6.0), failed(Status.FAILED, "cause", 0.5)],
        # They may notice the death of a rank before its own host does.
        [failed(Status.FAILED, "lost a peer", 0.4), failed(Status.CRASHED, "cause", 0.6)],
        # A library may end a process whose peer has failed.
        [failed(Status.CRASHED, "lost a peer", 9.0), failed(Status.FAILED, "cause", 0.5)],
        # All wait until the deadline, for the ranks that are not as far.
        [failed(Status.TIMEOUT, "waits", 8.0, step=2), failed(Status.TIMEOUT, "cause", 8.1, step=1)],
        [measured(1), failed(Status.FAILED, "cause", 1.0)],
    ],
)
def test_of_several_failures_the_cause_counts(answers: list[HostAnswer]) -> None:
    assert combined(answers).reason == "cause"
    assert combined(answers[::-1]).reason == "cause"


def test_devices_of_a_host_are_in_the_order_of_their_numbers() -> None:
    variable = "CUDA_VISIBLE_DEVICES"
    listed = [DeviceSpec("cuda", index, pinned=(variable, name)) for index, name in enumerate(("3", "10", "0"))]
    assert [device.index for device in in_order(listed)] == [2, 0, 1]
    same = DeviceSpec("simulated")
    assert in_order([same, same]) == [same, same]
