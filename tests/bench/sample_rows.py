"""The rows of sample_rows.txt, and the words and functions that rows of other tests are made of."""

from __future__ import annotations

from pathlib import Path

from opatlas.row.columns import BASE, INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.row.slots import base_type
from opatlas.run.registry import replays_of_bench

#: So many rows of each form of a pattern are taken from the catalog, where a kernel type has none in the file.
CATALOG_ROWS = 3

E4M3 = "FLOAT8_E4M3FN;FLOAT8_E4M3FN"
E5M2 = "FLOAT8_E5M2;FLOAT8_E4M3FN"
#: Of GroupedMatmul: x; weight; bias; scale; offset; two of weights alone in integers; group_list; scale per token.
FP8_GROUPS = f"{E4M3};DT_UNDEFINED;FLOAT;DT_UNDEFINED;DT_UNDEFINED;DT_UNDEFINED;INT64;FLOAT"
#: Of DispatchFFNCombine: x; two weights; experts; two scales; the experts' weights.
LAYER = "DT_BF16;DT_BF16;DT_BF16;INT32;FLOAT;FLOAT;FLOAT"
LAYER_INT8 = "DT_BF16;INT8;INT8;INT32;FLOAT;FLOAT;FLOAT"
#: As vllm-ascend calls it: scales are the bits of float32 numbers.
LAYER_BITS = "DT_BF16;INT8;INT8;INT32;INT64;INT64;FLOAT"
#: Of a dispatch: scales of tokens; the indices for a combine; tokens of experts, and of experts and ranks.
TOLD = "FLOAT;INT32;INT64;INT32"
WITH_WEIGHTS = f"{TOLD};INT32;FLOAT"
#: Of a combine, after the tokens: experts; the indices of a dispatch; their weights.
BACK = "INT32;INT32;INT32;FLOAT"

#: The input slots of FusedInferAttentionScore that are used, and the dtypes of those that have one dtype.
FIA_SLOTS = {"query": 0, "key": 1, "value": 2, "mask": 4, "query_lengths": 5, "kv_lengths": 6, "table": 14}
FIA_SLOTS |= {"query_rope": 24, "key_rope": 25, "sink": 28}
_DTYPES = {"mask": "INT8", "query_lengths": "INT64", "kv_lengths": "INT64", "table": "INT32"}
MASK = "2048,2048"

_FLASH = "{q};{k};{k};;;;{mask};;;;;;;; | {0};{0};{0};{0};UINT8;{0};BOOL;INT64;INT64;INT64;INT64;INT64"


def fia(output: str, *, dtype: str = "DT_BF16", lse: str = "", **slots: str) -> str:
    """A FusedInferAttentionScore row with all 31 slots; `value` is as `key` unless it is given."""
    slots = {"value": slots["key"], **slots}
    shapes, dtypes = [""] * 31, ["DT_UNDEFINED"] * 31
    for name, shape in slots.items():
        shapes[FIA_SLOTS[name]] = shape
        dtypes[FIA_SLOTS[name]] = _DTYPES.get(name, dtype)
    return f"{';'.join(shapes)} | {';'.join(dtypes)} -> {output};{lse} | {dtype};FLOAT"


def flash(q: str, k: str, stats: str, mask: str = "", dtype: str = "DT_BF16") -> str:
    """A FlashAttentionScore row."""
    inputs = _FLASH.format(dtype, q=q, k=k, mask=mask)
    return f"{inputs};FLOAT;FLOAT;FLOAT -> {stats};{stats};;{q} | FLOAT;FLOAT;{dtype};{dtype}"


def _catalog_rows(kernel_type: str) -> tuple[str, ...]:
    """Returns the smallest rows that a kernel type's line in shapes/catalog.yaml spans, some for each form."""
    # Here, because these modules import pandas.
    from opatlas.theory.catalog import built_in_catalog
    from opatlas.theory.sources import resolve_targets
    from opatlas.theory.space import GB, Space

    kernel = built_in_catalog().kernels.get(kernel_type)
    found: list[str] = []
    for pattern in kernel.patterns if kernel is not None else ():
        for batch in Space(kernel_type, pattern, pattern.forms, resolve_targets([]), GB).batches():
            smallest = batch.frame.iloc[batch.bytes.argsort(kind="stable")[:CATALOG_ROWS]]
            found += map(_text, smallest.to_dict("records"))
    return tuple(found)


def _text(cells: dict[str, str]) -> str:
    slots = [" | ".join(cells[column] for column in columns) for columns in (INPUT_SLOTS, OUTPUT_SLOTS)]
    more = [f"@ {column} = {cell}" for column, cell in cells.items() if column not in BASE]
    return " ".join([slots[0], "->", slots[1], *more])


def _written_rows() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for block in Path(__file__).with_suffix(".txt").read_text("utf-8").split("\n\n"):
        names, *rows = [line for line in block.splitlines() if not line.strip().startswith("#")] or [""]
        assert not found.keys() & names.split(), f"{names}: one of them has rows elsewhere"
        found |= dict.fromkeys(names.split(), tuple(row.strip() for row in rows))
    return found


ROWS = _written_rows()
ROWS |= {
    name: ROWS[base_type(name)][:1] if base_type(name) in ROWS else _catalog_rows(name)
    for name in replays_of_bench()
    if name not in ROWS
}
