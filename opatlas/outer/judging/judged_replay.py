"""Judges a candidate on one row: the steps that candidates for tasks and for operators of torch have in common.

The reference is computed after the last call of the candidate, so that its process holds no expected value before.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any, ClassVar

import torch

from opatlas.outer.judging.durations import expect_possible, own_kernel_names, own_share, share_notes
from opatlas.outer.judging.failures import CandidateFailure, Phase, classify
from opatlas.outer.judging.input_sets import InputSets
from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass, Judgement, Level
from opatlas.outer.judging.process_guard import ProcessGuard
from opatlas.outer.judging.results import Compared, FlatResults
from opatlas.outer.judging.source import CandidateSource
from opatlas.outer.judging.trial import CandidateTrial, Reference
from opatlas.row.errors import MissingPrecondition, NoKernelLaunched, OutOfMemory, ReplayError, Unsupported
from opatlas.row.location import public_version
from opatlas.row.record import Execution
from opatlas.row.roofline import device_peak
from opatlas.row.status import Status
from opatlas.run.devices.device import Device
from opatlas.run.group import Group
from opatlas.run.implementation import load_kernel
from opatlas.run.instruments.instrument import Instrument, MeasureSettings, Samples
from opatlas.run.job import MOST_CHARACTERS, Job, RowOutcome, error_text, outcome_of, user_traceback
from opatlas.run.replay import Sampling
from opatlas.run.result_check import Checked
from opatlas.text import cut_middle, without_build_command

#: Number of sets of inputs.
SETS = 3
_SEEDS = 1 << 30
_WARM_UP_CALLS, _WARM_UP_S = 3, 0.2
_LONGEST_TEXT = 4_000
#: The status of a row, by class; `failed` for any other.
_STATUS = {
    ErrorClass.OOM: Status.OOM,
    ErrorClass.TIMEOUT: Status.TIMEOUT,
    ErrorClass.CRASH: Status.CRASHED,
}


class ReferenceFailed(ReplayError):
    """The reference cannot be run, whatever the candidate."""


class JudgedReplay(ABC):
    """Judges the candidate of a row when it is called, and leaves the result in `outcome`."""

    #: Whether the process of a candidate runs no further row, whatever was found of it.
    _is_alone: ClassVar[bool] = False

    def __init__(
        self, job: Job, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
    ) -> None:
        self.outcome: RowOutcome | None = None
        self._job = job
        self._device = device
        self._group = group
        self._is_cold = settings.cache == "cold"
        #: The file of the called function.
        self._file = job.source.path if job.source is not None else ""
        self._phase = Phase.IMPORT
        self._start = self._set_up_s = self._warm_until = 0.0
        self._sampling = Sampling(job.kernel_type, job.cells, device, instrument, settings, group)
        #: Inputs and weights follow from it. No candidate can know it.
        self._seed = random.SystemRandom().randrange(_SEEDS)
        self._notes: list[str] = []
        self._assumptions: list[str] = []
        self._compared: list[Compared] = []

    def expect_memory(self) -> None:  # noqa: B027
        """Does nothing: the size of a row is known when its inputs are there."""

    def bounded_memory(self) -> AbstractContextManager[None]:
        """Returns a context in which the row can take no more memory than the device has left."""
        return self._device.bounded_memory()

    def __call__(self) -> None:
        """Judges and measures the row.

        Raises:
            MissingPrecondition: the row needs a package that is not installed.
            ReplayError: the row cannot run, whatever the candidate.
        """
        self._prepare()
        is_hack = False
        try:
            with logged(self._job.log):
                outcome = self._judge()
        except (MissingPrecondition, ReferenceFailed, Unsupported) as error:
            outcome = outcome_of(error)
        except CandidateRejected as error:
            passed = Level.STATIC if self._phase in (Phase.IMPORT, Phase.CONSTRUCTION) else Level.COMPILE
            text = f"{self._phase}: {error}" if error.error_class is not ErrorClass.MISMATCH else str(error)
            outcome = self._failed(Judgement(error.error_class, error.sub_class, passed, text))
            is_hack = error.error_class is ErrorClass.HACK
        except OutOfMemory as error:
            outcome = self._failed(Judgement(ErrorClass.OOM, "", Level.STATIC, str(error)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            outcome = self._failed(classify(self._failure(error)), error)
        ends_process = self._job.source is not None and (self._is_alone or is_hack)
        self.outcome = replace(outcome, ends_process=ends_process)

    @abstractmethod
    def _prepare(self) -> None:
        """Makes the objects that the row needs besides the candidate. Raises MissingPrecondition and ReplayError."""

    @abstractmethod
    def _judge(self) -> RowOutcome:
        """Runs the steps of a judgement. Raises the errors of the candidate and of the guards."""

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

    def _first_call(self, trial: CandidateTrial, guard: ProcessGuard | None) -> FlatResults:
        """Calls the candidate for the first time, where it compiles. Returns its results."""
        self._step(Phase.FIRST_CALL)
        self._warm_until = monotonic() + _WARM_UP_S
        results = trial.first_call()
        self._set_up_s = perf_counter() - self._start
        examine(guard, "its first call")
        return results

    def _take(
        self,
        trial: CandidateTrial,
        guard: ProcessGuard | None,
        reference: Reference,
        compare: Callable[[FlatResults, FlatResults], Compared],
        model: Reference,
    ) -> Samples:
        """Calls the candidate with all inputs, and takes samples. Then compares its results.

        Args:
            reference, compare, model: as in `CandidateTrial.verify`.
        """
        self._step(Phase.LATER_CALL)
        trial.examine()
        examine(guard, "its calls")
        self._sampling.warm_up(trial.launch, most_calls=_WARM_UP_CALLS, until=self._warm_until)
        samples, failed = self._sample(trial)
        examine(guard, "its timed calls")
        if guard is not None:
            guard.expect_files()
        self._step(Phase.CHECK)
        trial.verify(reference, compare, model)
        if isinstance(failed, NoKernelLaunched) and guard is not None:
            text = "a timed call launched no kernel, and its result is right: compute the result in each call"
            raise CandidateRejected(ErrorClass.HACK, "no-kernel", text)
        if failed is not None:
            raise failed
        return samples

    def _sample(self, trial: CandidateTrial) -> tuple[Samples, ReplayError | None]:
        """Returns the samples, or why there are none: the results may say more."""
        try:
            return self._sampling.take(trial.launch, trial.prepare, trial.tensors), None
        except CandidateRejected:
            raise
        except ReplayError as error:
            return Samples(()), error

    def _expect_possible(
        self, samples: Samples, inputs: InputSets, make_own: Callable[[], Callable[[], object] | None]
    ) -> None:
        """Raises CandidateRejected for an impossible duration.

        Args:
            make_own: returns a call of the replaced function, which is measured if the duration is in doubt.
        """
        if not samples.durations_us:
            return

        def baseline_us() -> float | None:
            own = make_own()
            if own is None:
                return None
            try:
                taken = self._sampling.take(own, None, lambda: None)
            except ReplayError:
                return None
            return median(taken.durations_us) if taken.durations_us else None

        expect_possible(
            samples.durations_us,
            read_bytes=sum(tensor.nbytes for tensor in inputs.tensors()),
            peak=device_peak(self._device.describe().name),
            is_accelerator=self._device.torch_device.type != "cpu",
            is_cold=self._is_cold,
            baseline_us=baseline_us,
        )

    def _measured(
        self, samples: Samples, trial: CandidateTrial, guard: ProcessGuard | None, conversions: Sequence[str] = ()
    ) -> RowOutcome:
        """Returns the outcome of a candidate that passes; `conversions` are those of its set-up."""
        source = self._job.source
        execution = Execution(
            source.implementation if source is not None else f"torch {public_version(torch.__version__)}",
            conversions=tuple(conversions),
            set_up_s=self._set_up_s if source is not None else None,
        )
        share = self._share(samples)
        notes = [*self._notes, *(guard.notes if guard is not None else ()), *trial.notes, *share_notes(share)]
        elements = sum(each.elements for each in self._compared)
        checked = Checked(elements, elements, max((each.error for each in self._compared), default=None))
        outcome = self._sampling.outcome(
            samples, checked, execution=execution, calls=trial.calls, assumed=self._assumptions, noted=notes
        )
        if outcome.status is not Status.MEASURED:
            return outcome
        median_us = outcome.measurement.summary.median_us if outcome.measurement and samples.durations_us else None
        judgement = Judgement(
            ErrorClass.PASS,
            level=Level.MEASURED,
            within_1e3=all(each.within for each in self._compared),
            max_error=checked.error,
            duration_us=median_us,
            kernel_share=share,
            notes=tuple(notes),
        )
        return replace(outcome, judged=judgement.judged)

    def _share(self, samples: Samples) -> float | None:
        source = self._job.source
        if source is None or not samples.kernel_names:
            return None
        text = Path(source.path).read_text(encoding="utf-8-sig", errors="replace")
        helpers = [Path(each).read_text(encoding="utf-8", errors="replace") for each in source.helpers]
        own = own_kernel_names(CandidateSource.parse(text, source.path), helpers)
        return own_share(samples.kernel_names, samples.kernels_us, own)

    def _failed(self, judgement: Judgement, error: BaseException | None = None) -> RowOutcome:
        """Returns the outcome of a candidate that does not pass."""
        if self._compared:
            worst = max(self._compared, key=lambda each: each.difference)
            judgement = replace(judgement, within_1e3=worst.within, max_error=worst.finite_error)
        judgement = replace(judgement, text=cut_middle(judgement.text, _LONGEST_TEXT), notes=tuple(self._notes))
        status = _STATUS.get(judgement.error_class, Status.FAILED)
        if judgement.error_class is ErrorClass.RUNTIME and judgement.sub_class.startswith(("CUDA ", "Ascend ")):
            # The process cannot use the device any more.
            status = Status.DEVICE_ERROR
        detail = user_traceback(error) if error is not None else ""
        text = without_build_command(judgement.text)
        if self._job.source is None:
            # Nobody's candidate was judged: the task itself is at fault.
            return RowOutcome(status, f"the task's own Model fails: {judgement.name}: {text}", detail)
        if judgement.notes:
            # They explain the verdict: a long text must not push them out of the cell.
            text = "; ".join((cut_middle(text, MOST_CHARACTERS // 2), *judgement.notes))
        return RowOutcome(status, f"{judgement.name}: {text}", detail, judged=judgement.judged)

    def _failure(self, error: BaseException) -> CandidateFailure:
        frames = traceback.extract_tb(error.__traceback__)
        return CandidateFailure(
            self._phase,
            type(error).__name__,
            _without_type(error_text(error)),
            tuple(frame.name for frame in frames if frame.filename == self._file and frame.name != "<module>"),
            tail(self._job.log),
        )


def examine(guard: ProcessGuard | None, step: str) -> None:
    """Examines the process after a step of a candidate; nothing for None."""
    if guard is not None:
        guard.examine(step)


def _without_type(text: str) -> str:
    """Returns an error's text without the type of the last exception, which is given separately."""
    head, colon, rest = text.strip().partition(": ")
    return rest if colon and head.replace(".", "").replace("_", "").isalnum() else text.strip()


#: Bytes at the end of a log that are shown, and read for the class of an error.
_LONGEST = 4_000


@contextmanager
def logged(log: str) -> Iterator[None]:
    """Writes stderr of this process into a file too: the process may end before it can report them."""
    if not log:
        yield
        return
    sys.stderr.flush()
    original = os.dup(2)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.write(original, Path(log).read_bytes()[-_LONGEST:])
        os.close(original)


def tail(log: str) -> str:
    """Returns the end of the file; "" if there is none."""
    if not log or not Path(log).exists():
        return ""
    return Path(log).read_bytes()[-_LONGEST:].decode("utf-8", errors="replace")
