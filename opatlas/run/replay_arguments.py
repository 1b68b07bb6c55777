"""Finds the arguments that a replay passes to its torch function for a row, without running the function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from opatlas.row.errors import Unsupported
from opatlas.run.group import ALONE
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.outcome import translated_pytest_exceptions
from opatlas.run.registry import replay_spec, select_arguments


@dataclass(frozen=True)
class ReplayArguments:
    """The torch function of a replay, and the arguments that the replay passes for a row."""

    function: Callable[..., Any]
    positional: tuple[Any, ...]
    keywords: Mapping[str, Any]


def arguments_of_replay(
    replay_function: Callable[..., Any], kernel_type: str, cells: Mapping[str, str]
) -> ReplayArguments:
    """Returns the arguments that a replay passes for a row, with tensors on the CPU.

    Raises:
        ReplayError: the row is wrong, or is run by several devices.
    """
    spec = replay_spec(replay_function)
    if spec is None or spec.binding is not None or spec.group is not None:
        raise Unsupported(f"{kernel_type} is run by several devices together: an implementation cannot take its place")
    found: list[ReplayArguments] = []

    def record(
        function: Callable[..., Any],
        *arguments: Any,
        expected: object,
        mutates: object = (),
        overwrites: object = (),
        output_slots: object = None,
        **keywords: Any,
    ) -> None:
        found.append(ReplayArguments(function, arguments, keywords))

    row = ReplayRow(kernel_type, cells, torch.device("cpu"))
    with torch.no_grad(), translated_pytest_exceptions():
        replay_function(**select_arguments(replay_function, row=row, replay=record, group=ALONE))
    return found[0]
