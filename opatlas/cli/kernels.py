"""Lists the kernel types that are replayed, their NPU calls, and what proves these.

A replay measures a kernel's best form in torch on a CPU or a GPU; on an NPU it makes the NPU call. The
tests make every such call with the real torch_npu, on tensors without values, and keep what they learned.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from opatlas.devices.device import KINDS as DEVICE_KINDS
from opatlas.engine.kernel_facts import KINDS, WITHOUT_REPLAY, proof_of, read_calls, replays_of_bench
from opatlas.engine.registry import replay_spec
from opatlas.errors import OpAtlasError, UsageError
from opatlas.store.csv_files import write_text
from opatlas.text import closest, counted, show, table_lines

#: The checkout, whose pages hold these tables.
ROOT = Path(__file__).parents[2]
PAGE, README = "docs/kernels.md", "README.md"

_PAGE = """\
# Kernels

Which kernel types are replayed, and what is known of their calls on an NPU. Written by
`opatlas kernels --write`; the proofs come from `pytest tests/npu --write-npu-proofs`.

Each result is checked against a formula in float64 (`bench/formulas/`). On an NPU the
NPU call takes the place of what is timed elsewhere. On a GPU the time is that of all kernels that these
operators of torch launch (`pytest tests/cuda --write-gpu-calls` finds them, with a small row of each type
on a real one; larger rows may take another way: integer products go through `torch._int_mm` where its
shapes allow). On a CPU the same code runs. What proves that an NPU call takes the arguments that the replay
passes:

"""


_WITHOUT = """\
## Without a replay

Rows of these types stay in the database as they are; the summary of a session counts them.

"""


@dataclass(frozen=True)
class Kernel:
    """What is known of a kernel type. Attributes are the columns of the table; empty where there is nothing."""

    kernel_type: str
    family: str
    npu_call: str
    proven_by: str
    devices: str
    on_gpu: str


HEADERS = ("kernel type", "family", "NPU call", "proven by", "devices", "timed on a GPU")
#: Of the operators that a composite kernel calls, so many are named.
_NAMED = 4
#: These come first: they take the time.
_HEAVY = re.compile(r"scaled_dot_product|mm\b|convolution|sort|topk")
#: What `as_summary` gives, wherever it stands.
_SUMMARY = re.compile(r"^\d+ kernel types have a replay.*\n\n(?:\|.*\n)+", re.MULTILINE)


def kernels() -> list[Kernel]:
    """By family, then by name."""
    calls = read_calls()
    found = []
    for kernel_type, function in replays_of_bench().items():
        spec = replay_spec(function)
        assert spec is not None
        found.append(
            Kernel(
                kernel_type,
                function.__module__.rpartition("test_")[2],
                spec.npu or "",
                proof_of(spec.npu or "") or "not yet",
                ", ".join(kind for kind in DEVICE_KINDS if kind != "npu" or spec.npu),
                _named(calls.get(kernel_type, ())),
            )
        )
    return sorted(found, key=lambda kernel: (kernel.family, kernel.kernel_type))


def _named(operators: Sequence[str]) -> str:
    more = len(operators) - _NAMED
    return ", ".join(sorted(operators, key=lambda name: not _HEAVY.search(name))[:_NAMED]) + (
        f" and {more} more" if more > 0 else ""
    )


def as_text(kernels: Sequence[Kernel], without_replay: Mapping[str, str] = WITHOUT_REPLAY) -> str:
    """Returns the tables for a terminal; `without_replay` has the reason of each kernel type."""
    lines = table_lines([HEADERS, *map(astuple, kernels)]) if kernels else []
    if kernels:
        counts = Counter(kernel.proven_by for kernel in kernels)
        proven = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
        lines += ["", counted(len(kernels), "kernel type"), f"NPU calls proven by: {proven}"]
    if without_replay:
        lines += [*([""] if lines else []), "without a replay:", *table_lines(list(without_replay.items()))]
    return "\n".join(lines)


def _has_name(names: Sequence[str], kernel_type: str, family: str = "") -> bool:
    """Whether one of the names is a part of a kernel type, or its family, in upper or lower case; no name: True."""
    return not names or any(name.lower() in kernel_type.lower() or name.lower() == family for name in names)


def pages(kernels: Sequence[Kernel], root: Path = ROOT) -> dict[Path, str]:
    """The pages of a checkout that list kernels, as they should be. Raises OpAtlasError."""
    readme = root / README
    if not readme.is_file() or not (root / PAGE).parent.is_dir():
        raise OpAtlasError(f"{root} has no {README} and docs/, which are in a checkout: run it with that one's code")
    text, tables = _SUMMARY.subn(lambda _: as_summary(kernels), readme.read_text(encoding="utf-8"))
    if tables != 1:
        raise OpAtlasError(
            f"{readme} has {tables} tables below a line 'N kernel types have a replay': leave one, and an empty line "
            "between both"
        )
    return {root / PAGE: as_page(kernels), readme: text}


def as_page(kernels: Sequence[Kernel]) -> str:
    """docs/kernels.md."""
    meanings = "\n".join(f"- {kind}: {meaning}." for kind, meaning in KINDS.items())
    reasons = _table(("kernel type", "why it has no replay"), WITHOUT_REPLAY.items())
    return f"{_PAGE}{meanings}\n\n{_table(HEADERS, map(astuple, kernels))}\n{_WITHOUT}{reasons}"


def as_summary(kernels: Sequence[Kernel]) -> str:
    """The README's table: a line for each family, which leaves out the AiCore twins of kernels that it names."""
    count = f"{len(kernels)} kernel types have a replay (the table leaves out `AiCore` twins):"
    rows = []
    for family in sorted({kernel.family for kernel in kernels}):
        of_family = [kernel for kernel in kernels if kernel.family == family]
        proofs = Counter(kernel.proven_by for kernel in of_family)
        names = [kernel.kernel_type for kernel in of_family]
        named = [name for name in names if not (name.lower().endswith("aicore") and name[: -len("aicore")] in names)]
        rows.append((family, ", ".join(named), ", ".join(kind for kind in KINDS if proofs[kind])))
    return f"{count}\n\n{_table(('family', 'kernel types', 'NPU calls proven by'), rows)}"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headers, ["---"] * len(headers), *rows))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 done; 2 there is no such kernel type, or a file cannot be written"
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="only kernel types with this in their name, or of this family (default: all)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write what is printed as JSON (default: not written)",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="write docs/kernels.md, and the table of README.md, anew (default: print columns for a terminal)",
    )


def run(arguments: argparse.Namespace) -> int:
    names: Sequence[str] = arguments.names
    if arguments.write:
        if names or arguments.json is not None:
            raise UsageError("--write writes the pages with all kernel types: leave out names and --json")
        for path, text in pages(kernels()).items():
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
        return 0
    known = kernels()
    chosen = [kernel for kernel in known if _has_name(names, kernel.kernel_type, kernel.family)]
    without = {name: reason for name, reason in WITHOUT_REPLAY.items() if _has_name(names, name)}
    if not chosen and not without:
        like = closest(names[0], {*(kernel.kernel_type for kernel in known), *WITHOUT_REPLAY})
        raise UsageError(f"no kernel type has {' or '.join(map(repr, names))} in its name{like}")
    if arguments.json is not None:
        contents = {"kernels": [asdict(kernel) for kernel in chosen], "without_replay": without}
        write_text(arguments.json, json.dumps(contents, indent=2) + "\n")
    show(as_text(chosen, without))
    return 0
