"""`row` and `replay` of a task: calls a candidate, or the task's own Model, judges its results and measures it.

The reference is computed after the last call of the candidate, so that its process holds no expected value before.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from types import ModuleType
from typing import Any

import torch

from opatlas.candidates.error_class import CandidateFailure, Phase, classify
from opatlas.candidates.floor import drift_notes, expect_possible
from opatlas.candidates.judgement import ErrorClass, Judgement, Level
from opatlas.candidates.own_kernels import own_kernel_names, own_share, share_notes
from opatlas.candidates.rejection import CandidateRejected
from opatlas.candidates.source import CandidateSource
from opatlas.devices.cpu import bounded_memory
from opatlas.devices.device import Device
from opatlas.engine.device_errors import error_text
from opatlas.engine.group import Group
from opatlas.engine.guards.fallback import falls_back
from opatlas.engine.guards.input_sets import InputSets, Variant
from opatlas.engine.guards.process_guard import ProcessGuard
from opatlas.engine.guards.results import FlatResults
from opatlas.engine.guards.trial import CandidateTrial
from opatlas.engine.job import Job, RowOutcome
from opatlas.engine.kernel_call import load_kernel
from opatlas.engine.result_check import Checked
from opatlas.engine.sampling import Sampling
from opatlas.engine.tasks.inputs import as_arrays, as_tensors, make_inputs, needed_bytes, set_seeds
from opatlas.engine.tasks.modules import load_task
from opatlas.engine.tasks.process_log import logged, tail
from opatlas.engine.tasks.reference import Reference, TaskFailed
from opatlas.engine.tasks.verdict import Compared, compare_results, interface_problem
from opatlas.implementations.contract import KernelSource
from opatlas.instruments.instrument import Instrument, MeasureSettings, Samples
from opatlas.model.errors import MissingPrecondition, NoKernelLaunched, OutOfMemory, ReplayError, Unsupported
from opatlas.model.location import public_version
from opatlas.model.record import Execution
from opatlas.model.roofline import device_peak
from opatlas.model.schema import TASK_INPUTS, Status
from opatlas.tasks.task import Task, TaskKind
from opatlas.text import cut_middle, exception_line

#: Number of sets of inputs.
_SETS = 3
_SEEDS = 1 << 30
_WARM_UP_CALLS, _WARM_UP_S = 3, 0.2
#: Memory of a row relative to its inputs: three sets, float64, results and what the candidate needs.
_MEMORY_FACTOR = 12.0
#: A candidate may be as far off as Model itself in the dtypes of the task, and this many times as far.
_OF_MODEL = 2.0
_LONGEST_TEXT = 4_000
#: What the status of a row is, by class; `failed` for any other.
_STATUS = {
    ErrorClass.OOM: Status.OOM,
    ErrorClass.TIMEOUT: Status.TIMEOUT,
    ErrorClass.CRASH: Status.CRASHED,
}


@dataclass
class _Row:
    """A row of a task: what `row` is in the body of the replay."""

    task: Task
    number: int


def bind(job: Job, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group) -> Any:
    """Returns `row` and `replay` of a task. Raises MissingPrecondition if the session does not name the task."""
    if job.task is None:
        raise MissingPrecondition("a row of a task runs with --tasks, which names the task's file or folder")
    row = _Row(job.task, int(job.cells.get(TASK_INPUTS, "0") or 0))
    return row, TaskReplay(row, job, device, instrument, settings, group)


class TaskReplay:
    """Judges the candidate of a row when it is called, or the task's Model, and leaves the result in `outcome`."""

    def __init__(
        self,
        row: _Row,
        job: Job,
        device: Device,
        instrument: Instrument,
        settings: MeasureSettings,
        group: Group,
    ) -> None:
        self.outcome: RowOutcome | None = None
        self._row = row
        self._job = job
        self._device = device
        self._group = group
        self._is_cold = settings.cache == "cold"
        self._phase = Phase.IMPORT
        self._seed = random.SystemRandom().randrange(_SEEDS)
        self._sampling = Sampling(
            job.kernel_type, job.cells, device, instrument, settings, group, is_library=job.source is not None
        )
        self._notes: list[str] = []
        self._compared: list[Compared] = []

    def expect_memory(self) -> None:
        """Does nothing: the size of a row is known when its inputs are there."""

    def bounded_memory(self) -> AbstractContextManager[None]:
        """Returns a context in which the row can take no more memory than the device has left."""
        return bounded_memory(self._device)

    def __call__(self) -> None:
        """Judges and measures the row.

        Raises:
            MissingPrecondition: the task needs a package that is not installed.
            TaskFailed: the task cannot be run.
            Unsupported: the candidate refuses the row.
        """
        task = self._load_task()
        try:
            with logged(self._job.log):
                self.outcome = self._judge(task)
        except (MissingPrecondition, TaskFailed, Unsupported):
            raise
        except CandidateRejected as error:
            passed = Level.STATIC if self._phase in (Phase.IMPORT, Phase.CONSTRUCTION) else Level.COMPILE
            text = f"{self._phase}: {error}" if error.error_class is not ErrorClass.MISMATCH else str(error)
            self.outcome = self._failed(Judgement(error.error_class, error.sub_class, passed, text))
        except OutOfMemory as error:
            self.outcome = self._failed(Judgement(ErrorClass.OOM, "", Level.STATIC, str(error)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self.outcome = self._failed(classify(self._failure(error)), error)

    def _load_task(self) -> ModuleType:
        try:
            return load_task(self._row.task)
        except ImportError as error:
            raise MissingPrecondition(f"the task cannot be imported ({error}): install what it needs") from error
        except Exception as error:
            raise TaskFailed(f"the task cannot be imported: {exception_line(error)}") from error

    def _judge(self, module: ModuleType) -> RowOutcome:
        """Runs the steps of a judgement. Raises what the candidate raises, and what the guards raise."""
        row, source, device = self._row, self._job.source, self._device.torch_device
        own_files = [row.task.path, *([Path(source.path)] if source else [])]
        guard = ProcessGuard(device, own_files) if source is not None else None
        start = perf_counter()
        reference = Reference(module, row.task, self._seed, device, self._notes)
        self._step(Phase.IMPORT)
        function = self._import(source, reference)
        self._examine(guard, "its import")
        self._step(Phase.CONSTRUCTION)
        candidate, weights = self._construct(function, reference)
        self._examine(guard, "its construction")
        inputs = self._inputs(module, weights)
        trial = CandidateTrial(
            candidate,
            inputs,
            device,
            synchronize=self._device.synchronize,
            threads=guard.threads if guard is not None else None,
        )
        self._step(Phase.FIRST_CALL)
        warm_until = monotonic() + _WARM_UP_S
        trial.first_call()
        set_up_s = perf_counter() - start
        self._examine(guard, "its first call")
        self._step(Phase.LATER_CALL)
        trial.examine()
        self._examine(guard, "its calls")
        self._sampling.warm_up(trial.launch, most_calls=_WARM_UP_CALLS, until=warm_until)
        samples, failed = self._sample(trial)
        self._examine(guard, "its timed calls")
        if guard is not None:
            guard.expect_files()
        self._step(Phase.CHECK)
        trial.verify(reference, self._compare(reference), reference.run_natively)
        if isinstance(failed, NoKernelLaunched) and source is not None:
            text = "a timed call launched no kernel, and its result is right: compute the result in each call"
            raise CandidateRejected(ErrorClass.HACK, "no-kernel", text)
        if failed is not None:
            raise failed
        self._expect_possible(samples, inputs, reference)
        return self._measured(samples, trial, guard, set_up_s)

    def _step(self, phase: Phase) -> None:
        """Notes what the candidate does next; the process may end meanwhile."""
        self._phase = phase
        self._group.report_step(f"in the {phase} of the candidate")
        if self._job.log:
            Path(self._job.phase_file).write_text(phase.value, encoding="utf-8")

    def _examine(self, guard: ProcessGuard | None, step: str) -> None:
        if guard is not None:
            guard.examine(step)

    def _import(self, source: KernelSource | None, reference: Reference) -> Callable[..., Any]:
        """Returns the class or function of the candidate, or the task's Model."""
        if source is None:
            return reference.make
        if b"cpp_extension" in Path(source.path).read_bytes():
            # Harnesses that candidates were made for have imported this module, which `import torch` leaves out.
            import torch.utils.cpp_extension  # noqa: F401
        try:
            return load_kernel(source, reference.make() if source.wraps else _nothing)
        except Unsupported:
            raise
        except ReplayError as error:
            # The cause is the candidate's own error; the others are about files that were changed.
            raise (error.__cause__ or error) from None

    def _construct(
        self, function: Callable[..., Any], reference: Reference
    ) -> tuple[Callable[..., Any], dict[str, torch.Tensor]]:
        """Returns what is called with the inputs, and its weights by the names of Model's.

        The weights are Model's where names and shapes agree; else both are made with the same seed.
        """
        source, device = self._job.source, self._device.torch_device
        if source is None:
            model = function()
        elif isinstance(function, type):
            positional, named = reference.arguments()
            set_seeds(self._seed)
            model = function(*positional, **named)
        else:
            call = _with_init_inputs(function, reference)
            return (self._on_arrays(call) if source.function.endswith("_numpy") else call), {}
        if not isinstance(model, torch.nn.Module):
            return (self._on_arrays(model) if self._row.task.kind is TaskKind.NUMPY else model), {}
        model = model.to(device)
        if source is not None and not reference.gives_weights_to(model):
            return model, {}
        return model, {name: parameter.data for name, parameter in model.named_parameters()}

    def _on_arrays(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a call of a model of numpy with tensors. Raises Unsupported unless the device is the host."""
        device = self._device.torch_device
        if device.type != "cpu":
            raise Unsupported(f"numpy computes on the host, and rows are measured on {device}")

        def call(*arguments: Any) -> Any:
            return as_tensors(model(*as_arrays(list(arguments))), device)

        return call

    def _inputs(self, module: ModuleType, weights: dict[str, torch.Tensor]) -> InputSets:
        row, device = self._row, self._device.torch_device

        def make(seed: int) -> list[Any]:
            return make_inputs(module, row.task, row.number, seed, device)

        try:
            first = needed_bytes(make(self._seed))
        except Exception as error:
            raise TaskFailed(f"the inputs of the task cannot be made: {exception_line(error)}") from error
        self._sampling.expect_memory(_MEMORY_FACTOR * first)
        return InputSets(make, [self._seed + number for number in range(_SETS)], weights)

    def _sample(self, trial: CandidateTrial) -> tuple[Samples, ReplayError | None]:
        """Returns the samples, or why there are none: the results may say more."""
        try:
            return self._sampling.take(trial.launch, trial.prepare, trial.tensors), None
        except CandidateRejected:
            raise
        except ReplayError as error:
            return Samples(()), error

    def _compare(self, reference: Reference) -> Callable[[FlatResults, FlatResults], Compared]:
        device = self._device.torch_device

        def compare(results: FlatResults, expected: FlatResults) -> Compared:
            """Raises CandidateRejected if the results have another form than Model's, or are wrong."""
            sub_class, problem = interface_problem(results, reference.native, device, reference.checks_dtypes)
            if problem:
                raise CandidateRejected(ErrorClass.INTERFACE, sub_class, problem)
            found = compare_results(results, expected, max(1.0, _OF_MODEL * reference.own_error))
            self._compared.append(found)
            if found.wrong:
                raise CandidateRejected(ErrorClass.MISMATCH, found.sub_class, found.wrong)
            return found

        return compare

    def _expect_possible(self, samples: Samples, inputs: InputSets, reference: Reference) -> None:
        if not samples.durations_us:
            return

        def baseline_us() -> float | None:
            model, (arguments, _) = reference.make(), inputs.values(Variant(0))
            if not isinstance(model, torch.nn.Module):
                return None
            try:
                own = self._sampling.take(lambda: model(*arguments), None, lambda: None)
            except ReplayError:
                return None
            return median(own.durations_us) if own.durations_us else None

        expect_possible(
            samples.durations_us,
            read_bytes=sum(tensor.nbytes for tensor in inputs.tensors()),
            peak=device_peak(self._device.describe().name),
            is_accelerator=self._device.torch_device.type != "cpu",
            is_cold=self._is_cold,
            baseline_us=baseline_us,
        )

    def _measured(
        self, samples: Samples, trial: CandidateTrial, guard: ProcessGuard | None, set_up_s: float
    ) -> RowOutcome:
        source = self._job.source
        share = self._share(samples)
        notes = [*self._notes, *(guard.notes if guard is not None else ()), *trial.notes, *share_notes(share)]
        if self._device.torch_device.type != "cpu":
            notes += drift_notes(samples.durations_us)
        module = _module_of(source) if source is not None else None
        if module is not None and falls_back(module, trial.launch):
            notes.append("falls back to torch without its kernels")
        checked = Checked(
            sum(each.elements for each in self._compared),
            sum(each.elements for each in self._compared),
            max((each.error for each in self._compared), default=None),
        )
        execution = Execution(
            source.implementation if source is not None else f"torch {public_version(torch.__version__)}",
            set_up_s=set_up_s if source is not None else None,
        )
        outcome = self._sampling.outcome(samples, checked, execution=execution, calls=trial.calls, noted=notes)
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
        return replace(outcome, judgement=judgement)

    def _share(self, samples: Samples) -> float | None:
        source = self._job.source
        if source is None or not samples.kernel_names:
            return None
        text = Path(source.path).read_text(encoding="utf-8", errors="replace")
        helpers = [Path(each).read_text(encoding="utf-8", errors="replace") for each in source.helpers]
        own = own_kernel_names(CandidateSource.parse(text, source.path), helpers)
        return own_share(samples.kernel_names, samples.kernels_us, own)

    def _failed(self, judgement: Judgement, error: BaseException | None = None) -> RowOutcome:
        """Returns the outcome of a candidate that does not pass."""
        if self._compared:
            worst = max(self._compared, key=lambda each: each.difference)
            judgement = replace(judgement, within_1e3=worst.within, max_error=worst.finite_error)
        judgement = replace(judgement, text=cut_middle(judgement.text, _LONGEST_TEXT), notes=tuple(self._notes))
        detail = "".join(traceback.format_exception(error)) if error is not None else ""
        return judged_outcome(judgement, detail)

    def _failure(self, error: BaseException) -> CandidateFailure:
        source = self._job.source
        path = source.path if source is not None else str(self._row.task.path)
        frames = traceback.extract_tb(error.__traceback__)
        return CandidateFailure(
            self._phase,
            type(error).__name__,
            _without_type(error_text(error)),
            tuple(frame.name for frame in frames if frame.filename == path and frame.name != "<module>"),
            tail(self._job.log),
        )


def judged_outcome(judgement: Judgement, detail: str = "") -> RowOutcome:
    """Returns the outcome of a candidate that does not pass."""
    status = _STATUS.get(judgement.error_class, Status.FAILED)
    if judgement.error_class is ErrorClass.RUNTIME and judgement.sub_class.startswith(("CUDA ", "Ascend ")):
        # The process cannot use the device any more.
        status = Status.DEVICE_ERROR
    return RowOutcome(status, f"{judgement.name}: {judgement.text}", detail, judgement=judgement)


def _nothing() -> None:
    """Stands for the function of torch where an implementation wraps none."""


def _with_init_inputs(function: Callable[..., Any], reference: Reference) -> Callable[..., Any]:
    """Returns a function that takes the inputs; one with more parameters gets the arguments of Model after them."""
    positional, named = reference.arguments()
    code = getattr(function, "__code__", None)
    if code is None or not positional or named:
        return function
    names = code.co_varnames[: code.co_argcount]
    required = len(names) - len(getattr(function, "__defaults__", None) or ())

    def call(*arguments: Any) -> Any:
        return function(*arguments, *positional[: max(0, required - len(arguments))])

    return call


def _module_of(source: KernelSource) -> ModuleType | None:
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == source.path:
            return module
    return None


def _without_type(text: str) -> str:
    """Returns an error's text without the type of the last exception, which is given beside it."""
    head, colon, rest = text.strip().partition(": ")
    return rest if colon and head.replace(".", "").replace("_", "").isalnum() else text.strip()
