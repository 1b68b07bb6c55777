"""Asks models for a faster kernel of one row, whose counters, verdicts and code are in the prompt.

Each answer is measured against the row's baseline, and the model is told what was found, until an answer is faster or a
limit is reached: the loop is that of `opatlas.outer.generation`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from opatlas.capture.capture_reader import DURATION, TYPE
from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import TemporaryFolder, read_file
from opatlas.formats import percent, ratio
from opatlas.outer.generation.attempts import AttemptLog, LoopTask, RepairLoop
from opatlas.outer.generation.endpoint import ChatMessage, Endpoint, RecordedAnswers, model_folder
from opatlas.outer.generation.models_file import LANGUAGE_OF_KIND, KernelLanguage, ModelsFile, read_models
from opatlas.outer.generation.prompt import error_text
from opatlas.outer.judging.judgement import CLASS_OF_STATUS, ErrorClass, Judgement, Level
from opatlas.outer.judging.rules import judge_source
from opatlas.row import columns as col
from opatlas.row.record import Measurement
from opatlas.row.rounds import LEAST_DIFFERENCE, PairVerdict
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec, available_devices, kind_named
from opatlas.run.implementation import KernelSource, content_digest
from opatlas.run.implementation_catalog import KERNEL, read_marks
from opatlas.run.instruments.instrument import MSPROF, MeasureSettings
from opatlas.run.job import Against, Job, RowOutcome
from opatlas.run.msprof_sessions import MsprofBatches
from opatlas.run.process.device_process import DeviceProcess
from opatlas.run.registry import replays_of_bench
from opatlas.show.result import Column, Fields, Part, Table, text

from .diagnosis import Diagnosis, RankedKernel
from .kernels import BY, CAPTURED, DEVICE, LAUNCHES, ROW, KernelLines
from .shown import kernel_parts, peak_fields
from .verdicts import is_gpu

#: The deadline of one measurement, in seconds.
_ROW_S = 300.0
#: The largest file of code, in bytes.
_MOST_CODE = 4 << 20


#: Code of TBE, and what is said of it.
_TBE = re.compile(r"^\s*(?:from|import)\s+(?:te|tbe|tvm)\b|\bte\.(?:compute|create_schedule|placeholder|lang)\b", re.M)
_NO_TBE = (
    "This is TBE, which is obsolete: it is not run here, and shows what is computed. What can be run instead is a "
    "Python file whose function launches a kernel in Triton-Ascend, or one in Ascend C that the file compiles."
)
_CONSTRAINTS = """\
1. Answer with one Python file in one code block. Code in another language is text in that file, which compiles it when
   it is imported.
2. The function takes the arguments and returns the results of the interface, in its order, shapes and dtypes. It
   changes no argument, unless `Prepared(call, changes=...)` names it.
3. The results are compared with a formula in float64.
4. The kernel is written in {language}, and does the work itself: no library is called for it, nor torch, unless torch
   is the language. Nothing is kept from one call to the next but what is compiled.
