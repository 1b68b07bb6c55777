"""torchrun's elastic agent in a process of its own: starts the ranks of this node, and reports how they ended.

Run as `opatlas.run.groups.agent FD` under a keeper. Each rank runs under a keeper too, because the launcher gives
it a session of its own: each rank, and all processes that its kernels have started, end with the agent.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opatlas.run.group_spec import GroupSpec
from opatlas.run.inputs.experts import HCCL_BUFFER_VARIABLE
from opatlas.run.process.channel import ChildChannel
from opatlas.run.process.fresh_python import module_command
from opatlas.run.process.keeper import die_with_parent, exit_without_cleanup
from opatlas.run.process.messages import LauncherReady, LaunchRanks, NotReady, RanksEnded

#: Seconds that the launcher gives ranks to end by themselves.
_SHUTDOWN = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}


def main(fd: int) -> None:
    """Launches the group that the first message over `fd` describes, and stays until its ranks have ended."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(_SHUTDOWN)
    with ChildChannel(socket.socket(fileno=fd)) as channel:
        launch: LaunchRanks = channel.receive()
        if launch.spec.hccl_buffer_mib is not None:
            os.environ.setdefault(HCCL_BUFFER_VARIABLE, str(launch.spec.hccl_buffer_mib))
        channel.send(_run(launch, lambda: channel.send(LauncherReady())))
    exit_without_cleanup()


def _run(launch: LaunchRanks, when_imported: Callable[[], None]) -> RanksEnded | NotReady:
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    when_imported()
    # The rank inherits the keeper's standard input, which is empty.
    keeper = module_command(
        "opatlas.run.process.keeper",
        str(os.getpid()),
        str(sys.stdin.fileno()),
        launch.folder,
        *launch.command,
    )
    try:
        elastic_launch(_config(launch), keeper[0])(*keeper[1:])
    except ChildFailedError as error:
        return RanksEnded({failure.local_rank: failure.exitcode for failure in error.failures.values()})
    except (DistError, RendezvousError, OSError, RuntimeError) as error:
        return NotReady(_failure_text(error, launch.spec))
    return RanksEnded(dict.fromkeys(range(launch.spec.local_ranks), 0))


def _config(launch: LaunchRanks) -> Any:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    spec = launch.spec
    if spec.nnodes == 1 and spec.master_port is None:
        # The ranks of one node meet in a file that only this user can read. A store on a port, as in
        # `torchrun --standalone`, would be open to everybody who reaches this machine, and the launcher unpickles its
        # content.
        backend, endpoint, more = "c10d", str(Path(launch.folder) / "rendezvous"), {"store_type": "file"}
    else:
        # As torchrun does with --master-port.
        backend, endpoint, more = "static", f"{spec.master_addr}:{spec.master_port or 0}", {}
    return LaunchConfig(
        min_nodes=spec.nnodes,
        max_nodes=spec.nnodes,
        nproc_per_node=spec.local_ranks,
        run_id="opatlas",
        rdzv_backend=backend,
        rdzv_endpoint=endpoint,
        rdzv_configs={"rank": spec.node_rank, "timeout": int(launch.join_timeout_s), **more},
        max_restarts=0,
        local_addr=spec.master_addr if spec.nnodes == 1 else None,
        logs_specs=DefaultLogsSpecs(log_dir=str(Path(launch.folder) / "elastic")),
    )


def _failure_text(error: Exception, spec: GroupSpec) -> str:
    text = " ".join(str(error).split()) or "no message"
    cause = f"{error.__cause__}" if error.__cause__ else ""
    if any("EADDRINUSE" in words or "address already in use" in words for words in (text, cause)):
        return f"port {spec.master_port} of {spec.master_addr} is in use: name another, or leave it out on one node"
    return f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    main(int(sys.argv[1]))
