"""The stored rows of a kernel type as typed columns: M, N and K of products, heads and keys of attention, rates."""

from __future__ import annotations

import pandas as pd

from opatlas.query.stored_rows import StoredRows
from opatlas.row.columns import MICROBENCH_MEDIAN
from opatlas.row.signature import row_cells
from opatlas.row.sizes import row_sizes
from opatlas.text import parse_real


def typed_rows(rows: StoredRows) -> pd.DataFrame:
    """Returns a table with a line for each row.

    The columns: m, n, k and batch of a product; m, n, k and groups of products of experts; sequences, queries, keys,
    heads, kv_heads, head_size, value_size, latent and pages of attention; message_bytes, num_devices, dtype and
    topology_tier of a collective; dtype and format of the first input, bytes (of attention those that it reads and
    writes, each once), duration_us, median_us, std_us, samples, quality, composed, machines, machine_spread (of the
    machines, as a share), device, source (replayed or captured), cache, instrument, run_id, implementation, id, tflops
    and gbps.
    """
    medians = rows.cells(MICROBENCH_MEDIAN)
    lines = []
    for i, cells in enumerate(row_cells(rows.frame)):
        line = row_sizes(rows.kernel_type, cells)
        us = float(rows.duration_us[i])
        operations, moved = line.pop("operations", None), line.get("bytes")
        line |= {
            "duration_us": us,
            "median_us": parse_real(medians[i]),
            "std_us": float(rows.std_us[i]),
            "samples": float(rows.samples[i]),
            "quality": rows.quality[i],
            "composed": rows.composed[i],
            "machines": rows.machines[i][0],
            "machine_spread": rows.machines[i][1],
            "device": rows.devices[i],
            "source": rows.source[i],
            **dict(zip(("cache", "instrument"), rows.row_conditions[i], strict=True)),
            "run_id": rows.run_id[i],
            "implementation": rows.label,
            "id": rows.case_id(i),
        }
        if isinstance(operations, int):
            line["tflops"] = operations / us / 1e6
        if isinstance(moved, int):
            line["gbps"] = moved / us / 1e3
        lines.append(line)
    table: pd.DataFrame = pd.DataFrame(lines)
    return table
