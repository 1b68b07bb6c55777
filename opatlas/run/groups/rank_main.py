"""The process of a rank: owns one device, joins the group, and runs the same jobs as the other ranks.

Run as `opatlas.run.groups.rank_main FD MEETING [--under-launcher]` with torchrun's variables, where FD is its end of a
socket pair, and MEETING a file in which the ranks meet, or MASTER_PORT. The rank ends when the other end is closed.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opatlas.row.errors import DeviceUnhealthy, ReplayError
from opatlas.run.devices.device import kind_named
from opatlas.run.devices.device_lock import LockHolder
from opatlas.run.group import RANK_SPREAD, ranks_of_node, slowest_us, spread_us
from opatlas.run.groups.ranks import MASTER_PORT
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome, outcome_of
from opatlas.run.process.child import UNDER_LAUNCHER, show_stacks
from opatlas.run.process.keeper import die_with_parent, exit_without_cleanup, flush_streams
from opatlas.run.process.messages import (
    ChildChannel,
    DeviceOpened,
    Finished,
    LockTaken,
    NotReady,
    Ready,
    Start,
    StepReport,
    Waiting,
)

if TYPE_CHECKING:
    import torch

    from opatlas.run.group import Group
    from opatlas.run.runner import Runner


def main(fd: int, meeting: str, *, under_launcher: bool) -> None:
    """Joins the group, and runs the jobs that arrive over `fd` until the connection is closed.

    Args:
        under_launcher: whether a launcher such as msprof, and not the keeper, is the parent of this process.
    """
    if not under_launcher:
        # As in a device process (opatlas/run/process/device_main.py).
        die_with_parent()
    show_stacks()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ChildChannel(socket.socket(fileno=fd)) as channel:
        start: Start = channel.receive()
        sys.path[:] = dict.fromkeys((*sys.path, *start.sys_path))
        ranks_share = kind_named(start.spec.kind).ranks_share
        try:
            from opatlas.run.runner import Runner

            runner = Runner(start.spec, _with_shared_cores(start.settings) if ranks_share else start.settings)
            runner.probe()
            channel.send(DeviceOpened(os.getpid()))
        except Exception as error:
            channel.send(NotReady(f"{type(error).__name__}: {error}", unhealthy=isinstance(error, DeviceUnhealthy)))
            return
        try:
            messages = _JobMessages(channel)
            group = _join_group(meeting, runner.torch_device, messages.step)
            runner.join(group)
            channel.send(Ready(runner.describe(), os.getpid()))
        except Exception as error:
            channel.send(NotReady(_why_not_joined(error), did_not_meet=True))
            return
        _serve(channel, messages, runner, group, locks_device=not ranks_share or _is_first_of_host(group))
    if not under_launcher:
        exit_without_cleanup()


def _why_not_joined(error: Exception) -> str:
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    port = os.environ.get(MASTER_PORT)
    return f"port {port} is in use: name another, or leave it out on one node" if "EADDRINUSE" in text else text


def _join_group(meeting: str, device: torch.device, report: Callable[[int, str], None]) -> Group:
    """Joins the group that torchrun's variables describe, with the device that this process has opened.

    Raises:
        RuntimeError and others, as torch.distributed does: the group did not come together.
    """
    import datetime

    import torch
    from torch import distributed

    from opatlas.run.group import BARRIER_ELEMENTS, Group

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Rows have deadlines of their own, which name the rank that is late.
    limit = datetime.timedelta(days=1)
    stores: Any = distributed
    if meeting == MASTER_PORT:
        host, port = os.environ["MASTER_ADDR"], int(os.environ[MASTER_PORT])
        store = stores.TCPStore(host, port, size, is_master=rank == 0, timeout=limit)
    else:
        store = stores.FileStore(meeting, size)
    # One backend for each type of device; the ranks agree over that of the host.
    backends = {type_: kind_named(type_).backend for type_ in ("cpu", device.type) if kind_named(type_).backend}
    distributed.init_process_group(
        ",".join(f"{type_}:{backend}" for type_, backend in backends.items()),
        store=store,
        rank=rank,
        world_size=size,
        timeout=limit,
    )
    tensor = None if device.type == "cpu" else torch.zeros(BARRIER_ELEMENTS, device=device)
    group = Group(rank, size, lambda: kind_named(device.type).communicator_name(rank), report, _barrier_tensor=tensor)
    group.barrier()
    group.device_barrier()
    if tensor is not None:
        # Waits for the barrier: the devices have met, too.
        tensor[0].item()
    return group


class _JobMessages:
    """Sends pytest messages on the job that this rank runs."""

    def __init__(self, channel: ChildChannel) -> None:
        self.job: Job | None = None
        self._channel = channel

    def step(self, step: int, text: str) -> None:
        # While the group starts there is no job.
        if self.job is not None:
            self._channel.send(StepReport(self.job.id, step, text))

    def waiting(self, holder: LockHolder) -> None:
        assert self.job is not None
        self._channel.send(Waiting(self.job.id, holder))

    def taken(self) -> None:
        assert self.job is not None
        self._channel.send(LockTaken(self.job.id))


def _is_first_of_host(group: Group) -> bool:
    """Returns whether this is the first rank on its host. Two nodes of a test may share a host."""
    try:
        host = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        # Not Linux.
        host = platform.node()
    hosts = group.gather([float(zlib.crc32(host.encode()))])
    return hosts.index(hosts[group.rank]) == group.rank


def _with_shared_cores(settings: MeasureSettings) -> MeasureSettings:
    """Returns the settings with this rank's share of the cores of a CPU."""
    from opatlas.run.devices.system import available_cores

    return replace(settings, threads=settings.threads or max(available_cores() // ranks_of_node(), 1))


def _serve(
    channel: ChildChannel,
    messages: _JobMessages,
    runner: Runner,
    group: Group,
    *,
    locks_device: bool,
) -> None:
    """Runs jobs until the socket is closed.

    Args:
        locks_device: whether this rank locks its device; False if another rank of the same device does.
    """
    while True:
        try:
            job: Job = channel.receive().whole
        except EOFError:
            _leave_group()
            return
        messages.job = job
        with _all_devices_locked(messages, runner, group, locks_device), channel.end_forks():
            if _is_same_job(job, group):
                outcome = runner.run(job)
            else:
                outcome = outcome_of(ReplayError("the nodes are not at the same row: run the same command on each"))
            if outcome.pending is not None:
                outcome = _with_node_remark(outcome, group)
            elif outcome.measurement is not None:
                outcome = combine_ranks(job.kernel_type, outcome, group)
            if outcome.measurement is not None and ranks_of_node() < group.size:
                outcome = _with_changes_elsewhere(outcome, group)
        flush_streams()
        channel.send(Finished.of(job, outcome))


def _with_changes_elsewhere(outcome: RowOutcome, group: Group) -> RowOutcome:
    """Returns the outcome, marked as changed if any rank is, so that all nodes launch the group anew or none does."""
    changed = any(changed for (changed,) in group.gather([float(bool(outcome.changed))]))
    if not changed or outcome.changed:
        return outcome
    return replace(outcome, changed=("is in a group with a rank that has changed the state of its process",))


def _with_node_remark(outcome: RowOutcome, group: Group) -> RowOutcome:
    """Returns the outcome with a remark if each node reads only the profiles of its own ranks."""
    assert outcome.measurement is not None
    if ranks_of_node() == group.size:
        return outcome
    said = f"the slowest of {ranks_of_node()} of {group.size} ranks: msprof shows each node its own ranks"
    assumptions = (*outcome.measurement.assumptions, said)
    return replace(outcome, measurement=replace(outcome.measurement, assumptions=assumptions))


def _is_same_job(job: Job, group: Group) -> bool:
    """Returns whether all ranks have the same row; ranks of other nodes get their jobs from another session."""
    row = zlib.crc32(repr((job.kernel_type, sorted(job.cells.items()))).encode())
    return len({own for (own,) in group.gather([float(row)])}) == 1


@contextlib.contextmanager
def _all_devices_locked(messages: _JobMessages, runner: Runner, group: Group, locks_device: bool) -> Iterator[None]:
    """Locks the devices of all ranks, one after the other, so that two groups cannot block each other."""
    with contextlib.ExitStack() as held:
        for rank in range(group.size):
            if rank == group.rank and locks_device:
                held.enter_context(runner.locked(messages.waiting, messages.taken))
            group.barrier()
        yield


def combine_ranks(kernel_type: str, outcome: RowOutcome, group: Group) -> RowOutcome:
    """Returns the outcome with the samples of the group (`slowest_us`)."""
    assert outcome.measurement is not None
    try:
        samples_us = group.gather_samples(outcome.measurement.samples_us)
    except ReplayError as error:
        return outcome_of(error)
    measurement = replace(
        outcome.measurement,
        samples_us=slowest_us(kernel_type, samples_us)[1],
        counters={**outcome.measurement.counters, RANK_SPREAD: spread_us(samples_us)},
    )
    return replace(outcome, measurement=measurement)


def _leave_group() -> None:
    from torch import distributed

    # Other ranks may have ended already.
    with contextlib.suppress(Exception):
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], under_launcher=UNDER_LAUNCHER in sys.argv[3:])
