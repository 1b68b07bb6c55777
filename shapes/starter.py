"""The starter database of a device: calls of a small model.

The rows are small enough for a CPU without bfloat16 instructions: a call takes at most about 50 ms, and all rows
together take about two minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from opatlas.data.database import Database
from opatlas.theory.catalog import CatalogKernel, built_in_catalog
from opatlas.theory.patterns import Axis, Form, parse_expression
from opatlas.theory.plan import Request, add_theory_rows
from opatlas.theory.sources import Targets
from opatlas.theory.space import GB

from .models import QWEN3_0_6B
from .strategies import sample_rows

#: The largest tensor, the embedding table, has 311 MB.
_BUDGET_BYTES = GB
_HALF, _FLOAT = "BF16", "FLOAT"
_TARGETS = Targets([QWEN3_0_6B], tp_sizes=(1,), ep_sizes=(1,))


@dataclass(frozen=True)
class RowsPart:
    """Rows of a kernel type by one pattern.

    Attributes:
        pattern: a pattern of the kernel type; "": its first one.
        rows: the size of a sample; 0: all points of the grids.
        limit: a condition that keeps calls short, in the variables of the pattern; "": none.
        form: dtypes and formats; "": those of the catalog.
        dtype: a dtype that the rows have in some slot; "": any.
        grids: the sizes of some axes, in place of the catalog's.
        sizes: the most sizes of each axis of tokens, from the smallest to the largest; 0: all.
        targets: the models.
    """

    kernel_type: str
    pattern: str = ""
    rows: int = 0
    limit: str = ""
    form: str = ""
    dtype: str = ""
    grids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sizes: int = 0
    targets: Targets = _TARGETS

    def kernel(self) -> CatalogKernel:
        """Returns the catalog's kernel type with this pattern alone, these sizes and dtypes, within the limit."""
        kernel = built_in_catalog().kernel(self.kernel_type)
        pattern = kernel.pattern(self.pattern or kernel.patterns[0].name)
        forms = (Form.parse(self.form),) if self.form else pattern.forms
        forms = tuple(form for form in forms if self.dtype in ("", *form.input_dtypes, *form.output_dtypes))
        limits = (parse_expression(self.limit),) if self.limit else ()
        axes = tuple(replace(axis, grid=self.grids.get(axis.name, self._thinned(axis))) for axis in pattern.axes)
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
        request = Request(self.targets, self.rows, 0, budget_bytes, sample_rows, is_npu, forms_of_database=False)
        return len(add_theory_rows(database, self.kernel(), request).signatures)


def _spread(sizes: Sequence[int], count: int) -> list[int]:
    """Returns up to `count` sizes, from the first to the last."""
    if count < 2 or count >= len(sizes):
        return [*sizes[: max(count, 0)]]
    return [sizes[i * (len(sizes) - 1) // (count - 1)] for i in range(count)]


#: Two cores of a server reach about 80 GFLOP/s in float32, and 20 in bfloat16 without instructions for bfloat16.
#: Normalization and softmax read and write each element several times. Few rows hold the embedding table, whose
#: random inputs take longer to make than to measure.
PARTS = (
    RowsPart("MatMulV2", "matmul", 64, "2 * m * n * k <= 1000000000", f"{_HALF};{_HALF} -> {_HALF}"),
    RowsPart("MatMulV2", "matmul", 12, "2 * m * n * k <= 4000000000 and n <= 4096", f"{_FLOAT};{_FLOAT} -> {_FLOAT}"),
    RowsPart("Add", "binary", 20, "m <= 4096", f"{_HALF};{_HALF} -> {_HALF}"),
    RowsPart("Add", "binary", 10, "m <= 4096", f"{_FLOAT};{_FLOAT} -> {_FLOAT}"),
    RowsPart("Mul", "binary", 16, "m <= 4096", f"{_HALF};{_HALF} -> {_HALF}"),
    RowsPart("RmsNorm", "rms_norm", 18, "m * h <= 2097152", f"{_HALF};{_HALF} -> {_HALF};{_FLOAT}"),
    RowsPart("RmsNorm", "head_rms_norm", 20, "m * g * d <= 2097152", f"{_HALF};{_HALF} -> {_HALF};{_FLOAT}"),
    RowsPart("SwiGlu", "swiglu", 20, "m <= 4096", f"{_HALF} -> {_HALF}"),
    RowsPart("SoftmaxV2", "unary_logits", 10, "b * vocab <= 2097152", f"{_FLOAT} -> {_FLOAT}"),
    RowsPart("GatherV2", "gather", 6, "m <= 4096", f"{_HALF};INT64;INT64 -> {_HALF}"),
)


def write_starter(database: Database) -> int:
    """Appends the starter rows, about two hundred, and returns their number. Raises OpAtlasError.

    The rows are the same for a given version of hypothesis.
    """
    return sum(part.write(database, _BUDGET_BYTES) for part in PARTS)
