"""Where the wall time of a session goes, by row and by phase: rows of all kernel types in a `pytest bench/` session.

    python -m tests.benchmarks.bench_gpu_session [--rows N] [--device cuda|cpu] [--database DIR]

Draws rows evenly over the kernel types of a database, copies them without durations, and measures them in a session of
one device process. This file is also a plugin of that session and the main module of its device process: both wrap the
functions of a row with a clock, which gives each moment to the innermost of them. The library has no such code. The
clock itself costs a few microseconds a sample.
"""

from __future__ import annotations

import argparse
import csv
import functools
import gc
import importlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from opatlas.model.schema import BASE, RUNTIME_IN_SIGNATURE
from opatlas.store.database import Database
from tests.benchmarks.children import ROOT

DATABASE = ROOT / "database" / "data" / "NVIDIA_H200" / "torch" / "torch2.11.0_cuda13.0"
TARGET_ROWS_PER_S, TARGET_SESSION_S = 60.0, 5.0
_MODULE = "tests.benchmarks.bench_gpu_session"
#: Where both processes leave their figures, and when pytest was started.
_FOLDER, _STARTED = "OPATLAS_SESSION_PROFILE", "OPATLAS_SESSION_PROFILE_START"

#: Functions of the device process by label, as "module:function" or "module:class.method".
_DEVICE = {
    "wait for the next job": ["opatlas.isolation.channel:ChildChannel.receive"],
    "send the outcome": ["opatlas.isolation.channel:ChildChannel.send"],
    "refused? (parse the cells)": ["opatlas.engine.runner:Runner.refused"],
    "process state": ["opatlas.engine.process_state:ProcessState.read", "opatlas.engine.runner:changes"],
    "bind: parse, find the function": ["opatlas.engine.runner:_bind_kernel", "opatlas.engine.runner:load_function"],
    "memory: query and bound": [
        "opatlas.engine.replay:Replay.expect_memory",
        "opatlas.engine.replay:Replay.bounded_memory",
    ],
    "inputs and the replay's body": ["opatlas.engine.runner:Runner._run_body"],
    "call: clones of changed inputs": ["opatlas.engine.kernel_call:KernelCall.__init__"],
    "watch inputs: copy": ["opatlas.engine.call_watch:InputWatch.__init__"],
    "watch inputs: compare": ["opatlas.engine.replay:Replay._expect_unchanged"],
    "first call, set-up": ["opatlas.engine.replay:Replay._first_call"],
    "warm-up": ["opatlas.engine.sampling:Sampling.warm_up"],
    "throttled?": ["opatlas.devices.nvidia:_Nvml.throttles"],
    "sleep": ["time:sleep"],
    "samples: other": ["opatlas.engine.sampling:Sampling.take"],
    "samples: how many at once": ["opatlas.instruments.kernel_records:KernelRecords._calls_at_once"],
    "samples: queue": ["opatlas.instruments.kernel_records:KernelRecords._records"],
    "samples: launch marks": ["torch.cuda:_sleep"],
    "samples: recording on and off": ["cupti.cupti:activity_enable", "cupti.cupti:activity_disable"],
    "samples: restore": ["opatlas.engine.kernel_call:KernelCall.restore"],
    "samples: flush": [
        "opatlas.devices.cuda:CudaDevice.flush_cache",
        "opatlas.devices.cpu:CpuDevice.flush_cache",
    ],
    "samples: launch": ["opatlas.engine.kernel_call:KernelCall.launch"],
    "samples: read records": ["opatlas.instruments.cupti:CuptiRecorder._read"],
    "samples: between marks": ["opatlas.instruments.kernel_records:between_marks"],
    "samples: stop rule": ["opatlas.instruments.stop_rule:StopRule.enough"],
    "check: formula": ["opatlas.engine.replay:check"],
    "check: compare": ["opatlas.engine.result_check:_compare"],
    "check: draw elements": ["opatlas.engine.formula:sample"],
    "outcome": ["opatlas.engine.sampling:Sampling.outcome", "opatlas.engine.runner:Runner._with_bound"],
    "free memory": ["opatlas.devices.cuda:CudaDevice.release_memory"],
    "rest of Replay": ["opatlas.engine.replay:Replay.__call__"],
    "rest of Runner": ["opatlas.engine.runner:Runner.run"],
}
#: Waits for the device, and copies to the host: a label of their own within each of the above.
_WAITS = ("synchronize", "item", "tolist", "cpu", "__bool__", "__float__", "__int__")
#: The same for pytest's process.
_PARENT = {
    "wait for the device process": ["opatlas.isolation.device_process:DeviceProcess._await"],
    "send the job": ["opatlas.isolation.device_process:DeviceProcess.run"],
    "make the job": ["opatlas.plugins.row_runner:RowRunner._job"],
    "session.run": ["opatlas.plugins.replay_session:ReplaySession.run"],
    "record": ["opatlas.plugins.replay_session:ReplaySession.record"],
    "journal": ["opatlas.plugins.records:SessionJournal.append"],
    "receive": ["opatlas.plugins.replay_session:ReplaySession.receive"],
    "keep": ["opatlas.plugins.replay_session:ReplaySession.keep"],
    "prepare": ["opatlas.plugins.replay_session:ReplaySession.prepare"],
}
_REST = "rest"
_WAIT = " [wait]"


