"""Writes docs/kernels.md, and the table of kernels in docs/implementations.md.

`python -m tests.support.kernel_pages` does it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from opatlas.cli.show import Kernel, kernels_with_replay
from opatlas.row.slots import base_type
from opatlas.run.implementation_catalog import shipped
from opatlas.run.registry import KINDS, WITHOUT_REPLAY, read_implementation_proofs, replays_of_bench

ROOT = Path(__file__).parents[2]
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
    proofs = read_implementation_proofs()
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


if __name__ == "__main__":
    for page, text in {PAGE: as_page(kernels_with_replay()), IMPLEMENTATIONS: implementations_page()}.items():
        (ROOT / page).write_text(text, encoding="utf-8")
        print(f"wrote {ROOT / page}")
