"""Judges one candidate in this process with all guards; public_kernels.py starts it.

    python -m tests.benchmarks.kernel_trial TASK CANDIDATE [--timed LOCK]

The last line on stdout is the Judgement as JSON. With --timed the calls are measured while no other process holds the
file LOCK. The checks are those of the library: static rules, guards, three sets of inputs against the task's Model in
float64, the share of the candidate's own kernels.
"""

from __future__ import annotations

import argparse
import fcntl
import inspect
import json
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch

from opatlas.candidates.error_class import CandidateFailure, Phase, classify, mismatch_sub_class
from opatlas.candidates.judgement import ErrorClass, Judgement, Level
from opatlas.candidates.own_kernels import own_kernel_names, own_share, share_notes
from opatlas.candidates.rejection import CandidateRejected
from opatlas.candidates.source import CandidateSource
from opatlas.engine.device_errors import error_text
from opatlas.engine.guards.input_sets import InputSets
from opatlas.engine.guards.process_guard import ProcessGuard
from opatlas.engine.guards.trial import CandidateTrial
from opatlas.engine.result_check import RELATIVE_TOLERANCE
from opatlas.instruments.instrument import Instrument, MeasureSettings, Samples, open_instrument
from opatlas.instruments.stop_rule import StopRule
from opatlas.model.errors import ReplayError

_SAMPLES, _LIMIT_S = 30, 10.0
#: Elements of a wrong result that its sub-class is found from, and bytes that flush the second-level cache.
_ELEMENTS, _FLUSH_BYTES = 1 << 20, 256 << 20
#: Seeds of the sets of inputs.
_SEEDS = (1, 2, 3)


