"""Asks models for a faster kernel of one row: each answer is measured against the row's baseline, and what was found is
told to the model, until one is faster or a limit is reached."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from opatlas.capture.capture_reader import DURATION, TYPE
from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import TemporaryFolder
from opatlas.formats import microseconds, percent, ratio
from opatlas.outer.generation.attempts import AttemptLog, LoopTask, RepairLoop
from opatlas.outer.generation.endpoint import ChatMessage, Endpoint, RecordedAnswers, model_folder
from opatlas.outer.generation.models_file import LANGUAGE_OF_KIND, KernelLanguage, ModelsFile, read_models
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level
from opatlas.outer.judging.rules import judge_source
from opatlas.row.columns import (
    BASE,
    CACHE_STATE,
    KERNEL_NAMES,
    MICROBENCH_DEVICE_KERNELS,
    RUNTIME_IN_SIGNATURE,
    STAND_IN,
)
from opatlas.row.record import Measurement
from opatlas.row.rounds import LEAST_DIFFERENCE, PairVerdict
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec, available_devices, kind_named
from opatlas.run.implementation import KernelSource, content_digest
from opatlas.run.implementation_catalog import KERNEL, read_marks
from opatlas.run.instruments.instrument import MSPROF, MeasureSettings
from opatlas.run.job import Against, Job, RowOutcome
from opatlas.run.msprof_sessions import msprof_on_device
from opatlas.run.process.device_process import DeviceProcess
from opatlas.run.registry import replays_of_bench
from opatlas.show.result import Column, Table, text

from .diagnosis import Diagnosis, RankedKernel
from .kernels import BY, CAPTURED, DEVICE, LAUNCHES, ROW, KernelLines
from .shown import kernel_parts

#: The deadline of one measurement, in seconds.
_ROW_S = 300.0
#: The class of an attempt whose row was not measured, by its status.
_CLASSES = {
    Status.CRASHED: ErrorClass.CRASH,
    Status.TIMEOUT: ErrorClass.TIMEOUT,
    Status.OOM: ErrorClass.OOM,
    Status.INVALID: ErrorClass.INTERFACE,
}
_NOT_FASTER = "not-faster"


@dataclass(frozen=True)
class KernelPrompts:
    """The messages about one kernel, for the loop of attempts."""

    prompt: str
    attempts: int

    def first(self) -> tuple[ChatMessage, ...]:
        return (ChatMessage("user", self.prompt),)

    def repair(self, number: int, code: str, judgement: Judgement) -> tuple[ChatMessage, ...]:
        """Returns the question with the last code, and what was found of it."""
        parts = [self.prompt, f"## Attempt {number + 1} of {self.attempts}"]
        if code:
            parts.append(f"Your last code:\n\n```python\n{code.rstrip()}\n```")
        parts.append(f"What was found: {judgement.name}\n\n```text\n{judgement.text.strip()}\n```")
        parts.append("Answer with the whole file again.")
        return (ChatMessage("user", "\n\n".join(parts) + "\n"),)


class RowBench:
    """Measures one row on the device at hand: its baseline (torch, or the NPU's call), and candidates against it.

    Attributes:
        device: the device.
        name: its name.
        baseline: the measurement of the baseline.
    """

    def __init__(self, kernel_type: str, cells: Mapping[str, str], folder: Path) -> None:
        """Opens the device, and measures the baseline.

        Args:
            folder: for the profiles of msprof.

        Raises:
            OpAtlasError: the row cannot be measured here.
        """
        self._kernel_type, self._cells = kernel_type, cells
        self.device: DeviceSpec = available_devices(None)[0]
        settings, kind = MeasureSettings(), kind_named(self.device.kind)
        under_msprof = bool(kind.instruments) and kind.preferred_instrument(None) == MSPROF
        self._scheduler = (
            msprof_on_device(self.device, settings, folder) if under_msprof else DeviceProcess(self.device, settings)
        )
        try:
            outcome = self._run(None)
            if outcome.measurement is None:
                why = f"{outcome.status}: {outcome.explanation}"
                raise OpAtlasError(f"{kernel_type}: its baseline is not measured on {self.device}: {why}")
            self.baseline = outcome.measurement
            self.name = self._scheduler.describe().name
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._scheduler.close()

    def judge(self, path: Path, language: str) -> Judgement:
        """Judges a candidate: rules of its source, results, and whether it is faster than the baseline."""
        source = path.read_text("utf-8")
        judgement, notes = judge_source(source, path, language=language)
        if judgement is not None:
            return judgement
        function = read_marks(path).functions.get(self._kernel_type, KERNEL)
        outcome = self._run(KernelSource(path.stem, "", str(path), function, digest=content_digest([path])))
        measured = outcome.measurement
        if measured is None:
            error_class = _CLASSES.get(outcome.status, ErrorClass.RUNTIME)
            return Judgement(error_class, text=f"{outcome.explanation}\n{outcome.detail}".strip(), notes=notes)
        us, ratios = median(measured.samples_us), measured.ratios
        baseline_us = median(measured.rounds[0].baseline_us if measured.rounds else self.baseline.samples_us)
        speed_up = baseline_us / us if ratios is None else ratios.ratio
        is_faster = np.log(speed_up) > LEAST_DIFFERENCE if ratios is None else ratios.verdict() is PairVerdict.FAST
        found = Judgement(ErrorClass.PASS, "", Level.MEASURED, "", duration_us=us, baseline_us=baseline_us, notes=notes)
        if is_faster:
            return found
        told = f"The results are right. It takes {us:.4g} us, the baseline {baseline_us:.4g} us: it is not faster."
        diagnosis = self.diagnosis(measured)
        shown = text(list(kernel_parts(diagnosis, diagnosis.ranking[0])))
        return replace(found, error_class=ErrorClass.RULE, sub_class=_NOT_FASTER, text=f"{told}\n\n{shown}")

    def diagnosis(self, measured: Measurement) -> Diagnosis:
        """Returns the diagnosis of a measurement of the row."""
        cells: dict[str, Any] = {
            **{TYPE: self._kernel_type, ROW: "measured here", **self._cells, DURATION: median(measured.samples_us)},
            **{LAUNCHES: 1.0, CAPTURED: False, DEVICE: self.name, BY: measured.execution.implementation},
            KERNEL_NAMES: " + ".join(measured.execution.kernel_names),
            MICROBENCH_DEVICE_KERNELS: float(measured.device_kernels or np.nan),
            CACHE_STATE: measured.cache_state,
            STAND_IN: measured.stand_in,
            **{name: float(value) for name, value in measured.counters.items()},
        }
        return Diagnosis(KernelLines(Path(), pd.DataFrame([cells]), self.name))

    def _run(self, source: KernelSource | None) -> RowOutcome:
        function = replays_of_bench()[self._kernel_type]
        job = Job(function.__module__, "", function.__name__, self._kernel_type, self._cells, _ROW_S, source=source)
        outcome = self._scheduler.run(job if source is None else replace(job, against=Against(), timeout_s=2 * _ROW_S))
        ratios = outcome.measurement.ratios if outcome.measurement is not None else None
        if outcome.measurement is None or ratios is None or ratios.verdict() is not PairVerdict.FAST:
            return outcome
        # As in a session: where memory lies elsewhere, it has to be faster, too.
        again = self._scheduler.run(replace(job, against=Against()).again_elsewhere()).measurement
        rounds = (*outcome.measurement.rounds, *(again.rounds if again is not None else ()))
        return replace(outcome, measurement=replace(outcome.measurement, rounds=rounds))


def models_of(path: Path) -> ModelsFile:
    """Returns the models of a file. Raises UsageError where one has neither an endpoint nor recorded answers."""
    file = read_models(path)
    without = [name for name, model in file.models.items() if not model.endpoint]
    if without and file.answers is None:
        raise UsageError(f"{path}: {without[0]} has no endpoint: add `endpoint: URL`")
    return file


def row_cells(found: Diagnosis, ranked: RankedKernel) -> dict[str, str]:
    """Returns the cells of a kernel that its replay reads."""
    frame, names = found.table.frame, (*BASE, *RUNTIME_IN_SIGNATURE)
    return {name: str(found.table.cell(name, ranked.line)) for name in names if name in frame.columns}


def language_here(file: ModelsFile | None) -> KernelLanguage:
    """Returns what kernels are asked for: the language of the file, else that of the device at hand."""
    if file is not None and file.language is not None:
        return file.language
    return LANGUAGE_OF_KIND.get(available_devices(None)[0].kind, KernelLanguage.TORCH)


def improve(
    kernel_type: str, cells: Mapping[str, str], prompt: str, code: str, file: ModelsFile, output: Path
) -> tuple[Table, list[dict[str, Any]], list[str]]:
    """Runs the loop of attempts of each model of a file.

    Args:
        prompt: the question.
        code: the code that a first answer may modify; "" for none.
        output: gets the attempts, and as `{output}/{kernel_type}/{model}.py` each candidate that is faster.

    Returns:
        The table before and after, the attempts for JSON, and the models that gave no answer, with the reasons.

    Raises:
        OpAtlasError: the row cannot be measured here, or a file cannot be written.
    """
    log, language = AttemptLog(output), language_here(file).of_rules
    rows: list[tuple[Any, ...]] = []
    problems: list[str] = []
    with TemporaryFolder("improve") as folder:
        bench = RowBench(kernel_type, cells, folder)
        try:
            before = bench.diagnosis(bench.baseline)
            before_us, share = median(bench.baseline.samples_us), float(before.shares.share[0])
            rows.append(("baseline", None, "", before_us, None, share, before.verdicts.first[0] or None, None))
            told: list[dict[str, Any]] = []
            for model in file.models:
                loop = _loop(kernel_type, model, prompt, code, file, log)
                try:
                    stopped = str(loop.run(_answers(model, file, output), lambda path: bench.judge(path, language)))
                except OpAtlasError as error:
                    stopped = str(error)
                    problems.append(f"{model}: {error}")
                for attempt in loop.attempts:
                    found = attempt.judgement
                    us, baseline_us = found.duration_us, found.baseline_us
                    faster = baseline_us / us if us and baseline_us else None
                    reached = share * before_us / us if us else None
                    result = "faster" if found.passed else found.name
                    rows.append((model, attempt.number, result, us, faster, reached, None, attempt.candidate))
                    told.append({"model": model, "attempt": attempt.number, "result": result, "text": found.text})
                    told[-1] |= {"duration_us": us, "speed_up": faster, "candidate": attempt.candidate}
                if loop.attempts and loop.attempts[-1].passed and loop.last_candidate is not None:
                    write_text(output / kernel_type / f"{model_folder(model)}.py", loop.last_candidate.read_text("utf-8"))
                told.append({"model": model, "stopped": stopped})
        finally:
            bench.close()
    columns = (
        *("of", "attempt", "result", Column("time(us)", microseconds), Column("speed-up", ratio)),
        *(Column("roofline", lambda each: "" if np.isnan(each) else percent(each)), "verdict", "candidate"),
    )
    return Table(columns, rows, f"before and after, on {bench.name}"), told, problems


def _loop(kernel_type: str, model: str, prompt: str, code: str, file: ModelsFile, log: AttemptLog) -> RepairLoop:
    digest = hashlib.sha256(prompt.encode()).hexdigest()[:16]
    folder = log.path.parent / "attempts"
    task = LoopTask(kernel_type, model_folder(model), "", model, folder, digest)
    limits = file.limits(model)
    prompts: Any = KernelPrompts(prompt, limits.attempts)
    return RepairLoop(task, prompts, log, file.prices(), limits)


def _answers(model: str, file: ModelsFile, output: Path) -> RecordedAnswers:
    named = file.models[model]
    endpoint = Endpoint(named.endpoint, named.api_key_variable) if named.endpoint else None
    return RecordedAnswers(file.answers or output / "answers", endpoint)


