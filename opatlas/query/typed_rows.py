"""The stored rows of a kernel type as typed columns: M, N and K of products, heads and keys of attention, rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import pandas as pd

from opatlas.errors import CellError
from opatlas.query.stored_rows import StoredRows
from opatlas.row.columns import MESSAGE, MICROBENCH_MEDIAN
from opatlas.row.roofline import tensor_bytes
from opatlas.row.signature import row_cells
from opatlas.row.sizes import attention_sizes, grouped_sizes, product_sizes
from opatlas.row.slots import known_dtype, row_slots
from opatlas.text import parse_real, parse_whole

_LOWER = {name: name.lower() for name in MESSAGE}


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


def row_sizes(kernel_type: str, cells: Mapping[str, str]) -> dict[str, object]:
    """Returns the sizes, dtype and format of a row, with or without a duration, and its operations if they are counted.

    A row whose cells cannot be read has none.
    """
    if set(MESSAGE[:2]) <= cells.keys():
        return {_LOWER[name]: parse_whole(cells.get(name, "")) or cells.get(name, "") for name in MESSAGE}
    try:
        inputs, outputs = row_slots(kernel_type, cells)
    except CellError:
        return {}
    found: dict[str, object] = {}
    product = product_sizes(kernel_type, inputs, outputs)
    grouped = grouped_sizes(kernel_type, inputs)
    attention = attention_sizes(kernel_type, inputs, cells)
    if product is not None:
        found = {**asdict(product), "operations": 2 * product.batch * product.m * product.n * product.k}
    elif grouped is not None:
        found = {**asdict(grouped), "operations": 2 * grouped.m * grouped.n * grouped.k}
    elif attention is not None:
        found = {**asdict(attention), "operations": attention.operations}
    first = next((slot for slot in inputs if not slot.absent), None)
    if first is not None:
        found |= {"dtype": first.dtype, "format": first.format}
    moved = tensor_bytes((*inputs, *outputs))
    if attention is not None and first is not None:
        dtype = known_dtype(first.dtype)
        moved = attention.moved_elements * dtype.bytes if dtype is not None and dtype.bytes else moved
    return {**found, "bytes": moved}