class Clock:
    """Gives each moment to the innermost label that is active.

    Attributes:
        spent: seconds by label.
    """

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._active = [_REST]
        self._since = time.perf_counter()

    def begin(self, label: str) -> None:
        now = time.perf_counter()
        self.spent[self._active[-1]] += now - self._since
        self._active.append(label)
        self._since = now

    def end(self) -> None:
        now = time.perf_counter()
        self.spent[self._active.pop()] += now - self._since
        self._since = now

    @property
    def label(self) -> str:
        return self._active[-1]

    @contextmanager
    def during(self, label: str) -> Iterator[None]:
        self.begin(label)
        try:
            yield
        finally:
            self.end()

    def wrap(self, place: str, label: str | None) -> None:
        """Wraps a function at its place. Without a label it is a wait within the label that is active then."""
        module, _, dotted = place.partition(":")
        *owners, name = dotted.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        function = getattr(owner, name)

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            own = label or f"{self.label.removesuffix(_WAIT)}{_WAIT}"
            with self.during(own):
                return function(*arguments, **keywords)

        setattr(owner, name, call)

    def count_garbage_collection(self) -> None:
        gc.callbacks.append(lambda phase, _: self.begin("garbage collection") if phase == "start" else self.end())


class Phases:
    """When each step of a process began, in the order of time; the first is the start of the process."""

    def __init__(self, started: float) -> None:
        self.steps = [("", started)]

    def ended(self, step: str) -> None:
        self.steps.append((step, time.perf_counter()))

    def after(self, place: str, step: str) -> None:
        """Ends a step whenever a function returns."""
        module, _, dotted = place.partition(":")
        *owners, name = dotted.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        function = getattr(owner, name)

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            result = function(*arguments, **keywords)
            self.ended(step)
            return result

        setattr(owner, name, call)


def device_process(fd: int, started: float, folder: Path) -> None:
    """The device process, with a clock."""
    phases, clock = Phases(started), Clock()
    phases.ended("start Python (keeper, then device process)")
    clock.wrap("time:sleep", "sleep")
    import torch

    phases.ended("import torch")
    from opatlas.engine import runner
    from opatlas.isolation import device_main
    from opatlas.isolation.process_end import exit_without_cleanup

    phases.ended("import opatlas.engine")
    phases.after("opatlas.engine.runner:open_device", "open the device (context)")
    phases.after("opatlas.devices.cuda:CudaDevice.instrument", "open the instrument (CUPTI)")
    phases.after("opatlas.devices.cpu:CpuDevice.instrument", "open the instrument (wall clock)")
    phases.after("opatlas.engine.runner:ProcessState", "describe the device, read the state")
    phases.after("opatlas.engine.runner:Runner.probe", "probe")
    rows: list[Mapping[str, Any]] = []
    busy = [0.0]
    for label, places in _DEVICE.items():
        if label != "sleep":
            for place in places:
                # Without CUPTI its functions are missing.
                with suppress(ImportError):
                    clock.wrap(place, label)
    for formula in ("_Pointwise", "_PerRow", "_PerElement", "_Parts"):
        clock.wrap(f"opatlas.engine.formula:{formula}.compare", "check: formula")
    clock.wrap("torch.cuda:synchronize", None)
    for name in _WAITS[1:]:
        clock.wrap(f"torch:Tensor.{name}", None)
    _count_busy(busy)
    clock.count_garbage_collection()
    inner = runner.Runner.run

    def run(self: Any, job: Any) -> Any:
        before, busy_before, start = clock.spent.copy(), busy[0], time.perf_counter()
        outcome = inner(self, job)
        wall, measurement = time.perf_counter() - start, outcome.measurement
        rows.append(
            {
                "type": job.kernel_type,
                "s": wall,
                "status": str(outcome.status),
                "samples": len(measurement.samples_us) if measurement else 0,
                "busy_us": busy[0] - busy_before,
                "own_us": sum(measurement.samples_us) if measurement else 0.0,
                "spent": {label: s - before.get(label, 0.0) for label, s in clock.spent.items()},
            }
        )
        return outcome

    runner.Runner.run = run  # type: ignore[method-assign]
    del torch
    device_main.main(fd, under_launcher=False)
    phases.ended("all rows")
    figures = {"phases": phases.steps, "spent": clock.spent, "rows": rows}
    (folder / f"device-{os.getpid()}.json").write_text(json.dumps(figures))
    exit_without_cleanup()


