"""Rows that ship as lists, in starter.yaml: the starter database of a device, and the rows of a GPU's databases.

`python -m opatlas.shapes.starter FOLDER` makes the databases of a GPU, with the calls of a step of five models and
samples of other kernels, without durations. `make gpu-database` also measures them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.text import pluralize
from opatlas.theory.catalog import CatalogKernel, built_in_catalog
from opatlas.theory.patterns import Axis, Form, parse_expression
from opatlas.theory.plan import Request, add_theory_rows
from opatlas.theory.sources import Targets
from opatlas.theory.space import GB
from opatlas.yaml_file import read_yaml

from . import models as named
from .strategies import sample_rows

#: The largest tensor, the embedding table, has 311 MB.
_BUDGET_BYTES = GB
#: Tensors of a row and the flush buffer; set-up and checks need up to as much again. A GPU of 48 GB will do.
_GPU_BUDGET_BYTES = 16 * GB
#: The models, in the order in which they take turns, and how they are divided.
MODELS = Targets(
    (named.QWEN3_32B, named.DEEPSEEK_V3, named.QWEN3_30B_A3B, named.LLAMA_3_70B, named.GLM_5_1),
    tp_sizes=(1, 2, 4, 8),
    ep_sizes=(4, 8, 16, 32),
)
_STARTER = "starter"
#: By name in starter.yaml.
_TARGETS = {
    _STARTER: Targets([named.QWEN3_0_6B], tp_sizes=(1,), ep_sizes=(1,)),
    "": MODELS,
    "layers": replace(MODELS, lm_head=False),
    "heads": replace(MODELS, lm_head=True),
    # For kernels that depend on the number of elements rather than on the width.
    "two": Targets((named.QWEN3_32B, named.DEEPSEEK_V3), tp_sizes=(1,), ep_sizes=(8,)),
    # The model whose weights in FP8 have scales of blocks, and further ones of which few tokens are measured.
    "blocks": replace(MODELS, models=(named.DEEPSEEK_V3,)),
    "more blocks": replace(MODELS, models=(named.QWEN3_235B_A22B, named.MINIMAX_M2_5, named.GLM_5_1)),
    # The model whose weights in FP8 have one scale each.
    "tensors": replace(MODELS, models=(named.LLAMA_3_70B,)),
}


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of starter.yaml, which has the meaning of each field."""

    kernels: list[str]
    pattern: str = ""
    rows: int = 0
    limit: str = ""
    form: str = ""
    dtype: str = ""
    grids: Mapping[str, tuple[int, ...]] = {}
    sizes: int | None = None
    models: str = ""

    def parts(self, database: str) -> Iterator[RowsPart]:
        is_starter = database == _STARTER
        sizes = self.sizes if self.sizes is not None else 0 if is_starter else 16
        targets = _TARGETS[_STARTER if is_starter else self.models]
        for name in self.kernels:
            known = [each.name for each in built_in_catalog().kernel(name).patterns]
            for pattern in known if self.pattern == "all" else [self.pattern or known[0]]:
                yield RowsPart(name, pattern, self, sizes, targets)


@dataclass(frozen=True)
class RowsPart:
    """Rows of a kernel type by one pattern, within the limits of an entry."""

    kernel_type: str
    pattern: str
    entry: Entry
    sizes: int
    targets: Targets

    def kernel(self) -> CatalogKernel:
        """Returns the catalog's kernel type with this pattern alone, these sizes and dtypes, within the limit."""
        pattern, entry = built_in_catalog().kernel(self.kernel_type).pattern(self.pattern), self.entry
        forms = (Form.parse(entry.form),) if entry.form else pattern.forms
        forms = tuple(form for form in forms if entry.dtype in ("", *form.input_dtypes, *form.output_dtypes))
        limits = (parse_expression(entry.limit),) if entry.limit else ()
        axes = tuple(replace(axis, grid=entry.grids.get(axis.name, self._thinned(axis))) for axis in pattern.axes)
        limited = replace(pattern, axes=axes, forms=forms, where=(*pattern.where, *limits))
        return CatalogKernel(self.kernel_type, (limited,))

    def _thinned(self, axis: Axis) -> tuple[int, ...]:
        """Returns the powers of two, which batches mostly are, and others between them; fewer powers if need be."""
        if not axis.between or not self.sizes:
            return axis.grid
        powers = [size for size in axis.grid if size.bit_count() == 1]
        others = [size for size in axis.grid if size.bit_count() != 1]
        chosen = {*_spread(powers, self.sizes), *_spread(others, self.sizes - len(powers)), axis.grid[-1]}
        return tuple(sorted(chosen))

    def write(self, database: Database, budget_bytes: int, *, is_npu: bool = True) -> int:
        """Appends the rows that the database lacks, and returns their number. Raises OpAtlasError."""
        request = Request(self.targets, self.entry.rows, 0, budget_bytes, sample_rows, is_npu, forms_of_database=False)
        return len(add_theory_rows(database, self.kernel(), request).signatures)


def _spread(sizes: Sequence[int], count: int) -> list[int]:
    """Returns up to `count` sizes, from the first to the last."""
    if count < 2 or count >= len(sizes):
        return [*sizes[: max(count, 0)]]
    return [sizes[i * (len(sizes) - 1) // (count - 1)] for i in range(count)]


def parts_of_databases() -> dict[str, list[RowsPart]]:
    """Returns the rows of each database, by name. Raises OpAtlasError."""
    content = read_yaml(Path(__file__).with_suffix(".yaml"), dict[str, list[Entry]])
    return {name: [part for each in entries for part in each.parts(name)] for name, entries in content.items()}


def write_starter(database: Database) -> int:
    """Appends the starter rows, about two hundred, and returns their number. Raises OpAtlasError.

    The rows are the same for a given version of hypothesis.
    """
    return sum(part.write(database, _BUDGET_BYTES) for part in parts_of_databases()[_STARTER])


def write_gpu_rows(folder: Path) -> dict[str, int]:
    """Adds the rows that each database in a folder lacks, and returns their numbers. Raises OpAtlasError."""
    return {
        name: sum(part.write(Database(folder / name), _GPU_BUDGET_BYTES, is_npu=False) for part in parts)
        for name, parts in parts_of_databases().items()
        if name != _STARTER
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the databases torch, libraries and compiled are made")
    folder = parser.parse_args().folder
    try:
        added = write_gpu_rows(folder)
    except OpAtlasError as error:
        raise SystemExit(f"error: {error}") from None
    for name, rows in added.items():
        print(f"{folder / name}: {pluralize(rows, 'row')} added")


if __name__ == "__main__":
    main()
