"""A job, one row to replay, and its outcome. Imports no torch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from opatlas.engine.group_spec import GroupSpec
from opatlas.instruments.attribution import AnotherCase, NoSamples, PendingSamples, ProfiledSamples, own_kernel
from opatlas.model.quality import relative_noise
from opatlas.model.record import Measurement
from opatlas.model.schema import Status
from opatlas.text import as_detail, as_reason


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
class RowOutcome:
    """What became of a job.

    Attributes:
        status, reason: as in a record; `reason` is made one printable line, whatever text an exception has.
        detail: what a person needs to mend it (a traceback), printable; empty where the reason says all.
        measurement: set if and only if the status is measured.
        launched: where the samples of the measurement are to be looked for in a profile
        (opatlas/engine/job.py);
            None once they are in it.
        changed: what rows have changed in the state of the process ("changed torch threads 2 -> 1"), which is to
            run no other row then.
    """

    status: Status
    reason: str = ""
    detail: str = ""
    measurement: Measurement | None = None
    pending: PendingSamples | None = None
    changed: tuple[str, ...] = ()

    @property
    def explanation(self) -> str:
        """The reason, and what was changed: Status Reason of the row."""
        return as_reason("; ".join(filter(None, (self.reason, *self.changed))))

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", as_reason(self.reason))
        object.__setattr__(self, "detail", as_detail(self.detail))


#: In the place of operators that were not counted.
REST = "..."
#: So many names fit into a cell.
_MOST_NAMES = 4


def describe_stand_in(operators: Sequence[str], device_kernels: int | None) -> str:
    """What stands in for a kernel: "" if one operator was called, or one device kernel launched.

    Args:
        operators: their names, in the order of the calls; none where the kernel bypasses torch.
        device_kernels: how many device kernels the call launched; None: not known.
    """
    if len(operators) <= 1:
        return ""
    names = list(dict.fromkeys(operators))
    if len(names) > _MOST_NAMES:
        names[_MOST_NAMES:] = [REST]
    least = "at least " if operators[-1] == REST else ""
    text = f"composition of {least}{len(operators)} torch operators ({', '.join(names)})"
    return text if device_kernels is None else add_device_kernels(text, device_kernels)


def add_device_kernels(text: str, device_kernels: int) -> str:
    """Completes what `stand_in` gave, once the number of device kernels of the call is known."""
    return f"{text}, {device_kernels} device kernels" if text and device_kernels != 1 else ""


def add_profiled_samples(
    outcome: RowOutcome, kernel_type: str, cells: Mapping[str, str], found: ProfiledSamples | NoSamples
) -> RowOutcome:
    """Returns the outcome of a row that was launched, now that its profile was read.

    Args:
        kernel_type, cells: the row.
    """
    own = found if isinstance(found, NoSamples) else own_kernel(kernel_type, cells, found)
    if isinstance(own, NoSamples):
        reason = f"launched and right, but not measured: {own.reason}"
        return RowOutcome(Status.FAILED, reason, changed=outcome.changed)
    if isinstance(own, AnotherCase):
        return RowOutcome(Status.UNSUPPORTED, own.reason, changed=outcome.changed)
    assert outcome.measurement is not None
    measurement = replace(
        outcome.measurement,
        samples_us=own.durations_us,
        device_kernels=own.device_kernels,
        helper_kernels=own.helper_kernels,
        stand_in=add_device_kernels(outcome.measurement.stand_in, own.device_kernels),
        ran_as=own.ran_as,
        counters=own.counters,
        assumptions=(*outcome.measurement.assumptions, *own.assumptions),
    )
    return replace(outcome, measurement=measurement, pending=None)


#: How often a row is measured in all, each time within its time limit.
ATTEMPTS = 3

#: Fewer samples tell nothing of their noise.
LEAST_SAMPLES = 3


@dataclass(frozen=True)
class Attempt:
    """Samples that were taken one after the other.

    Attributes:
        noise: relative standard deviation; in a group that of the noisiest rank; None where it is not known.
        median_us: of this rank's samples.
        samples: how many.
    """

    noise: float | None
    median_us: float
    samples: int

    def is_within(self, limit: float) -> bool:
        """Whether the samples are known to scatter no more than the limit, a share of the mean, allows."""
        return self.noise is not None and self.noise <= limit

    def __str__(self) -> str:
        return f"{format_noise(self.noise)} in {self.samples} samples, median {self.median_us:.4g} us"


def sample_noise(samples_us: Sequence[float]) -> float | None:
    """The relative standard deviation of samples; None for too few."""
    return relative_noise(samples_us) if len(samples_us) >= LEAST_SAMPLES else None


def make_attempt(samples_us: Sequence[float]) -> Attempt:
    """The attempt of a process that is in no group."""
    return Attempt(sample_noise(samples_us), median(samples_us), len(samples_us))


def apply_noise_limit(outcome: RowOutcome, limit: float | None, attempts: Sequence[Attempt]) -> RowOutcome:
    """The outcome of a measured row, NOISY where the last attempt is over the limit.

    Args:
        limit: as a share of the mean; None: there is none.
        attempts: at least one, where there is a limit.
    """
    if limit is None or outcome.status is not Status.MEASURED or attempts[-1].is_within(limit):
        return outcome
    tried = f"{len(attempts)} attempts" if len(attempts) > 1 else "one attempt"
    reason = f"noise over --max-noise {format_noise(limit)} in {tried}: {'; '.join(map(str, attempts))}"
    return RowOutcome(Status.NOISY, reason, changed=outcome.changed)


def describe_discarded(attempts: Sequence[Attempt]) -> list[str]:
    """What a reader of a duration should know of the attempts before the last one."""
    return [f"measured again for its noise, after {'; '.join(map(str, attempts[:-1]))}"] if attempts[1:] else []


def format_noise(share: float | None) -> str:
    """`2.1 %`."""
    return "unknown noise" if share is None else f"{100 * share:.3g} %"