def _count_busy(busy: list[float]) -> None:
    """Adds up how long the GPU works while samples are recorded: calls, flushes, marks and restored inputs."""
    from opatlas.instruments.kernel_records import KernelRecords

    inner = KernelRecords._records

    def records(self: Any, *arguments: Any) -> Any:
        found = list(inner(self, *arguments))
        busy[0] += sum(record.duration_us for record in found)
        return found

    setattr(KernelRecords, "_records", records)  # noqa: B010 - mypy refuses the assignment


def pytest_configure(config: Any) -> None:
    """Makes this module a plugin of the session that is profiled."""
    if _FOLDER in os.environ:
        config.pluginmanager.register(_Plugin(Path(os.environ[_FOLDER]), float(os.environ[_STARTED])))


class _Plugin:
    def __init__(self, folder: Path, started: float) -> None:
        process: Any = importlib.import_module("opatlas.isolation.device_process")
        self._folder = folder
        self._phases, self._clock = Phases(started), Clock()
        self._phases.ended("start Python and pytest, import plugins")
        self._rows, self._last = 0, 0.0
        self._spent: dict[str, float] = {}
        command = process.module_command

        def profiled(_: str, fd: str, *words: str) -> list[str]:
            own = ("--device-process", fd, str(time.perf_counter()), str(folder))
            return list(command(_MODULE, *own, *words))

        process.module_command = profiled
        for label, places in _PARENT.items():
            for place in places:
                self._clock.wrap(place, label)
        for place, step in {
            "opatlas.plugins.replay_session:plan_session": "plan",
            "opatlas.plugins.replay_session:ReplaySession.select": "select",
            "opatlas.plugins.replay_session:ReplaySession.complete": "complete",
            "opatlas.plugins.replay_session:ReplaySession.merge": "merge the journal into the CSVs",
            "opatlas.plugins.replay_session:ReplaySession.report": "write reports",
            "opatlas.plugins.replay_session:ReplaySession.print_summary": "print the summary",
            "opatlas.plugins.replay_session:ReplaySession.close": "end the device process",
        }.items():
            self._phases.after(place, step)
        self._phases.ended("this plugin")

    def pytest_sessionstart(self) -> None:
        self._phases.ended("configure")

    def pytest_collection_finish(self) -> None:
        self._phases.ended("collect")

    def pytest_runtest_setup(self) -> None:
        if self._rows == 0:
            self._phases.ended("start the device process")
            self._clock.spent.clear()
        self._rows += 1

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "teardown":
            self._last = time.perf_counter()
            self._spent = dict(self._clock.spent)

    def pytest_unconfigure(self) -> None:
        self._phases.ended("other plugins, unconfigure")
        steps = sorted([*self._phases.steps, ("rows", self._last)], key=lambda step: step[1])
        figures = {"phases": steps, "spent": self._spent, "rows": self._rows}
        (self._folder / "parent.json").write_text(json.dumps(figures))