5. The file serves any row of this kernel type, or raises `Unsupported("why")` for a row that it cannot run.
6. Say before the code, in a few sentences, which verdict the change is for and what it changes."""


def prompt_text(
    found: Diagnosis,
    ranked: RankedKernel,
    *,
    interface: str = "",
    source: str = "",
    suffix: str = ".py",
    wishes: Sequence[str] = (),
    language: str = "",
) -> str:
    """Returns the question about one kernel of the ranking, as Markdown.

    Args:
        interface: a file to begin with, that has the arguments of the kernel; "" if nothing is known of them.
        source: the code of the kernel; "" to have it written anew.
        suffix: the suffix of its file.
        wishes: of the user.
        language: what the answer is to be written in; "" for the language of the code, or that of the device.
    """
    device = found.table.device
    where = device or ("an Ascend NPU" if found.table.is_capture else "this device")
    code = _block(source, suffix.lstrip(".")) if source else "The code is not given: write the kernel anew."
    is_tbe = _TBE.search(source) is not None
    if is_tbe:
        code += f"\n\n{_NO_TBE}"
    own = "the language of the code" if source and not is_tbe else "Triton" if is_gpu(device) else "Triton-Ascend"
    sections = {
        "The kernel, and its diagnosis": _block(text([*kernel_parts(found, ranked), peak_fields(found)]), "text"),
        "Code": code,
        "Interface": (
            f"A file with this function, which computes the same by torch:\n\n{_block(interface, 'python')}"
            if interface
            else "A function `kernel` that takes the inputs in the order of the row."
        ),
        "Wishes": "\n".join(f"- {each}" for each in wishes),
        "Constraints": _CONSTRAINTS.replace("{language}", language or own),
    }
    title = f"# Make the kernel {ranked.kernel_type} faster on {where}"
    return "\n\n".join([title, *(f"## {name}\n\n{each}" for name, each in sections.items() if each)]) + "\n"


def _block(code: str, language: str) -> str:
    """Returns code between fences that are longer than those within it."""
    fence = "`" * max([3, *(len(found) + 1 for found in re.findall(r"`{3,}", code))])
    return f"{fence}{language}\n{code.rstrip()}\n{fence}"


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
        parts.append(f"What was found: {judgement.name}\n\n```text\n{error_text(judgement)}\n```")
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
        process_of = partial(DeviceProcess, self.device, settings)
        self._scheduler = MsprofBatches(process_of, settings, folder) if under_msprof else process_of()
        try:
            outcome = self._run(None)
            if outcome.measurement is None:
                why = f"{outcome.status}: {outcome.explanation}"
                raise OpAtlasError(f"{kernel_type}: its baseline is not measured on {self.device}: {why}")
            self.baseline = outcome.measurement
            self.name = self._scheduler.describe().name
        except BaseException:
            self._scheduler.close()
            raise

    def __enter__(self) -> RowBench:
        return self

    def __exit__(self, *_: object) -> None:
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
            # A library's error has a traceback; a wrong result has none.
            is_wrong = outcome.status is Status.FAILED and not outcome.detail
            of_status = CLASS_OF_STATUS.get(outcome.status, ErrorClass.INTERFACE)
            error_class = ErrorClass.MISMATCH if is_wrong else of_status
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
        return replace(found, error_class=ErrorClass.RULE, sub_class="not-faster", text=f"{told}\n\n{shown}")

    def diagnosis(self, measured: Measurement) -> Diagnosis:
        """Returns the diagnosis of a measurement of the row."""
        cells: dict[str, Any] = {
            TYPE: self._kernel_type,
            ROW: "measured here",
            **self._cells,
            DURATION: median(measured.samples_us),
            LAUNCHES: 1.0,
            CAPTURED: False,
            DEVICE: self.name,
            BY: measured.execution.implementation,
            col.KERNEL_NAMES: " + ".join(measured.execution.kernel_names),
            col.MICROBENCH_DEVICE_KERNELS: float(measured.device_kernels or np.nan),
            col.CACHE_STATE: measured.cache_state,
            col.STAND_IN: measured.stand_in,
            **{name: float(value) for name, value in measured.counters.items()},
        }
        return Diagnosis(KernelLines(Path(), pd.DataFrame([cells]), self.name))

    def _run(self, source: KernelSource | None) -> RowOutcome:
        function = replays_of_bench()[self._kernel_type]
        job = Job(function.__module__, "", function.__name__, self._kernel_type, self._cells, _ROW_S, source=source)
        return self._scheduler.run(job if source is None else replace(job, against=Against(), timeout_s=2 * _ROW_S))


def ask(
    found: Diagnosis,
    ranked: RankedKernel,
    output: Path,
    source: Path | None,
    wishes: Sequence[str],
    models: Path | None,
    content: dict[str, Any],
    problems: list[str],
) -> Iterator[Part]:
    """Writes the question about a kernel, and has models answer it.

    Args:
        output: the folder of the question, of attempts, and of kernels that are faster.
        source: the code of the kernel; None for none.
        models: the file of models; None: nobody is asked.
        content: the JSON of the kernel, which gets the attempts.
        problems: receives the models that gave no answer, with the reasons.

    Raises:
        UsageError: nothing can measure an answer, or a model has no endpoint.
        OpAtlasError: a file cannot be read or written, or the row cannot be measured here.
    """
    kernel_type = ranked.kernel_type
    file = None if models is None else read_models(models)
    if file is not None and kernel_type not in replays_of_bench():
        raise UsageError(
            f"--models: {kernel_type} has no replay, so that no answer can be measured: leave it out, and use the "
            "prompt by hand, or add a replay (docs/contributing.md)"
        )
    code = "" if source is None else read_file(source, _MOST_CODE, "give a text file").decode("utf-8", "replace")
    language = "" if file is None else str(language_here(file))
    suffix = ".py" if source is None else source.suffix
    names = (*col.BASE, *col.EXTRA_IN_SIGNATURE)
    cells = {name: str(cell) for name in names if (cell := found.table.cell(name, ranked.line)) != ""}
    interface = _interface(kernel_type, cells, output)
    prompt = prompt_text(
        found, ranked, interface=interface, source=code, suffix=suffix, wishes=wishes, language=language
    )
    write_text(output / "prompt.md", prompt)
    yield Fields({"prompt": str(output / "prompt.md")})
    if _TBE.search(code):
        yield f"note: {_NO_TBE}"
    if file is not None:
        improved, content["attempts"] = improve(kernel_type, cells, prompt, file, output, problems)
        yield from improved
    if kernel_type not in replays_of_bench():
        yield f"{kernel_type} has no replay: docs/contributing.md adds one"
        return
    place = "" if found.table.is_capture else f" --database-path {found.table.place}"
    command = f"opatlas bench --implementation torch,{output} --ops {kernel_type}{place}"
    kernels = _kernels_folder(output, kernel_type)
    if kernels.is_dir():
        yield f"next: {command}"
    elif file is None:
        yield f"next: store the answer as {kernels}.py, then {command}"


def _kernels_folder(output: Path, kernel_type: str) -> Path:
    """Returns the folder of a type's kernels: what begins with "_" is no kernel (docs/implementations.md)."""
    return output / kernel_type.lstrip("_")


