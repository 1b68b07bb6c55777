"""Each planted kernel is caught by the guard that its header names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from planted_trials import PLANTED, PlantedKernel, each_of, judge, planted_kernels

from opatlas.candidates.judgement import ErrorClass
from opatlas.candidates.rejection import CandidateRejected
from opatlas.candidates.static_rules import static_check
from opatlas.engine.guards.functions import FunctionTable
from opatlas.engine.process_state import ProcessState, changes

KERNELS = planted_kernels()
#: They end their process, or are the task's own model.
_ELSEWHERE = (11, 27, 34)


@pytest.fixture(autouse=True)
def _restored_functions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts back what planted kernels replace; computes with one thread, which waits for no other core."""
    import time

    from opatlas.engine import result_check
    from opatlas.instruments import timers

    for owner, names in (
        (time, ("perf_counter_ns",)),
        (torch.cuda, ("synchronize",)),
        (torch.cuda.Event, ("elapsed_time",)),
        (torch.Tensor, ("__eq__",)),
        (torch, ("allclose", "equal")),
        (result_check, ("check", "_compare")),
        (timers, ("perf_counter_ns",)),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_there_is_one_for_each_known_way() -> None:
    assert [kernel.number for kernel in KERNELS] == list(range(1, 37))


@pytest.mark.parametrize(
    "kernel", each_of([each for each in KERNELS if each.device != "cuda" and each.number not in _ELSEWHERE])
)
def test_a_planted_kernel_is_caught_by_its_calls(kernel: PlantedKernel, tmp_path: Path) -> None:
    # One of them edits its task.
    task, path = (Path(shutil.copy(each, tmp_path)) for each in (kernel.task, kernel.path))
    if kernel.error_class is ErrorClass.PASS:
        notes = judge(task, path, row=kernel.row).notes
        assert kernel.notes in " ".join(notes)
        return
    with pytest.raises(CandidateRejected) as caught:
        judge(task, path, row=kernel.row)
    assert caught.value.error_class is kernel.error_class
    assert kernel.sub_class in ("", caught.value.sub_class)


@pytest.mark.parametrize("kernel", each_of([each for each in KERNELS if each.device != "cuda"]))
def test_a_planted_kernel_is_caught_by_its_source_where_a_rule_is_for_it(kernel: PlantedKernel) -> None:
    judgement = static_check(kernel.path.read_text(), kernel.path)
    found = f"{judgement.error_class} {judgement.sub_class}" if judgement else ""
    assert found == kernel.static


@pytest.mark.parametrize("task", sorted((PLANTED / "tasks").glob("*.py")), ids=lambda path: path.stem)
def test_an_honest_candidate_passes(task: Path, tmp_path: Path) -> None:
    candidate = tmp_path / "honest.py"
    candidate.write_text(task.read_text().replace("class Model(", "class ModelNew("))
    state, functions = ProcessState("cpu"), FunctionTable()
    before = state.read()
    for seed in range(5):
        assert judge(task, candidate, seed=seed).notes == ()
    assert not changes(before, state.read())
    assert not functions.replaced()
