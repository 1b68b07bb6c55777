"""Writes docs/kernels.md, the table in docs/implementations.md, and the numbers of rows and kernel types in pages.

`python -m tests.support.kernel_pages` does it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from opatlas.cli.show import Kernel, kernels_with_replay
from opatlas.data.database import Database
from opatlas.row.columns import POOLED_MACHINES
from opatlas.row.location import SHIPPED
from opatlas.row.slots import base_type
from opatlas.row.table import RowTable
from opatlas.run.implementation_catalog import shipped
from opatlas.run.registry import IMPLEMENTATION_PROOFS, KINDS, WITHOUT_REPLAY, read_facts, replays_of_bench

ROOT = Path(__file__).parents[2]
DATABASES = ROOT / "database" / "data"
PAGE, IMPLEMENTATIONS = "docs/kernels.md", "docs/implementations.md"

_PAGE = """\
# Kernel types

The kernel types with a replay, and their calls on an NPU and a GPU. `python -m tests.support.kernel_pages` writes the
page.

A formula in float64 (`bench/formulas/`) checks each result. On an NPU the NPU call is timed, elsewhere the operators of
torch in the last column (on a CPU by the same code). These were recorded with a small row of each type on a real GPU
(`pytest tests/cuda --write-gpu-calls`); larger rows may run other operators. How a GPU is timed is in
[devices.md](devices.md#what-is-timed), and the libraries that have a kernel are in
[implementations.md](implementations.md#which-kernel-types-an-implementation-has).

`pytest tests/npu --write-npu-proofs` makes each NPU call with the real torch_npu 2.13, on tensors without values. This
proves that the call takes the arguments of the replay, and the sections below say by which evidence.

## Each kernel type

"""


_EACH = """\
`opatlas show --kernels` prints a line for each; Add and AddAiCore share one here.

"""


_WITHOUT = """\
## Without a replay

Rows of these types stay in the database as they are.

"""


def as_page(kernels: Sequence[Kernel]) -> str:
    """docs/kernels.md."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for kernel in kernels:
        facts = (kernel.proven_by, kernel.npu_call, kernel.on_gpu)
        lines.setdefault(facts, []).append(kernel.kernel_type)
    parts = []
    for kind, meaning in {**KINDS, "not yet": "Run `pytest tests/npu --write-npu-proofs`"}.items():
        rows = [(", ".join(types), *facts[1:]) for facts, types in lines.items() if facts[0] == kind]
        if rows:
            table = _table(("kernel types", "NPU call", "timed on a GPU"), rows)
            parts.append(f"### Proven by: {kind}\n\n{meaning[0].upper()}{meaning[1:]}.\n\n{table}\n")
    reasons: dict[str, list[str]] = {}
    for kernel_type, reason in WITHOUT_REPLAY.items():
        reasons.setdefault(reason, []).append(f"`{kernel_type}`")
    without = _table(("reason", "kernel types"), ((reason, ", ".join(types)) for reason, types in reasons.items()))
    count = f"{len(kernels)} kernel types have a replay."
    return f"{_PAGE}{count} {_EACH}{''.join(parts)}{_WITHOUT}{without}"


#: The result of `as_coverage`: the last section of its page.
_COVERAGE = re.compile(r"^\| implementation \| checked on a GPU \|.*\Z", re.MULTILINE | re.DOTALL)


def implementations_page(root: Path = ROOT) -> str:
    """docs/implementations.md with the present table at its end. Raises ValueError."""
    text, tables = _COVERAGE.subn(lambda _: as_coverage(), (root / IMPLEMENTATIONS).read_text(encoding="utf-8"))
    if tables != 1:
        raise ValueError(f"{root / IMPLEMENTATIONS} has no table of implementations at its end")
    return text


def as_coverage() -> str:
    """A line for each implementation, with the kernel types that were checked, and the others that it marks."""
    proofs = read_facts(IMPLEMENTATION_PROOFS)
    # AddAiCore is Add by another name.
    types = {base_type(each) for found in shipped().values() for each in found.sources} & set(replays_of_bench())
    rows = []
    for name, found in shipped().items():
        checked = set(proofs.get(name, {})) & set(replays_of_bench())
        others = sorted(each for each in types - checked if found.implements(each))
        rows.append((name, ", ".join(sorted(checked)), "any other" if found.wrap else ", ".join(others)))
    return _table(("implementation", "checked on a GPU", "not run"), rows)


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headers, ["---"] * len(headers), *rows))


