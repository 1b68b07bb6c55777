"""`--suite`: the rows of a suite, and files to begin kernels of its operators with.

The rows are listed in a process of its own, which imports torch: `python -m opatlas.outer.suites.listing`.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from opatlas.data.database import Database
from opatlas.data.fold import add_rows
from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.options import read_only_by
from opatlas.outer.suites import texts
from opatlas.outer.suites.score import read_score
from opatlas.outer.tasks.task import complexity_of_task
from opatlas.progress import note_after
from opatlas.row import columns as col
from opatlas.row.location import default_database_of, suite_path
from opatlas.run.devices.device import DeviceSpec, kind_named
from opatlas.run.implementation import Implementation
from opatlas.run.process.fresh_python import answers_of, request_of_parent
from opatlas.run.registry import Rows, RowSource
from opatlas.show.result import Fields
from opatlas.text import suggest

#: The traces that ship.
TRACES = "traces"
_HERE = Path(__file__).parent
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.+]+")


def suite_name(suite: str) -> str:
    """Returns the name of a suite for the folder of its database: `opinfo`, or `hf_train_3f2a91c0` by name and content.

    Raises:
        OpAtlasError: there is no such suite, file or folder.
    """
    if suite == texts.OPINFO:
        return texts.OPINFO
    path = _trace_path(suite)
    digest = blake2b(digest_size=4)
    for file in texts.trace_files(path):
        digest.update(read_safely(file, texts.LARGEST_BYTES))
    return f"{_NOT_IN_NAMES.sub('_', path.stem).strip('_') or TRACES}_{digest.hexdigest()}"


def _trace_path(suite: str) -> Path:
    path = _HERE / "traces" if suite == TRACES else Path(suite)
    if not path.exists():
        meant = (
            suggest(suite, [texts.OPINFO, TRACES]) or f": give {texts.OPINFO}, {TRACES}, or a file or folder of traces"
        )
        raise OpAtlasError(f"--suite {suite}: there is no such suite, file or folder{meant}")
    return path


@dataclass
class Listing:
    """The cases of a suite, and the schemas of their operators, by kernel type."""

    rows: dict[str, list[Mapping[str, str]]] = field(default_factory=dict)
    schemas: dict[str, str] = field(default_factory=dict)


@lru_cache(maxsize=2)
def list_suite(suite: str, device_kind: str, operators: tuple[str, ...] = ()) -> Listing:
    """Lists a suite in a process of its own.

    Args:
        suite: OPINFO, TRACES, or a file or folder of traces.
        device_kind: a kind of device ("cuda"); OpInfo knows the dtypes of each operator there.
        operators: of OpInfo the only operators ("add.Tensor"), with their variants; empty: all.

    Raises:
        OpAtlasError: there is no such suite, torch is missing, or its cases cannot be listed.
    """
    request = [device_kind, operators] if suite == texts.OPINFO else str(_trace_path(suite))
    found = Listing()
    with note_after(f"{suite}: listing its cases, which takes a minute"):
        for told in answers_of(__name__, request, "the cases of the suite cannot be listed"):
            kernel_type, cells, found.schemas[kernel_type] = told
            found.rows.setdefault(kernel_type, []).append(cells)
    if not found.rows and not operators:
        raise OpAtlasError("the suite has no case: this torch has no sample of it")
    found.rows = dict(sorted(found.rows.items()))
    return found


#: A file in a database that has all cases of its suite.
_WHOLE = "all_cases_listed"


def suite_source(option: argparse.Namespace, devices: Sequence[DeviceSpec]) -> RowSource:
    """Returns the cases of the suite that --suite names; the kind of the device decides their dtypes."""
    name, kind = suite_name(option.suite), devices[0].kind
    ops = _kernel_types(option.ops)
    asked: dict[str, OperatorSubject] = {}
    if option.models is not None:
        listed = list_suite(option.suite, kind, operators=_operators(ops))
        asked = {
            each: OperatorSubject(
                name, texts.overload_of(each), listed.schemas[each], [cells[col.ARGUMENTS] for cells in own]
            )
            for each, own in listed.rows.items()
            if not own[0][col.FUNCTIONAL] and (not ops or each in ops)
        }

    def rows(database: Database) -> tuple[Rows, Sequence[str]]:
        """The cases of a database, and before those that it lacks."""
        known = set(filter(texts.is_folder, database.kernel_types()))
        whole = database.path / _WHOLE
        found: Rows = {}
        if not (whole.exists() or (ops and ops <= known)):
            found = list_suite(option.suite, kind, operators=_operators(ops)).rows
            if not (option.collectonly or read_only_by(option)):
                add_rows(database, found)
                if not ops:
                    whole.touch()
        stored = {each: database.read_or_empty(each).identities() for each in known if not ops or each in ops}
        # Models write no variants, which call the functional operator.
        return {each: own for each, own in {**found, **stored}.items() if each in asked or not asked}, ()

    return RowSource(
        option,
        lambda device_kind: kind_named(device_kind).tasks_named_by,
        lambda device, versions: suite_path(device, name, versions),
        unit="case",
        rows=rows,
        is_listed=True,
        counts_missing=True,
        ops=_kernel_types,
        asked=asked,
        scores=lambda targets: _scores(targets, ops),
    )


def _kernel_types(names: Sequence[str]) -> frozenset[str]:
    """Returns the kernel types of operators, which may be named as torch names them (`add.Tensor`)."""
    return frozenset(texts.folder_of(name) if "." in name else name for name in names)


def _operators(kernel_types: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(map(texts.overload_of, filter(texts.is_folder, kernel_types))))


#: Calls of an operator that a model gets to see.
_SHOWN = 12


@dataclass(frozen=True)
class OperatorSubject:
    """An operator that models write a kernel for: what the loop of attempts asks of it."""

    task_set: str
    name: str
    schema: str
    arguments: Sequence[str]

    @property
    def full_name(self) -> str:
        """The suite and the operator ("opinfo/add.Tensor")."""
        return f"{self.task_set}/{self.name}"

    @property
    def candidate(self) -> str:
        """The name of the function that a candidate defines."""
        return f"{texts.folder_of(self.name)}_kernel_impl"

    @property
    def source(self) -> str:
        """The text that a model gets: the schema, and calls from all over the suite."""
        step = max(1, len(self.arguments) // _SHOWN)
        shown = [f"#   {each}" for each in self.arguments[::step][:_SHOWN]]
        count = len(self.arguments)
        return "\n".join([f"# {self.schema}", f"# {len(shown)} of the {count} calls that are compared:", *shown])

    @property
    def complexity(self) -> str:
        """Its class, C1 to C4."""
        return complexity_of_task(f"def call():\n    torch.{self.name.partition('.')[0].strip('_')}()\n")

    @property
    def digest(self) -> str:
        """Stands for the operator and its calls."""
        return texts.text_digest("\n".join([self.schema, *self.arguments]))


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


def operator_files(folder: Path, operators: Sequence[str]) -> dict[Path, str]:
    """Returns files to begin kernels of operators of torch ("add.Tensor") with: path and text.

    Raises:
        OpAtlasError: torch has no such operator.
    """
    return {
        folder / name / f"{name}_implementation_v1.py": _text(folder, operator)
        for operator in operators
        for name in (texts.folder_of(operator),)
    }


def _text(folder: Path, overload: str) -> str:
    # Imported here because it imports torch.
    from opatlas.outer.suites.operators import find_overload, name_of, overloads

    found = find_overload(overload)
    if found is None:
        meant = suggest(overload, map(name_of, overloads(overload.partition(".")[0])))
        raise OpAtlasError(f"torch has no operator {overload}{meant}")
    schema = found._schema
    passed = (f"{each.name}={_name(each)}" if each.kwarg_only else _name(each) for each in schema.arguments)
    return _TEMPLATE.format(
        overload=overload,
        folder=folder,
        schema=schema,
        name=texts.folder_of(overload),
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
    from opatlas.outer.suites.operators import find_overload
    from opatlas.outer.suites.opinfo import list_cases

    request, answer = request_of_parent()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        cases = trace_cases(Path(request)) if isinstance(request, str) else list_cases(*request)
        for kernel_type, cells in cases:
            overload = find_overload(texts.overload_of(kernel_type))
            schema = str(overload._schema) if overload is not None else ""
            answer((kernel_type, {**cells, col.SAMPLE_TORCH: torch.__version__}, schema))
    except OpAtlasError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
