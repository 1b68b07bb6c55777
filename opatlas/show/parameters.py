"""Types of parameters that several commands have. A value that does not fit is refused with what to give instead."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, Token

from opatlas import options
from opatlas.row.location import named_folder

if TYPE_CHECKING:
    from opatlas.theory.model_step import Step
else:
    # Python 3.10 has no later cyclopts than 4, which takes a parameter of any type for a text.
    Step = object


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
#: Several of them with commas.
Counts = Annotated[tuple[int, ...], reads(lambda text: tuple(options.items_of(options.at_least(1))(text)))]
#: A percentage from 0 on, such as 5%.
Percent = Annotated[float, reads(options.percent)]


def _read_step(text: str) -> Step:
    # The models take 50 ms to import, which few commands need.
    from opatlas.theory.model_step import Step

    return Step.read(text)


#: `MODEL,batch=64,context=4096,tp=8,phase=prefill`.
OneStep = Annotated[Step | None, reads(_read_step)]
#: Several of them.
Steps = Annotated[tuple[Any, ...], reads_each(_read_step)]
