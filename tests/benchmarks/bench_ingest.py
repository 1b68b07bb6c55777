"""How fast a large capture is ingested, against pandas merely reading it in chunks.

    python -m tests.benchmarks.bench_ingest [--capture PATH] [--rounds N]

The capture is repeated to about 500,000 rows (203 times a training step of 2,463 kernels). Without
one, a synthetic capture of the same size stands in. Each of the two runs in a child process of its
own, which tells its time on processors, and its peak memory above that of the imports; the better of
several rounds counts for both, in turns, so that what else the machine does hits both alike. A trace of torch.profiler
(`--capture tests/data/torch_traces/qwen3moe-prefill-eager.pt.trace.json.gz`) is repeated to 1 GB, and only ingested.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import msgspec

from opatlas.row.columns import PIPE_UTILIZATION
from tests.benchmarks.children import load, result_of, run_benchmark

ROWS = 499_989
TARGET_RATIO = 3.0
TARGET_PEAK_MB = 250
TRACE_BYTES, TARGET_TRACE_MB = 1_000_000_000, 300

_PEAK = """
import contextlib, io, json, sys, time
from pathlib import Path
def peak_mb():
    # Not ru_maxrss, which starts at that of the parent.
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024
"""
_PANDAS = f"""{_PEAK}
import pandas as pd
imports_mb, start = peak_mb(), time.process_time()
rows = sum(len(chunk) for chunk in pd.read_csv(sys.argv[1], chunksize=100_000))
print(json.dumps([time.process_time() - start, peak_mb() - imports_mb]))
"""
_INGEST = f"""{_PEAK}
import opatlas.cli.ingest  # the command imports it when it is called
from opatlas.cli.main import main
imports_mb, start = peak_mb(), time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    status = main(["ingest", "--profiling-path", sys.argv[1], "--database-path", sys.argv[2]])
assert not status
print(json.dumps([time.process_time() - start, peak_mb() - imports_mb]))
"""


@dataclass(frozen=True)
class Run:
    """One child: its seconds on processors, and its peak memory; both above those of its imports."""

    cpu_s: float
    peak_mb: float

    def __str__(self) -> str:
        return f"{self.cpu_s:.2f} s CPU, {self.peak_mb:.0f} MB"


def main(*, capture: Path | None = None, rounds: int = 3) -> int:
    """Returns 1 if a target is missed.

    Args:
        capture: a kernel_details file to repeat (default: a synthetic one).
        rounds: rounds, of which the best counts.
    """
    with tempfile.TemporaryDirectory() as folder:
        if capture and ".json" in capture.suffixes:
            big = Path(folder, "big.trace.json")
            count, start = repeat_trace(capture, big), time.perf_counter()
            run = Run(*result_of(_INGEST, big, Path(folder, "database")))
            wall_s = time.perf_counter() - start
            print(f"{count:,} events, {big.stat().st_size / 1e6:.0f} MB: {run}, {wall_s:.0f} s ({load()})")
            return int(run.peak_mb > TARGET_TRACE_MB)
        big = Path(folder, "kernel_details.csv")
        count = repeat(capture, big) if capture else synthesize(big)
        print(f"{count:,} rows, {big.stat().st_size / 1e6:.0f} MB")
        reads, ingests = [], []
        for i in range(rounds):
            reads.append(Run(*result_of(_PANDAS, big)))
            ingests.append(Run(*result_of(_INGEST, big, Path(folder, f"database{i}"))))
            print(f"  pandas.read_csv {reads[-1]}   ingest {ingests[-1]}")
    ratio = min(run.cpu_s for run in ingests) / min(run.cpu_s for run in reads)
    peak_mb = max(run.peak_mb for run in ingests)
    print(f"ingest takes {ratio:.2f} times the CPU of pandas.read_csv (target: at most {TARGET_RATIO:g}; {load()})")
    print(f"peak memory {peak_mb:.0f} MB above the imports (target: at most {TARGET_PEAK_MB})")
    return 0 if ratio <= TARGET_RATIO and peak_mb <= TARGET_PEAK_MB else 1


def repeat(capture: Path, big: Path) -> int:
    """Writes the rows of `capture` again and again; gives their number."""
    header, *rows = capture.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    times = max(1, ROWS // len(rows))
    with open(big, "w", encoding="utf-8") as file:
        file.write(header)
        for _ in range(times):
            file.writelines(rows)
    return times * len(rows)


def repeat_trace(capture: Path, big: Path) -> int:
    """Writes the events of a trace again and again, each time later and of other calls; gives their number."""
    text = gzip.decompress(capture.read_bytes()) if capture.suffix == ".gz" else capture.read_bytes()
    whole = json.loads(text, parse_float=Decimal)
    events = [event for event in whole.pop("traceEvents") if "ts" in event]
    encode, count = msgspec.json.Encoder(decimal_format="number").encode, 0
    most = max(event.get("args", {}).get("correlation", 0) for event in events) + 1
    span = max(event["ts"] + event.get("dur", 0) for event in events) - min(event["ts"] for event in events)
    with open(big, "wb") as file:
        file.write(encode(whole)[:-1] + b', "traceEvents": [' + encode(events[0]))
        while file.tell() < TRACE_BYTES:
            count += len(events)
            for event in events:
                event["ts"] += span
                if "correlation" in event.get("args", {}):
                    event["args"]["correlation"] += most
                file.write(b",\n" + encode(event))
        file.write(b"]}")
    return count


def synthesize(big: Path) -> int:
    """A capture of a made-up training step, with the columns of a real one; gives the number of rows."""
    pick = random.Random(0)
    kernels = [_kernel(pick, number) for number in range(110)]
    step = [_row(pick, pick.choice(kernels)) for _ in range(2463)]
    small = big.with_name("step.csv")
    with open(small, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_LAUNCH, *PIPE_UTILIZATION])
        writer.writerows(step)
    rows = repeat(small, big)
    small.unlink()
    return rows


_LAUNCH = (
    *("Step Id", "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core"),
    *("Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible"),
    *("Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats"),
    "Context ID",
)


def _kernel(pick: random.Random, number: int) -> Sequence[str]:
    """Name, type and the six slot cells of a kernel with one to five inputs."""
    inputs = pick.randint(1, 5)
    shapes = ";".join(f"{pick.choice((1, 4, 4096))},{pick.choice((128, 1024, 6144))}" for _ in range(inputs))
    kernel_type = f"Kernel{number % 35}"
    dtypes, formats = ";".join(["DT_BF16"] * inputs), ";".join(["ND"] * inputs)
    output = f"{number + 1},1024"
    name = f"aclnn{kernel_type}_{kernel_type}AiCore_{kernel_type}"
    return name, kernel_type, f'"{shapes}"', dtypes, formats, f'"{output}"', "DT_BF16", "ND"


def _row(pick: random.Random, kernel: Sequence[str]) -> list[str]:
    name, kernel_type, *slots = kernel
    counters = [f"{pick.uniform(0, 200):.3f}" if pick.random() < 0.5 else "0.0" for _ in PIPE_UTILIZATION]
    start = f"{1764246877000000 + pick.random() * 1e6:.3f}\t"
    launch = ["13", "0", "4294967295", str(pick.randrange(10**5)), "2", name, kernel_type, "dynamic", "AI_VECTOR_CORE"]
    return [*launch, start, f"{pick.uniform(1, 500):.3f}", "12.5", "40", "0", "NO", *slots, "N/A", *counters]


if __name__ == "__main__":
    run_benchmark(main)
