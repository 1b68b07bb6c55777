"""Runs rows through the replays of bench/, on the CPU, in this process."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

import opatlas.run.runner
from opatlas.row.columns import INPUT_DTYPES, INPUT_FORMATS, INPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_FORMATS, OUTPUT_SHAPES
from opatlas.row.errors import WrongResult
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome, outcome_of
from opatlas.run.registry import replay_spec
from opatlas.run.replay import Replay
from opatlas.run.runner import Runner


@cache
def replay_functions() -> dict[str, Callable[..., Any]]:
    """Every function of bench/ that replays rows of kernels, by its module and name: those with a binding do not."""
    return {
        f"{module.__name__}.{name}": function
        for module in _modules()
        for name, function in vars(module).items()
        if (spec := replay_spec(function)) is not None and not spec.binding
    }


@cache
def replay_of(kernel_type: str) -> str:
    """Module and name of the replay function that claims a kernel type."""
    for name, function in replay_functions().items():
        spec = replay_spec(function)
        if spec is not None and kernel_type in spec.kernel_types:
            return name
    raise LookupError(f"no replay claims {kernel_type}")


@cache
def types_of_replays() -> dict[str, str]:
    """The first kernel type of each replay function, by all of its types: with these as ids `-k` takes any of them."""
    types = [spec.kernel_types for spec in map(replay_spec, replay_functions().values()) if spec is not None]
    return {"+".join(names): names[0] for names in types if names}


@cache
def runner() -> Runner:
    return Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, cache="warm"))


def cells_of(row: str) -> dict[str, str]:
    """The cells of a row written as `shapes | dtypes [| formats] -> shapes | dtypes [| formats] [@ column = cell]`."""
    row, *more = row.split("@")
    inputs, outputs = row.split("->")
    shapes, dtypes, formats = [part.strip() for part in [*inputs.split("|"), ""][:3]]
    output_shapes, output_dtypes, output_formats = [part.strip() for part in [*outputs.split("|"), ""][:3]]
    return {
        INPUT_SHAPES: shapes,
        INPUT_DTYPES: dtypes,
        INPUT_FORMATS: formats,
        OUTPUT_SHAPES: output_shapes,
        OUTPUT_DTYPES: output_dtypes,
        OUTPUT_FORMATS: output_formats,
        **{column.strip(): cell.strip() for column, _, cell in (word.partition("=") for word in more)},
    }


def job_of(kernel_type: str, row: str, function: str | None = None) -> Job:
    """The job that replays a row; see `cells_of`. `function` (module.name) instead of the type's own."""
    module, _, name = (function or replay_of(kernel_type)).rpartition(".")
    return Job(module, "", name, kernel_type, cells_of(row), timeout_s=60)


def replay_row(kernel_type: str, row: str, function: str | None = None) -> RowOutcome:
    return runner().run(job_of(kernel_type, row, function))


def assert_wrong(kernel_type: str, row: str) -> None:
    """The check finds that a row's result differs from the formula."""
    errors: list[BaseException] = []

    def recorded(error: BaseException, *more: object) -> RowOutcome:
        errors.append(error)
        return outcome_of(error, *more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(opatlas.run.runner, "outcome_of", recorded)
        outcome = replay_row(kernel_type, row)
    assert outcome.status is Status.FAILED, outcome
    assert [type(error) for error in errors] == [WrongResult], outcome


def time_instead(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    """Whatever a replay has to time, `function` is called with its arguments."""

    class Instead(Replay):
        def __call__(self, impl: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
            super().__call__(function, *arguments, **keywords)

    monkeypatch.setattr(opatlas.run.runner, "Replay", Instead)


def _modules() -> Iterator[Any]:
    for info in pkgutil.iter_modules(opatlas.bench.__path__):
        if info.name.startswith("test_") and info.name != "test_collectives":
            yield importlib.import_module(f"opatlas.bench.{info.name}")
