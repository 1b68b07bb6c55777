"""The stored rows of a kernel type as typed columns: M, N and K of products, heads and keys of attention, rates."""

from __future__ import annotations

from typing import Any

import pandas as pd

from opatlas.ask.query.answering_rows import AnsweringRows


def typed_rows(rows: AnsweringRows) -> pd.DataFrame:
    """Returns a table with a line for each row.

    The columns: m, n, k and batch of a product; m, n, k and groups of products of experts; sequences, queries, keys,
    heads, kv_heads, head_size, value_size, latent and pages of attention; message_bytes, num_devices, dtype and
    topology_tier of a collective; dtype and format of the first input, bytes (of attention those that it reads and
    writes, each once), duration_us, median_us, std_us, samples, quality, composed, machines, machine_spread (of the
    machines, as a share), device, source (replayed or captured), cache, instrument, run_id, implementation, id, tflops
    and gbps.
    """
    sizes: pd.DataFrame = pd.DataFrame([row.sizes for row in rows])
    if not len(sizes):
        return sizes
    us = rows.duration_us
    operations = sizes.pop("operations") if "operations" in sizes else None
    columns: dict[str, Any] = {
        "duration_us": us,
        "median_us": rows.numbers("middle_us"),
        "std_us": rows.numbers("std_us"),
        "samples": rows.numbers("samples"),
        "quality": rows.quality,
        "composed": rows.composed,
        "machines": [count for count, _ in rows.machines],
        "machine_spread": [spread for _, spread in rows.machines],
        "device": rows.devices,
        "source": rows.source,
        "cache": rows.cache,
        "instrument": rows.instrument,
        "run_id": rows.run_id,
        "implementation": rows.label,
        "id": [rows.case_id(i) for i in range(len(rows))],
    }
    table: pd.DataFrame = sizes.assign(**columns)
    if operations is not None:
        table["tflops"] = operations / us / 1e6
    if "bytes" in sizes:
        table["gbps"] = sizes["bytes"] / us / 1e3
    return table
