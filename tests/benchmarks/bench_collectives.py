"""Collectives on the devices at hand, and whether they reach what torch alone does in a plain loop.

    python -m tests.benchmarks.bench_collectives OUTPUT_DIR --num-devices 2,4 [options of bench/test_collectives.py]

Runs `pytest bench/test_collectives.py` into OUTPUT_DIR, and then, for each number of devices, a loop of all_reduce of
the largest message under torchrun: twenty calls behind each other, between two events of the device (on a CPU, its
clock). Prints both, with the bus bandwidth, and exits with 1 where they differ by more than --tolerance.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import time
from pathlib import Path

from opatlas.row.communication import ALL_REDUCE
from tests.benchmarks.children import ROOT

WARM_UP, CALLS = 5, 20
TOLERANCE = 0.05


def plain_loop(message_bytes: int) -> None:
    """One rank of it; the first one prints the microseconds of a call on the slowest rank."""
    import torch
    from torch import distributed

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if cuda else "gloo")
    tensor = torch.ones(message_bytes // 2, dtype=torch.bfloat16, device=device)
    for _ in range(WARM_UP):
        distributed.all_reduce(tensor)
    if cuda:
        torch.cuda.synchronize()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        distributed.all_reduce(torch.zeros(1, device=device))
        start.record()
        for _ in range(CALLS):
            distributed.all_reduce(tensor)
        stop.record()
        stop.synchronize()
        own_us = start.elapsed_time(stop) * 1e3 / CALLS
    else:
        distributed.barrier()
        begun = time.perf_counter()
        for _ in range(CALLS):
            distributed.all_reduce(tensor)
        own_us = (time.perf_counter() - begun) * 1e6 / CALLS
    slowest = torch.tensor([own_us], dtype=torch.float64, device=device)
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    if distributed.get_rank() == 0:
        print(f"plain: {float(slowest)}", flush=True)
    distributed.destroy_process_group()


def measured(folder: Path, devices: int) -> tuple[int, float]:
    """The largest message of so many devices in bfloat16, and its duration in microseconds."""
    with open(folder / f"{ALL_REDUCE.kernel_type}.csv", newline="", encoding="utf-8") as file:
        rows = [
            (int(row["message_bytes"]), float(row["Duration(us)"]))
            for row in csv.DictReader(file)
            if row["num_devices"] == str(devices) and row["dtype"] == "DT_BF16" and row["Duration(us)"]
        ]
    if not rows:
        sys.exit(f"{folder}: no all_reduce of bfloat16 on {devices} devices was measured")
    return max(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--num-devices", nargs="+", type=int, default=[2])
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="share (default: %(default)g)")
    parser.add_argument("--plain", type=int, metavar="BYTES", help=argparse.SUPPRESS)
    arguments, others = parser.parse_known_args()
    if arguments.plain is not None:
        plain_loop(arguments.plain)
        return 0
    sizes = list(map(str, arguments.num_devices))
    session = [sys.executable, "-m", "pytest", "bench/test_collectives.py", "-p", "no:cacheprovider"]
    where = [f"--database-path={arguments.output_dir.absolute()}", "--num-devices", *sizes]
    done = subprocess.run([*session, *where, *others], cwd=ROOT, check=False)
    if done.returncode:
        return done.returncode
    off = False
    for devices in arguments.num_devices:
        message_bytes, row_us = measured(arguments.output_dir, devices)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}"]
        loop = subprocess.run(
            [*launcher, "-m", "tests.benchmarks.bench_collectives", ".", f"--plain={message_bytes}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        plain_us = float(next(line for line in loop.stdout.splitlines() if line.startswith("plain: ")).split()[1])
        row_gbps, plain_gbps = (ALL_REDUCE.bus_bandwidth_gbps(message_bytes, devices, us) for us in (row_us, plain_us))
        print(
            f"all_reduce of {message_bytes} bytes on {devices}: row {row_us:.1f} us {row_gbps:.2f} GB/s, plain loop "
            f"{plain_us:.1f} us {plain_gbps:.2f} GB/s: {100 * (row_gbps / plain_gbps - 1):+.1f} % of bus bandwidth"
        )
        off |= abs(row_gbps / plain_gbps - 1) > arguments.tolerance
    return int(off)


if __name__ == "__main__":
    sys.exit(main())
