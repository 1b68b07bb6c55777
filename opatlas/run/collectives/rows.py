"""Rows of collectives: each row is a message of a group of devices. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from opatlas.row.columns import NUM_DEVICES, TOPOLOGY_TIER
from opatlas.row.communication import Collective
from opatlas.run.collectives.topology import Grid
from opatlas.run.group_spec import GroupSpec, group_on_nodes
from opatlas.run.job import Job
from opatlas.run.registry import Function, ReplaySpec, replays

if TYPE_CHECKING:
    from opatlas.run.collectives.message import Message
    from opatlas.run.collectives.timing import TimedCollective
    from opatlas.run.devices.device import Device
    from opatlas.run.group import Group
    from opatlas.run.instruments.instrument import Instrument, MeasureSettings


def collective(measured: Collective) -> Callable[[Function], Function]:
    """Marks a function as the replay of a collective: `row` is a Message, `replay` a TimedCollective."""
    return replays(measured.kernel_type, npu=None, group=message_group, binding=_bind_message)


def message_group(cells: Mapping[str, str], options: Any) -> GroupSpec:
    """Returns the group that a message needs, on the grid of `CollectivePlan.options`."""
    size = int(cells[NUM_DEVICES])
    members = Grid(tuple(options.grid_shape)).group(size, int(cells[TOPOLOGY_TIER]))
    return group_on_nodes(options, size, members=members)


def _bind_message(
    job: Job, spec: ReplaySpec, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
) -> tuple[Message, TimedCollective]:
    """Makes `row` and `replay` of a message. Raises InvalidRow."""
    from opatlas.run.collectives.message import Message
    from opatlas.run.collectives.timing import TimedCollective

    row = Message(job.kernel_type, job.cells, device.torch_device, group.rank, group.size)
    return row, TimedCollective(row, device, instrument, settings, group)
