"""Files to begin kernels of operators with: the arguments of torch's schema, and a call of torch."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from opatlas.errors import OpAtlasError
from opatlas.outer.suites.listing import suite_rows
from opatlas.outer.suites.texts import folder_of, overload_of
from opatlas.row.columns import FUNCTIONAL
from opatlas.text import suggest

_TEMPLATE = '''\
"""{overload}: a kernel of your own.

`opatlas bench --suite opinfo --implementation torch,{folder} --ops {overload}` checks it, and measures it beside torch.
"""

import torch

# {schema}


def {name}_kernel_impl({parameters}):
    # The kernel. Raise opatlas.Unsupported("why") for a call that it cannot run.
    return torch.ops.aten.{overload}({call})
'''


def operator_files(folder: Path, operators: Sequence[str], suite: str = "") -> dict[Path, str]:
    """Returns files to begin kernels of operators of torch with: path and text.

    Args:
        operators: the operators ("add.Tensor").
        suite: a suite, whose operators are taken that are no variants of others.

    Raises:
        OpAtlasError: torch has no such operator, or the suite cannot be listed.
    """
    if suite:
        rows = suite_rows(suite, "cpu").items()
        operators = [overload_of(name) for name, own in rows if not any(cells[FUNCTIONAL] for cells in own)]
    return {
        folder / name / f"{name}_implementation_v1.py": _text(folder, operator)
        for operator in operators
        for name in (folder_of(operator),)
    }


def _text(folder: Path, overload: str) -> str:
    # Imported here because it imports torch.
    from opatlas.outer.suites.operators import find_overload, overloads_of

    found = find_overload(overload)
    if found is None:
        meant = suggest(overload, overloads_of(overload.partition(".")[0]))
        raise OpAtlasError(f"torch has no operator {overload}{meant}")
    schema = found._schema
    passed = (f"{each.name}={_name(each)}" if each.kwarg_only else _name(each) for each in schema.arguments)
    return _TEMPLATE.format(
        overload=overload,
        folder=folder,
        schema=schema,
        name=folder_of(overload),
        parameters=", ".join(_parameters(schema.arguments)),
        call=", ".join(passed),
    )


def _parameters(arguments: list[Any]) -> Iterator[str]:
    """Yields the parameters of a function with the arguments of a schema."""
    has_star = False
    for each in arguments:
        if each.kwarg_only and not has_star:
            has_star = True
            yield "*"
        yield _name(each) + (f"={each.default_value!r}" if each.has_default_value() else "")


def _name(argument: Any) -> str:
    return f"{argument.name}_" if keyword.iskeyword(argument.name) else str(argument.name)
