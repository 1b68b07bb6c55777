"""Types of parameters that several commands have. A value that does not fit is refused with what to give instead."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from cyclopts import Parameter, Token

from opatlas import options
from opatlas.row.location import named_folder
from opatlas.text import parse_whole


def reads(read: Callable[[str], Any]) -> Parameter:
    """Returns the parameter of a value that `read` makes of one word. `read` is a reader of `opatlas.options`."""

    return Parameter(converter=lambda _, tokens: _read(read, tokens[0]), n_tokens=1)


def reads_each(read: Callable[[str], Any]) -> Parameter:
    """Returns the parameter of an option that may be given several times: a tuple of what `read` makes of each."""
    return Parameter(converter=lambda _, tokens: tuple(_read(read, token) for token in tokens), n_tokens=1)


def _read(read: Callable[[str], Any], token: Token) -> Any:
    try:
        return read(token.value)
    except argparse.ArgumentTypeError as error:
        raise ValueError(str(error)) from None


#: The folder of a database, or the name of a device that has one.
DatabaseFolder = Annotated[Path, reads(named_folder), Parameter(name="DB")]
#: `NAME[,NAME...]`.
Names = Annotated[tuple[str, ...], reads(options.names)]
#: A whole number from 1 on.
Count = Annotated[int, reads(options.at_least(1))]
#: A percentage from 0 on, such as 5%.
Percent = Annotated[float, reads(options.percent)]

_STEP_SIZES = ("tp", "ep", "batch", "context")


@dataclass(frozen=True)
class StepArgument:
    """A step of a model as --step names it.

    Attributes:
        text: what was written.
        model: a model's name, or its config.json or the folder of that.
        settings: `tp`, `ep`, `batch`, `context`, `phase` and `dtype`, as far as they were written.
    """

    text: str
    model: str
    settings: dict[str, Any]


def _read_step(text: str) -> StepArgument:
    # The catalog takes 50 ms to import, which few commands need.
    from opatlas.theory.model_calls import Phase

    model, *settings = [word.strip() for word in text.split(",")]
    found: dict[str, Any] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name in _STEP_SIZES and parse_whole(value):
            found[name] = parse_whole(value)
        elif (name == "phase" and value in get_args(Phase)) or (name == "dtype" and value):
            found[name] = value
        else:
            raise argparse.ArgumentTypeError(
                f"{setting!r}: give tp=N, ep=N, batch=N, context=N, phase=decode, phase=prefill or dtype=NAME"
            )
    return StepArgument(text, model, found)


#: `MODEL,batch=64,context=4096,tp=8,phase=prefill`, several times.
Steps = Annotated[tuple[StepArgument, ...], reads_each(_read_step)]
