"""The check of every replay catches wrong results, wrong formulas, and the mistakes that are easy to make."""

from __future__ import annotations

import dataclasses
from typing import Any

import mistakes_of_layers
import pytest
import torch
from mistakes import MISTAKES
from replaying import assert_wrong, replay_row, time_instead, types_of_replays
from sample_rows import ROWS

import opatlas.run.replay
from opatlas.row.errors import WrongResult
from opatlas.row.status import Status
from opatlas.run.result_check import Largest, Picks, Rounded, check


def is_fp8(tensor):
    """torch does not add in FP8."""
    return tensor.is_floating_point() and tensor.element_size() == 1


def everything_off(tensor):
    """Changes real numbers by 5 %, integers by one, and flips booleans."""
    if is_fp8(tensor):
        return everything_off(tensor.float()).to(tensor.dtype)
    if tensor.dtype is torch.bool:
        return ~tensor
    if tensor.is_floating_point():
        return (tensor + 0.05 * (1 + tensor.abs())).to(tensor.dtype)
    return tensor + 1


def one_element_off(tensor):
    """Changes the last element, by as much as the largest one."""
    if is_fp8(tensor):
        return one_element_off(tensor.float()).to(tensor.dtype)
    changed = tensor.clone().reshape(-1)
    if tensor.dtype is torch.bool:
        changed[-1] = ~changed[-1]
    else:
        changed[-1] += 1 + changed.abs().max()
    return changed.reshape(tensor.shape)


def rotated(tensor):
    """Moves each element to the next place: right values, wrong places."""
    return tensor.reshape(-1).roll(1).reshape(tensor.shape)


def change_value(value, change):
    if isinstance(value, (Picks, Largest, Rounded)):
        return dataclasses.replace(value, values=change(value.values))
    return change(value)


@dataclasses.dataclass
class Changed:
    """A formula whose values are changed."""

    formula: Any
    change: Any

    @property
    def name(self):
        return self.formula.name

    def compare(self, *call):
        found = self.formula.compare(*call)
        return [dataclasses.replace(each, expected=change_value(each.expected, self.change)) for each in found]


#: Results of one value, which are the same in other places.
CONSTANT = {"ZerosLike", "OnesLike", "Fill", "NLLLoss"}


@pytest.mark.parametrize("kernel_type", types_of_replays().values(), ids=types_of_replays())
def test_wrong_results_and_wrong_formulas_are_caught(monkeypatch, kernel_type):
    changes = [everything_off, one_element_off, *([] if kernel_type in CONSTANT else [rotated])]
    overlooked = []

    def check_changed(formula, arguments, keywords, results, seed):
        for change in changes:
            wrong = {
                "results": (formula, [change(result) for result in results]),
                "formula": (Changed(formula, change), results),
            }
            for name, (own_formula, own_results) in wrong.items():
                try:
                    check(own_formula, arguments, keywords, own_results, seed)
                except WrongResult:
                    continue
                overlooked.append(f"{change.__name__} of {name}")
        return check(formula, arguments, keywords, results, seed)

    monkeypatch.setattr(opatlas.run.replay, "check", check_changed)
    outcome = replay_row(kernel_type, ROWS[kernel_type][0])
    assert outcome.status is Status.MEASURED, f"{outcome.reason}\n{outcome.detail}"
    assert not overlooked


def cases(*tables):
    """The mistakes of some tables; a row is the number of a sample row, or a text."""
    found = [(*case, 0)[:4] for table in tables for case in table]
    return [
        pytest.param(name, wrong, row if isinstance(row, str) else ROWS[name][row], id=f"{name}-{mistake}")
        for name, mistake, wrong, row in found
    ]


@pytest.mark.parametrize(("kernel_type", "wrong", "row"), cases(MISTAKES, mistakes_of_layers.MISTAKES))
def test_mistake_is_caught(monkeypatch, kernel_type, wrong, row):
    time_instead(monkeypatch, wrong)
    assert_wrong(kernel_type, row)


@pytest.mark.parametrize(("kernel_type", "wrong", "row"), cases(mistakes_of_layers.LARGE_MISTAKES))
def test_mistake_is_caught_by_a_sample(monkeypatch, kernel_type, wrong, row):
    measurement = replay_row(kernel_type, row).measurement
    assert measurement.checked_elements < measurement.total_elements
    time_instead(monkeypatch, wrong)
    assert_wrong(kernel_type, row)