def _databases() -> dict[str, list[RowTable]]:
    """The tables of the databases that ship, by folder."""
    folders = sorted(path.parent for path in DATABASES.glob(f"*/*/*/{SHIPPED}"))
    return {
        folder.relative_to(DATABASES).as_posix(): [
            Database(folder).read(each) for each in Database(folder).kernel_types()
        ]
        for folder in folders
    }


def _numbers() -> dict[str, dict[str, Sequence[int]]]:
    """By page, patterns of its text, and the numbers that their groups are. None in a copy without the databases."""
    if not (databases := _databases()):
        return {}
    rows = {folder: sum(map(len, tables)) for folder, tables in databases.items()}
    types = {folder: len(tables) for folder, tables in databases.items()}
    (torch,) = (name for name in rows if re.fullmatch(r"NVIDIA_H200/torch/[^/]*cuda[\d.]+", name))
    libraries = sum(rows[name] for name in rows if re.match(r"NVIDIA_H200/(?!torch/)", name))
    xeon = sum(rows[name] for name in rows if name.startswith("Intel_Xeon"))
    machines = Counter(int(cell or 1) for table in databases[torch] for cell in table.cells(POOLED_MACHINES))
    three = sum(count for number, count in machines.items() if number > 2)
    replays = len(kernels_with_replay())
    number = r"([\d,]+)"
    return {
        "README.md": {
            rf"has {number} rows of seven models, {number} kernel types": (rows[torch], types[torch]),
            rf"{number}\s+rows\s+of libraries": (libraries,),
            rf"{number} theory rows on a Xeon": (xeon,),
            rf"the {number} with a replay": (replays,),
        },
        "README.zh-CN.md": {
            rf"个模型的 {number} 行.{number} 种": (rows[torch], types[torch]),
            rf"算子库共 {number} 行": (libraries,),
            rf"Xeon 上的 {number} 行": (xeon,),
            rf"可回放的 {number} 种": (replays,),
        },
        "docs/concepts.md": {rf"{number} kernel types have one": (replays,)},
        "docs/devices.md": {
            rf"{number} of the {number}\s+rows of `torch` were measured on three machines and more, {number} on two, "
            rf"{number} on one": (three, rows[torch], machines[2], machines[1]),
            **{
                rf"\| `{re.escape(name.partition('/')[2])}` \| {number} \| {number} \|": (rows[name], types[name])
                for name in rows
                if re.match(r"NVIDIA_H200/(?!nccl|.*_warm)", name)
            },
        },
    }


def with_numbers(text: str, numbers: Mapping[str, Sequence[int]]) -> str:
    """The text of a page with the present numbers. Raises ValueError."""
    for pattern, present in numbers.items():
        if len(found := list(re.finditer(pattern, text))) != 1:
            raise ValueError(f"{pattern} is {len(found)} times in the page: mend the pattern, or the page")
        for group, number in reversed(list(enumerate(present, 1))):
            text = f"{text[: found[0].start(group)]}{number:,}{text[found[0].end(group) :]}"
    return text


def generated() -> dict[str, str]:
    """The pages that are written, or have something that is, as they should be. Raises ValueError."""
    pages = {PAGE: as_page(kernels_with_replay()), IMPLEMENTATIONS: implementations_page()}
    return pages | {page: with_numbers((ROOT / page).read_text("utf-8"), each) for page, each in _numbers().items()}


if __name__ == "__main__":
    for page, text in generated().items():
        (ROOT / page).write_text(text, encoding="utf-8")
        print(f"wrote {ROOT / page}")
