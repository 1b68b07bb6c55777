"""Runs a device process, or a rank of a group: opens one device, joins the group, and runs one job after another.

Run as `opatlas.run.process.device_main FD [--meeting=WHERE] [--under-launcher]`, where FD is its end of a socket pair.
A rank has torchrun's variables, and WHERE is a file in which the ranks meet, or MASTER_PORT. The process ends when the
other end is closed, and with its parent, unless the parent is a launcher such as msprof.
"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import signal
import socket
import sys
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import astuple, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opatlas.row.errors import DeviceUnhealthy, ReplayError
from opatlas.row.record import Rounds
from opatlas.row.status import Status
from opatlas.run.devices.device import kind_named
from opatlas.run.devices.device_lock import LockHolder
from opatlas.run.devices.system import available_cores
from opatlas.run.group import ALONE, BARRIER_ELEMENTS, RANK_SPREAD, Group, ranks_of_node, slowest_us, spread_us
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome, outcome_of
from opatlas.run.process import messages as protocol
from opatlas.run.process.child import MASTER_PORT, MEETING, UNDER_LAUNCHER, show_stacks
from opatlas.run.process.keeper import die_with_parent, exit_without_cleanup, flush_streams

if TYPE_CHECKING:
    import torch

    from opatlas.run.runner import Runner


def main(fd: int, meeting: str, *, under_launcher: bool) -> None:
    """Runs the jobs that arrive over `fd` until the connection is closed; `meeting` is "" for a device process."""
    if not under_launcher:
        # Not under a launcher, because the end of a launcher's thread would count as the end of the parent. The keeper
        # ends the whole group in any case.
        die_with_parent()
    # stderr is part of the row's report.
    show_stacks()
    # Only pytest handles Ctrl-C: it decides about the current row.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with protocol.ChildChannel(socket.socket(fileno=fd)) as channel:
        # torch creates half a million permanent objects: garbage collection ignores them during import and timing.
        gc.disable()
        # Imported while pytest collects. Where pytest's import path is needed for it, the import below reports that.
        with contextlib.suppress(ImportError):
            import_module("opatlas.run.runner")
        try:
            start: protocol.Start = channel.receive()
        except EOFError:
            return
        sys.path[:] = dict.fromkeys((*sys.path, *start.sys_path))
        shares_cores = bool(meeting) and kind_named(start.spec.kind).ranks_share
        try:
            from opatlas.run.runner import Runner

            runner = Runner(start.spec, _with_shared_cores(start.settings) if shares_cores else start.settings)
            runner.probe()
        except Exception as error:
            is_unhealthy = isinstance(error, DeviceUnhealthy)
            channel.send(protocol.NotReady(f"{type(error).__name__}: {error}", may_recover=is_unhealthy))
            return
        messages, group = _JobMessages(channel), ALONE
        if meeting:
            channel.send(protocol.DeviceOpened(os.getpid()))
            try:
                group = _join_group(meeting, runner.device.torch_device, messages.step)
                runner.join(group)
            except Exception as error:
                channel.send(protocol.NotReady(_why_not_joined(error)))
                return
        channel.send(protocol.Ready(runner.describe(), os.getpid()))
        gc.freeze()
        gc.enable()
        _serve(channel, messages, runner, group, locks_device=not shares_cores or _is_first_of_host(group))


def _with_shared_cores(settings: MeasureSettings) -> MeasureSettings:
    """Returns the settings with this rank's share of the cores of a CPU."""
    return replace(settings, threads=settings.threads or max(available_cores() // ranks_of_node(), 1))


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


def _is_first_of_host(group: Group) -> bool:
    """Returns whether this is the first rank on its host. Two nodes of a test may share a host."""
    try:
        host = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        # Not Linux.
        host = platform.node()
    hosts = group.gather([float(zlib.crc32(host.encode()))])
    return hosts.index(hosts[group.rank]) == group.rank


class _JobMessages:
    """Sends pytest messages on the job that this process runs."""

    def __init__(self, channel: protocol.ChildChannel) -> None:
        self.job: Job | None = None
        self._channel = channel

    def step(self, step: int, text: str) -> None:
        # While the group starts there is no job.
        if self.job is not None:
            self._channel.send(protocol.StepReport(self.job.id, step, text))

    def locked(self, job: Job, runner: Runner) -> AbstractContextManager[object]:
        """Returns a context that locks the device for a job, and reports a wait for it."""

        def wait(holder: LockHolder) -> None:
            self._channel.send(protocol.Waiting(job.id, holder))

        return runner.device.locked(wait, lambda: self._channel.send(protocol.LockTaken(job.id)))


def _serve(
    channel: protocol.ChildChannel, messages: _JobMessages, runner: Runner, group: Group, *, locks_device: bool
) -> None:
    """Runs jobs until the connection is closed, or the device does not work any more.

    Args:
        locks_device: whether this process locks its device; False if another rank of the same device does.
    """
    while True:
        try:
            job: Job = channel.receive().whole
        except EOFError:
            # Other ranks may have ended already.
            with contextlib.suppress(Exception):
                if group is not ALONE:
                    from torch import distributed

                    distributed.destroy_process_group()
            return
        messages.job = job
        # Answered without waiting for the device, unless other ranks wait for this one.
        outcome = runner.refused(job) if group is ALONE else None
        if outcome is None:
            with contextlib.ExitStack() as held:
                # The devices of all ranks, one after the other, so that two groups cannot block each other.
                for rank in range(group.size):
                    if rank == group.rank and locks_device:
                        held.enter_context(messages.locked(job, runner))
                    group.barrier()
                held.enter_context(channel.end_forks())
                outcome = runner.run(job) if group is ALONE else _run_together(job, runner, group)
        flush_streams()
        channel.send(protocol.Finished.of(job, outcome))
        if outcome.status in (Status.OOM, Status.FAILED) and not runner.is_healthy():
            # The error was fatal for the device, or a library left it for the next launch, as FlashInfer does with
            # CUDA's "invalid argument": the next row gets a new process.
            return


def _run_together(job: Job, runner: Runner, group: Group) -> RowOutcome:
    """Runs a job on all ranks of a group, and combines their samples."""
    row = zlib.crc32(repr((job.kernel_type, sorted(job.cells.items()))).encode())
    if len({own for (own,) in group.gather([float(row)])}) > 1:
        # Ranks of other nodes get their jobs from another session.
        outcome = outcome_of(ReplayError("the nodes are not at the same row: run the same command on each"))
    else:
        outcome = runner.run(job)
    has_other_nodes = ranks_of_node() < group.size
    if outcome.pending is None and outcome.measurement is not None:
        outcome = combine_ranks(job.kernel_type, outcome, group)
    elif outcome.measurement is not None and has_other_nodes:
        said = f"the slowest of {ranks_of_node()} of {group.size} ranks: msprof shows each node its own ranks"
        assumptions = (*outcome.measurement.assumptions, said)
        outcome = replace(outcome, measurement=replace(outcome.measurement, assumptions=assumptions))
    if outcome.measurement is not None and has_other_nodes:
        # All nodes launch the group anew, or none does.
        changed = any(changed for (changed,) in group.gather([float(bool(outcome.changed))]))
        if changed and not outcome.changed:
            told = "is in a group with a rank that has changed the state of its process"
            outcome = replace(outcome, changed=(told,))
    return outcome


def combine_ranks(kernel_type: str, outcome: RowOutcome, group: Group) -> RowOutcome:
    """Returns the outcome with the samples of the group (`slowest_us`)."""
    assert outcome.measurement is not None
    try:
        samples_us = group.gather_samples(outcome.measurement.samples_us)
        of_group = [
            [slowest_us(kernel_type, group.gather_samples(own))[1] for own in astuple(rounds) if own]
            for rounds in outcome.measurement.rounds
        ]
    except ReplayError as error:
        return outcome_of(error)
    measurement = replace(
        outcome.measurement,
        samples_us=slowest_us(kernel_type, samples_us)[1],
        rounds=tuple(Rounds(*calls) for calls in of_group),
        counters={**outcome.measurement.counters, RANK_SPREAD: spread_us(samples_us)},
    )
    return replace(outcome, measurement=measurement)


if __name__ == "__main__":
    is_launched = UNDER_LAUNCHER in sys.argv[2:]
    met = next((word.removeprefix(MEETING) for word in sys.argv[2:] if word.startswith(MEETING)), "")
    main(int(sys.argv[1]), met, under_launcher=is_launched)
    if not is_launched:
        # Under a profiler the process exits normally: it writes its records when the hooked libraries are unloaded.
        exit_without_cleanup()
