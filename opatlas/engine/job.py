"""What goes to a device process for one row, and what comes back. No torch here."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from opatlas.instruments.attribution import Launched
from opatlas.isolation.groups.spec import GroupSpec
from opatlas.model.record import Measurement
from opatlas.model.schema import Status
from opatlas.text import as_detail, as_reason


@dataclass(frozen=True)
class MeasureSettings:
    """How rows are measured.

    Attributes:
        repeat_count: number of samples; None lets the stop rule decide.
        cache: "cold" (last-level cache flushed before each sample) or "warm".
        time_limit_s: wall time after which the stop rule ends the sampling of a row.
        threads: CPU threads that torch may use; None: one for each core the process may use.
        instrument: what takes the durations, by its name in `opatlas.instruments.OFFERED`; None: the best
            that the device offers.
        max_noise: relative standard deviation above which a row is measured again, and fails if it stays; None: any.
        aic_metrics: the group of hardware counters that Ascend's profilers record.
    """

    repeat_count: int | None = None
    cache: str = "cold"
    time_limit_s: float = 5.0
    threads: int | None = None
    instrument: str | None = None
    aic_metrics: str = "PipeUtilization"
    max_noise: float | None = None


@dataclass(frozen=True)
class DeviceSpec:
    """Which device a process is to own.

    Attributes:
        kind: "cpu", or what `opener` opens.
        index: its place among those that the user made visible, from 0.
        pinned: the environment variable that shows the process this device alone, and its value there;
            None where there is nothing to choose from.
        opener: "module:name" of what opens it, called with the spec and the settings; "" for the kinds
            that OpAtlas knows.
        name: of the device's database folder; "" where it is not known.
        alone: whether the process is to see this device alone; if not, it sees all, and takes the one at `index`.
    """

    kind: str
    index: int = 0
    pinned: tuple[str, str] | None = None
    opener: str = ""
    name: str = ""
    alone: bool = True

    def __str__(self) -> str:
        return f"{self.kind} {self.index}"


@dataclass(frozen=True)
class Job:
    """One row to replay.

    Attributes:
        module, module_path, function: the replay function, importable by name or else by path.
        kernel_type, cells: the row.
        timeout_s: how long it may take, from its start to its outcome.
        group: the group of devices that it needs at once; None: one device.
        instrument: what took the duration that the job's is to replace, and must take this one; "": any may.
        id: of all jobs of the process that made it, this one; each answer names it.
    """

    module: str
    module_path: str
    function: str
    kernel_type: str
    cells: Mapping[str, str]
    timeout_s: float
    group: GroupSpec | None = None
    instrument: str = ""
    id: int = field(default_factory=itertools.count(1).__next__, compare=False)


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        status, reason: as in a record; `reason` is made one printable line, whatever text an exception has.
        detail: what a person needs to mend it (a traceback), printable; empty where the reason says all.
        measurement: set if and only if the status is measured.
        launched: where the samples of the measurement are to be looked for in a profile
        (opatlas/instruments/profile_executor.py);
            None once they are in it.
        changed: what rows have changed in the state of the process ("changed torch threads 2 -> 1"), which is to
            run no other row then.
    """

    status: Status
    reason: str = ""
    detail: str = ""
    measurement: Measurement | None = None
    launched: Launched | None = None
    changed: tuple[str, ...] = ()

    @property
    def explanation(self) -> str:
        """The reason, and what was changed: Status Reason of the row."""
        return as_reason("; ".join(filter(None, (self.reason, *self.changed))))

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", as_reason(self.reason))
        object.__setattr__(self, "detail", as_detail(self.detail))


@dataclass(frozen=True)
class DeviceDescription:
    """What a device says of itself, for the run manifest.

    Attributes:
        name: what the device calls itself.
        facts: memory, cache sizes, threads, versions: whatever bears on a duration.
        kind: as in its spec, which need not be repeated: where it is empty, whoever opened the device puts that in.
        state: what changes by itself (temperature, power, use), as it was when the device was opened.
        no_custom_operators: why the operators that vllm-ascend brings cannot be there; "" where they can.
    """

    name: str
    facts: Mapping[str, str | int | float]
    kind: str = ""
    state: Mapping[str, str | int | float] = field(default_factory=dict, compare=False)
    no_custom_operators: str = ""
