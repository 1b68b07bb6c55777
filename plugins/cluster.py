"""The cluster of --ray, which a process of pytest joins once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from opatlas.run.devices.device import DeviceSpec

if TYPE_CHECKING:
    from opatlas.outer.cluster.ray_cluster import RayCluster

_CLUSTER = pytest.StashKey["RayCluster"]()


def cluster_of(config: pytest.Config, own: Sequence[DeviceSpec]) -> RayCluster:
    """Returns the cluster of --ray, joined at the first call and left when pytest ends.

    Args:
        own: the devices that a conftest.py gives each host; empty: devices are looked for.

    Raises:
        OpAtlasError: there is no cluster, it has no device that fits, or its devices differ.
    """
    if _CLUSTER not in config.stash:
        # Sessions without a cluster import nothing of it.
        from opatlas.outer.cluster.ray_cluster import RayCluster

        cluster = config.stash[_CLUSTER] = RayCluster(
            config.option.ray, config.option.device, own, mixed=config.option.mixed
        )
        config.add_cleanup(cluster.close)
    return config.stash[_CLUSTER]


def cluster_notes(config: pytest.Config) -> list[str]:
    """Returns which hosts a session does not use; none without a cluster."""
    return config.stash[_CLUSTER].notes if _CLUSTER in config.stash else []
