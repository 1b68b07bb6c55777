"""Options of nodes; numbers of a probe that mean nothing."""

from __future__ import annotations

from argparse import Namespace

import pytest

from opatlas.cli.app import run_tool
from opatlas.outer.doctor.shape_probe import probe
from opatlas.run.group_spec import GroupSpec, group_on_nodes, node_options_problem


@pytest.mark.parametrize("arguments", [["--ep-size", "0"], ["--time-budget", "nan"], ["--start", "1,2"]])
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
