"""Defines a job (one row to replay) and its outcome, including profiled samples and noise. Imports no torch."""

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
from opatlas.text import detail_text, reason_text


@dataclass(frozen=True)
class Job:
    """One row to replay.

    Attributes:
        module, module_path, function: the replay function; the module is imported by name, or else from the path.
        kernel_type, cells: the row.
        timeout_s: longest time from the job's start to its outcome, in seconds.
        group: the group of devices that the row needs; None: one device.
        instrument: name of the instrument that measured the stored duration and must measure the new duration; "": any.
        id: number of the job among all jobs of the process that created the job; each answer contains the number.
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
    """The outcome of a job.

    Attributes:
        status, reason: fields of the record; the reason becomes one printable line.
        detail: a traceback for the user, printable; "" if the reason is enough.
        measurement: set if and only if the status is measured.
        pending: identifies the measurement's samples in a profile; None as soon as the measurement has samples.
        changed: changes of the process's state by rows ("changed torch threads 2 -> 1"); such a process runs no
            further row.
    """

    status: Status
    reason: str = ""
    detail: str = ""
    measurement: Measurement | None = None
    pending: PendingSamples | None = None
    changed: tuple[str, ...] = ()

    @property
    def explanation(self) -> str:
        """Returns the reason and the changes, for the row's Status Reason."""
        return reason_text("; ".join(filter(None, (self.reason, *self.changed))))

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", reason_text(self.reason))
        object.__setattr__(self, "detail", detail_text(self.detail))


#: Stands for operators that could not be counted.
REST = "..."
#: Maximum number of operator names in a cell.
_MOST_NAMES = 4


def describe_stand_in(operators: Sequence[str], device_kernels: int | None) -> str:
    """Describes a composition of operators that is timed in place of a kernel; "" for one operator or device kernel.

    A kernel type is one kernel on Ascend. On other devices several operators of torch may replace the kernel; their
    time is not an estimate of a fused kernel's time.

    Args:
        operators: names of the called operators in their order; none if the kernel bypasses torch.
        device_kernels: number of device kernels of the call; None: unknown.
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
    """Adds the number of device kernels to a description by `describe_stand_in`."""
    return f"{text}, {device_kernels} device kernels" if text and device_kernels != 1 else ""


def add_profiled_samples(
    outcome: RowOutcome, kernel_type: str, cells: Mapping[str, str], found: ProfiledSamples | NoSamples
) -> RowOutcome:
    """Completes an outcome with the samples in a profile.

    Args:
        outcome: the outcome with pending samples.
        kernel_type, cells: the row.
        found: the row's samples in the profile.
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


#: Maximum number of attempts to measure a row within the noise limit; each has the row's time limit.
ATTEMPTS = 3

#: Noise is computed from at least this many samples.
LEAST_SAMPLES = 3


@dataclass(frozen=True)
class Attempt:
    """An attempt to measure a row within the noise limit.

    Attributes:
        noise: relative standard deviation, in a group that of the noisiest rank; None if it is not known.
        median_us: median of this rank's samples in microseconds.
        samples: number of samples.
    """

    noise: float | None
    median_us: float
    samples: int

    def is_within(self, limit: float) -> bool:
        """Returns whether the noise is known and at most the limit, a share of the mean."""
        return self.noise is not None and self.noise <= limit

    def __str__(self) -> str:
        return f"{format_noise(self.noise)} in {self.samples} samples, median {self.median_us:.4g} us"


def sample_noise(samples_us: Sequence[float]) -> float | None:
    """Returns the relative standard deviation of samples; None for fewer than `LEAST_SAMPLES`."""
    return relative_noise(samples_us) if len(samples_us) >= LEAST_SAMPLES else None


def make_attempt(samples_us: Sequence[float]) -> Attempt:
    """Returns the attempt of a single process."""
    return Attempt(sample_noise(samples_us), median(samples_us), len(samples_us))


def apply_noise_limit(outcome: RowOutcome, limit: float | None, attempts: Sequence[Attempt]) -> RowOutcome:
    """Returns the outcome, or a NOISY one if the row was measured and its last attempt exceeds the limit.

    Args:
        outcome: the outcome of a row.
        limit: largest noise as a share of the mean; None: no limit.
        attempts: all attempts; at least one if there is a limit.
    """
    if limit is None or outcome.status is not Status.MEASURED or attempts[-1].is_within(limit):
        return outcome
    tried = f"{len(attempts)} attempts" if len(attempts) > 1 else "one attempt"
    reason = f"noise over --max-noise {format_noise(limit)} in {tried}: {'; '.join(map(str, attempts))}"
    return RowOutcome(Status.NOISY, reason, changed=outcome.changed)


def describe_discarded(attempts: Sequence[Attempt]) -> list[str]:
    """Returns a remark on the attempts before the last one; [] if there were none."""
    return [f"measured again for its noise, after {'; '.join(map(str, attempts[:-1]))}"] if attempts[1:] else []


def format_noise(share: float | None) -> str:
    """Formats a share as `2.1 %`."""
    return "unknown noise" if share is None else f"{100 * share:.3g} %"
