"""Judges a candidate on one row: the steps that candidates for tasks and for operators of torch have in common.

Inputs come from a court (court.py), which compares the results; what this process says of them decides nothing.
"""

from __future__ import annotations

import itertools
import random
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any, ClassVar

import torch

from opatlas.formats import duration, percent
from opatlas.outer.judging.court import SEEDS, Court, Referee
from opatlas.outer.judging.court_process import RemoteCourt
from opatlas.outer.judging.failures import CandidateFailure, Phase, classify, logged, tail
from opatlas.outer.judging.judgement import (
    TORCH_WORKS,
    CandidateRejected,
    ErrorClass,
    Judgement,
    Level,
    ReferenceFailed,
    failed_outcome,
    sentenced,
)
from opatlas.outer.judging.memory import Purpose
from opatlas.outer.judging.rules import CandidateSource
from opatlas.outer.judging.trial import CandidateTrial, ClaimingRule, Constructed, LiveInputs, ProcessGuard
from opatlas.row.errors import MissingPrecondition, OutOfMemory, ReplayError, Unsupported
from opatlas.row.location import public_version
from opatlas.row.record import Execution
from opatlas.row.roofline import Peak, device_peak
from opatlas.row.status import Status
from opatlas.run.devices.device import Device
from opatlas.run.group import Group
from opatlas.run.implementation import load_kernel
from opatlas.run.instruments.instrument import Instrument, MeasureSettings, Samples
from opatlas.run.job import Job, RowOutcome, error_text, outcome_of, user_traceback
from opatlas.run.registry import RowReplay
from opatlas.run.result_check import Checked
from opatlas.run.sampling import Sampling, Varying
from opatlas.text import cut_middle

#: Memory of a row relative to its inputs: float64, results and the memory of the candidate; in the court once more.
_MEMORY_FACTOR = 6.0
_WARM_UP_CALLS, _WARM_UP_S = 3, 0.2
_LONGEST_TEXT = 4_000
#: The status of a row, by class; `failed` for any other.
_STATUS = {ErrorClass.OOM: Status.OOM, ErrorClass.TIMEOUT: Status.TIMEOUT, ErrorClass.CRASH: Status.CRASHED}


