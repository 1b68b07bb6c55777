"""Lists the implementations of kernels: their versions here, their kernel types, and what proves each.

With NAME, an implementation or a folder or file of your own, the kernel types of it are listed, and what was ignored.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from opatlas.devices.device import KINDS
from opatlas.engine.kernel_facts import (
    proof_of,
    read_calls,
    read_implementation_proofs,
    replays_of_bench,
)
from opatlas.engine.registry import replay_spec
from opatlas.implementations.catalog import every_implementation, named_implementations
from opatlas.implementations.implementation import DEFAULTS, TORCH, Implementation
from opatlas.store.csv_files import write_text
from opatlas.text import pluralize, show, suggest, table_lines, wrap

_NOT_RUN = "not run"
_NO_REPLAY = "no replay"
#: The proof of a replay that says that there is no call on an NPU.
_NO_CALL = "none"
_COLUMNS = 80
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
        return sum(each.proof not in (_NOT_RUN, _NO_REPLAY) for each in self.kernel_types)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="an implementation, folder or file (default: all)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the output as JSON to FILE (default: not written)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the list, or the kernel types of one implementation. Raises OpAtlasError."""
    chosen = named_implementations(arguments.name) if arguments.name else every_implementation()
    found = [listed(each) for each in chosen]
    if arguments.json is not None:
        contents = {"implementations": [asdict(each) for each in found]}
        write_text(arguments.json, msgspec.json.format(msgspec.json.encode(contents)).decode() + "\n")
    show(as_details(found) if arguments.name else as_table(found))
    return 0


def listed(implementation: Implementation) -> Listed:
    """Returns what is known of an implementation."""
    proofs, replays = _proofs(implementation), replays_of_bench()
    kernels, notes = [], list(implementation.notes)
    for kernel_type in sorted(_kernel_types(implementation)):
        source = implementation.source(kernel_type)
        place = f"{source.module or Path(source.path).name}:{source.function}" if source is not None else ""
        if kernel_type not in replays:
            notes.append(f"no kernel type is called {kernel_type}{suggest(kernel_type, replays)}")
        proof = proofs.get(kernel_type, _NOT_RUN) if kernel_type in replays else _NO_REPLAY
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


def _kernel_types(implementation: Implementation) -> set[str]:
    """Returns the kernel types that an implementation has: the marked ones, or all with a replay for one that wraps."""
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
    # A user looks for the file of a kernel; the functions of a library are not those of the user.
    shown = rows if found.is_of_user else [(kernel_type, proof) for kernel_type, _, proof in rows]
    lines = [wrap(f"{here}: {found.about}", 0)]
    lines += [f"{pluralize(len(found.kernel_types), 'kernel type')} on {', '.join(found.devices)}", ""]
    lines += table_lines(shown, _COLUMNS)
    return "\n".join(lines)
