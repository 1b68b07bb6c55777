"""The actor of a host that takes part in a group: launches the ranks of the host, and answers for them."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from opatlas.errors import OpAtlasError
from opatlas.outer.cluster.ray_actor import HostActor, ray, sent
from opatlas.row.errors import DeviceGone, GroupTimeout
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, available_devices
from opatlas.run.devices.device_lock import DeviceWaits
from opatlas.run.group_spec import GroupSpec
from opatlas.run.groups.pool import GroupNodes
from opatlas.run.groups.process import GroupProcess
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome


@dataclass(frozen=True)
class HostAnswer:
    """The answer of a host for its part of a group.

    Attributes:
        outcome: of a job.
        device: of the first rank, if the group is open.
        failed_after_s, late_step: as in GroupProcess.
        gone: why the ranks of the host cannot run a job; "" if they can.
        is_late: whether ranks did not join in time.
        lacks_nodes: whether the ranks of other hosts did not.
        lost: why the host gives no answer; "" if it gives one.
        address, port: where ranks may meet.
    """

    outcome: RowOutcome | None = None
    device: DeviceDescription | None = None
    failed_after_s: float = math.inf
    late_step: int = 0
    gone: str = ""
    is_late: bool = False
    lacks_nodes: bool = False
    lost: str = ""
    address: str = ""
    port: int = 0

    @property
    def is_good(self) -> bool:
        """Whether the other hosts can go on."""
        failed = self.outcome is not None and self.outcome.status is not Status.MEASURED
        return not (self.lost or self.gone or failed)

    @property
    def leaves_open(self) -> bool:
        """Whether the ranks of several hosts, of which this is one, are ready for the next job."""
        return self.is_good and not (self.outcome is not None and self.outcome.changed)


class GroupActor(HostActor):
    """Keeps the ranks of one host."""

    def __init__(
        self,
        device: str | None,
        specs: Sequence[DeviceSpec],
        variables: Mapping[str, str],
        session: str,
        paths: Sequence[str],
    ) -> None:
        """
        Args:
            specs: the devices of a conftest.py; empty: they are looked for.
            variables: for the libraries that communicate.
        """
        super().__init__(device, session, paths)
        os.environ.update(variables)
        self._specs = specs
        self._said = ""
        self._waits = DeviceWaits(self._keep_line)
        self._group: GroupProcess | None = None

    @sent
    def meet(self) -> HostAnswer:
        """Returns the address of this host, and a free port."""
        with socket.socket() as free:
            free.bind(("", 0))
            return HostAnswer(address=ray().util.get_node_ip_address(), port=free.getsockname()[1])

    @sent
    def open(self, spec: GroupSpec, nodes: GroupNodes, settings: MeasureSettings) -> HostAnswer:
        """Launches the ranks of this host, and waits until the group has met.

        Args:
            spec: the group, with the number of this host.
            nodes: the facts that the hosts have in common.
        """
        self._end()
        try:
            found = self._specs or in_order(available_devices(self._device))
            if len(found) < len(nodes.devices):
                return HostAnswer(gone=f"{len(found)} of {len(nodes.devices)} devices are there")
            devices = found[: len(nodes.devices)]
            own = replace(nodes, devices=devices).devices_of(spec, devices)
            self._group = GroupProcess(spec, own, settings, self._waits)
            device = self._group.describe()
        except (DeviceGone, OpAtlasError) as error:
            return self._gone(error)
        return HostAnswer(device=device)

    @sent
    def look(self) -> HostAnswer:
        """Looks whether all ranks of this host wait for a job."""
        is_idle = self._group is not None and self._group.is_idle()
        return HostAnswer(gone="" if is_idle else "a rank has ended")

    @sent
    def run(self, job: Job) -> HostAnswer:
        """Runs a job."""
        group = self._group
        assert group is not None
        try:
            self._expect_same_files(job)
            outcome = self._with_printed(group.run(job))
        except DeviceGone as error:
            return self._gone(error)
        return HostAnswer(outcome, group.describe(), group.failed_after_s, group.late_step)

    @sent
    def close(self) -> str:
        """Lets the ranks end."""
        self._end()
        return ""

    def _end(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _line(self) -> str:
        """Returns whom a row or the start of the group waits for; "" if nothing was said since the last call."""
        said, self._said = self._said, ""
        return super()._line() or said

    def _keep_line(self, text: str) -> None:
        self._said = text

    def _gone(self, error: OpAtlasError) -> HostAnswer:
        is_late = isinstance(error, GroupTimeout)
        text = f"{error}\n{self._take_printed()}".strip()
        return HostAnswer(gone=text, is_late=is_late, lacks_nodes=isinstance(error, GroupTimeout) and error.nodes)


def in_order(devices: Iterable[DeviceSpec]) -> list[DeviceSpec]:
    """Returns devices by their numbers, from which their links follow; Ray lists them in any order."""
    numbered = [(device.pinned[1] if device.pinned else "", device) for device in devices]
    return [device for _, device in sorted(numbered, key=lambda each: (len(each[0]), each[0]))]