class JudgedReplay(RowReplay, ABC):
    """Judges the candidate of a row when it is called, and leaves the result in `outcome`."""

    #: Whether the process of a candidate runs no further row, whatever was found of it.
    _is_alone: ClassVar[bool] = False
    #: Whether the reference has the same results in each call, so that it is not called for that.
    _trusts_reference: ClassVar[bool] = False

    def __init__(
        self, row: Any, job: Job, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
    ) -> None:
        super().__init__(device)
        self._row = row
        self._job = job
        self._group = group
        self._instrument = instrument
        self._settings = settings
        self._is_cold = settings.cache == "cold"
        self._memory_factor = _MEMORY_FACTOR * (2 if job.court else 1)
        #: The file of the called function.
        self._file = job.source.path if job.source is not None else ""
        self._phase = Phase.IMPORT
        self._start = self._set_up_s = self._warm_until = 0.0
        self._sampling = Sampling(device, instrument, settings, group)
        self._notes: list[str] = []
        #: None for the reference, and for a library.
        self._guard: ProcessGuard | None = None
        #: What the set-up of the candidate converts.
        self._conversions: Sequence[str] = ()

    def __call__(self) -> None:
        """Judges and measures the row.

        Raises:
            MissingPrecondition: the row needs a package that is not installed.
            ReplayError: the row cannot run, whatever the candidate.
        """
        self._prepare()
        court = None
        try:
            with logged(self._job.log):
                if not self._job.court:
                    seed = random.SystemRandom().randrange(SEEDS)
                    court = Court(self._referee(seed), seed)
                outcome = self._judge(court or RemoteCourt(self._job.court, self._device.torch_device))
        except (MissingPrecondition, ReferenceFailed, Unsupported) as error:
            outcome = outcome_of(error)
        except CandidateRejected as error:
            passed = Level.STATIC if self._phase in (Phase.IMPORT, Phase.CONSTRUCTION) else Level.COMPILE
            text = f"{self._phase}: {error}" if error.error_class is not ErrorClass.MISMATCH else str(error)
            outcome = self._failed(Judgement(error.error_class, error.sub_class, passed, text))
        except OutOfMemory as error:
            outcome = self._failed(Judgement(ErrorClass.OOM, "", Level.STATIC, str(error)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            outcome = self._failed(classify(self._failure(error)), error)
        if court is not None:
            outcome = sentenced(outcome, court.found, is_baseline=self._job.source is None)
        judgement = Judgement.of(outcome)
        is_hack = judgement is not None and judgement.error_class is ErrorClass.HACK
        ends_process = self._job.source is not None and (self._is_alone or is_hack)
        self.outcome = replace(outcome, ends_process=ends_process)

    @abstractmethod
    def _prepare(self) -> None:
        """Makes the objects that the row needs besides the candidate. Raises MissingPrecondition and ReplayError."""

    @abstractmethod
    def _referee(self, seed: int) -> Referee:
        """Returns the referee of a row of which nobody else judges; `seed` is that of the weights."""

    @abstractmethod
    def _arguments(self) -> list[Any]:
        """Returns some arguments of the row. Raises ReferenceFailed."""

    @abstractmethod
    def _import(self, weights_seed: int) -> Callable[..., Any]:
        """Imports the candidate. Raises the errors of its file."""

    @abstractmethod
    def _construct(self, function: Callable[..., Any], inputs: LiveInputs, weights_seed: int) -> Constructed:
        """Makes what is called of an imported candidate. Raises the errors of the candidate."""

    @abstractmethod
    def _own_call(self, arguments: list[Any], weights_seed: int) -> Callable[[], object] | None:
        """Returns a call of the replaced function that can be measured; None if there is none."""

    def _judge(self, court: Court | RemoteCourt) -> RowOutcome:
        """Runs the steps of a judgement. Raises the errors of the candidate and of the guards."""
        trial = CandidateTrial(
            court, self._device, self._arguments(), is_cold=self._is_cold, margins=self._has_margins()
        )
        trial.rehearse()
        self._sampling.expect_memory(self._memory_factor * sum(each.nbytes for each in trial.inputs.tensors()))
        if self._job.source is not None and not self._job.source.module:
            trial.guard = self._guard = ProcessGuard()
        self._step(Phase.IMPORT)
        function = self._import(court.weights_seed)
        self._examine("its import")
        trial.made = self._construct(function, trial.inputs, court.weights_seed)
        self._step(Phase.FIRST_CALL)
        warm_until = monotonic() + _WARM_UP_S
        first = trial.call(Purpose.WHOLE)
        self._set_up_s = perf_counter() - self._start
        self._examine("its first call")
        if first and all(isinstance(each, torch.Tensor) and not each.numel() for each in first):
            self._step(Phase.CHECK)
            trial.end()
            reason = "the results have no elements: there is nothing to time"
            return RowOutcome(Status.CHECKED, reason, judged=Judgement(ErrorClass.PASS, level=Level.CORRECT).judged)
        if self._guard is not None or not self._trusts_reference:
            self._step(Phase.LATER_CALL)
            trial.further_calls()
            self._examine("its calls")
        self._sampling.warm_up(trial.launch, most_calls=_WARM_UP_CALLS, until=warm_until)
        samples, failed = self._sample(trial)
        self._examine("its timed calls")
        self._step(Phase.CHECK)
        trial.end()
        if failed is not None:
            raise failed
        if samples.durations_us:
            self._expect_possible(median(samples.durations_us), trial.inputs, court.weights_seed)
        return self._measured(samples, trial)

    def _examine(self, step: str) -> None:
        """Examines the process after a step of the candidate. Raises CandidateRejected."""
        if self._guard is not None:
            self._guard.examine(step)

    def _has_margins(self) -> bool:
        return True

    def _step(self, phase: Phase) -> None:
        """Notes the next step of the candidate; the process may end meanwhile."""
        self._phase = phase
        if phase is Phase.IMPORT:
            self._start = perf_counter()
        self._group.report_step(f"in the {phase} of the candidate")
        if self._job.log:
            Path(self._job.phase_file).write_text(phase.value, encoding="utf-8")

    def _load(self, torch_function: Callable[..., Any]) -> Callable[..., Any]:
        """Imports the candidate. Raises the errors of its file, and Unsupported."""
        source = self._job.source
        assert source is not None
        if b"cpp_extension" in Path(source.path).read_bytes():
            # Harnesses that candidates were made for have imported this module, which `import torch` leaves out.
            import torch.utils.cpp_extension  # noqa: F401
        try:
            return load_kernel(source, torch_function)
        except Unsupported:
            raise
        except ReplayError as error:
            # The cause is the candidate's own error; the others are about files that were changed.
            raise (error.__cause__ or error) from None

    def _sample(self, trial: CandidateTrial) -> tuple[Samples, ReplayError | None]:
        """Returns the samples, or why there are none: the results may say more."""
        rule = ClaimingRule(trial, self._settings)
        try:
            samples = self._instrument.sample(Varying(trial.launch), trial.next_sample, rule)
            self._device.synchronize()
            trial.finish()
        except (CandidateRejected, ReferenceFailed):
            raise
        except ReplayError as error:
            trial.finish()
            return Samples(()), error
        return samples, None

    def _expect_possible(self, us: float, inputs: LiveInputs, weights_seed: int) -> None:
        """Raises CandidateRejected if the device takes longer, unless the replaced function takes no longer either."""
        read_bytes = sum(tensor.nbytes for tensor in inputs.tensors()) if self._is_cold else 0
        least_us = shortest_us(read_bytes, device_peak(self._device.describe().name))
        if us >= least_us or self._device.torch_device.type == "cpu":
            return
        own = self._own_call(inputs.arguments, weights_seed)
        taken = self._sampling.take(own, None).durations_us if own is not None else ()
        if not taken or median(taken) >= least_us:
            text = f"the candidate was measured with {duration(us)}: the device takes {duration(least_us)} and more"
            raise CandidateRejected(ErrorClass.HACK, "impossible-time", text)

    def _measured(self, samples: Samples, trial: CandidateTrial) -> RowOutcome:
        """Returns the outcome of a candidate whose results are right, as far as its own process knows."""
        source = self._job.source
        execution = Execution(
            source.implementation if source is not None else f"torch {public_version(torch.__version__)}",
            conversions=tuple(self._conversions),
            set_up_s=self._set_up_s if source is not None else None,
        )
        share = self._share(samples)
        notes = [*self._notes, *share_notes(share)]
        outcome = self._sampling.outcome(samples, Checked(0, 0), execution=execution, noted=notes)
        level = Level.MEASURED if self._settings.measures else Level.CORRECT
        judgement = Judgement(ErrorClass.PASS, level=level, kernel_share=share, notes=tuple(notes))
        return replace(outcome, judged=judgement.judged)

    def _share(self, samples: Samples) -> float | None:
        source = self._job.source
        if source is None or not samples.kernel_names or self._job.language == "torch":
            return None
        text = Path(source.path).read_text(encoding="utf-8-sig", errors="replace")
        helpers = [Path(each).read_text(encoding="utf-8", errors="replace") for each in source.helpers]
        own = CandidateSource(text).own_kernels(helpers)
        return own_share(samples.kernel_names, samples.kernels_us, own)

    def _failed(self, judgement: Judgement, error: BaseException | None = None) -> RowOutcome:
        """Returns the outcome of a candidate that does not pass."""
        judgement = replace(judgement, text=cut_middle(judgement.text, _LONGEST_TEXT), notes=tuple(self._notes))
        status = _STATUS.get(judgement.error_class, Status.FAILED)
        if judgement.error_class is ErrorClass.RUNTIME and judgement.sub_class.startswith(("CUDA ", "Ascend ")):
            # The process cannot use the device any more.
            status = Status.DEVICE_ERROR
        detail = user_traceback(error) if error is not None else ""
        return failed_outcome(judgement, status, detail, is_baseline=self._job.source is None)

    def _failure(self, error: BaseException) -> CandidateFailure:
        frames = traceback.extract_tb(error.__traceback__)
        return CandidateFailure(
            self._phase,
            type(error).__name__,
            _without_type(error_text(error)),
            tuple(frame.name for frame in frames if frame.filename == self._file and frame.name != "<module>"),
            tail(self._job.log),
        )


def _without_type(text: str) -> str:
    """Returns an error's text without the type of the last exception, which is given separately."""
    head, colon, rest = text.strip().partition(": ")
    return rest if colon and head.replace(".", "").replace("_", "").isalnum() else text.strip()


#: Shortest duration of a kernel on an accelerator, in microseconds.
_SHORTEST_US = 0.5
#: Share of the time at the peak bandwidth of the data sheet: clocks of memory vary by some percent.
_SLACK = 0.95


def shortest_us(read_bytes: int, peak: Peak) -> float:
    """Returns the microseconds that a kernel takes at least on an accelerator that reads bytes from its memory."""
    return max(_SHORTEST_US, _SLACK * read_bytes / peak.bandwidth_gbps / 1e3 if peak.bandwidth_gbps else 0.0)


#: Below or at this share torch does the work.
LEAST_SHARE = 0.5


def own_share(names: Sequence[str], durations_us: Sequence[float], own: Iterable[str]) -> float | None:
    """Returns the share of the time in own kernels, 0 to 1; None if the instrument has no names.

    Args:
        names: the kernels of one call, as the instrument names them ("at::native::softmax_warp_forward").
        durations_us: the duration of each.
        own: names of the kernels that the candidate defines.
    """
    total = sum(durations_us)
    if not names or len(names) != len(durations_us) or total <= 0:
        return None
    # Some versions of Triton append the specialization of the arguments: `add_kernel_0d1d2d`.
    pattern = re.compile(rf"(?:{'|'.join(map(re.escape, own))})(?:_\d\w*)?")
    is_own = [pattern.fullmatch(name.rpartition("::")[2]) is not None for name in names]
    return sum(itertools.compress(durations_us, is_own)) / total


def share_notes(share: float | None) -> tuple[str, ...]:
    """Returns what is told of a share: that torch does the work."""
    if share is None or share > LEAST_SHARE:
        return ()
    return (f"{TORCH_WORKS}: {percent(share, 0)} of the time is in kernels that the candidate defines",)
