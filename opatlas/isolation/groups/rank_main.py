"""One rank of a group: owns one device, joins the others, runs the same jobs as they do.

Run as `python -m opatlas.isolation.groups.rank_main ADDRESS [--under-launcher]` by torchrun's launcher (agent.py),
which sets the
variables below; ADDRESS is the socket on which pytest waits for it. It ends when that is closed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import platform
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opatlas.devices.device import KINDS
from opatlas.devices.discovery import device_environment, ranks_share
from opatlas.engine.group import RANK_SPREAD, ranks_of_node, slowest_us, spread_us
from opatlas.engine.job import Job, RowOutcome, apply_noise_limit, make_attempt
from opatlas.instruments.instrument import MeasureSettings
from opatlas.isolation import process_end as std_streams
from opatlas.isolation.channel import Answer, ChildChannel, LockTaken, NotReady, Start, Waiting
from opatlas.isolation.device_process import UNDER_LAUNCHER
from opatlas.isolation.groups.messages import (
    DeviceOpened,
    RankHello,
    RankJoined,
    StepReport,
    connect,
)
from opatlas.isolation.process_end import die_with_parent, exit_without_cleanup
from opatlas.model.errors import DeviceUnhealthy, ReplayError
from opatlas.model.schema import Status

if TYPE_CHECKING:
    import torch

    from opatlas.engine.group import Group
    from opatlas.engine.runner import Runner

#: What torchrun tells a rank. It sets more, which nobody here reads.
_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def main(address: str, *, under_launcher: bool) -> None:
    """Serves the jobs that come from `address`.

    Args:
        under_launcher: whether a launcher such as msprof, and not the keeper, is the parent of this process.
    """
    if not under_launcher:
        # As in a device process (opatlas/isolation/device_main.py).
        die_with_parent()
    # The stacks of a rank that hangs, when pytest asks for them, and that of one that crashes.
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        channel = ChildChannel(connect(Path(address)))
    except (FileNotFoundError, ConnectionRefusedError, EOFError):
        # The group was given up meanwhile, and pytest has said why.
        return
    with channel:
        missing = [name for name in _VARIABLES if not os.environ.get(name, "").strip()]
        if missing:
            channel.send(
                NotReady(
                    f"{', '.join(missing)}: not set, which torchrun sets for each rank; agent.py "
                    "starts ranks through it",
                    unhealthy=False,
                )
            )
            return
        rank, local_rank, size = (int(os.environ[name]) for name in _VARIABLES[:3])
        channel.send(RankHello(local_rank, os.getpid()))
        start: Start = channel.receive()
        sys.path[:] = dict.fromkeys((*sys.path, *start.sys_path))
        # Before torch, or what it loads, looks for devices.
        os.environ.update(device_environment(start.spec))
        try:
            from opatlas.engine.runner import Runner

            runner = Runner(start.spec, _shared(start.settings) if ranks_share(start.spec.kind) else start.settings)
            runner.probe()
            channel.send(DeviceOpened())
        except Exception as error:
            channel.send(NotReady(f"{type(error).__name__}: {error}", unhealthy=isinstance(error, DeviceUnhealthy)))
            return
        try:
            answers = _Answers(channel)
            group = _join_group(
                rank, size, runner.torch_device, lambda step, what: answers.give(StepReport(step, what))
            )
            runner.join(group)
            channel.send(RankJoined(runner.describe()))
        except Exception as error:
            channel.send(NotReady(f"{type(error).__name__}: {error}", unhealthy=False, alone=False))
            return
        takes_turn = not ranks_share(start.spec.kind) or _is_first_of_host(group)
        _serve(channel, answers, runner, group, takes_turn=takes_turn, max_noise=start.settings.max_noise)
    if not under_launcher:
        exit_without_cleanup()


def _join_group(rank: int, size: int, device: torch.device, report: Callable[[int, str], None]) -> Group:
    """Joins the group that the launcher's variables describe, with the device that this process has opened.

    Raises:
        RuntimeError and others, as torch.distributed does: the group did not come together.
    """
    import datetime

    import torch
    from torch import distributed

    from opatlas.engine.group import BARRIER_ELEMENTS, Group

    # One backend for each type of device; the ranks agree over that of the host.
    backends = {type_: KINDS[type_].backend for type_ in ("cpu", device.type) if type_ in KINDS}
    distributed.init_process_group(
        ",".join(f"{type_}:{backend}" for type_, backend in backends.items()),
        # Rows have deadlines of their own, which name the rank that is late.
        timeout=datetime.timedelta(days=1),
    )
    world = distributed.group.WORLD
    assert world is not None

    def find_name() -> str:
        if device.type != "npu":
            return str(world.group_name)
        # Kernels that communicate need a communicator that nobody else uses, not even torch's collectives
        # (op-plugin's pages of npu_moe_distribute_dispatch); vllm-ascend makes one for them too.
        own: Any = distributed.new_group(backend=KINDS["npu"].backend)
        # The name that HCCL gives its communicator; torch has none for it.
        return str(own._get_backend(torch.device("npu")).get_hccl_comm_name(rank))

    tensor = None if device.type == "cpu" else torch.zeros(BARRIER_ELEMENTS, device=device)
    group = Group(rank, size, find_name, report, _barrier_tensor=tensor)
    group.barrier()
    group.device_barrier()
    if tensor is not None:
        # Waits for the barrier: the devices have met, too.
        tensor[0].item()
    return group


class _Answers:
    """What this rank says of the job that it runs."""

    def __init__(self, channel: ChildChannel) -> None:
        self.job: Job | None = None
        self._channel = channel

    def give(self, content: object) -> None:
        # While the group comes together there is no job, and no step to tell.
        if self.job is not None:
            self._channel.send(Answer(self.job.id, content))


def _is_first_of_host(group: Group) -> bool:
    """Of the ranks that share a CPU; those of another node may be here too."""
    try:
        host = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        # Not Linux.
        host = platform.node()
    hosts = group.gather([float(zlib.crc32(host.encode()))])
    return hosts.index(hosts[group.rank]) == group.rank


def _shared(settings: MeasureSettings) -> MeasureSettings:
    """The ranks of a CPU share its cores."""
    from opatlas.devices.cgroups import available_cores

    return replace(settings, threads=settings.threads or max(available_cores() // ranks_of_node(), 1))


def _serve(
    channel: ChildChannel,
    answers: _Answers,
    runner: Runner,
    group: Group,
    *,
    takes_turn: bool,
    max_noise: float | None,
) -> None:
    """
    Args:
        takes_turn: False where another rank of the same device takes it for both.
        max_noise: of what is recorded, as in MeasureSettings.
    """
    while True:
        try:
            job: Job = channel.receive()
        except EOFError:
            _leave()
            return
        answers.job = job
        with _turn(answers, runner, group, takes_turn), channel.only_here():
            if _all_have(job, group):
                outcome = runner.run(job)
            else:
                outcome = RowOutcome(Status.FAILED, "the nodes are not at the same row: run the same command on each")
            # Of a collective, the ranks have agreed on its samples already.
            if outcome.pending is not None:
                outcome = _of_this_node(outcome, group)
            elif outcome.measurement is not None and RANK_SPREAD not in outcome.measurement.counters:
                outcome = slowest(job.kernel_type, outcome, group, max_noise)
            if outcome.measurement is not None and ranks_of_node() < group.size:
                outcome = _with_changes_elsewhere(outcome, group)
        std_streams.flush_streams()
        answers.give(outcome)


def _with_changes_elsewhere(outcome: RowOutcome, group: Group) -> RowOutcome:
    """The outcome of this rank, with the word that the group is to be launched anew on every node or on none."""
    changed = any(changed for (changed,) in group.gather([float(bool(outcome.changed))]))
    if not changed or outcome.changed:
        return outcome
    return replace(outcome, changed=("is in a group with a rank that has changed the state of its process",))


def _of_this_node(outcome: RowOutcome, group: Group) -> RowOutcome:
    """The outcome, whose samples a profile holds, with the word that each node reads the profiles of its own ranks."""
    assert outcome.measurement is not None
    if ranks_of_node() == group.size:
        return outcome
    said = f"the slowest of {ranks_of_node()} of {group.size} ranks: msprof tells each node of its own ranks"
    assumptions = (*outcome.measurement.assumptions, said)
    return replace(outcome, measurement=replace(outcome.measurement, assumptions=assumptions))


def _all_have(job: Job, group: Group) -> bool:
    """Whether the ranks of other nodes, which have their jobs from another session, are to run the same."""
    row = zlib.crc32(repr((job.kernel_type, sorted(job.cells.items()))).encode())
    return len({own for (own,) in group.gather([float(row)])}) == 1


@contextlib.contextmanager
def _turn(answers: _Answers, runner: Runner, group: Group, takes_turn: bool) -> Iterator[None]:
    """Holds the devices of all ranks, taken one after the other: two groups cannot each hold what the other needs."""
    with contextlib.ExitStack() as held:
        for rank in range(group.size):
            if rank == group.rank and takes_turn:
                lock = runner.locked(lambda holder: answers.give(Waiting(holder)), lambda: answers.give(LockTaken()))
                held.enter_context(lock)
            group.barrier()
        yield


def slowest(kernel_type: str, outcome: RowOutcome, group: Group, max_noise: float | None = None) -> RowOutcome:
    """A row takes as long as its slowest rank: each sample the longest of the ranks', the same on every rank.

    Where ranks are slow in turns, these samples scatter more than those of any rank: NOISY where it is over the limit.
    """
    assert outcome.measurement is not None
    try:
        samples_us = group.gather_samples(outcome.measurement.samples_us)
    except ReplayError as error:
        return RowOutcome(error.status, str(error))
    measurement = replace(
        outcome.measurement,
        samples_us=slowest_us(kernel_type, samples_us)[1],
        counters={**outcome.measurement.counters, RANK_SPREAD: spread_us(samples_us)},
    )
    outcome = replace(outcome, measurement=measurement)
    return apply_noise_limit(outcome, max_noise, [make_attempt(measurement.samples_us)])


def _leave() -> None:
    from torch import distributed

    # The others may be gone already.
    with contextlib.suppress(Exception):
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], under_launcher=UNDER_LAUNCHER in sys.argv[2:])
