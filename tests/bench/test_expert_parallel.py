"""Kernels of expert parallelism: the group that a row needs, options of nodes, and mistakes that are caught."""

from __future__ import annotations

from argparse import Namespace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from opatlas.bench.implementations import torch as impl
from replaying import cells_of
from sample_rows import BACK, TOLD

from opatlas.cli.app import run_tool
from opatlas.options import add_all
from opatlas.outer.doctor.shape_probe import probe
from opatlas.row.errors import InvalidRow, MissingPrecondition
from opatlas.run.group import NODE_OPTIONS, GroupSpec, group_on_nodes, node_options_problem
from opatlas.run.inputs.experts import (
    OPTIONS,
    Exchange,
    dispatched,
    expect_hccl_buffer,
    group_of_combine,
    group_of_dispatch,
    group_of_layer,
)
from opatlas.run.inputs.row_slots import RowSlots

pytestmark = pytest.mark.usefixtures("forks")
ROOT = Path(__file__).parents[2]


def options(*arguments: str):
    parser = pytest.Parser(_ispytest=True)
    add_all(parser.getgroup("expert-parallel"), (*NODE_OPTIONS, *OPTIONS))
    return parser.parse_known_args([f"--{argument}" for argument in arguments], Namespace(case_timeout=None))


@pytest.mark.parametrize(
    ("cell", "arguments", "spec"),
    [
        ("", (), GroupSpec(16)),
        ("", ("ep-size=8",), GroupSpec(8)),
        ("4", ("ep-size=8",), GroupSpec(4)),
        (" 4 ", ("nproc-per-node=2",), GroupSpec(4, nproc_per_node=2)),
        (
            "32",
            ("nnodes=2", "node-rank=1", "master-addr=10.0.0.1", "master-port=29500"),
            GroupSpec(32, nnodes=2, node_rank=1, master_addr="10.0.0.1", master_port=29500),
        ),
    ],
)
def test_group_of_a_row(cell: str, arguments: tuple[str, ...], spec: GroupSpec) -> None:
    assert group_of_layer({"EP Size": cell}, options(*arguments)) == spec


@pytest.mark.parametrize("cell", ["two", "0", "-1", "2.5"])
def test_a_cell_without_a_size_is_refused(cell: str) -> None:
    with pytest.raises(InvalidRow, match=f"column 'EP Size': '{cell}'"):
        group_of_layer({"EP Size": cell}, options())


def test_tokens_that_are_not_active_get_zeros_and_go_to_no_expert() -> None:
    x, up, down = torch.rand(4, 16), torch.rand(5, 16, 24), torch.rand(5, 12, 16)
    experts, probs = torch.tensor([[0, 1], [1, 2], [3, 4], [0, 4]]), torch.rand(4, 2)
    active = torch.tensor([True, True, True, False])
    out, counts = torch.ones(4, 16), torch.zeros(1, 5, dtype=torch.int32)
    impl.dispatch_ffn_combine(x, [up], [down], experts, [], [], probs, "", 0, out, counts, x_active_mask=active)
    alone, fewer = torch.zeros(3, 16), torch.zeros(5, dtype=torch.int32)
    impl.dispatch_ffn_combine(x[:3], [up], [down], experts[:3], [], [], probs[:3], "", 0, alone, fewer)
    torch.testing.assert_close(out, torch.cat([alone, torch.zeros(1, 16)]))
    assert counts.tolist() == [fewer.tolist()] == [[1, 2, 1, 1, 1]]


def exchange(tokens: int, width: int, top_k: int, ranks: int, experts: int, most_tokens: int | None = None) -> Exchange:
    return Exchange(tokens, width, top_k, ranks, experts, most_tokens or tokens * ranks)