def draw_rows(
    database: Path, count: int, seed: int, keep: Callable[[Mapping[str, str]], bool]
) -> dict[str, list[dict[str, str]]]:
    """Returns `count` rows at most, as many of each kernel type, without durations; `keep` chooses among all rows."""
    by_type: dict[str, list[dict[str, str]]] = {}
    for kernel_type in Database(database).kernel_types():
        with open(Database(database).csv_path(kernel_type), newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if keep(row)]
        random.Random(f"{seed} {kernel_type}").shuffle(rows)
        if rows:
            by_type[kernel_type] = rows
    drawn: dict[str, list[dict[str, str]]] = {kernel_type: [] for kernel_type in by_type}
    places = ((kernel_type, i) for i in range(count) for kernel_type in by_type if i < len(by_type[kernel_type]))
    for _, (kernel_type, i) in zip(range(count), places, strict=False):
        kept = [column for column in by_type[kernel_type][i] if column in (*BASE, *RUNTIME_IN_SIGNATURE)]
        drawn[kernel_type].append({column: by_type[kernel_type][i][column] for column in kept})
    return {kernel_type: rows for kernel_type, rows in drawn.items() if rows}


def write_rows(database: Path, drawn: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    """Writes rows by kernel type into a new database."""
    database.mkdir()
    for kernel_type, rows in drawn.items():
        with open(database / f"{kernel_type}.csv", "w", newline="", encoding="utf-8") as file:
            columns = list(dict.fromkeys([*BASE, *(column for row in rows for column in row)]))
            writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def _bytes(row: Mapping[str, str]) -> float:
    """Returns about how many bytes the tensors of a row take: four for each element."""
    total = 0
    for column in ("Input Shapes", "Output Shapes"):
        for shape in row[column].strip('"').split(";"):
            numbers = [int(word) for word in shape.split(",") if word.isdigit()]
            total += 4 * functools.reduce(int.__mul__, numbers, 1)
    return total


def run_session(database: Path, folder: Path, options: Sequence[str]) -> tuple[float, str]:
    """Returns the seconds of the session, and what it printed."""
    environment = {**os.environ, _FOLDER: str(folder), _STARTED: str(time.perf_counter())}
    command = [sys.executable, "-m", "pytest", "bench", "-q", "-p", "no:cacheprovider", "-p", _MODULE, "-n0"]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, f"--database-path={database}", *options],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if not (folder / "parent.json").exists():
        raise RuntimeError(done.stdout + done.stderr)
    return time.perf_counter() - start, done.stdout


def print_table(title: str, columns: Sequence[tuple[Mapping[str, float], int]], *, least_ms: float = 0.03) -> None:
    """Prints milliseconds a row by label, the largest first; a label's waits are in brackets behind it.

    Args:
        columns: seconds by label, and the number of rows.
    """
    waits = [
        {label.removesuffix(_WAIT): s for label, s in spent.items() if label.endswith(_WAIT)} for spent, _ in columns
    ]
    totals = [
        {label: spent.get(label, 0.0) + own.get(label, 0.0) for label in {*spent, *own} if not label.endswith(_WAIT)}
        for (spent, _), own in zip(columns, waits, strict=True)
    ]
    counts = [count / 1000 for _, count in columns]
    print(f"{title}: " + " and ".join(f"{sum(own.values()) / n:.2f}" for own, n in zip(totals, counts, strict=True)))
    small = [0.0] * len(columns)
    for label in sorted(totals[0], key=lambda label: -totals[0][label]):
        each = [own.get(label, 0.0) / n for own, n in zip(totals, counts, strict=True)]
        if max(each) < least_ms:
            small = [a + b for a, b in zip(small, each, strict=True)]
            continue
        waited = [own.get(label, 0.0) / n for own, n in zip(waits, counts, strict=True)]
        behind = (
            f"  (waits for the device {' '.join(f'{one:.2f}' for one in waited)})" if max(waited) >= least_ms else ""
        )
        print(" ".join(f"{one:8.2f}" for one in each), f"  {label}{behind}")
    print(" ".join(f"{one:8.2f}" for one in small), f"  everything below {least_ms:g} ms")


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints how rows differ: the share of the slowest, the first row of each type, samples, and the slowest types."""
    total = sum(row["s"] for row in rows)
    walls = sorted((row["s"] for row in rows), reverse=True)
    tenth = sum(walls[: len(walls) // 10])
    busy, own = sum(row["busy_us"] for row in rows) / 1e6, sum(row["own_us"] for row in rows) / 1e6
    samples = [row["samples"] for row in rows if row["samples"]]
    print(
        f"rows in the device process: median {median(walls) * 1000:.2f} ms; the slowest tenth has {tenth / total:.0%} "
        f"of the time; samples: median {median(samples):g}, mean {sum(samples) / len(samples):.0f}"
    )
    print(
        f"the GPU works {busy:.1f} s in recordings ({busy / total:.0%} of {total:.1f} s), {own:.1f} s of that in calls"
    )
    # The last of equal keys stays: of the reversed rows that is the first row of a type.
    first = list({row["type"]: row["s"] for row in reversed(rows)}.values())
    others = (total - sum(first)) / max(len(rows) - len(first), 1)
    print(f"the first row of a type takes {sum(first) / len(first) * 1000:.1f} ms, another {others * 1000:.1f} ms")
    by_type: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        by_type[row["type"]].append(row)
    print("slowest types (ms a row; GPU; largest parts):")
    for kernel_type, own_rows in sorted(by_type.items(), key=lambda item: -sum(row["s"] for row in item[1]))[:12]:
        spent = sorted(_added(own_rows).items(), key=lambda item: -item[1])
        parts = ", ".join(f"{label} {s / len(own_rows) * 1000:.1f}" for label, s in spent[:4])
        each, gpu = (sum(row[key] for row in own_rows) / len(own_rows) for key in ("s", "busy_us"))
        print(f"  {kernel_type[:28]:28} {each * 1000:7.1f} {gpu / 1000:7.1f}  {parts}"[:150])


def _added(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the seconds of all rows by label."""
    spent: dict[str, float] = defaultdict(float)
    for row in rows:
        for label, seconds in row["spent"].items():
            spent[label] += seconds
    return spent


