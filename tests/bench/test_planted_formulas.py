"""A formula that is wrong, on either side, is seen by the check of every replay."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from mistakes import MISTAKES
from replaying import assert_wrong, replay_row, time_instead, types_of_replays
from sample_rows import ROWS

import opatlas.engine.runner
from opatlas.engine.check import Largest, Picks, Rounded
from opatlas.engine.formula import Part
from opatlas.engine.replay import Replay
from opatlas.model.schema import Status


def everything_off(tensor):
    """All floats off by 5 %, integers by one, booleans flipped."""
    if tensor.dtype is torch.bool:
        return ~tensor
    if tensor.is_floating_point():
        return (tensor + 0.05 * (1 + tensor.abs())).to(tensor.dtype)
    return tensor + 1


def one_element_off(tensor):
    """The last element only, but by as much as the largest."""
    changed = tensor.clone().reshape(-1)
    if tensor.dtype is torch.bool:
        changed[-1] = ~changed[-1]
    else:
        changed[-1] += 1 + changed.abs().max()
    return changed.reshape(tensor.shape)


def rotated(tensor):
    """Each element in the next one's place: right values, wrong places."""
    return tensor.reshape(-1).roll(1).reshape(tensor.shape)


def perturbed(function, how, mutates=()):
    @functools.wraps(function)
    def wrong(*arguments, **keywords):
        result = function(*arguments, **keywords)
        if result is None:
            for i in mutates:
                arguments[i].copy_(how(arguments[i]))
            return None
        if isinstance(result, (tuple, list)):
            return tuple(perturbed_value(value, how) for value in result)
        return perturbed_value(result, how)

    return wrong


def perturbed_value(value, how):
    if isinstance(value, (Part, Picks, Largest, Rounded)):
        return dataclasses.replace(value, values=perturbed_value(value.values, how))
    return how(value)


def perturbed_formula(formula, how):
    if hasattr(formula, "formulas"):
        return dataclasses.replace(formula, formulas=tuple(perturbed_formula(own, how) for own in formula.formulas))
    return dataclasses.replace(formula, function=perturbed(formula.function, how))


def plant(monkeypatch, *, change_impl=None, change_expected=None):
    """What replay functions pass is changed on the way."""

    class Planted(Replay):
        def __call__(self, kernel, *arguments, expected, mutates=(), **keywords):
            if change_impl:
                kernel = perturbed(kernel, change_impl, mutates)
            if change_expected:
                expected = perturbed_formula(expected, change_expected)
            super().__call__(kernel, *arguments, expected=expected, mutates=mutates, **keywords)

    monkeypatch.setattr(opatlas.engine.runner, "Replay", Planted)


#: Results of one value: rotated, they are the same.
CONSTANT = {"ZerosLike", "OnesLike", "Fill", "NLLLoss"}
PLANTED = [
    pytest.param(kernel_type, how, id=f"{kernel_types}-{how.__name__}")
    for kernel_types, kernel_type in types_of_replays().items()
    for how in (everything_off, one_element_off, rotated)
    if not (how is rotated and kernel_type in CONSTANT)
]


@pytest.mark.parametrize(("kernel_type", "how"), PLANTED)
def test_wrong_impl_is_caught(monkeypatch, kernel_type, how):
    plant(monkeypatch, change_impl=how)
    assert_wrong(kernel_type, ROWS[kernel_type][0])


@pytest.mark.parametrize(("kernel_type", "how"), PLANTED)
def test_wrong_reference_is_caught(monkeypatch, kernel_type, how):
    plant(monkeypatch, change_expected=how)
    assert_wrong(kernel_type, ROWS[kernel_type][0])


def test_row_without_a_planted_mistake_is_right(monkeypatch):
    plant(monkeypatch)
    assert replay_row("Add", ROWS["Add"][0]).status is Status.MEASURED


@pytest.mark.parametrize(
    ("kernel_type", "wrong"), [pytest.param(name, wrong, id=f"{name}-{what}") for name, what, wrong in MISTAKES]
)
def test_mistake_is_caught(monkeypatch, kernel_type, wrong):
    time_instead(monkeypatch, wrong)
    assert_wrong(kernel_type, ROWS[kernel_type][0])