@dataclass
class _Check:
    """What the comparisons with the reference have found so far."""

    max_error: float = 0.0
    within_1e3: bool = True

    def compare(self, results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
        """Raises CandidateRejected unless the results have the right number, shapes and values."""
        if len(results) != len(expected):
            raise CandidateRejected(
                ErrorClass.INTERFACE, "count", f"{len(results)} results in place of {len(expected)}"
            )
        for result, right in zip(results, expected, strict=True):
            if result.shape != right.shape:
                text = f"shape {tuple(result.shape)} in place of {tuple(right.shape)}"
                raise CandidateRejected(ErrorClass.INTERFACE, "shape", text)
            found, right = result.double(), right.double()
            tolerance = RELATIVE_TOLERANCE.get(result.dtype, 0.0)
            finite = right[right.isfinite()]
            limit = tolerance * (right.abs() + finite.square().mean().sqrt())
            is_right = (found == right) | ((found - right).abs() <= limit) | (found.isnan() & right.isnan())
            off = torch.where(found == right, 0.0, (found - right).abs()).nan_to_num(float("inf"))
            self.within_1e3 &= bool((off < 1e-3).all())
            if tolerance:
                self.max_error = max(self.max_error, float((off / limit.clamp_min(1e-300)).max()))
            if not bool(is_right.all()):
                step = max(1, found.numel() // _ELEMENTS)
                some, of_right = (each.reshape(-1)[::step].cpu().numpy() for each in (found, right))
                kind = mismatch_sub_class(some, of_right, tolerance)
                share = 1 - float(is_right.double().mean())
                text = f"{share:.2%} of the elements are wrong, at most by {self.max_error:.3g} tolerances"
                raise CandidateRejected(ErrorClass.MISMATCH, kind, text)


def judge(task_path: Path, path: Path, lock: Path | None) -> Judgement:
    """Returns the judgement of a candidate that passes, and raises for any other one; `_phase` says where."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    settings = MeasureSettings()
    instrument = open_instrument(device.type, settings) if lock else None
    task = _module(task_path, "task")
    arguments, names, wanted = _configured(task, task_path)
    guard = ProcessGuard(device, (task_path, path))
    global _phase
    module = _module(path, "candidate")
    guard.examine("its import")
    _phase = Phase.CONSTRUCTION
    torch.manual_seed(0)
    model = task.Model(*arguments, **names).to(device)
    torch.manual_seed(0)
    candidate, weights = _built(module, model, arguments, names, device)
    guard.examine("its construction")

    def make(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return [each.to(device) if isinstance(each, torch.Tensor) else each for each in task.get_inputs(**wanted)]

    inputs = InputSets(make, _SEEDS, weights)
    trial = CandidateTrial(candidate, inputs, device, synchronize=synchronize, threads=guard.threads)
    _phase = Phase.FIRST_CALL
    samples, baseline = Samples(()), Samples(())
    trial.first_call()
    guard.examine("its first call")
    _phase = Phase.LATER_CALL
    trial.examine()
    guard.examine("its calls")
    if instrument is not None and lock is not None:
        with _alone(lock):
            flush = _flusher(device)
            samples = _sampled(instrument, trial.launch, trial.prepare, flush)
            guard.examine("its timed calls")
            guard.expect_files()
    _phase = Phase.CHECK
    check = _Check()
    trial.verify(_reference(model, device), check.compare)
    if instrument is not None and lock is not None:
        with _alone(lock):
            inputs_again = make(_SEEDS[0])
            model.float()
            baseline = _sampled(instrument, lambda: model(*inputs_again), flush)
    own = own_kernel_names(CandidateSource.parse(path.read_text("utf-8"), path.name))
    share = own_share(samples.kernel_names, samples.kernels_us, own)
    return Judgement(
        ErrorClass.PASS,
        "",
        Level.MEASURED if lock else Level.CORRECT,
        within_1e3=check.within_1e3,
        max_error=check.max_error,
        duration_us=median(samples.durations_us) if samples.durations_us else None,
        baseline_us=median(baseline.durations_us) if baseline.durations_us else None,
        kernel_share=share,
        notes=(*guard.notes, *trial.notes, *share_notes(share)),
    )


_phase = Phase.IMPORT


def _configured(task: ModuleType, path: Path) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    """Returns the arguments of Model by position and by name, and those of get_inputs."""
    configuration = path.with_name("config_forward.json")
    if configuration.exists():
        content = json.loads(configuration.read_text("utf-8"))
        shared, initial, given = (content[f"single_{kind}_configs"][0] for kind in ("shared", "init", "input"))
        accepted = inspect.signature(task.Model).parameters
        names = {name: value for name, value in {**initial, **shared}.items() if name in accepted}
        taken = inspect.signature(task.get_inputs).parameters
        return [], names, {name: value for name, value in {**given, **shared}.items() if name in taken}
    arguments = task.get_init_inputs() if hasattr(task, "get_init_inputs") else []
    return list(arguments), {}, {}


def _built(
    module: ModuleType, model: torch.nn.Module, arguments: list[Any], names: dict[str, Any], device: torch.device
) -> tuple[Callable[..., Any], dict[str, torch.Tensor]]:
    """Returns what is called, and its weights by name; no weights where the two modules have others."""
    if not hasattr(module, "ModelNew"):
        functions = [value for name, value in vars(module).items() if name.endswith("_torch") and callable(value)]
        if not functions:
            raise CandidateRejected(ErrorClass.INTERFACE, "function", "neither ModelNew nor a function *_torch")
        return functions[-1], {}
    candidate = module.ModelNew(*arguments, **names).to(device)
    theirs, ours = candidate.state_dict(), model.state_dict()
    if theirs.keys() != ours.keys() or any(theirs[name].shape != ours[name].shape for name in ours):
        return candidate, {}
    candidate.load_state_dict(ours)
    return candidate, {name: parameter.data for name, parameter in candidate.named_parameters()}


def _reference(
    model: torch.nn.Module, device: torch.device
) -> Callable[[list[Any], dict[str, torch.Tensor]], tuple[torch.Tensor, ...]]:
    def compute(arguments: list[Any], values: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if values:
            model.load_state_dict(values, strict=False)
        wide = [
            each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in arguments
        ]
        torch.manual_seed(0)
        results = model.double()(*wide)
        return tuple(results) if isinstance(results, (tuple, list)) else (results,)

    return compute


def _flusher(device: torch.device) -> Callable[[], object]:
    buffer = torch.ones(_FLUSH_BYTES // 4 if device.type == "cuda" else 1, device=device)
    return lambda: buffer.add_(0)


def _sampled(instrument: Instrument, call: Callable[[], object], *before: Callable[[], object]) -> Samples:
    def prepare() -> None:
        for each in before:
            each()

    prepare()
    call()
    return instrument.sample(call, prepare, StopRule(repeat_count=_SAMPLES, time_limit_s=_LIMIT_S))


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _module(path: Path, name: str) -> ModuleType:
    module = ModuleType(f"{name}_{random.getrandbits(32)}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(path.read_text("utf-8"), str(path), "exec"), vars(module))
    return module


def main() -> None:
    """Prints the judgement, and ends the process at once, whatever threads and destructors there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", type=Path)
    parser.add_argument("candidate", type=Path)
    parser.add_argument("--timed", type=Path, metavar="LOCK", help="measure, alone among those with the same LOCK")
    given = parser.parse_args()
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        found = judge(given.task, given.candidate, given.timed)
    except CandidateRejected as rejected:
        level = Level.STATIC if _phase in (Phase.IMPORT, Phase.CONSTRUCTION, Phase.FIRST_CALL) else Level.COMPILE
        found = Judgement(rejected.error_class, rejected.sub_class, level, str(rejected))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        functions = tuple(frame.name for frame in frames if frame.filename == str(given.candidate))
        if isinstance(error, ReplayError):
            found = Judgement(ErrorClass.MISMATCH, "other", Level.COMPILE, str(error))
        else:
            found = classify(CandidateFailure(_phase, type(error).__name__, error_text(error)[-20000:], functions))
    os.write(answers, f"\n{json.dumps(asdict(found))}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main()
