"""The cluster of --ray, which a process of pytest joins once, and the order in which rows run on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from opatlas.errors import OpAtlasError
from opatlas.extensions import SCHEDULERS, extensions
from opatlas.row.roofline import Peak, bound_us, device_peak, row_work
from opatlas.run.devices.device import DeviceDescription, DeviceSpec

from .cases import SessionCase, needs_group, row_of

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
        registered = extensions(SCHEDULERS).get("ray")
        if registered is None:
            raise OpAtlasError("--ray: this installation has no scheduler of clusters")
        # Sessions without a cluster import nothing of it.
        join = registered.load()
        cluster = config.stash[_CLUSTER] = join(config.option.ray, config.option.device, own, mixed=config.option.mixed)
        config.add_cleanup(cluster.close)
    return config.stash[_CLUSTER]


def cluster_notes(config: pytest.Config) -> list[str]:
    """Returns which hosts a session does not use; none without a cluster."""
    return config.stash[_CLUSTER].notes if _CLUSTER in config.stash else []


def host_of(device: DeviceDescription | None) -> str:
    """Returns the machine of a device of a cluster; "" for the device of this machine."""
    return str(device.facts.get("host", "")) if device is not None else ""


def sort_longest_first(items: list[pytest.Item], device_name: str) -> None:
    """Sorts the rows by their expected time, the longest first; equally long ones keep their order.

    The duration that the database has tells it, or else what the peaks of the device allow. Of several implementations
    the slowest counts, so that they stay together. Other tests come first, and rows of groups last, in their order.
    """
    peak = device_peak(device_name)
    rows = [row for item in items if not needs_group(item) and (row := row_of(item)) is not None]
    longest_ms: dict[str, int] = {}
    for row in rows:
        longest_ms[row.row_id] = max(longest_ms.get(row.row_id, 0), _expected_ms(row, peak))

    def key(item: pytest.Item) -> float:
        if needs_group(item):
            return float("inf")
        row = row_of(item)
        return -float("inf") if row is None else -longest_ms[row.row_id]

    items.sort(key=key)


def _expected_ms(row: SessionCase, peak: Peak) -> int:
    """Returns whole milliseconds: below that the duration of the kernel decides nothing."""
    replayed = row.row.replayed
    expected_us = replayed.us if replayed is not None else row.captured_us
    if expected_us is None and (work := row_work(row.kernel_type, row.cells)) is not None:
        expected_us = bound_us(work, peak, cold=True)
    return int((expected_us or 0.0) / 1000)
