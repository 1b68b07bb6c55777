"""The text of a file to begin a kernel of one's own with: the arguments that the replay passes, and a call of torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.overrides import get_testing_overrides

from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.job import translated_pytest_exceptions
from opatlas.run.registry import replay_spec, replays_of_bench
from opatlas.run.replay import RecordedCall, recorded_call
from opatlas.text import shortened

#: Items of a list, and characters of a value, that a comment shows.
_SHOWN, _WIDTH = 3, 60
_REFERENCE = "opatlas.bench.implementations.torch"
_TEMPLATE = '''\
"""{kernel_type}: a kernel of your own.

`opatlas bench --implementation torch,{folder} --ops {kernel_type}` measures it together with torch.
"""

import torch  # noqa: F401

from opatlas import Prepared, Unsupported, implements  # noqa: F401
from opatlas.bench.implementations import torch as torch_functions

# A row of the database:
#   inputs   {inputs}
#   outputs  {outputs}
# The arguments that its replay passes:
{passed}


@implements("{kernel_type}")
def {name}({parameters}):
    # The kernel. Raise Unsupported("why") for a row that it cannot run.
    return torch_functions.{function}({call})


# A kernel with set-up (a plan, a layout, a workspace) returns a call that is ready; only `call` is timed:
#
# @implements("{kernel_type}")
# def {name}({parameters}):
#     weight = ...  # set-up
#
#     def call():
#         return torch_functions.{function}({call})
#
#     # changes: the arguments that the call writes into; they get their values back before each call.
#     return Prepared(call, changes=(), converted=())
'''


def template(folder: Path, kernel_type: str, cells: Mapping[str, str]) -> str:
    """Returns the file of a kernel type, from the arguments that its replay passes for a row. Raises ReplayError."""
    replay_function = replays_of_bench()[kernel_type]
    passed = arguments_of_replay(replay_function, kernel_type, cells)
    parameters = parameters_of(passed)
    bound = inspect.Signature(parameters).bind(*passed.arguments, **passed.keywords).arguments
    width = max(map(len, bound), default=0)
    function = _torch_name(replay_function, passed)
    return _TEMPLATE.format(
        kernel_type=kernel_type,
        folder=folder,
        inputs=f"{cells[INPUT_SHAPES]} | {cells[INPUT_DTYPES]}",
        outputs=f"{cells[OUTPUT_SHAPES]} | {cells[OUTPUT_DTYPES]}",
        passed="\n".join(f"#   {each:{width}}  {_describe(value)}" for each, value in bound.items()),
        name=function.strip("_"),
        parameters=str(inspect.Signature(parameters))[1:-1],
        function=function,
        call=", ".join(_passed_on(parameters)),
    )


def parameters_of(passed: RecordedCall) -> list[inspect.Parameter]:
    """Returns the parameters of a torch function without annotations: all of a Python function, else those passed."""
    kind = inspect.Parameter
    if inspect.isfunction(passed.impl):
        known = inspect.signature(passed.impl).parameters.values()
        if all(each.kind not in (kind.VAR_POSITIONAL, kind.VAR_KEYWORD) for each in known):
            return [each.replace(annotation=kind.empty) for each in known]
    names = _names_in_torch(passed.impl)
    names += [f"argument{number}" for number in range(len(names), len(passed.arguments))]
    return [
        *(kind(each, kind.POSITIONAL_OR_KEYWORD) for each in names[: len(passed.arguments)]),
        *(kind(each, kind.KEYWORD_ONLY) for each in passed.keywords),
    ]


def _names_in_torch(function: Callable[..., Any]) -> list[str]:
    """Returns the names of the arguments of a function of torch that is written in C; none if torch does not say."""
    schema = getattr(function, "_schema", None)
    if schema is not None:
        return [each.name for each in schema.arguments]
    substitute = get_testing_overrides().get(function)
    return list(inspect.signature(substitute).parameters) if substitute is not None else []


def _passed_on(parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    for each in parameters:
        yield f"{each.name}={each.name}" if each.kind is each.KEYWORD_ONLY else each.name


def _torch_name(replay_function: Callable[..., Any], passed: RecordedCall) -> str:
    """Returns the name under which bench/implementations/torch has the function of a replay."""
    functions = import_module(_REFERENCE)
    code = getattr(replay_function, "__code__", None)
    names: list[str] = [*(code.co_names if code is not None else ()), getattr(passed.impl, "__name__", "")]
    return next((name for name in names if getattr(functions, name, None) is passed.impl), names[-1])


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{','.join(map(str, value.shape)) or 'a number'} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, (list, tuple)):
        shown = ", ".join(map(_describe, value[:_SHOWN]))
        return f"[{shown}{', ...' if len(value) > _SHOWN else ''}]"
    return shortened(repr(value), _WIDTH)


def arguments_of_replay(
    replay_function: Callable[..., Any], kernel_type: str, cells: Mapping[str, str]
) -> RecordedCall:
    """Returns the arguments that a replay passes for a row, with tensors on the CPU.

    Raises:
        ReplayError: the row is wrong, or is run by several devices.
    """
    spec = replay_spec(replay_function)
    if spec is None or spec.binding or spec.group is not None:
        raise Unsupported(f"{kernel_type} is run by several devices together: an implementation cannot take its place")
    with torch.no_grad(), translated_pytest_exceptions():
        return recorded_call(replay_function, ReplayRow(kernel_type, cells, torch.device("cpu")))
