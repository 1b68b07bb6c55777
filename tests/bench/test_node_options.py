"""Options of nodes under any prefix; numbers of a probe that mean nothing."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import pytest

from opatlas.isolation.groups.options import NodeOptions
from opatlas.isolation.groups.spec import GroupSpec
from opatlas.theory.refused_probe import add_arguments


@pytest.mark.parametrize("arguments", [["--ep-size", "0"], ["--time-budget", "nan"], ["--case-timeout", "-1"]])
def test_the_probe_refuses_numbers_that_mean_nothing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(arguments)
    assert f"argument {arguments[0]}: '{arguments[1]}': give a " in capsys.readouterr().err


@pytest.mark.parametrize(("prefix", "names"), [("--", ""), ("--my-kernel-", "my_kernel_")])
def test_nodes_are_read_under_their_prefix(prefix: str, names: str) -> None:
    values = {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.1", "master_port": 29500}
    options = Namespace(**{f"{names}{name}": value for name, value in values.items()}, **{f"{names}join_timeout": 9.0})
    spec = GroupSpec(4, **values, nproc_per_node=2, join_timeout_s=9.0)
    assert NodeOptions(prefix).spec(options, 4, nproc_per_node=2) == spec
    assert NodeOptions(prefix).contradiction(options) == ""
    setattr(options, f"{names}master_port", None)
    assert NodeOptions(prefix).contradiction(options) == (
        f"{prefix}nnodes 2: name a port of node 0 with {prefix}master-port"
    )
