"""Clusters of Ray on this machine; tests that ask for one are skipped without the extra ray."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sessions import FOLDER, Sessions


@pytest.fixture
def quick_ray(monkeypatch: pytest.MonkeyPatch, sessions: Sessions) -> None:
    """Variables for clusters of this test and its sessions, whose processes bear the mark of the sessions' folder."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setenv(FOLDER, str(sessions.folder))
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness"):
        monkeypatch.setenv(name, "0")
    # A node that says nothing is given up after some seconds instead of a minute.
    for name, value in (("initial_delay", "1000"), ("period", "500"), ("timeout", "500")):
        monkeypatch.setenv(f"RAY_health_check_{name}_ms", value)
    monkeypatch.setenv("RAY_health_check_failure_threshold", "4")


@pytest.fixture
def cluster(quick_ray: None) -> Iterator[Any]:
    """A head of one core, to which a test adds nodes."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    made.shutdown()
