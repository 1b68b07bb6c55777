"""What --ray does not do is refused before a cluster is joined or started."""

from __future__ import annotations

import importlib.util

import pytest
from sessions import Sessions, row


@pytest.mark.parametrize(
    "options",
    [("--in-process",), ("--nnodes=2",), ("-n2",)],
    ids=lambda options: options[0],
)
def test_options_that_no_host_of_a_cluster_follows(sessions: Sessions, options: tuple[str, ...]) -> None:
    sessions.write("Toy", [row(2)])
    refused = sessions.run("--ray=local", *options)
    assert refused.code == pytest.ExitCode.USAGE_ERROR
    assert refused.has_line("--ray", "leave out", options[0].partition("=")[0].rstrip("2"))
    assert sessions.statuses("Toy") == {2: ""}


def test_a_cluster_that_cannot_be_joined_is_told_with_a_remedy(sessions: Sessions) -> None:
    sessions.write("Toy", [row(2)])
    refused = sessions.run("--ray=ray://head:10001")
    assert refused.code == pytest.ExitCode.USAGE_ERROR
    installed = importlib.util.find_spec("ray") is not None
    assert refused.has_line("HOST:PORT" if installed else "opatlas[ray]")
