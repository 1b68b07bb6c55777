"""`opatlas implementations`: what measures kernels, and files to begin kernels of one's own with."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from cyclopts import Parameter

from opatlas.data.csv_files import write_text
from opatlas.data.database import Database
from opatlas.errors import CellError, OpAtlasError, UsageError
from opatlas.installation import KERNEL_TEMPLATES, extensions, require_extra
from opatlas.row.location import list_databases
from opatlas.row.roofline import tensor_bytes
from opatlas.row.signature import kernel_types_meant
from opatlas.row.slots import base_type, row_slots
from opatlas.run import registry
from opatlas.run.devices.device import device_kinds
from opatlas.run.implementation import TORCH, Implementation, KernelSource
from opatlas.run.implementation_catalog import every_implementation, is_overload, named_implementations
from opatlas.show.parameters import Names
from opatlas.show.result import Column, Fields, Part, Result, Table

_NOT_RUN = "not run"
_NO_REPLAY = "no replay"
#: The kernel of an operator of torch, which `pytest bench/ --suite` measures.
_OF_SUITES = "--suite"
#: The proof of a replay that says that there is no call on an NPU.
_NO_CALL = "none"
_ON_A_GPU = "checked on a GPU"


@dataclass(frozen=True)
class KernelOfImplementation:
    """A kernel type of an implementation, where its function is, and what proves it."""

    kernel_type: str
    function: str
    proof: str


@dataclass(frozen=True)
class Listed:
    """An implementation in the list: the fields of its line, and its kernel types."""

    name: str
    version: str
    missing: str
    devices: Sequence[str]
    about: str
    kernel_types: Sequence[KernelOfImplementation]
    notes: Sequence[str]
    is_of_user: bool

    @property
    def proven(self) -> int:
        """The number of kernel types with a proof."""
        return sum(each.proof not in (_NOT_RUN, _NO_REPLAY, _OF_SUITES) for each in self.kernel_types)


def implementations(
    name: Annotated[str, Parameter(name="NAME")] = "",
    /,
    *,
    new: Path | None = None,
    ops: Names = (),
    database_path: Path | None = None,
) -> Result:
    """Lists the implementations of kernels, or begins kernels of your own.

    Exit status: 0 done; 1 NAME is unknown, or a file could not be read or written; 2 wrong usage.

    Args:
        name: an implementation, or a folder or file of your own, whose kernel types are listed (default: all).
        new: folder into which a file is written for each kernel type or operator of --ops: its arguments, a row, and a
            kernel that calls torch.
        ops: kernel types, or operators of torch such as add.Tensor, for --new.
        database_path: database that has the rows for --new (default: that of the device, or any).
    """
    if (new is None) == bool(ops) or (new is not None and name):
        raise UsageError("--new DIR goes with --ops TYPE[,TYPE...], without another NAME")
    if database_path is not None and new is None:
        raise UsageError("--database-path has the rows for --new: leave it out, or add --new")
    if new is not None:
        require_extra("bench", "`opatlas implementations --new`", "torch")
        return _write_templates(new, ops, database_path)
    chosen = named_implementations(name) if name else every_implementation()
    found = [listed(each) for each in chosen]
    return Result(list(_details(found)) if name else [_list(found)], json={"implementations": found})


def _write_templates(folder: Path, ops: Sequence[str], database: Path | None) -> Result:
    of_torch = [name for name in ops if "." in name]
    there = [name for path in _databases_with_rows(database) for name in Database(path).kernel_types()]
    near = [kernel_types_meant(name, dict.fromkeys(there))[0] for name in ops if name not in of_torch]
    kernel_types = [kernel_types_meant(name, registry.replays_of_bench())[0] for name in near]
    files: Mapping[Path, str] = {}
    if of_torch:
        if (operators := extensions(KERNEL_TEMPLATES).get("operators")) is None:
            raise UsageError("this OpAtlas has no suites of operators")
        files = operators.load()(folder, of_torch)
    paths = _write_files(folder, kernel_types, files, database)
    quoted, commands = shlex.quote(str(folder)), []
    if files:
        commands.append(f"--suite opinfo --implementation torch,{quoted} --ops {','.join(of_torch)}")
    if kernel_types:
        rows = f" --database-path {shlex.quote(str(database))}" if database else ""
        commands.append(f"--implementation torch,{quoted} --ops {','.join(kernel_types)}{rows}")
    return Result(
        [Table(("written",), [(path,) for path in paths]), *(f"next: opatlas bench {each}" for each in commands)]
    )


def _list(found: Sequence[Listed]) -> Table:
    return Table(
        ("implementation", "version", "devices", "kernel types", "proven", "missing"),
        [
            (each.name, each.version, ", ".join(each.devices), len(each.kernel_types), each.proven, each.missing)
            for each in found
        ],
    )


def _details(found: Sequence[Listed]) -> Iterator[Part]:
    for each in found:
        yield Fields(
            {"version": each.version, "missing": each.missing, "about": each.about, "devices": ", ".join(each.devices)},
            title=each.name,
        )
        # A user looks for the file of an own kernel. The functions of a library do not matter.
        columns = ("kernel type", Column("function", wide=not each.is_of_user), "proof")
        yield Table(columns, [(kernel.kernel_type, kernel.function, kernel.proof) for kernel in each.kernel_types])
    yield from dict.fromkeys(note for each in found for note in each.notes)


def listed(implementation: Implementation) -> Listed:
    """Returns what is known of an implementation."""
    replays = registry.replays_of_bench()
    kernels, notes = [], list(implementation.notes)
    for kernel_type, proof in sorted(_proofs(implementation).items()):
        source = implementation.source(kernel_type)
        place = f"{source.module or _file_of(source)}:{source.function}" if source is not None else ""
        of_suites = is_overload(kernel_type)
        if kernel_type not in replays and not of_suites:
            guess = registry.similar_replays(kernel_type, replays)
            notes.append(f"OpAtlas has no replay of {kernel_type}{guess}: a replay of your own takes it")
        proof = proof if kernel_type in replays else _OF_SUITES if of_suites else _NO_REPLAY
        kernels.append(KernelOfImplementation(kernel_type, place, proof))
    return Listed(
        implementation.name,
        implementation.version,
        implementation.missing,
        implementation.devices or tuple(device_kinds()),
        implementation.about,
        kernels,
        notes,
        implementation.name not in (each.name for each in every_implementation()),
    )


def _file_of(source: KernelSource) -> str:
    """Returns the path of a user's file in its folder."""
    path = Path(source.path)
    return str(path.relative_to(source.folder)) if source.folder else path.name


