"""Rows for benchmarks on a GPU, written as tests/bench/replaying.py writes them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from tests.benchmarks.children import ROOT

# pytest does this for tests/bench by itself.
sys.path.insert(0, str(ROOT / "tests" / "bench"))

from replaying import cells_of
from sample_rows import flash

#: (M, K) by (N, K), the set that timers were compared on: decoding to prefill, four megabytes to thirty of weights.
_M = (1, 8, 64, 256, 1024, 4096)
_NK = ((4096, 4096), (7168, 2048), (1024, 8192))


def cells_by_type(rows: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, str]]]:
    """Returns the cells of rows by kernel type."""
    return {kernel_type: list(map(cells_of, of_type)) for kernel_type, of_type in rows.items()}


def gemm_rows() -> list[str]:
    return [f"{m},{k};{n},{k} | DT_BF16;DT_BF16 -> {m},{n} | DT_BF16" for m in _M for n, k in _NK]


def truth_rows() -> list[tuple[str, str]]:
    """Sixty rows by kernel type: products, norms, elementwise kernels, attention; some 3 us to some 2 ms."""
    rows = [("MatMulV2", row) for row in gemm_rows()]
    for m in (1, 64, 512, 2048, 8192, 32768, 65536):
        rows.append(("RmsNorm", f"{m},5120;5120 | DT_BF16;DT_BF16 -> {m},5120;{m},1 | DT_BF16;FLOAT"))
        rows.append(("SoftmaxV2", f"{m},4096 | FLOAT -> {m},4096 | FLOAT"))
    for m in (16, 256, 2048, 8192, 32768):
        rows.append(("Add", f"{m},5120;{m},5120 | DT_BF16;DT_BF16 -> {m},5120 | DT_BF16"))
        rows.append(("Mul", f"{m},4096;{m},4096 | FLOAT;FLOAT -> {m},4096 | FLOAT"))
        rows.append(("Cast", f"{m},7168 | DT_BF16 -> {m},7168 | FLOAT"))
    for s in (128, 512, 1024, 2048, 3072, 4096):
        for heads, kv in ((32, 8), (64, 8)):
            q, k = f"1,{heads},{s},128", f"1,{kv},{s},128"
            rows.append(("FlashAttentionScore", flash(q, k, f"1,{heads},{s},8", mask="2048,2048")))
    rows.append(("FlashAttentionScore", flash("4,32,2048,128", "4,8,2048,128", "4,32,2048,8", mask="2048,2048")))
    return rows
