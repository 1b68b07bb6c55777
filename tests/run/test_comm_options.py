"""The options of collectives: grids and tiers of devices, groups, messages, and refusals."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections import Counter
from itertools import combinations
from math import prod
from types import SimpleNamespace

import pytest
from _pytest.config.argparsing import Parser
from hypothesis import given, strategies as st
from opatlas.plugins.settings import scope_of

from opatlas.errors import OpAtlasError
from opatlas.options import Scope, add_all
from opatlas.row.communication import ALL_REDUCE, ALL_TO_ALL, BY_NAME
from opatlas.run import collective_plan as options
from opatlas.run.collective_plan import Grid, ImpossibleGroup, default_grid, message_group
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.group import NODE_OPTIONS, GroupSpec
from opatlas.run.group_pool import GroupNodes

GRIDS = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple).map(Grid).filter(lambda grid: grid.size > 1)


@given(GRIDS, st.data())
def test_a_group_has_exactly_the_requested_tier(grid: Grid, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, grid.size))
    tier = data.draw(st.integers(0, len(grid.shape) - 1))
    try:
        group = grid.group(count, tier)
    except ImpossibleGroup:
        # By trying all: ranks that share the places before the tier's dimension, and span that.
        block = prod(grid.shape[tier:])
        assert grid.shape[tier] == 1 or count > block
        return
    assert len(set(group)) == count
    assert list(group) == sorted(group)
    assert group[0] >= 0
    assert group[-1] < grid.size
    assert grid.tier_of(group) == tier
    assert len({grid.coordinates(rank)[:tier] for rank in group}) == 1


@given(GRIDS)
def test_tiers_partition_the_pairs(grid: Grid) -> None:
    counts = Counter(grid.tier_of(pair) for pair in combinations(range(grid.size), 2))
    for tier, extent in enumerate(grid.shape):
        inner, blocks = prod(grid.shape[tier + 1 :]), prod(grid.shape[:tier])
        assert counts[tier] == blocks * inner * inner * extent * (extent - 1) // 2
    assert counts.total() == grid.size * (grid.size - 1) // 2


@pytest.mark.parametrize(("count", "tier"), [(769, None), (3, 2), (32, 1), (2, 3), (1, None)])
def test_groups_that_a_grid_does_not_hold(count: int, tier: int | None) -> None:
    with pytest.raises(ImpossibleGroup):
        Grid((48, 8, 2)).group(count, tier)


@pytest.mark.parametrize("shape", [(), (2, 2, 2, 2), (0, 8), (8, -1)])
def test_no_grids(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="1 to 3 dimensions"):
        Grid(shape)


CPU = [DeviceSpec("cpu", name="AMD_EPYC")]
GPUS = [DeviceSpec("cuda", index=index, name="NVIDIA_H200") for index in range(4)]
NPUS = [DeviceSpec("npu", index=index, name="ATLAS_800_A3_752T_128G_DIE") for index in range(16)]


@pytest.fixture(autouse=True)
def _a_machine_of_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opatlas.run.group_pool.available_cores", lambda: 2)
    for name in [name for name in os.environ if name.startswith(("NCCL_", "HCCL_", "GLOO_"))]:
        monkeypatch.delenv(name)


def parsed(*arguments: str, ops: tuple[str, ...] = (), database: str | None = None) -> Namespace:
    parser = Parser(_ispytest=True)
    add_all(parser.getgroup("collectives"), (*NODE_OPTIONS, *options.OPTIONS))
    found = parser.parse(list(arguments))
    found.update_mode, found.database_path, found.ops, found.strict = "all", database, ops, False
    found.case_timeout = None
    return found


def messages(option: Namespace, devices: list[DeviceSpec], kernel_type: str = "hcom_allReduce_") -> list[tuple]:
    rows = options.collective_plan(option, GroupNodes(devices)).rows[kernel_type]
    return [(int(r["message_bytes"]), int(r["num_devices"]), r["dtype"], int(r["topology_tier"])) for r in rows]


def of_group(option: Namespace, devices: list[DeviceSpec], size: str, tier: str) -> GroupSpec:
    before = vars(option).copy()
    wanted = options.collective_plan(option, GroupNodes(devices))
    # The options that pytest parsed stay unchanged.
    assert vars(option) == before
    return message_group({"num_devices": size, "topology_tier": tier}, wanted.options)


def test_groups_that_cannot_have_the_tier_are_left_out_and_the_others_run() -> None:
    option = parsed("--num-devices", "2,4,16", "--topology-tier", "2", "--bytes-grid", "1024")
    assert {(size, tier) for _, size, _, tier in messages(option, NPUS)} == {(2, 2)}
    left_out = [line for line in options.collective_plan(option, GroupNodes(NPUS)).about if "left out" in line]
    assert len(left_out) == 2
    assert "--num-devices 4" in left_out[0]
    assert "--num-devices 16" in left_out[1]
    option.strict = True
    with pytest.raises(OpAtlasError, match="--num-devices 4"):
        options.collective_plan(option, GroupNodes(NPUS))


def test_defaults_of_a_cpu() -> None:
    found = messages(parsed(), CPU)
    assert found[0] == (1024, 2, "DT_BF16", 1)
    assert [size for size, *_ in found] == [1 << power for power in range(10, 25)]
    assert len(options.collective_plan(parsed(), GroupNodes(CPU)).rows) == 5


def test_defaults_of_gpus_are_all_of_them() -> None:
    assert messages(parsed(), GPUS)[0] == (1024, 4, "DT_BF16", 1)
    assert default_grid(GPUS, 4, 1).shape == (1, 4)
    option = parsed("--num-devices", "2", "--topology-tier", "2", "--grid-shape", "1,2,2")
    assert of_group(option, GPUS, "2", "2").members == (0, 1)


def test_sizes_are_rounded_up_and_not_repeated() -> None:
    option = parsed("--num-devices", "3", "--bytes-grid", "1", "5", "7", "--comm-dtype", "float32", "int8")
    wanted = options.collective_plan(option, GroupNodes(CPU))
    found = [(int(r["message_bytes"]), r["dtype"]) for r in wanted.rows[ALL_TO_ALL.kernel_type]]
    assert found == [(12, "DT_FLOAT"), (3, "DT_INT8"), (6, "DT_INT8"), (9, "DT_INT8")]
    assert messages(option, CPU)[:2] == [(4, 3, "DT_FLOAT", 1), (8, 3, "DT_FLOAT", 1)]


def test_a_group_that_is_too_large_is_a_case_unless_refused() -> None:
    option = parsed("--num-devices", "2", "16")
    assert {devices for _, devices, *_ in messages(option, CPU)} == {2, 16}
    # The reported grid is that of the machine, and not one that would hold the group.
    (about,) = options.collective_plan(parsed("--num-devices", "2", "16"), GroupNodes(CPU)).about
    assert about.startswith("grid 1 x 8:")
    spec = of_group(option, CPU, "16", "1")
    assert re.findall(r"\d+", spec.placement_problem(8)) == ["16", "8"]
    assert re.findall(r"\d+", GroupNodes(CPU).placement_problem(spec)) == ["16", "2", "8", "4"]
    option.strict = True
    with pytest.raises(OpAtlasError, match="--num-devices 16"):
        options.collective_plan(option, GroupNodes(CPU))


def test_groups_of_several_nodes_take_as_many_devices_of_each() -> None:
    nodes = ("--nnodes", "2", "--node-rank", "1", "--master-port", "29500")
    option = parsed(*nodes, "--num-devices", "2")
    assert messages(option, CPU)[0] == (1024, 2, "DT_BF16", 0)
    spec = of_group(option, CPU, "2", "0")
    assert (spec.members, spec.local_members(8), spec.placement_problem(8), spec.rank_of(0)) == ((0, 8), (0,), "", 1)
    option = parsed(*nodes, "--num-devices", "3")
    uneven = of_group(option, CPU, "3", "0")
    assert "2 + 1 devices" in uneven.placement_problem(8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nnodes", "2"], "--nnodes 2: .*--master-port"),
        (["--node-rank", "1"], "--node-rank 1: "),
        (["--grid-shape", "2", "2", "--num-devices", "8"], "--num-devices 8: .* 2 x 2 "),
        (["--grid-shape", "1", "4", "--topology-tier", "0"], "tier 0 .* 1 x 4 "),
        (["--topology-tier", "2"], "tier 2"),
        (["--grid-shape", "1", "2", "3", "4"], "--grid-shape 1 x 2 x 3 x 4: "),
    ],
)
def test_contradictions_are_refused(arguments: list[str], words: str) -> None:
    with pytest.raises(OpAtlasError, match=words):
        options.collective_plan(parsed(*arguments), GroupNodes(CPU))


def test_ops_names_collectives_as_torch_or_as_hccl_does() -> None:
    assert options.named_collectives(()) == list(BY_NAME.values())
    assert options.named_collectives(("All_to_all", "hcom_allReduce_", "allreduce")) == [ALL_TO_ALL, ALL_REDUCE]
    assert list(options.collective_plan(parsed(ops=("all_reduce",)), GroupNodes(CPU)).rows) == [ALL_REDUCE.kernel_type]
    with pytest.raises(OpAtlasError, match="did you mean all_reduce"):
        options.collective_plan(parsed(ops=("all_reduced",)), GroupNodes(CPU))
    with pytest.raises(OpAtlasError, match="--ops Add: "):
        options.collective_plan(parsed(ops=("all_reduce", "Add")), GroupNodes(CPU))


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--comm-dtype", "float8"], "'float8'"),
        (["--num-devices", "2", "4", "bench/test_collectives.py"], "'bench/test_collectives.py'"),
        (["--bytes-grid", "1k"], "'1k'"),
    ],
)
def test_meaningless_values_are_refused(arguments: list[str], value: str, capsys) -> None:
    with pytest.raises((OpAtlasError, pytest.UsageError, SystemExit)) as refused:
        parsed(*arguments)
    message = f"{refused.value}{capsys.readouterr().err}"
    assert arguments[0] in message
    assert value in message


def test_collectives_are_named_alone() -> None:
    def asked(*arguments: str) -> bool:
        option = SimpleNamespace(tasks=None, suite=None, prof_path=None, step=())
        return scope_of(SimpleNamespace(args=list(arguments), option=option)) is Scope.COLLECTIVES  # type: ignore[arg-type]

    assert not asked("bench/")
    assert asked(f"bench/{options.MODULE}")
    assert asked(f"bench/{options.MODULE}::test_all_reduce")
    with pytest.raises(pytest.UsageError, match=options.MODULE):
        asked("bench/", f"bench/{options.MODULE}")


def test_variables_of_the_libraries_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("NCCL_VERSION", "2.28.3-1")
    _, about = options.collective_plan(parsed(), GroupNodes(CPU)).about
    assert about.split()[1:] == ["GLOO_SOCKET_IFNAME=lo", "NCCL_NVLS_ENABLE=0"]