def _proofs(implementation: Implementation) -> Mapping[str, str]:
    """Returns what proves each kernel type of an implementation: of the marked ones; of all, if it wraps torch's."""
    replays = registry.replays_of_bench()
    if implementation.is_default and implementation.name != TORCH:
        proofs = {name: registry.proof_of(_npu_call(function)) for name, function in replays.items()}
        return {name: proof or _NOT_RUN for name, proof in proofs.items() if proof != _NO_CALL}
    is_torch = implementation.name == TORCH
    known = (
        dict.fromkeys(registry.read_facts(registry.CALLS), _ON_A_GPU)
        if is_torch
        else registry.read_facts(registry.IMPLEMENTATION_PROOFS).get(implementation.name, {})
    )
    every = implementation.is_default or implementation.wrap is not None
    # A kernel type by another name is the same function with the same arguments.
    return {
        name: known.get(name) or known.get(base_type(name), _NOT_RUN)
        for name in {*implementation.sources, *(replays if every else ())}
    }


def _npu_call(function: object) -> str:
    spec = registry.replay_spec(function)
    return (spec.npu if spec is not None else None) or ""


def _write_files(
    folder: Path, kernel_types: Sequence[str], others: Mapping[Path, str], database: Path | None
) -> list[Path]:
    """Writes a file for each kernel type and each operator into a folder, and returns the files.

    Args:
        others: further files, and their texts.
        database: has the sample rows; None: the first default database that has one.

    Raises:
        OpAtlasError: a kernel type has no replay or no row, or a file exists: nothing is written.
    """
    replays = registry.replays_of_bench()
    # A file whose name begins with an underscore is no kernel's; the mark has the name of the kernel type.
    paths = {kernel_type: folder / f"{kernel_type.lstrip('_')}.py" for kernel_type in kernel_types}
    for kernel_type in kernel_types:
        if kernel_type not in replays:
            meant = registry.similar_replays(kernel_type, replays, least=0.5)
            raise OpAtlasError(f"--ops {kernel_type}: there is no such kernel type with a replay{meant}")
    if there := [path for path in (*paths.values(), *others) if path.exists()]:
        raise OpAtlasError(f"{there[0]} exists: nothing is written; remove it, or name another folder")
    rows = sample_rows(kernel_types, database)
    # Imported here because it imports torch.
    from opatlas.run.kernel_template import template

    texts = {path: template(folder, kernel_type, rows[kernel_type]) for kernel_type, path in paths.items()}
    texts |= others
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return list(texts)


def _databases_with_rows(database: Path | None) -> Sequence[Path]:
    return [database] if database is not None else list_databases()


def sample_rows(kernel_types: Sequence[str], database: Path | None) -> Mapping[str, Mapping[str, str]]:
    """Returns a small row of each kernel type: of a database, of any default one, or of a small model.

    Raises:
        OpAtlasError: no database has one, or a file cannot be read.
    """
    found: dict[str, Mapping[str, str]] = {}
    for path in _databases_with_rows(database):
        found |= _smallest_rows(Database(path), set(kernel_types).difference(found))
    if database is None and (lacking := set(kernel_types).difference(found)):
        with TemporaryDirectory(prefix="opatlas-starter-") as folder:
            import_module("opatlas.shapes.starter").write_starter(Database(folder))
            found |= _smallest_rows(Database(folder), lacking)
    if without := [name for name in kernel_types if name not in found]:
        raise OpAtlasError(
            f"{database or 'default databases'}: no row of {', '.join(without)}, which has the arguments: `opatlas "
            f"shapes --ops {','.join(without)} --rows 4 --database-path DB` makes rows, --database-path DB takes them"
        )
    return found


def _smallest_rows(database: Database, kernel_types: Collection[str]) -> dict[str, Mapping[str, str]]:
    """Returns the smallest row of each kernel type that has a row that can be read. Raises TableError."""
    found: dict[str, Mapping[str, str]] = {}
    for kernel_type in sorted(set(kernel_types).intersection(database.kernel_types())):
        sizes: list[tuple[int, Mapping[str, str]]] = []
        for cells in database.read_or_empty(kernel_type).identities():
            try:
                inputs, outputs = row_slots(kernel_type, cells)
            except CellError:
                # A session reports the wrong cell.
                continue
            sizes.append((tensor_bytes((*inputs, *outputs)) or 0, cells))
        if sizes:
            found[kernel_type] = min(sizes, key=lambda sized: sized[0])[1]
    return found
