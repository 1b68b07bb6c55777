"""Writes docs/kernels.md, and the table of kernels in docs/implementations.md.

`python -m tests.support.kernel_pages` does it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from pathlib import Path

from opatlas.cli.kernels import HEADERS, Kernel, kernels_with_replay
from opatlas.engine.kernel_facts import KINDS, WITHOUT_REPLAY, read_implementation_proofs, replays_of_bench
from opatlas.implementations.catalog import shipped
from opatlas.model.siblings import base_type

ROOT = Path(__file__).parents[2]
PAGE, IMPLEMENTATIONS = "docs/kernels.md", "docs/implementations.md"

_PAGE = """\
# Kernel types, on an Ascend NPU and on a GPU

Which kernel types are replayed, and what is known of their calls on an NPU. Written by
`python -m tests.support.kernel_pages`; the proofs come from `pytest tests/npu --write-npu-proofs`.

Each result is checked against a formula in float64 (`bench/formulas/`). On an NPU the
NPU call takes the place of what is timed elsewhere. On a GPU the time is that of all kernels that these
operators of torch launch (`pytest tests/cuda --write-gpu-calls` finds them, with a small row of each type
on a real one; larger rows may take another way: integer products go through `torch._int_mm` where its
shapes allow). On a CPU the same code runs.

`pytest tests/npu` makes the calls on an NPU with the real torch_npu 2.13, on tensors that have shapes and dtypes and no
values. What proves that a call takes the arguments that the replay passes:

"""


_EACH = """\
## Each kernel type

`opatlas show --kernels` prints the same. "timed on a GPU" says what an Ascend kernel type is on a GPU: the operators of
torch that its replay runs. [gpu.md](gpu.md#what-is-timed) tells how these are timed; another
[table](implementations.md#which-kernel-types-an-implementation-has) tells which libraries have the kernel.

"""


_WITHOUT = """\
## Without a replay

Rows of these types stay in the database as they are; the summary of a session counts them.

"""


def as_page(kernels: Sequence[Kernel]) -> str:
    """docs/kernels.md."""
    meanings = "\n".join(f"- {kind}: {meaning}." for kind, meaning in KINDS.items())
    reasons = _table(("kernel type", "why it has no replay"), WITHOUT_REPLAY.items())
    table = _table(HEADERS, map(astuple, kernels))
    return f"{_PAGE}{meanings}\n\n{as_summary(kernels)}\n{_EACH}{table}\n{_WITHOUT}{reasons}"


def as_summary(kernels: Sequence[Kernel]) -> str:
    """The table of families: a line for each, with `Add` and not also `AddAiCore`."""
    count = f"{len(kernels)} kernel types have a replay (each may have a second name, as Add has AddAiCore):"
    rows = []
    for family in sorted({kernel.family for kernel in kernels}):
        of_family = [kernel for kernel in kernels if kernel.family == family]
        proofs = Counter(kernel.proven_by for kernel in of_family)
        names = [kernel.kernel_type for kernel in of_family]
        named = [name for name in names if not (name.lower().endswith("aicore") and name[: -len("aicore")] in names)]
        rows.append((family, ", ".join(named), ", ".join(kind for kind in KINDS if proofs[kind])))
    return f"{count}\n\n{_table(('family', 'kernel types', 'NPU calls proven by'), rows)}"


#: What `as_coverage` gives: the last section of its page.
_COVERAGE = re.compile(r"^\| kernel type \|.*\Z", re.MULTILINE | re.DOTALL)


def implementations_page(root: Path = ROOT) -> str:
    """docs/implementations.md with the present table at its end. Raises ValueError."""
    text, tables = _COVERAGE.subn(lambda _: as_coverage(), (root / IMPLEMENTATIONS).read_text(encoding="utf-8"))
    if tables != 1:
        raise ValueError(f"{root / IMPLEMENTATIONS} has no table of kernel types at its end: write `| kernel type |`")
    return text


def as_coverage() -> str:
    """A line for each kernel type that an implementation marks, with what each makes of it."""
    proofs, names = read_implementation_proofs(), list(shipped())
    # AddAiCore is Add by another name.
    marked = {base_type(each) for found in shipped().values() for each in found.sources} & set(replays_of_bench())
    rows = []
    for kernel_type in sorted(marked):
        cells = [
            "checked" if kernel_type in proofs.get(name, {}) else "not run" if found.implements(kernel_type) else ""
            for name, found in shipped().items()
        ]
        rows.append((kernel_type, *cells))
    return _table(("kernel type", *names), rows)


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headers, ["---"] * len(headers), *rows))


if __name__ == "__main__":
    for page, text in {PAGE: as_page(kernels_with_replay()), IMPLEMENTATIONS: implementations_page()}.items():
        (ROOT / page).write_text(text, encoding="utf-8")
        print(f"wrote {ROOT / page}")
