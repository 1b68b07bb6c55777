"""Which group a row of DispatchFFNCombine needs, by its cell and the operator's options."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from replaying import cells_of
from sample_rows_moe import LAYER

from bench.dispatch_ffn_combine.group import Experts, add_options, group_of
from bench.errors import InvalidRow, MissingPrecondition
from bench.groups.spec import GroupSpec

ROOT = Path(__file__).parents[2]


def options(*arguments: str):
    parser = pytest.Parser(_ispytest=True)
    add_options(parser)
    return parser.parse_known_args([f"--dispatch-ffn-combine-{argument}" for argument in arguments])


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
    assert group_of({"EP Size": cell}, options(*arguments)) == spec


@pytest.mark.parametrize("cell", ["two", "0", "-1", "2.5"])
def test_a_cell_that_tells_no_size_is_refused(cell: str) -> None:
    with pytest.raises(InvalidRow, match=f"column 'EP Size': '{cell}'"):
        group_of({"EP Size": cell}, options())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("nnodes=2",), "name a port of node 0"), (("nnodes=2", "node-rank=2"), "there are 2 nodes, from 0 on")],
)
def test_options_that_lack_something_say_what(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(MissingPrecondition, match=words):
        group_of({}, options(*arguments))


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("ep-size=0", "from 1 on"),
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


def test_a_session_runs_rows_that_its_devices_are_enough_for(tmp_path: Path) -> None:
    """`pytest bench/` on the CPU: by the cell, by the option, too large, and not a number."""
    row = cells_of(f"5,40;3,40,48;3,24,40;5,3;3,48;3,40;5,3 | {LAYER} -> 5,40;3 | DT_BF16;INT32")
    with open(tmp_path / "DispatchFFNCombine.csv", "w", newline="") as file:
        lines = csv.DictWriter(file, [*row, "EP Size"], lineterminator="\n")
        lines.writeheader()
        lines.writerows({**row, "EP Size": ep} for ep in ("2", "", "16", "two"))
    arguments = [f"--database-path={tmp_path}", "--repeat-count=2", "--dispatch-ffn-combine-ep-size=1", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "bench/test_moe.py", "-p", "no:cacheprovider", "--device=cpu", *arguments],
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
