"""The starter database of a device: calls of a small model.

The rows are small enough for a CPU without bfloat16 instructions: a call takes at most about 50 ms, and all rows
together take about two minutes on two cores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from opatlas.data.database import Database
from opatlas.theory.catalog import CatalogKernel, built_in_catalog
from opatlas.theory.patterns import Form, parse_expression
from opatlas.theory.plan import Request, add_theory_rows
from opatlas.theory.sources import Targets
from opatlas.theory.space import GB

from .models import QWEN3_0_6B
from .strategies import sample_rows

#: The largest tensor, the embedding table, has 311 MB.
_BUDGET_BYTES = GB
_HALF, _FLOAT = "BF16", "FLOAT"


@dataclass(frozen=True)
class StarterPart:
    """Rows of one pattern of a kernel type.

    Attributes:
        rows: number of rows; fewer where the limit leaves fewer.
        limit: a condition that keeps calls short.
        form: dtypes and formats.
    """

    kernel_type: str
    pattern: str
    rows: int
    limit: str
    form: str

    def kernel(self) -> CatalogKernel:
        """Returns the catalog's kernel type with this pattern alone, within the limit."""
        in_catalog = built_in_catalog().kernel(self.kernel_type)
        pattern = next(pattern for pattern in in_catalog.patterns if pattern.name == self.pattern)
        limited = replace(pattern, where=(*pattern.where, parse_expression(self.limit)), forms=(Form.parse(self.form),))
        return CatalogKernel(self.kernel_type, (limited,))


#: Two cores of a server reach about 80 GFLOP/s in float32, and 20 in bfloat16 without instructions for bfloat16.
#: Normalization and softmax read and write each element several times. Few rows hold the embedding table, whose
#: random inputs take longer to make than to measure.
PARTS = (
    StarterPart("MatMulV2", "matmul", 64, "2 * m * n * k <= 1000000000", f"{_HALF};{_HALF} -> {_HALF}"),
    StarterPart(
        "MatMulV2", "matmul", 12, "2 * m * n * k <= 4000000000 and n <= 4096", f"{_FLOAT};{_FLOAT} -> {_FLOAT}"
    ),
    StarterPart("Add", "binary", 20, "m <= 4096", f"{_HALF};{_HALF} -> {_HALF}"),
    StarterPart("Add", "binary", 10, "m <= 4096", f"{_FLOAT};{_FLOAT} -> {_FLOAT}"),
    StarterPart("Mul", "binary", 16, "m <= 4096", f"{_HALF};{_HALF} -> {_HALF}"),
    StarterPart("RmsNorm", "rms_norm", 18, "m * h <= 2097152", f"{_HALF};{_HALF} -> {_HALF};{_FLOAT}"),
    StarterPart("RmsNorm", "head_rms_norm", 20, "m * g * d <= 2097152", f"{_HALF};{_HALF} -> {_HALF};{_FLOAT}"),
    StarterPart("SwiGlu", "swiglu", 20, "m <= 4096", f"{_HALF} -> {_HALF}"),
    StarterPart("SoftmaxV2", "unary_logits", 10, "b * vocab <= 2097152", f"{_FLOAT} -> {_FLOAT}"),
    StarterPart("GatherV2", "gather", 6, "m <= 4096", f"{_HALF};INT64;INT64 -> {_HALF}"),
)


def write_starter(database: Database) -> int:
    """Appends the starter rows, about two hundred, and returns their number. Raises OpAtlasError.

    The rows are the same for a given version of hypothesis.
    """
    targets = Targets([QWEN3_0_6B], tp_sizes=(1,), ep_sizes=(1,))
    added = 0
    for part in PARTS:
        request = Request(targets, part.rows, 0, _BUDGET_BYTES, sample_rows)
        added += len(add_theory_rows(database, part.kernel(), request, forms_of_database=False).signatures)
    return added