@pytest.mark.parametrize(
    ("row", "found", "global_bs"),
    [
        (f"4,7168;4,8 | DT_BF16;INT32 -> 512,7168;512;32;16;256 | DT_BF16;{TOLD}", exchange(4, 7168, 8, 16, 16), 0),
        # Fewer experts on a rank than a token has.
        (f"4,7168;4,8 | DT_BF16;INT32 -> 1024,7168;1024;32;4;256 | DT_BF16;{TOLD}", exchange(4, 7168, 8, 64, 4), 0),
        # The weights are dispatched too: 2 x 8 x 64 numbers more for each eight ranks.
        (
            f"4,7168;4,8;;;4,8 | DT_BF16;INT32;;;FLOAT -> 512,7168;512;32;16;2304 | DT_BF16;{TOLD}",
            exchange(4, 7168, 8, 16, 16),
            0,
        ),
        # Ranks may have up to 8 tokens.
        (
            f"4,7168;4,8 | DT_BF16;INT32 -> 1024,7168;1024;32;16;256 | DT_BF16;{TOLD}",
            exchange(4, 7168, 8, 16, 16, 128),
            128,
        ),
    ],
)
def test_shapes_of_a_dispatch_determine_its_group(row: str, found: Exchange, global_bs: int) -> None:
    cells = cells_of(row)
    spec = group_of_dispatch(cells, options("ep-size=2"))
    assert dispatched(RowSlots("MoeDistributeDispatch", cells)) == found
    assert found.global_bs == global_bs
    assert spec.ranks == found.ranks


@pytest.mark.parametrize(
    ("row", "arguments", "ranks"),
    [
        # By its shapes: 512 = 4 x 16 x 8, of 256 experts.
        (f"512,7168;4,8;32;256;4,8 | DT_BF16;{BACK} -> 4,7168 | DT_BF16", (), 16),
        (f"512,7168;4,8;32;256;4,8 | DT_BF16;{BACK} -> 4,7168 | DT_BF16", ("ep-size=32",), 16),
        # 1024 = 4 x 256: 32, 64, 128 or 256 ranks, each with no more experts than a token has.
        (f"1024,7168;4,8;32;256;4,8 | DT_BF16;{BACK} -> 4,7168 | DT_BF16", ("ep-size=64",), 64),
        (f"1024,7168;4,8;32;256;4,8 | DT_BF16;{BACK} -> 4,7168 | DT_BF16 @ EP Size = 128", ("ep-size=64",), 128),
        # With room for up to 8 tokens of a rank.
        (f"1024,7168;4,8;32;256;4,8 | DT_BF16;{BACK} -> 4,7168 | DT_BF16 @ EP Size = 32", (), 32),
    ],
)
def test_shapes_of_a_combine_and_options_determine_its_group(row: str, arguments: tuple[str, ...], ranks: int) -> None:
    assert group_of_combine(cells_of(row), options(*arguments)).ranks == ranks


def test_an_exchange_that_the_shapes_do_not_allow_is_refused() -> None:
    open_row = f"1024,7168;4,8;32;256;4,8 | DT_BF16;{BACK} -> 4,7168 | DT_BF16"
    with pytest.raises(MissingPrecondition, match=r"32, 64, 128, 256 .* 16: .*--ep-size"):
        group_of_combine(cells_of(open_row), options())
    with pytest.raises(InvalidRow, match="column 'EP Size' is 5"):
        group_of_combine(cells_of(f"{open_row} @ EP Size = 5"), options())
    dispatch = f"4,7168;4,8 | DT_BF16;INT32 -> 512,7168;512;32;16;256 | DT_BF16;{TOLD}"
    with pytest.raises(InvalidRow, match=r"'EP Size' is '8': .* 16 "):
        group_of_dispatch(cells_of(f"{dispatch} @ EP Size = 8"), options())
    with pytest.raises(InvalidRow):
        group_of_dispatch(cells_of(dispatch.replace("16;256", "16;257")), options())
    with pytest.raises(InvalidRow, match="slot 3 "):
        group_of_combine(cells_of("512,7168;4,8;32 | DT_BF16;INT32;INT32 -> 4,7168 | DT_BF16"), options())


@pytest.mark.parametrize(
    "row",
    [
        # A3 requires 2 (256 x 2 (7168 + 128) (256 + 8 + 1)) bytes + 2 MiB = 1890 MiB.
        f"256,7168;256,8 | DT_BF16;INT32 -> 32768,7168;32768;2048;16;256 | DT_BF16;{TOLD}",
        # 2 x 137 (256 x 14848 + 9 x 14336) bytes are 1027 MiB for newer kernels of an A3; older ones require 1013.
        f"137,7168;137,8 | DT_BF16;INT32 -> 17536,7168;17536;1096;16;256 | DT_BF16;{TOLD}",
    ],
)
def test_the_buffer_of_hccl_holds_the_tokens_of_an_exchange(row: str) -> None:
    assert group_of_dispatch(cells_of(row), options()).hccl_buffer_mib == 2048


