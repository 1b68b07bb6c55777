"""Lists the implementations of kernels: their versions here, their kernel types, and what proves each.

With NAME, an implementation or a folder or file of your own, its kernel types are listed, and what was ignored.
--build compiles its kernels ahead, and --new writes files to begin kernels of your own with.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from opatlas.cli.arguments import add_json, write_or_print_json
from opatlas.cli.build import build
from opatlas.cli.kernel_template import suite_operators, write_templates
from opatlas.devices.device import KINDS
from opatlas.engine.kernel_facts import (
    proof_of,
    read_calls,
    read_implementation_proofs,
    replays_of_bench,
)
from opatlas.engine.registry import replay_spec
from opatlas.errors import UsageError
from opatlas.implementations.catalog import every_implementation, named_implementations
from opatlas.implementations.contract import KernelSource
from opatlas.implementations.implementation import DEFAULTS, TORCH, Implementation
from opatlas.installation import require_extra
from opatlas.model.siblings import base_type, suggest_spelling
from opatlas.options import add_database_path, names
from opatlas.suites.overload import is_folder
from opatlas.text import COLUMNS, pluralize, show, table_lines, wrap

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 done; 1 a row of --build failed, NAME is unknown, or a file could not be read or written; "
        "2 wrong usage"
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="an implementation, folder or file (default: all)")
    add_json(parser, "what is listed,")
    parser.add_argument(
        "--build",
        action="store_true",
        help="run a small row of each kernel type and dtype of NAME, so that later sessions find its kernels compiled; "
        "no duration is kept (default: off)",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="with --build: a device by the name of its database folder, or by its kind: npu, cuda or cpu "
        "(default: the device at hand)",
    )
    parser.add_argument(
        "--new",
        type=Path,
        metavar="DIR",
        help="write a file for each kernel type of --ops into DIR: its arguments, a row, and a kernel that calls torch "
        "(default: nothing is written)",
    )
    parser.add_argument(
        "--ops",
        type=names,
        metavar="TYPE[,TYPE...]",
        default=(),
        help="with --new: the kernel types, or operators of torch such as add.Tensor (default: none)",
    )
    parser.add_argument(
        "--suite",
        metavar="NAME",
        help="with --new: all operators of a suite: opinfo, traces, or a file or folder of traces (default: none)",
    )
    add_database_path(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the list, or the kernel types of one implementation; builds, or writes templates. Raises OpAtlasError."""
    _expect_options(arguments)
    if arguments.new is not None:
        require_extra("bench", "`opatlas implementations --new`", "torch")
        return _write_templates(arguments)
    chosen = named_implementations(arguments.name) if arguments.name else every_implementation()
    if arguments.build:
        require_extra("bench", "`opatlas implementations --build`", "torch")
        # Each is built, whatever becomes of the one before.
        ran = [build(each, arguments.device, arguments.database_path) for each in chosen]
        return 0 if all(ran) else 1
    found = [listed(each) for each in chosen]
    contents = {"implementations": [asdict(each) for each in found]}
    if not write_or_print_json(arguments.json, contents):
        show(as_details(found) if arguments.name else as_table(found))
    return 0


def _expect_options(arguments: argparse.Namespace) -> None:
    """Raises UsageError where an option would have no effect, or lacks another one."""
    if arguments.build and (not arguments.name or arguments.new is not None or arguments.json is not None):
        raise UsageError("--build takes one implementation, folder or file as NAME, and neither --new nor --json")
    chosen = sum(map(bool, (arguments.ops, arguments.suite)))
    if chosen != (arguments.new is not None) or (arguments.new is not None and arguments.name):
        raise UsageError("--new DIR goes with --ops TYPE[,TYPE...] or with --suite NAME, without another NAME")
    if arguments.device is not None and not arguments.build:
        raise UsageError("--device says where --build runs: leave it out, or add --build")
    if arguments.database_path is not None and not arguments.build and arguments.new is None:
        raise UsageError("--database-path has the rows for --build and --new: leave it out, or add one of them")
    if arguments.json is not None and arguments.new is not None:
        raise UsageError("--json writes what is listed, and --new lists nothing: leave one out")