def print_phases(title: str, steps: Sequence[tuple[str, float]], *, least_s: float = 0.02) -> None:
    found = [(step, at - before) for (_, before), (step, at) in itertools.pairwise(steps)]
    print(f"{title}: " + ", ".join(f"{step} {s:.2f}" for step, s in found if s >= least_s))


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, default=DATABASE, help="whose rows (default: the shipped H200 rows)")
    parser.add_argument("--rows", type=int, default=600, help="about so many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: %(default)s)")
    parser.add_argument("--most-mb", type=float, help="largest row in MB (default: 32 on a CPU, else no limit)")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--time-limit", default="1", help="seconds of samples of a row (default: %(default)s)")
    arguments, more = parser.parse_known_args()
    most_mb = arguments.most_mb or (32 if arguments.device == "cpu" else float("inf"))
    with tempfile.TemporaryDirectory() as name:
        database, folder = Path(name, "database"), Path(name, "figures")
        folder.mkdir()
        drawn = draw_rows(arguments.database, arguments.rows, arguments.seed, lambda row: _bytes(row) <= most_mb * 1e6)
        write_rows(database, drawn)
        options = [f"--device={arguments.device}", f"--time-limit={arguments.time_limit}", *more]
        seconds, printed = run_session(database, folder, options)
        parent = json.loads((folder / "parent.json").read_text())
        processes = [json.loads(path.read_text()) for path in sorted(folder.glob("device-*.json"))]
    of_rows = [row for process in processes for row in process["rows"]]
    steps = [(step, at) for step, at in parent["phases"]]
    before = next(at for (_, at), (step, _) in itertools.pairwise(steps) if step == "rows")
    wall = dict(steps)["rows"] - before
    print(*(line for line in printed.splitlines() if "collected = " in line), sep="\n")
    rate, around_s = parent["rows"] / wall, seconds - wall
    print(
        f"{parent['rows']} rows in {wall:.1f} s: {rate:.1f} rows/s (target: {TARGET_ROWS_PER_S:g}); start and end "
        f"{around_s:.1f} s (target: {TARGET_SESSION_S:g}); {len(processes)} device processes"
    )
    processor = next((line for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "").partition(": ")[2]
    print(f"{os.cpu_count()} cores of {processor}, load {os.getloadavg()[0]:.1f}")
    print_phases("session (s)", [*steps, ("exit", steps[0][1] + seconds)])
    print_phases("device process (s)", processes[0]["phases"])
    print_table("pytest's process, ms a row", [(parent["spent"], parent["rows"])])
    fast = sorted(of_rows, key=lambda row: row["s"])[: len(of_rows) * 8 // 10]
    columns = [(_added(of_rows), len(of_rows)), (_added(fast), len(fast))]
    print_table("device process, ms a row, of all rows and of the fastest 80 %", columns)
    print_rows(of_rows)
    return 0 if rate >= TARGET_ROWS_PER_S and around_s <= TARGET_SESSION_S else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--device-process"]:
        device_process(int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
    sys.exit(main())