@pytest.mark.parametrize("version", ["", "_v2"])
@pytest.mark.parametrize(
    ("active", "sent_tokens", "sent_counts"),
    [
        pytest.param([True, True, False], [0, 1, 0, 1], [1, 1, 2], id="tokens"),
        pytest.param([[True, True], [False, True], [False, False]], [0, 1, 0], [1, 1, 1], id="choices"),
    ],
)
def test_inactive_tokens_and_choices_are_not_sent(
    version: str, active: list[Any], sent_tokens: list[int], sent_counts: list[int]
) -> None:
    x, weights, mask = torch.rand(3, 4), torch.rand(3, 2), torch.tensor(active)
    experts = torch.tensor([[0, 2], [2, 1], [1, 0]], dtype=torch.int32)
    where = {"group_ep": "", "ep_world_size": 1, "ep_rank_id": 0, "moe_expert_num": 3, "x_active_mask": mask}
    sent, _, indices, counts, ends, *_ = getattr(impl, f"moe_distribute_dispatch{version}")(x, experts, **where)
    assert torch.equal(sent, torch.cat([x[sent_tokens], torch.zeros(6 - len(sent_tokens), 4)]))
    assert (counts.tolist(), ends.tolist()) == (sent_counts, list(accumulate(sent_counts)))
    back = getattr(impl, f"moe_distribute_combine{version}")(sent, experts, indices, ends, weights, **where)
    torch.testing.assert_close(back, x * (weights * mask.view(3, -1)).sum(1, keepdim=True))


@pytest.mark.parametrize(
    ("m", "k", "dtype", "mib"), [(64, 8, "INT8", None), (4096, 8, "INT8", 1024), (4096, 8, "DT_BF16", 2048)]
)
def test_the_buffer_of_hccl_holds_the_tokens_of_a_row(m: int, k: int, dtype: str, mib: int | None) -> None:
    shapes = f"{m},7168;6,7168,320;6,160,7168;{m},{k};6,320;6,7168;{m},{k}"
    cells = cells_of(f"{shapes} | DT_BF16;{dtype};{dtype};INT32;INT64;INT64;FLOAT -> {m},7168 | DT_BF16")
    assert group_of_layer(cells, options()).hccl_buffer_mib == mib


def test_a_buffer_that_the_user_made_too_small_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_BUFFSIZE", "200")
    expect_hccl_buffer(200 << 20)
    with pytest.raises(MissingPrecondition, match="HCCL_BUFFSIZE=256"):
        expect_hccl_buffer((200 << 20) + 1)


@pytest.mark.parametrize("arguments", [["--ep-size", "0"], ["--start", "1,2"]])
def test_the_probe_refuses_numbers_that_mean_nothing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(probe, "probe", arguments) == 2
    err = capsys.readouterr().err
    assert arguments[0] in err
    assert f"'{arguments[1]}': give " in err


def test_the_options_name_the_nodes_of_a_group() -> None:
    values = {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.1", "master_port": 29500}
    options = Namespace(**values, case_timeout=None)
    assert group_on_nodes(options, 4, nproc_per_node=2) == GroupSpec(4, **values, nproc_per_node=2)
    assert node_options_problem(options) == ""


@pytest.mark.parametrize(("case_timeout", "join_limit_s"), [(None, 300.0), (10.0, 300.0), (900.0, 900.0)])
def test_a_group_may_take_as_long_to_start_as_a_row(case_timeout: float | None, join_limit_s: float) -> None:
    values = {"nnodes": 2, "node_rank": 0, "master_addr": "10.0.0.1", "master_port": 29500}
    assert group_on_nodes(Namespace(**values, case_timeout=case_timeout), 4).join_limit_s == join_limit_s


@pytest.mark.parametrize(
    ("changed", "named"), [({"master_port": None}, "--master-port"), ({"node_rank": 2}, "--node-rank")]
)
def test_contradictions_name_the_option(changed: dict[str, int | None], named: str) -> None:
    options = Namespace(**{"nnodes": 2, "node_rank": 1, "master_port": 29500, **changed})
    assert named in node_options_problem(options)
