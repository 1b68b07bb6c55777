"""Kernels of expert parallelism: the group that a row needs, refusals in words, and mistakes that are caught."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from replaying import OUTPUT, SHAPES, assert_mistake_is_caught, assert_refused, cells_of, replay_row
from sample_rows_moe import LAYER, LAYER_BITS, ROWS

from bench import impl
from bench.dispatch_ffn_combine.experts import Experts
from bench.dispatch_ffn_combine.layer import group_of_layer
from bench.errors import InvalidRow, MissingPrecondition
from bench.groups.expert_parallel import add_options
from bench.groups.hccl_buffer import expect_buffer
from bench.groups.spec import GroupSpec
from database.schema import Status

ROOT = Path(__file__).parents[2]


LAYER_OUT = "11,40;6 | DT_BF16;INT32"

CONTRADICTIONS = [
    (
        "DispatchFFNCombine",
        f"11,40;6,40,48;6,25,40;11,3;6,48;6,40;11,3 | {LAYER} -> {LAYER_OUT} @ EP Size = 1",
        SHAPES,
        "do not belong together",
    ),
    (
        "DispatchFFNCombine",
        f"11,40;6,40,48;6,25,40;11,3;6,48;6,40;11,3 | {LAYER} -> {LAYER_OUT} @ EP Size = 16",
        SHAPES,
        "do not belong together",
    ),
    (
        "DispatchFFNCombine",
        f"11,40;6,40,48;6,24,40;11,3;6,48;6,40;11,3 | {LAYER} -> 11,40;5 | DT_BF16;INT32 @ EP Size = 1",
        OUTPUT,
        "output 1 counts the tokens of 6 experts",
    ),
    (
        "DispatchFFNCombine",
        f"11,40;6,40,48;6,24,40;11,7;6,48;6,40;11,7 | {LAYER} -> {LAYER_OUT} @ EP Size = 1",
        SHAPES,
        "slot 3 holds for each token the experts",
    ),
    (
        "DispatchFFNCombine",
        f"11,40;6,40,48;6,24,40;11,3;6,48;6,40 | {LAYER} -> {LAYER_OUT} @ EP Size = 1",
        SHAPES,
        "and their weights () do not belong together",
    ),
    (
        "DispatchFFNCombine",
        f"11,40;6,40,48;6,24,40;11,3;6,48;6,40;11,3 | {LAYER} -> {LAYER_OUT} @ EP Size = two",
        "EP Size",
        "the number of devices",
    ),
    (
        "DispatchFFNCombine",
        f"9,256;6,256,320;6,160,256;9,3;6,321;6,256;9,3 | {LAYER_BITS} -> 9,256;6 | DT_BF16;INT32 @ EP Size = 1",
        SHAPES,
        "slot 4 must have the shape 6,320",
    ),
]


def options(*arguments: str, prefix: str = "ep"):
    parser = pytest.Parser(_ispytest=True)
    add_options(parser)
    return parser.parse_known_args([f"--{prefix}-{argument}" for argument in arguments])


@pytest.mark.parametrize(
    ("cell", "arguments", "spec"),
    [
        ("", (), GroupSpec(16)),
        ("", ("size=8",), GroupSpec(8)),
        ("4", ("size=8",), GroupSpec(4)),
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
def test_a_cell_that_tells_no_size_is_refused(cell: str) -> None:
    with pytest.raises(InvalidRow, match=f"column 'EP Size': '{cell}'"):
        group_of_layer({"EP Size": cell}, options())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("nnodes=2",), "name a port of node 0"), (("nnodes=2", "node-rank=2"), "there are 2 nodes, from 0 on")],
)
def test_options_that_lack_something_say_what(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(MissingPrecondition, match=words):
        group_of_layer({}, options(*arguments))


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("size=0", "from 1 on"),
        ("nnodes=x", "from 1 on"),
        ("master-port=0", "from 1 to"),
        ("master-port=99999", "65535"),
    ],
)
def test_numbers_are_whole(argument: str, words: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"give a whole number .*{words}"):
        options(argument)


def test_experts_are_counted_through_the_ranks() -> None:
    experts = Experts(lambda rank: [[f"up {rank}.{i}" for i in range(3)], "down"], which=0, per_rank=3, ranks=2)
    assert list(experts) == ["up 0.0", "up 0.1", "up 0.2", "up 1.0", "up 1.1", "up 1.2"]


@pytest.mark.parametrize(("kernel_type", "row", "column", "words"), CONTRADICTIONS)
def test_contradiction_is_refused(kernel_type: str, row: str, column: str, words: str) -> None:
    assert_refused(kernel_type, row, column, words)


def test_a_row_of_another_group_is_not_replayed() -> None:
    row = f"11,40;6,40,48;6,24,40;11,3;6,48;6,40;11,3 | {LAYER} -> {LAYER_OUT} @ EP Size = 8"
    outcome = replay_row("DispatchFFNCombine", row)
    assert outcome.status is Status.UNSUPPORTED, outcome
    assert "runs on 8 devices at once" in outcome.reason


def test_order_of_tokens_does_not_matter_to_a_layer():
    generator = torch.Generator().manual_seed(4)
    x, up, down = (torch.rand(shape, generator=generator) - 0.5 for shape in ((9, 16), (5, 16, 24), (5, 12, 16)))
    experts = torch.rand(9, 5, generator=generator).argsort(-1)[:, :3]
    probs = torch.rand(9, 3, generator=generator)

    def layer(order):
        out, counts = torch.zeros(9, 16), torch.zeros(5, dtype=torch.int32)
        return impl.dispatch_ffn_combine(
            x[order], [up], [down], experts[order], [], [], probs[order], "", 0, out, counts
        )

    order = torch.randperm(9, generator=generator)
    (whole, counts), (shuffled, same) = layer(torch.arange(9)), layer(order)
    torch.testing.assert_close(whole[order], shuffled)
    assert torch.equal(counts, same)


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


right_layer = impl.dispatch_ffn_combine

#: Mistakes that are easy to make: which sample row, and what of the call is changed.
MISTAKES = {
    "weights of experts left out": (0, lambda call: {"probs": torch.ones_like(call["probs"])}),
    "scales of another expert": (3, lambda call: {"scale1": [call["scale1"][0].roll(1, 0)]}),
    "scales of another column": (3, lambda call: {"scale2": [call["scale2"][0].roll(1, 1)]}),
    "scales are numbers and not bits": (3, lambda call: {"scale2": [call["scale2"][0].float()]}),
    "matrices of another expert": (6, lambda call: {"weight2": call["weight2"][::-1]}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_caught(monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    row, change = MISTAKES[mistake]

    def wrong(**call):
        return right_layer(**{**call, **change(call)})

    kernel_type = "DispatchFFNCombine"
    assert_mistake_is_caught(monkeypatch, "dispatch_ffn_combine", wrong, kernel_type, ROWS[kernel_type][row])


@pytest.mark.parametrize(
    ("m", "k", "dtype", "mib"), [(64, 8, "INT8", None), (4096, 8, "INT8", 1024), (4096, 8, "DT_BF16", 2048)]
)
def test_the_buffer_of_hccl_holds_the_tokens_of_a_row(m: int, k: int, dtype: str, mib: int | None) -> None:
    shapes = f"{m},7168;6,7168,320;6,160,7168;{m},{k};6,320;6,7168;{m},{k}"
    cells = cells_of(f"{shapes} | DT_BF16;{dtype};{dtype};INT32;INT64;INT64;FLOAT -> {m},7168 | DT_BF16")
    assert group_of_layer(cells, options()).hccl_buffer_mib == mib


def test_a_group_serves_rows_that_need_no_larger_buffer() -> None:
    assert GroupSpec(2, hccl_buffer_mib=512).serves(GroupSpec(2))
    assert not GroupSpec(2).serves(GroupSpec(2, hccl_buffer_mib=512))
    assert not GroupSpec(2, hccl_buffer_mib=512).serves(GroupSpec(4))


def test_a_buffer_that_the_user_made_too_small_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_BUFFSIZE", "200")
    expect_buffer(200 << 20)
    with pytest.raises(MissingPrecondition, match="HCCL_BUFFSIZE=256"):
        expect_buffer((200 << 20) + 1)


def test_a_session_runs_rows_that_its_devices_are_enough_for(tmp_path: Path) -> None:
    """`pytest bench/` on the CPU: by the cell, by the option, too large, and not a number."""
    row = cells_of(f"5,40;3,40,48;3,24,40;5,3;3,48;3,40;5,3 | {LAYER} -> 5,40;3 | DT_BF16;INT32")
    with open(tmp_path / "DispatchFFNCombine.csv", "w", newline="") as file:
        lines = csv.DictWriter(file, [*row, "EP Size"], lineterminator="\n")
        lines.writeheader()
        lines.writerows({**row, "EP Size": ep} for ep in ("2", "", "16", "two"))
    arguments = [f"--database-path={tmp_path}", "--repeat-count=2", "--dispatch-ffn-combine-ep-size=1", "--device=cpu"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "bench/test_expert_parallel.py",
            "-p",
            "no:cacheprovider",
            "--device=cpu",
            *arguments,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with open(tmp_path / "DispatchFFNCombine.csv", newline="") as file:
        found = {line["EP Size"]: line for line in csv.DictReader(file)}
    assert done.returncode == 1, done.stdout
    assert {ep: line["Status"] for ep, line in found.items()} == {
        "2": "measured",
        "": "measured",
        "16": "skipped",
        "two": "invalid",
    }, done.stdout
    assert found["16"]["Status Reason"] == "needs 16 devices, 2 are there"
    assert "column 'EP Size': 'two'" in found["two"]["Status Reason"]
    assert float(found["2"]["Average Duration(us)"]) > 0
    assert float(found["2"]["MicroBench Rank Spread(us)"]) >= 0
