"""Runs rows on the devices of a cluster: they run ahead of pytest, which gets their outcomes in its own order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from opatlas.row.errors import ReplayError
from opatlas.row.roofline import Peak, bound_us, device_peak, row_work
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription
from opatlas.run.groups.pool import GroupPool
from opatlas.run.job import Job, RowOutcome
from opatlas.run.process.dealer import Dealer
from opatlas.run.process.device_pool import ExcludedDevices

from .cases import SessionCase, needs_group, row_of, will_run
from .cluster import cluster_of
from .item_rows import JobOf
from .session_context import SessionContext

#: Called with each outcome as it arrives, and the device that it is from.
Arrived = Callable[[pytest.Function, RowOutcome, DeviceDescription], None]


class ClusterRows:
    """Runs rows by their tests (ItemRows): deals them to all devices of the cluster.

    All implementations of a row run on one device, so that their ratio is not one of two devices. Rows of groups run
    one at a time, when pytest reaches them, and no other row runs meanwhile.
    """

    runs_ahead = True

    def __init__(self, context: SessionContext, job_of: JobOf, items: Sequence[pytest.Item], arrived: Arrived) -> None:
        """
        Args:
            items: the tests of the session; rows of one device are dealt in their order.
            arrived: keeps an outcome.
        """
        self._context = context
        self._job_of = job_of
        self._arrived = arrived
        #: Rows of one device.
        self._items = [
            item for item in items if isinstance(item, pytest.Function) and will_run(item) and not needs_group(item)
        ]
        #: The item of each job without an outcome, and the job of each item that was dealt, by node id.
        self._item_of: dict[int, pytest.Function] = {}
        self._dealt: dict[str, int] = {}
        #: Outcomes that pytest has not asked for, and the devices that they are from, by node id.
        self._ready: dict[str, tuple[RowOutcome, DeviceDescription]] = {}
        #: Node ids of failures that pytest has not reached.
        self._failed: set[str] = set()
        self._last: DeviceDescription | None = None
        self._dealer: Dealer | None = None
        self._cluster = cluster = cluster_of(context.config, ())
        self._groups = GroupPool(
            cluster.group_nodes,
            context.settings.measure,
            ExcludedDevices(None),
            lambda spec, _, measure: cluster.group(spec, measure, context.tell_once),
        )

    def describe(self) -> DeviceDescription:
        if self._last is not None:
            return self._last
        return self._opened().describe() if self._items else self._groups.describe()

    def prepare(self) -> None:
        self._opened().describe()
        self._opened().turn()

    def outcome(self, item: pytest.Function) -> RowOutcome:
        if needs_group(item):
            return self._of_group(item)
        dealer = self._opened()
        dealer.turn()
        if item.nodeid not in self._ready:
            job_id = self._dealt.get(item.nodeid)
            if job_id in self._item_of:
                assert job_id is not None
                dealer.wait_for(job_id)
            else:
                # Not dealt yet, or a plugin runs the row again.
                dealer.run(self._new_job(item))
        outcome, self._last = self._ready.pop(item.nodeid)
        self._failed.discard(item.nodeid)
        return outcome

    def unreached(self) -> dict[str, RowOutcome]:
        self.close()
        return {nodeid: outcome for nodeid, (outcome, _) in self._ready.items()}

    def close(self) -> None:
        """Waits for the rows that run, and ends all devices."""
        if self._dealer is not None:
            self._dealer.finish()
        self._groups.close()

    def _of_group(self, item: pytest.Function) -> RowOutcome:
        """Runs a row of a group, with no other row beside it."""
        job = self._job_of(item)
        assert job.group is not None
        if not self._groups.shortage(job.group):
            self._free_devices()
        outcome, device = self._groups.run(job), self._groups.describe()
        if outcome.status in (Status.SKIPPED, Status.DEVICE_ERROR):
            # It ran nowhere, and the description is that of an earlier group.
            device = replace(device, facts={})
        self._last = device
        self._arrived(item, outcome, device)
        return outcome

    def _opened(self) -> Dealer:
        """Returns the dealer, whose devices no group uses."""
        if self._dealer is None:
            self._groups.close()
            context = self._context
            devices, count = self._cluster.devices(context.settings.measure), len(self._items) - len(self._dealt)
            self._dealer = Dealer(
                devices, self._jobs(), count, self._take, context.tell_once, self._may_deal, self._row_of
            )
        return self._dealer

    def _free_devices(self) -> None:
        """Ends the devices, so that a group can have them; rows that were dealt and have not begun are dealt anew."""
        if self._dealer is not None:
            self._dealer.finish()
            self._dealer = None
            self._dealt = {nodeid: job for nodeid, job in self._dealt.items() if job not in self._item_of}
            self._item_of.clear()
        self._cluster.free()

    def _jobs(self) -> Iterator[Job]:
        for item in self._items:
            if item.nodeid in self._dealt:
                continue
            try:
                yield self._new_job(item)
            except ReplayError:
                # Refused again, with its reason, when pytest reaches it.
                continue

    def _new_job(self, item: pytest.Function) -> Job:
        job = self._job_of(item)
        self._item_of[job.id] = item
        self._dealt[item.nodeid] = job.id
        return job

    def _row_of(self, job: Job) -> str | None:
        """Returns the row of a job whose row has several implementations; None in a session with one."""
        if len(self._context.settings.targets) < 2:
            return None
        row = row_of(self._item_of[job.id])
        assert row is not None
        return row.row_id

    def _take(self, job: Job, outcome: RowOutcome, device: DeviceDescription) -> None:
        item = self._item_of.pop(job.id)
        self._ready[item.nodeid] = outcome, device
        if outcome.status not in (Status.MEASURED, Status.UNSUPPORTED):
            self._failed.add(item.nodeid)
        self._arrived(item, outcome, device)

    def _may_deal(self) -> bool:
        # With --maxfail a failure may be the last row: pytest decides when it reaches the row.
        waits = bool(self._context.config.option.maxfail) and bool(self._failed)
        return not (waits or self._context.stop_reason)


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
