"""The text of a file to begin the kernel of an operator with: the arguments of torch's schema, and a call of torch."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opatlas.errors import OpAtlasError
from opatlas.outer.suites.texts import folder_of
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


def operator_file(folder: Path, overload: str) -> Path:
    """Returns the path of the file of an operator in a folder of kernels."""
    name = folder_of(overload)
    return folder / name / f"{name}_implementation_v1.py"


def operator_template(folder: Path, overload: str) -> str:
    """Returns the file of an operator. Raises OpAtlasError if torch has no such operator."""
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
