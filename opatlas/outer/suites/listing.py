"""`--suite`: the rows of a suite, and files to begin kernels of its operators with.

The rows are listed in a process of its own, which imports torch: `python -m opatlas.outer.suites.listing`.
"""

from __future__ import annotations

import argparse
import json
import keyword
import re
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from opatlas.data.database import Database
from opatlas.data.fold import add_rows
from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.outer.suites.score import read_score
from opatlas.outer.suites.texts import (
    LARGEST_BYTES,
    OPINFO,
    folder_of,
    overload_of,
    trace_files,
)
from opatlas.row.columns import (
    FUNCTIONAL,
    SAMPLE_TORCH,
)
from opatlas.row.location import default_database_of, suite_path
from opatlas.run.devices.device import DeviceSpec, kind_named
from opatlas.run.implementation import Implementation
from opatlas.run.process.fresh_python import import_environment, module_command
from opatlas.run.registry import RowSource
from opatlas.show.result import Fields
from opatlas.text import suggest

#: The listing takes half a minute; a machine may be slow.
_DEADLINE_S = 1800
#: The traces that ship.
TRACES = "traces"
_HERE = Path(__file__).parent
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.+]+")

Rows = dict[str, list[Mapping[str, str]]]


def suite_name(suite: str) -> str:
    """Returns the name of a suite for the folder of its database: `opinfo`, or `hf_train_3f2a91c0` by name and content.

    Raises:
        OpAtlasError: there is no such suite, file or folder.
    """
    if suite == OPINFO:
        return OPINFO
    path = _trace_path(suite)
    digest = blake2b(digest_size=4)
    for file in trace_files(path):
        digest.update(read_safely(file, LARGEST_BYTES))
    return f"{_NOT_IN_NAMES.sub('_', path.stem).strip('_') or TRACES}_{digest.hexdigest()}"


def _trace_path(suite: str) -> Path:
    path = _HERE / "traces" if suite == TRACES else Path(suite)
    if not path.exists():
        meant = suggest(suite, [OPINFO, TRACES]) or f": give {OPINFO}, {TRACES}, or a file or folder of traces"
        raise OpAtlasError(f"--suite {suite}: there is no such suite, file or folder{meant}")
    return path


def suite_rows(suite: str, device_kind: str, names: Sequence[str] = (), dtypes: Sequence[str] = ()) -> Rows:
    """Returns the rows of a suite by kernel type.

    Args:
        suite: OPINFO, TRACES, or a file or folder of traces.
        device_kind: a kind of device ("cuda"); OpInfo knows the dtypes of each operator there.
        names, dtypes: of OpInfo the only functions ("nn.functional.relu") and dtypes ("float32"); empty: all.

    Raises:
        OpAtlasError: there is no such suite, torch is missing, or its cases cannot be listed.
    """
    request = [device_kind, names, dtypes] if suite == OPINFO else str(_trace_path(suite))
    try:
        done = subprocess.run(
            module_command("opatlas.outer.suites.listing"),
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            env=import_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OpAtlasError(f"the cases of the suite were not listed within {_DEADLINE_S} s: try again") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise OpAtlasError(f"the cases of the suite cannot be listed ({said})")
    rows: Rows = defaultdict(list)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            kernel_type, cells = json.loads(line)["row"]
            rows[kernel_type].append(cells)
    if not rows:
        raise OpAtlasError("the suite has no case: this torch has no sample of it")
    return dict(sorted(rows.items()))


def suite_source(option: argparse.Namespace, devices: Sequence[DeviceSpec]) -> RowSource:
    """Returns the cases of the suite that --suite names; the kind of the device decides their dtypes."""
    name, kind = suite_name(option.suite), devices[0].kind
    return RowSource(
        option,
        lambda device_kind: kind_named(device_kind).tasks_named_by,
        lambda device, versions: suite_path(device, name, versions),
        unit="case",
        starter=lambda database: add_rows(database, suite_rows(option.suite, kind)),
        starter_unlisted="without --co the session first lists the cases of the suite, which takes minutes",
        is_listed=True,
        counts_missing=True,
        ops=_kernel_types,
        scores=lambda targets: _scores(targets, _kernel_types(option.ops)),
    )


def _kernel_types(names: Sequence[str]) -> frozenset[str]:
    """Returns the kernel types of operators, which may be named as torch names them (`add.Tensor`)."""
    return frozenset(folder_of(name) if "." in name else name for name in names)


def _scores(targets: Sequence[tuple[Implementation, Path]], ops: frozenset[str]) -> list[Fields]:
    """Returns the score of each implementation against torch."""
    found = []
    for implementation, path in targets:
        baseline = default_database_of(path)
        if not implementation.is_default and baseline is not None:
            score = read_score(Database(path), Database(baseline), ops or None)
            found.append(Fields(score.figures(), implementation.name))
    return found


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


def _main() -> None:
    import torch

    from opatlas.outer.suites.case import trace_cases
    from opatlas.outer.suites.opinfo import list_cases

    request = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        cases = trace_cases(Path(request)) if isinstance(request, str) else list_cases(*request)
        for kernel_type, cells in cases:
            print(json.dumps({"row": (kernel_type, {**cells, SAMPLE_TORCH: torch.__version__})}))
    except OpAtlasError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
