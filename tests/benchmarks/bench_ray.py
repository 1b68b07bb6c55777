"""What --ray costs, and how many devices one head keeps busy.

    python -m tests.benchmarks.bench_ray [--rows N] [--head-ms MS] [--no-sessions]

First sessions on two simulated devices, whose rows take 20 ms: with a worker of xdist for each, and with `--ray local`.
Then the dealer alone, with devices that only wait: a row costs the head --head-ms, which is about what pytest, the
journal and the report take (bench_replay), and each device the given time.
"""

from __future__ import annotations

import heapq
import re
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path

from opatlas.outer.cluster.dealer import Dealer, DeviceAnswer
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription
from opatlas.run.job import Job, RowOutcome
from tests.benchmarks.children import run_benchmark

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

_REPLAY = """
import time
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from opatlas.run.registry import replays


@replays("Toy", npu=None)
def test_toy(row, replay):
    time.sleep(0.02)
    replay(impl.add, *row.inputs(), expected=formulas.add)
"""
#: Most cost of Ray over xdist, and least share of what the head can deal.
_MOST_COST, _LEAST_SHARE = 0.05, 0.9
#: Runs of each kind, of which the best counts.
_TRIES = 3


class Clock:
    """Completes futures at given times, in one thread."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Future[DeviceAnswer], DeviceAnswer]] = []
        self._changed = threading.Condition()
        self._count = 0
        threading.Thread(target=self._run, daemon=True).start()

    def at(self, when: float, answer: DeviceAnswer) -> Future[DeviceAnswer]:
        future: Future[DeviceAnswer] = Future()
        with self._changed:
            self._count += 1
            heapq.heappush(self._due, (when, self._count, future, answer))
            self._changed.notify()
        return future

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.monotonic():
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                _, _, future, answer = heapq.heappop(self._due)
            future.set_result(answer)


class WaitingDevice:
    """A RemoteDevice whose rows take a given time, and no time of a core."""

    def __init__(self, number: int, row_s: float, clock: Clock) -> None:
        self.name = f"device {number}"
        self._row_s = row_s
        self._clock = clock
        self._free_at = 0.0

    def open(self) -> Future[DeviceAnswer]:
        return self._clock.at(0.0, DeviceAnswer(device=DeviceDescription("Waiting", {"host": self.name})))

    def run(self, job: Job) -> Future[DeviceAnswer]:
        self._free_at = max(self._free_at, time.monotonic()) + self._row_s
        return self._clock.at(self._free_at, DeviceAnswer(RowOutcome(Status.FAILED)))

    def beat(self) -> Future[str]:
        done: Future[str] = Future()
        done.set_result("")
        return done

    def kill(self) -> None:
        pass


def rate(devices: int, row_s: float, rows: int, head_s: float) -> float:
    """Rows that the head takes in a second."""
    clock, taken = Clock(), 0
    dealer = Dealer([WaitingDevice(n, row_s, clock) for n in range(devices)], print)
    dealer.describe()
    for _ in range(rows):
        dealer.submit(Job("module", "module.py", "test", "Toy", {}, timeout_s=1.0))
    began = time.perf_counter()
    while taken < rows:
        for _ in dealer.completed():
            taken += 1
            # Time of the core, so that other processes of the machine slow both rates alike.
            until = time.thread_time() + head_s
            while time.thread_time() < until:
                pass
        time.sleep(0)
    seconds = time.perf_counter() - began
    dealer.close()
    return rows / seconds


def session_rate(rows: int, *options: str) -> float:
    """Rows that a session on two devices runs in a second, as its summary tells."""
    from sessions import Sessions, row

    sessions = Sessions(Path(tempfile.mkdtemp(prefix="opatlas-bench-ray-")))
    (sessions.folder / "test_toys.py").write_text(_REPLAY)
    sessions.write("Toy", [row(size) for size in range(1, rows + 1)])
    finished = sessions.start(*options, SIMULATED_DEVICES="2").wait(600)
    assert finished.ledger() == {"measured": rows}, finished.output
    found = re.findall(r"\(([\d,.]+) rows/s\)", finished.output)
    return float(found[-1].replace(",", ""))


def main(*, rows: int = 4000, head_ms: float = 2.0, sessions: bool = True) -> int:
    """Returns 1 if a target is missed.

    Args:
        rows: rows of each run.
        head_ms: what a row costs the head.
        sessions: also sessions; else the dealer alone.
    """
    met = True
    if sessions:
        xdist, ray = (session_rate(rows, *options) for options in ((), ("--ray=local",)))
        print(f"rows of 20 ms on two devices: {xdist:.1f} rows/s with xdist, {ray:.1f} rows/s with --ray local")
        print(f"--ray costs {1 - ray / xdist:.1%} (target: at most {_MOST_COST:.0%})")
        met = 1 - ray / xdist <= _MOST_COST
    head_s = head_ms / 1000
    # In turn, because the load of the machine changes.
    tries = [[rate(64, row_s, rows, head_s) for row_s in (0.0, 0.005)] for _ in range(_TRIES)]
    most, busy = map(max, zip(*tries, strict=True))
    print(f"64 devices: {busy:.0f} rows/s with rows of 5 ms, of {most:.0f} rows/s that the head can deal")
    print(f"that is {busy / most:.1%} (target: at least {_LEAST_SHARE:.0%})")
    print(f"the dealer alone, without pytest: {rate(64, 0.0, 10 * rows, 0.0):,.0f} rows/s")
    for row_s in (0.5, 2.0):
        seen = rate(1000, row_s, max(2 * 1000, rows), head_s)
        print(
            f"1000 devices with rows of {row_s:g} s: {seen:.0f} rows/s of {1000 / row_s:.0f} that they could run; "
            f"the head keeps {most * row_s:.0f} of them busy"
        )
    return 0 if met and busy / most >= _LEAST_SHARE else 1


if __name__ == "__main__":
    run_benchmark(main)