def _write_templates(arguments: argparse.Namespace) -> int:
    folder, suite = shlex.quote(str(arguments.new)), arguments.suite
    of_torch = suite_operators(suite) if suite else [name for name in arguments.ops if "." in name]
    kernel_types = [name for name in arguments.ops if name not in of_torch]
    # Both are checked before either is written.
    paths = write_templates(arguments.new, kernel_types, of_torch, arguments.database_path)
    if suite:
        show(f"wrote {len(paths):,} files into {arguments.new}")
    for path in [] if suite else paths:
        show(f"wrote {path}")
    ops = f" --ops {','.join(of_torch)}" if not suite else ""
    commands = []
    if of_torch:
        commands.append(f"--suite {shlex.quote(suite or 'opinfo')} --implementation torch,{folder}{ops}")
    if kernel_types:
        database = f" --database-path {shlex.quote(str(arguments.database_path))}" if arguments.database_path else ""
        commands.append(f"--implementation torch,{folder} --ops {','.join(kernel_types)}{database}")
    for command in commands:
        show(wrap(f"next: `opatlas bench {command}` measures them beside torch", 0))
    return 0


def listed(implementation: Implementation) -> Listed:
    """Returns what is known of an implementation."""
    proofs, replays = _proofs(implementation), replays_of_bench()
    kernels, notes = [], list(implementation.notes)
    for kernel_type in sorted(_kernel_types(implementation)):
        source = implementation.source(kernel_type)
        place = f"{source.module or _file_of(source)}:{source.function}" if source is not None else ""
        of_suites = is_folder(kernel_type)
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
        implementation.devices or tuple(KINDS),
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
    if implementation.name in DEFAULTS.values():
        return {name for name, function in replays.items() if proof_of(_npu_call(function)) != _NO_CALL}
    every = implementation.is_default or implementation.wrap is not None
    return {*implementation.sources, *(replays if every else ())}


def _proofs(implementation: Implementation) -> Mapping[str, str]:
    if implementation.name == TORCH:
        return dict.fromkeys(read_calls(), _ON_A_GPU)
    if implementation.name in DEFAULTS.values():
        proofs = {name: proof_of(_npu_call(function)) for name, function in replays_of_bench().items()}
        return {name: proof for name, proof in proofs.items() if proof not in ("", _NO_CALL)}
    return read_implementation_proofs().get(implementation.name, {})


def _npu_call(function: object) -> str:
    spec = replay_spec(function)
    return (spec.npu if spec is not None else None) or ""


def as_table(found: Sequence[Listed]) -> str:
    """Returns the list for a terminal of 80 columns: a line for each implementation."""
    rows = [("implementation", "version", "devices", "kernel types", "proven")]
    for each in found:
        proven = f"{each.proven} of {len(each.kernel_types)}" if each.proven else _NOT_RUN
        version = each.version or ("not installed" if each.missing else "")
        rows.append((each.name, version, ", ".join(each.devices), str(len(each.kernel_types)), proven))
    missing = [f"{each.name} {each.missing}" for each in found if each.missing]
    return "\n".join([*table_lines(rows), *([""] if missing else []), *(wrap(line, 0) for line in missing)])


def as_details(found: Sequence[Listed]) -> str:
    """Returns the kernel types of implementations for a terminal, and what is to be known of a user's files."""
    notes = dict.fromkeys(note for each in found for note in each.notes)
    return "\n\n".join([*map(_details, found), *(["\n".join(wrap(note, 0) for note in notes)] if notes else [])])


def _details(found: Listed) -> str:
    """Returns the kernel types of an implementation for a terminal."""
    here = " ".join(filter(None, (found.name, found.version, found.missing)))
    rows = [
        ("kernel type", "function", "proof"),
        *((each.kernel_type, each.function, each.proof) for each in found.kernel_types),
    ]
    # A user looks for the file of an own kernel. The functions of a library do not matter.
    shown = rows if found.is_of_user else [(kernel_type, proof) for kernel_type, _, proof in rows]
    lines = [wrap(f"{here}: {found.about}", 0)]
    lines += [f"{pluralize(len(found.kernel_types), 'kernel type')} on {', '.join(found.devices)}", ""]
    lines += table_lines(shown, COLUMNS)
    return "\n".join(lines)
