"""The database that a device without one starts with: calls of a small model.

Sized for a CPU without bfloat16 instructions: no row takes more than about 50 ms a call there, and
all of them are measured in about two minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opatlas.store.database import Database
from opatlas.theory.catalog import CatalogKernel, built_in_catalog
from opatlas.theory.models import ModelFacts
from opatlas.theory.patterns import Form, parse_expression
from opatlas.theory.plan import Request, add_theory_rows
from opatlas.theory.sources import Targets
from opatlas.theory.space import GB

from .models import QWEN3_0_6B
from .strategies import sample_rows

#: The embedding table, which is the LM head too, is the largest tensor: 311 MB.
_BUDGET_BYTES = GB
_HALF, _FLOAT = "BF16", "FLOAT"


@dataclass(frozen=True)
class StarterPart:
    """Rows of one pattern of a kernel type.

    Attributes:
        rows: how many; fewer where the pattern has no more within the limit.
        limit: what keeps a call short.
        form: dtypes.
    """

    kernel_type: str
    pattern: str
    rows: int
    limit: str
    form: str

    def kernel(self) -> CatalogKernel:
        """The catalog's kernel type with this pattern alone, within the limit."""
        of_catalog = built_in_catalog().kernel(self.kernel_type)
        pattern = next(pattern for pattern in of_catalog.patterns if pattern.name == self.pattern)
        limited = replace(pattern, where=(*pattern.where, parse_expression(self.limit)), forms=(Form.parse(self.form),))
        return CatalogKernel(self.kernel_type, (limited,))


#: Two cores of a server manage some 80 GFLOP/s in float32, and 20 in bfloat16 without instructions for it.
#: Normalization and softmax read and write each element several times. Of rows that hold the embedding
#: table there are few: making their random inputs takes longer than measuring them.
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


def write_starter(
    database: Database, *, seed: int = 0, model: ModelFacts = QWEN3_0_6B, parts: Sequence[StarterPart] = PARTS
) -> int:
    """Appends the starter rows, about two hundred; gives their number.

    Args:
        seed: the same gives the same rows, for a given version of hypothesis.

    Raises:
        OpAtlasError: the database cannot be read or written.
    """
    targets = Targets([model], tp_sizes=(1,), ep_sizes=(1,))
    added = 0
    for part in parts:
        request = Request(targets, part.rows, seed, _BUDGET_BYTES, sample_rows)
        added += len(add_theory_rows(database, part.kernel(), request, forms_of_database=False).signatures)
    return added