def _interface(kernel_type: str, cells: Mapping[str, str], folder: Path) -> str:
    """Returns a file that has the arguments of a row; "" for one without a replay."""
    if kernel_type not in replays_of_bench():
        return ""
    try:
        # Imported here because it imports torch.
        from torch._subclasses.fake_tensor import FakeTensorMode

        from opatlas.run.kernel_template import template

        # A replay reads no values: nothing is filled, however large the row is.
        with FakeTensorMode():
            return template(folder, kernel_type, cells)
    except (OpAtlasError, ImportError):
        # A kernel that several devices run together, a row that is wrong, or no torch.
        return ""


def language_here(file: ModelsFile) -> KernelLanguage:
    """Returns what kernels are asked for: the language of the file, else that of the device at hand."""
    return file.language or LANGUAGE_OF_KIND.get(available_devices(None)[0].kind, KernelLanguage.TORCH)


def improve(
    kernel_type: str, cells: Mapping[str, str], prompt: str, file: ModelsFile, output: Path, problems: list[str]
) -> tuple[Sequence[Part], list[dict[str, Any]]]:
    """Runs the loop of attempts of each model of a file.

    Args:
        cells: the row.
        prompt: the question.
        output: gets the attempts, and as `{output}/{kernel_type}/{model}.py` each kernel that is faster.
        problems: receives the models that gave no answer, with the reasons.

    Returns:
        The table before and after and why each loop ended, and the attempts for JSON.

    Raises:
        OpAtlasError: the row cannot be measured here, or a file cannot be written.
    """
    if without := [name for name, each in file.models.items() if not each.endpoint and not file.answers]:
        raise UsageError(f"--models: {without[0]} has no endpoint: add `endpoint: URL`")
    log, language = AttemptLog(output), language_here(file).of_rules
    told: list[dict[str, Any]] = []
    ends: list[Part] = []
    with TemporaryFolder("improve") as folder, RowBench(kernel_type, cells, folder) as bench:
        before = bench.diagnosis(bench.baseline)
        share = float(before.shares.share[0])
        us = median(bench.baseline.samples_us)
        rows: list[tuple[Any, ...]] = [
            ("baseline", None, before.verdicts.first[0] or None, us, None, None, share, None)
        ]
        for model, named in file.models.items():
            endpoint = Endpoint(named.endpoint, named.api_key_variable) if named.endpoint else None
            answers = RecordedAnswers(Path(file.answers or output / "answers"), endpoint)
            digest = hashlib.sha256(prompt.encode()).hexdigest()[:16]
            task = LoopTask(kernel_type, model_folder(model), "", model, output / "attempts", digest)
            prompts = KernelPrompts(prompt, file.attempts)
            loop = RepairLoop(task, prompts, log, file)
            try:
                ends.append(f"{model}: {loop.run(answers, lambda path: bench.judge(path, language))}")
            except OpAtlasError as error:
                problems.append(f"{model}: {error}")
            for attempt in loop.attempts:
                judged = attempt.judgement
                # Baselines are timed in turn with each candidate.
                reached = share * judged.speed_up if judged.speed_up else None
                times = judged.baseline_us, judged.duration_us, judged.speed_up, reached
                result = "faster" if judged.passed else judged.name
                rows.append((model, attempt.number, result, *times, attempt.candidate or None))
                own = {"model": model, "attempt": attempt.number, "candidate": attempt.candidate}
                told.append({**asdict(judged), **own, "speed_up": judged.speed_up})
            if loop.attempts and loop.attempts[-1].passed and loop.last_candidate is not None:
                write_text(
                    _kernels_folder(output, kernel_type) / f"{model_folder(model)}.py",
                    loop.last_candidate.read_text("utf-8"),
                )
    columns = (
        *("of", "attempt", "result", "before(us)", "after(us)"),
        Column("speed-up", ratio),
        *(Column("roofline", lambda each: percent(each) if each == each else ""), "candidate"),
    )
    return [Table(columns, rows, f"before and after, on {bench.name}"), *ends], told
