"""A clock in both processes of a session: gives each moment to the innermost of the functions that it wraps.

This module is a plugin of the session that is profiled, and the main module of its device process.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MODULE = "tests.benchmarks.session_clock"
#: Where both processes leave their figures, and when pytest was started.
FOLDER, STARTED = "OPATLAS_SESSION_PROFILE", "OPATLAS_SESSION_PROFILE_START"

#: Functions of the device process by label, as "module:function" or "module:class.method".
_DEVICE = {
    "wait for the next job": ["opatlas.run.process.channel:ChildChannel.receive"],
    "send the outcome": ["opatlas.run.process.channel:ChildChannel.send"],
    "refused? (parse the cells)": ["opatlas.run.runner:Runner.refused"],
    "process state": ["opatlas.run.process_state:ProcessState.read", "opatlas.run.runner:changes"],
    "bind: parse, find the function": ["opatlas.run.runner:_bind_kernel", "opatlas.run.runner:load_function"],
    "memory: query and bound": [
        "opatlas.run.replay:Replay.expect_memory",
        "opatlas.run.replay:Replay.bounded_memory",
    ],
    "inputs and the replay's body": ["opatlas.run.runner:Runner._run_body"],
    "call: clones of changed inputs": ["opatlas.run.kernel_call:KernelCall.__init__"],
    "watch inputs: copy": ["opatlas.run.call_watch:InputWatch.__init__"],
    "watch inputs: compare": ["opatlas.run.replay:Replay._expect_unchanged"],
    "first call, set-up": ["opatlas.run.replay:Replay._first_call"],
    "warm-up": ["opatlas.run.sampling:Sampling.warm_up"],
    "throttled?": ["opatlas.run.devices.nvml:Nvml.throttles"],
    "sleep": ["time:sleep"],
    "samples: other": ["opatlas.run.sampling:Sampling.take"],
    "samples: how many at once": ["opatlas.run.instruments.kernel_records:KernelRecords._calls_at_once"],
    "samples: queue": ["opatlas.run.instruments.kernel_records:KernelRecords._records"],
    "samples: launch marks": ["torch.cuda:_sleep"],
    "samples: recording on and off": ["cupti.cupti:activity_enable", "cupti.cupti:activity_disable"],
    "samples: restore": ["opatlas.run.kernel_call:KernelCall.restore"],
    "samples: flush": [
        "opatlas.run.devices.cuda:CudaDevice.flush_cache",
        "opatlas.run.devices.cpu:CpuDevice.flush_cache",
    ],
    "samples: launch": ["opatlas.run.kernel_call:KernelCall.launch"],
    "samples: read records": ["opatlas.run.instruments.cupti:CuptiRecorder._read"],
    "samples: between marks": ["opatlas.run.instruments.kernel_records:between_marks"],
    "samples: stop rule": ["opatlas.run.instruments.stop_rule:StopRule.enough"],
    "check: formula": ["opatlas.run.replay:check"],
    "check: compare": ["opatlas.run.result_check:_compare"],
    "check: draw elements": ["opatlas.run.formula:sample"],
    "outcome": ["opatlas.run.sampling:Sampling.outcome", "opatlas.run.runner:Runner._with_bound"],
    "free memory": ["opatlas.run.devices.cuda:CudaDevice.release_memory"],
    "rest of Replay": ["opatlas.run.replay:Replay.__call__"],
    "rest of Runner": ["opatlas.run.runner:Runner.run"],
}
#: Waits for the device, and copies to the host: a label of their own within each of the above.
_WAITS = ("synchronize", "item", "tolist", "cpu", "__bool__", "__float__", "__int__")
#: The same for pytest's process.
_PARENT = {
    "wait for the device process": ["opatlas.run.process.device_process:DeviceProcess._await"],
    "send the job": ["opatlas.run.process.device_process:DeviceProcess.run"],
    "make the job": ["opatlas.plugins.row_runner:RowRunner._job"],
    "session.run": ["opatlas.plugins.replay_session:ReplaySession.run"],
    "record": ["opatlas.plugins.replay_session:ReplaySession.record"],
    "journal": ["opatlas.plugins.records:SessionJournal.append"],
    "receive": ["opatlas.plugins.replay_session:ReplaySession.receive"],
    "keep": ["opatlas.plugins.replay_session:ReplaySession.keep"],
    "prepare": ["opatlas.plugins.replay_session:ReplaySession.prepare"],
}
_REST = "rest"
WAIT = " [wait]"


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
            own = label or f"{self.label.removesuffix(WAIT)}{WAIT}"
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
    from opatlas.run import runner
    from opatlas.run.process import device_main
    from opatlas.run.process.process_end import exit_without_cleanup

    phases.ended("import opatlas.run")
    phases.after("opatlas.run.runner:open_device", "open the device (context)")
    phases.after("opatlas.run.devices.cuda:CudaDevice.instrument", "open the instrument (CUPTI)")
    phases.after("opatlas.run.devices.cpu:CpuDevice.instrument", "open the instrument (wall clock)")
    phases.after("opatlas.run.runner:ProcessState", "describe the device, read the state")
    phases.after("opatlas.run.runner:Runner.probe", "probe")
    rows: list[Mapping[str, Any]] = []
    busy = [0.0]
    for label, places in _DEVICE.items():
        if label != "sleep":
            for place in places:
                # Without CUPTI its functions are missing.
                with suppress(ImportError):
                    clock.wrap(place, label)
    for formula in ("_Pointwise", "_PerRow", "_PerElement", "_Parts"):
        clock.wrap(f"opatlas.run.formula:{formula}.compare", "check: formula")
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
    from opatlas.run.instruments.kernel_records import KernelRecords

    inner = KernelRecords._records

    def records(self: Any, *arguments: Any) -> Any:
        found = list(inner(self, *arguments))
        busy[0] += sum(record.duration_us for record in found)
        return found

    setattr(KernelRecords, "_records", records)  # noqa: B010 - mypy refuses the assignment


def pytest_configure(config: Any) -> None:
    """Makes this module a plugin of the session that is profiled."""
    if FOLDER in os.environ:
        config.pluginmanager.register(_Plugin(Path(os.environ[FOLDER]), float(os.environ[STARTED])))


class _Plugin:
    def __init__(self, folder: Path, started: float) -> None:
        process: Any = importlib.import_module("opatlas.run.process.device_process")
        self._folder = folder
        self._phases, self._clock = Phases(started), Clock()
        self._phases.ended("start Python and pytest, import plugins")
        self._rows, self._last = 0, 0.0
        self._spent: dict[str, float] = {}
        command = process.module_command

        def profiled(_: str, fd: str, *words: str) -> list[str]:
            own = (fd, str(time.perf_counter()), str(folder))
            return list(command(MODULE, *own, *words))

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


if __name__ == "__main__":
    device_process(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
