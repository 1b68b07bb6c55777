"""The choice of hosts for a group."""

from __future__ import annotations

import pytest

from opatlas.outer.cluster.ray_actor import in_order
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.group import GroupSpec
from opatlas.run.group_pool import GroupNodes

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


def test_devices_of_a_host_are_in_the_order_of_their_numbers() -> None:
    variable = "CUDA_VISIBLE_DEVICES"
    listed = [DeviceSpec("cuda", index, pinned=(variable, name)) for index, name in enumerate(("3", "10", "0"))]
    assert [device.index for device in in_order(listed)] == [2, 0, 1]
    same = DeviceSpec("simulated")
    assert in_order([same, same]) == [same, same]
