"""Reads the planted kernels of tests/candidates/planted, and tries one in this process with all guards."""

from __future__ import annotations

import importlib.util
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from opatlas.candidates.error_class import mismatch_sub_class
from opatlas.candidates.judgement import ErrorClass
from opatlas.candidates.own_kernels import own_kernel_names, own_share, share_notes
from opatlas.candidates.rejection import CandidateRejected
from opatlas.candidates.source import CandidateSource
from opatlas.engine.guards.fallback import falls_back
from opatlas.engine.guards.input_sets import InputSets
from opatlas.engine.guards.process_guard import ProcessGuard
from opatlas.engine.guards.trial import CandidateTrial
from opatlas.engine.result_check import RELATIVE_TOLERANCE
from opatlas.instruments.instrument import Instrument, Samples
from opatlas.instruments.stop_rule import StopRule
from opatlas.instruments.timers import WallClock
from opatlas.model.errors import ReplayError

PLANTED = Path(__file__).parents[1] / "candidates" / "planted"
_HEADER = re.compile(r"^(\w[\w ]*): (.+)$", re.MULTILINE)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class PlantedKernel:
    """A planted kernel, and what its header says.

    Attributes:
        path, task: the candidate, and the file of its task.
        error_class, sub_class: what it is to get; PASS for one that gains nothing.
        static: class and sub-class of the rule on its source; "" if no rule fails it.
        device: "cuda" if it needs a GPU, "cpu" if it needs none; "" for both.
        notes: what is told of it ("settings").
        row: the number of the task's inputs that it is wrong for.
    """

    path: Path
    task: Path
    error_class: ErrorClass
    sub_class: str
    static: str
    device: str
    notes: str
    row: int

    @property
    def number(self) -> int:
        return int(self.path.name[1:3])


def planted_kernels() -> list[PlantedKernel]:
    return [_planted(path) for path in sorted(PLANTED.glob("p*.py"))]


def _planted(path: Path) -> PlantedKernel:
    fields = dict(_HEADER.findall(path.read_text().split('"""')[1]))
    error_class, _, sub_class = fields["Expected"].partition(" ")
    return PlantedKernel(
        path,
        PLANTED / "tasks" / f"{fields['Task']}.py",
        ErrorClass(error_class),
        sub_class,
        fields.get("Static", ""),
        fields.get("Device", ""),
        fields.get("Notes", ""),
        int(fields.get("Row", "0")),
    )


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"planted_{path.stem}_{random.getrandbits(32)}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs_of(task: ModuleType, row: int, device: torch.device) -> Callable[[int], list[Any]]:
    def make(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        inputs: list[Any] = (
            task.get_inputs_dyn_list()[row] if hasattr(task, "get_inputs_dyn_list") else task.get_inputs()
        )
        return [each.to(device) for each in inputs]

    return make


def compare(results: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    """Raises CandidateRejected if an element is off by more than the tolerance of its dtype."""
    for result, right in zip(results, expected, strict=True):
        tolerance = RELATIVE_TOLERANCE[result.dtype]
        found, right = result.double(), right.double()
        if result.shape != right.shape:
            raise CandidateRejected(ErrorClass.INTERFACE, "shape", f"{tuple(result.shape)}")
        limit = tolerance * (right.abs() + right.square().mean().sqrt())
        if not bool(((found - right).abs() <= limit).all()):
            kind = mismatch_sub_class(found.cpu().numpy(), right.cpu().numpy(), tolerance)
            raise CandidateRejected(ErrorClass.MISMATCH, kind, "wrong elements")


@dataclass(frozen=True)
class Tried:
    """A candidate that passed: what is told of it, and its samples."""

    notes: tuple[str, ...]
    samples: Samples


@torch.no_grad()
def judge(
    task: Path,
    path: Path,
    *,
    samples: int = 40,
    seed: int = 0,
    row: int = 0,
    device: torch.device = CPU,
    instrument: Instrument | None = None,
) -> Tried:
    """Tries a candidate with all guards.

    Raises:
        CandidateRejected: it does not pass.
    """
    task_module = load(task)
    guard = ProcessGuard(device, (task, path))
    module = load(path)
    guard.examine("its import")
    torch.manual_seed(0)
    arguments = getattr(task_module, "get_init_inputs", list)()
    model = task_module.Model(*arguments).to(device)
    candidate = module.ModelNew(*arguments).to(device)
    candidate.load_state_dict(model.state_dict())
    guard.examine("its construction")
    weights = {name: parameter.data for name, parameter in candidate.named_parameters()}
    inputs = InputSets(inputs_of(task_module, row, device), (1, 2, 3), weights)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    trial = CandidateTrial(
        candidate, inputs, device, synchronize=synchronize, threads=guard.threads, generator=random.Random(seed)
    )

    def reference(inputs: list[Any], values: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        model.load_state_dict(values)
        return (model.double()(*(each.double() for each in inputs)),)

    trial.first_call()
    guard.examine("its first call")
    trial.examine()
    guard.examine("its calls")
    found = Samples(())
    failed: ReplayError | None = None
    try:
        rule = StopRule(repeat_count=samples, time_limit_s=60)
        found = (instrument or WallClock()).sample(trial.launch, trial.prepare, rule)
    except CandidateRejected:
        raise
    except ReplayError as error:
        # Calls without kernels, or with others each time: the results say why.
        failed = error
    guard.examine("its timed calls")
    guard.expect_files()
    trial.verify(reference, compare)
    if failed is not None:
        raise failed
    own = own_kernel_names(CandidateSource.parse(path.read_text(), path.name))
    shares = share_notes(own_share(found.kernel_names, found.kernels_us, own))
    fallbacks = ("falls back to torch",) if falls_back(module, trial.launch) else ()
    return Tried((*guard.notes, *trial.notes, *shares, *fallbacks), found)


def each_of(kernels: list[PlantedKernel]) -> list[Any]:
    """Parameters of pytest, one for each kernel."""
    return [pytest.param(kernel, id=kernel.path.stem) for kernel in kernels]
