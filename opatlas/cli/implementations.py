"""`opatlas implementations`: what measures kernels, and files to begin kernels of one's own with."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from opatlas.cli.build import Built, build_ahead
from opatlas.cli.kernel_template import write_templates
from opatlas.errors import OpAtlasError, UsageError
from opatlas.extensions import KERNEL_TEMPLATES, extensions
from opatlas.installation import require_extra
from opatlas.row.siblings import base_type, suggest_spelling
from opatlas.run.devices.device import device_kinds
from opatlas.run.implementations.catalog import every_implementation, named_implementations
from opatlas.run.implementations.directory import is_overload
from opatlas.run.implementations.implementation import TORCH, Implementation, KernelSource
from opatlas.run.kernel_facts import proof_of, read_calls, read_implementation_proofs, replays_of_bench
from opatlas.run.registry import replay_spec
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
    build: bool = False,
    device: str = "",
    new: Path | None = None,
    ops: Names = (),
    suite: str = "",
    database_path: Path | None = None,
) -> Result:
    """Lists the implementations of kernels, builds one ahead, or begins kernels of your own.

    Exit status: 0 done; 1 a row of --build failed, NAME is unknown, or a file could not be read or written; 2 wrong
    usage.

    Args:
        name: an implementation, or a folder or file of your own, whose kernel types are listed (default: all).
        build: run a small row of each kernel type and dtype of NAME, so that later sessions find its kernels compiled;
            no duration is kept.
        device: where --build runs: the name of a device, or npu, cuda or cpu (default: the device at hand).
        new: folder into which a file is written for each kernel type of --ops, or operator of --suite: its arguments,
            a row, and a kernel that calls torch.
        ops: kernel types, or operators of torch such as add.Tensor, for --new.
        suite: suite of operators for --new: opinfo, traces, or a file or folder of traces.
        database_path: database that has the rows for --build and --new (default: that of the device, or any).
    """
    if build and (not name or new is not None):
        raise UsageError("--build takes one implementation, folder or file as NAME, and no --new")
    if (new is None) == bool(ops or suite) or (ops and suite) or (new is not None and name):
        raise UsageError("--new DIR goes with --ops TYPE[,TYPE...] or with --suite NAME, without another NAME")
    if device and not build:
        raise UsageError("--device says where --build runs: leave it out, or add --build")
    if database_path is not None and not build and new is None:
        raise UsageError("--database-path has the rows for --build and --new: leave it out, or add one of them")
    if new is not None:
        require_extra("bench", "`opatlas implementations --new`", "torch")
        return _write_templates(new, ops, suite, database_path)
    chosen = named_implementations(name) if name else every_implementation()
    if build:
        require_extra("bench", "`opatlas implementations --build`", "torch")
        return _build(chosen, device or None, database_path)
    found = [listed(each) for each in chosen]
    return Result(list(_details(found)) if name else [_list(found)], json={"implementations": found})


def _write_templates(folder: Path, ops: Sequence[str], suite: str, database: Path | None) -> Result:
    of_torch = [name for name in ops if "." in name]
    kernel_types = [name for name in ops if name not in of_torch]
    files: Mapping[Path, str] = {}
    if of_torch or suite:
        if (operators := extensions(KERNEL_TEMPLATES).get("operators")) is None:
            raise UsageError("this OpAtlas has no suites of operators")
        files = operators.load()(folder, of_torch, suite)
    paths = write_templates(folder, kernel_types, files, database)
    quoted, commands = shlex.quote(str(folder)), []
    if files:
        only = "" if suite else f" --ops {','.join(of_torch)}"
        commands.append(f"--suite {shlex.quote(suite or 'opinfo')} --implementation torch,{quoted}{only}")
    if kernel_types:
        rows = f" --database-path {shlex.quote(str(database))}" if database else ""
        commands.append(f"--implementation torch,{quoted} --ops {','.join(kernel_types)}{rows}")
    return Result(
        [Table(("written",), [(path,) for path in paths]), *(f"next: opatlas bench {each}" for each in commands)]
    )


def _build(chosen: Sequence[Implementation], device: str | None, database: Path | None) -> Result:
    """Builds each implementation, whatever becomes of the one before. Raises OpAtlasError for a single one."""
    built, problems = list[Built](), list[str]()
    for each in chosen:
        try:
            built.append(build_ahead(each, device, database))
        except OpAtlasError as error:
            if len(chosen) == 1:
                raise
            problems.append(str(error))
    failed = problems or any(each.failures for each in built)
    return Result([part for each in built for part in _built(each)], problems=problems, status=int(bool(failed)))


def _built(found: Built) -> Iterator[Part]:
    rows = {status.value: count for status, count in found.counts.items()}
    without = (len(found.without), ", ".join(found.without)) if found.without else None
    yield Fields({"kernel types": found.kernel_types, **rows, "without a row": without}, title=found.label)
    if found.failures:
        yield Table(("kernel type", "status", "reason"), found.failures, title=f"{found.label}: rows that failed")


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
            {
                "version": each.version or None,
                "missing": each.missing or None,
                "about": each.about or None,
                "devices": ", ".join(each.devices),
            },
            title=each.name,
        )
        # A user looks for the file of an own kernel. The functions of a library do not matter.
        columns = ("kernel type", Column("function", wide=not each.is_of_user), "proof")
        yield Table(columns, [(kernel.kernel_type, kernel.function, kernel.proof) for kernel in each.kernel_types])
    yield from dict.fromkeys(note for each in found for note in each.notes)


def listed(implementation: Implementation) -> Listed:
    """Returns what is known of an implementation."""
    proofs, replays = _proofs(implementation), replays_of_bench()
    kernels, notes = [], list(implementation.notes)
    for kernel_type in sorted(_kernel_types(implementation)):
        source = implementation.source(kernel_type)
        place = f"{source.module or _file_of(source)}:{source.function}" if source is not None else ""
        of_suites = is_overload(kernel_type)
        if kernel_type not in replays and not of_suites:
            guess = suggest_spelling(kernel_type, replays)
            notes.append(f"OpAtlas has no replay of {kernel_type}{guess}: a replay of your own takes it")
        # A kernel type by another name is the same function with the same arguments.
        proof = proofs.get(kernel_type) or proofs.get(base_type(kernel_type), _NOT_RUN)
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


def _kernel_types(implementation: Implementation) -> set[str]:
    """Returns the kernel types that an implementation has: the marked ones; if it wraps torch's functions, all."""
    replays = replays_of_bench()
    if implementation.is_default and implementation.name != TORCH:
        return {name for name, function in replays.items() if proof_of(_npu_call(function)) != _NO_CALL}
    every = implementation.is_default or implementation.wrap is not None
    return {*implementation.sources, *(replays if every else ())}


def _proofs(implementation: Implementation) -> Mapping[str, str]:
    if implementation.name == TORCH:
        return dict.fromkeys(read_calls(), _ON_A_GPU)
    if implementation.is_default and implementation.name != TORCH:
        proofs = {name: proof_of(_npu_call(function)) for name, function in replays_of_bench().items()}
        return {name: proof for name, proof in proofs.items() if proof not in ("", _NO_CALL)}
    return read_implementation_proofs().get(implementation.name, {})


def _npu_call(function: object) -> str:
    spec = replay_spec(function)
    return (spec.npu if spec is not None else None) or ""
