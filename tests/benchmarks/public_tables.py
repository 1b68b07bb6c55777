"""Durations of an H200 against the tables that aiconfigurator publishes, row by row.

    python -m tests.benchmarks.public_tables rows AIC DB [--each N]      writes rows of the same calls into a database
    python -m tests.benchmarks.public_tables ratios AIC DB [DB ...]      prints the ratios by family and framework

AIC is the folder `systems/data/h200_sxm` of aiconfigurator (github.com/ai-dynamo/aiconfigurator, Apache-2.0). Its
durations are means of CUDA graphs with a warm cache; those of OpAtlas are cold. So rows under LEAST_US are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Literal

import pandas as pd

from opatlas.data.database import Database
from opatlas.row import columns as col
from opatlas.row.quality import valid_duration
from opatlas.row.signature import signature, signatures
from tests.benchmarks.children import run_benchmark
from tests.benchmarks.databases import write_rows as write_tables

#: Shorter calls differ by the state of the cache more than by the kernel.
LEAST_US = 10.0
_MOST_KEYS = 2**21
_PAGE = 128
_LATENT, _ROPE = 512, 64
#: Slots of FusedInferAttentionScore: query, key, value, mask, lengths, block table, rotary parts.
_SLOTS = 31
_MASK, _LENGTHS, _KV_LENGTHS, _TABLE, _QUERY_ROPE, _KEY_ROPE = 4, 5, 6, 14, 24, 25

Cells = dict[str, str]
Facts = Mapping[str, int]


@dataclass(frozen=True)
class Family:
    """Calls of one kind.

    Attributes:
        kernel_type: their kernel type.
        table: the file below `{kind}/{framework}/{version}/`.
        where: the values of columns that the calls have.
        cells: returns the row of a call from the whole numbers of its record; None for a call without a row.
    """

    kernel_type: str
    table: str
    where: Mapping[str, object]
    cells: Callable[[Facts], Cells | None]


def _row(inputs: Sequence[str], dtypes: Sequence[str], output: str, **runtime: object) -> Cells:
    """Returns the cells of a row; an input "" is an empty slot."""
    shown = [dtype if shape else "DT_UNDEFINED" for shape, dtype in zip(inputs, dtypes, strict=True)]
    return {
        col.INPUT_SHAPES: ";".join(inputs),
        col.INPUT_DTYPES: ";".join(shown),
        col.INPUT_FORMATS: ";".join("ND" if shape else "NULL" for shape in inputs),
        col.OUTPUT_SHAPES: output,
        col.OUTPUT_DTYPES: "DT_BF16",
        col.OUTPUT_FORMATS: "ND",
        **{f"{col.RUNTIME_PREFIX}{name}": str(value) for name, value in runtime.items()},
    }


def _product(call: Facts) -> Cells:
    m, n, k = call["m"], call["n"], call["k"]
    return _row([f"{m},{k}", f"{n},{k}"], ["DT_BF16"] * 2, f"{m},{n}")


def _attention(slots: Mapping[int, str], output: str, **runtime: object) -> Cells:
    inputs = [slots.get(slot, "") for slot in range(_SLOTS)]
    other = {_MASK: "INT8", _LENGTHS: "INT64", _KV_LENGTHS: "INT64", _TABLE: "INT32"}
    return _row(inputs, [other.get(slot, "DT_BF16") for slot in range(_SLOTS)], output, **runtime)


def _lengths(lengths: Sequence[int]) -> str:
    return ",".join(map(str, lengths))


def _packed(call: Facts) -> Cells | None:
    batch, length, heads, kv_heads, size = (
        call[name] for name in ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    )
    if batch * length > _MOST_KEYS // 16:
        return None
    ends = _lengths([length * (i + 1) for i in range(batch)])
    tokens = batch * length
    kv = f"{tokens},{kv_heads},{size}"
    slots = {0: f"{tokens},{heads},{size}", 1: kv, 2: kv, _MASK: "2048,2048"}
    slots |= {_LENGTHS: f"{batch}", _KV_LENGTHS: f"{batch}"}
    return _attention(
        slots,
        slots[0],
        actual_seq_lengths_values=ends,
        actual_seq_lengths_kv_values=ends,
        num_heads=heads,
        num_key_value_heads=kv_heads,
        sparse_mode=3,
        input_layout="TND",
    )


def _decode(call: Facts) -> Cells | None:
    batch, heads, kv_heads, size = (
        call[name] for name in ("batch_size", "num_heads", "num_key_value_heads", "head_dim")
    )
    keys = call["isl"] + call["step"] - 1
    pages = -(-keys // _PAGE)
    if batch * keys > _MOST_KEYS:
        return None
    cache = f"{batch * pages},{_PAGE},{kv_heads * size}"
    slots = {0: f"{batch},{heads},{size}", 1: cache, 2: cache, _MASK: "2048,2048"}
    slots |= {_LENGTHS: f"{batch}", _KV_LENGTHS: f"{batch}", _TABLE: f"{batch},{pages}"}
    return _attention(
        slots,
        slots[0],
        actual_seq_lengths_values=_lengths(range(1, batch + 1)),
        actual_seq_lengths_kv_values=_lengths([keys] * batch),
        num_heads=heads,
        num_key_value_heads=kv_heads,
        sparse_mode=3,
        input_layout="TND",
        block_size=_PAGE,
    )


def _latent_decode(call: Facts) -> Cells | None:
    batch, keys, heads = call["batch_size"], call["isl"] + call["step"] - 1, call["num_heads"]
    pages = -(-keys // _PAGE)
    if batch * keys > _MOST_KEYS:
        return None
    cache = f"{batch * pages},1,{_PAGE},{_LATENT}"
    slots = {0: f"{batch},{heads},1,{_LATENT}", 1: cache, 2: cache, _KV_LENGTHS: f"{batch}", _TABLE: f"{batch},{pages}"}
    slots |= {_QUERY_ROPE: f"{batch},{heads},1,{_ROPE}", _KEY_ROPE: f"{batch * pages},1,{_PAGE},{_ROPE}"}
    return _attention(
        slots,
        f"{heads},{batch},1,{_LATENT}",
        actual_seq_lengths_kv_values=_lengths([keys] * batch),
        num_heads=heads,
        num_key_value_heads=1,
        sparse_mode=0,
        input_layout="BNSD_NBSD",
        block_size=_PAGE,
    )


def _absorbed(call: Facts) -> Cells:
    tokens, heads = call["num_tokens"], call["num_heads"]
    return _row([f"{heads},{tokens},128", f"{heads},128,512"], ["DT_BF16"] * 2, f"{heads},{tokens},512")


def _unabsorbed(call: Facts) -> Cells:
    tokens, heads = call["num_tokens"], call["num_heads"]
    return _row([f"{heads},{tokens},512", f"{heads},512,128"], ["DT_BF16"] * 2, f"{tokens},{heads},128")


_PLAIN = {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "window_size": 0, "head_dim": 128}
FAMILIES: Mapping[str, Family] = {
    "products": Family("MatMulV2", "gemm_perf", {"gemm_dtype": "bfloat16"}, _product),
    "packed attention": Family("FusedInferAttentionScore", "context_attention_perf", _PLAIN, _packed),
    "paged decode": Family("FusedInferAttentionScore", "generation_attention_perf", _PLAIN, _decode),
    "latent decode": Family(
        "FusedInferAttentionScore",
        "generation_mla_perf",
        {"mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"},
        _latent_decode,
    ),
    "absorbed products": Family(
        "BatchMatMulV2", "mla_bmm_perf", {"op_name": "mla_gen_pre", "bmm_dtype": "bfloat16"}, _absorbed
    ),
    "unabsorbed products": Family(
        "TransposeBatchMatMul", "mla_bmm_perf", {"op_name": "mla_gen_post", "bmm_dtype": "bfloat16"}, _unabsorbed
    ),
}


def records(aic: Path, family: Family) -> Iterator[tuple[str, float, Cells]]:
    """Yields framework and version, microseconds and the row of each published call of a family."""
    for path in sorted(aic.glob(f"*/*/*/{family.table}.parquet")):
        frame = pd.read_parquet(path)
        for column, value in family.where.items():
            frame = frame[frame[column] == value]
        frame = frame[frame["latency"] * 1000 >= LEAST_US]
        numbers = frame.select_dtypes("integer")
        label = f"{path.parents[1].name} {path.parent.name}"
        for call, milliseconds in zip(numbers.to_dict("records"), frame["latency"], strict=True):
            cells = family.cells({str(name): int(value) for name, value in call.items()})
            if cells is not None:
                yield label, milliseconds * 1000, cells


def write_rows(aic: Path, database: Path, each: int) -> int:
    """Writes `each` rows of each family, spread evenly over the published durations, and returns their number."""
    tables: dict[str, list[Cells]] = {}
    for family in FAMILIES.values():
        found = sorted(records(aic, family), key=lambda record: record[1])
        picked = sorted({int((i + 0.5) * len(found) / each) for i in range(each)}) if found else []
        tables.setdefault(family.kernel_type, []).extend(found[i][2] for i in picked)
    write_tables(
        database, {name: list({signature(name, row): row for row in rows}.values()) for name, rows in tables.items()}
    )
    return sum(map(len, tables.values()))


def durations(database: Path, kernel_type: str) -> dict[str, float]:
    """Returns the replayed durations of a database in microseconds, by signature."""
    frame = Database(database).read_or_empty(kernel_type).frame
    if col.AVERAGE not in frame.columns:
        return {}
    cells = map(valid_duration, frame[col.AVERAGE])
    return {name: us for name, us in zip(signatures(kernel_type, frame), cells, strict=True) if us is not None}


def print_ratios(aic: Path, databases: Sequence[Path]) -> None:
    """Prints the ratios of our durations to the published ones: median, and the 10th and 90th percentile."""
    print("| database | family | framework | rows | median | p10 | p90 |\n| --- | --- | --- | --- | --- | --- | --- |")
    for name, family in FAMILIES.items():
        published: dict[str, dict[str, float]] = {}
        for framework, us, cells in records(aic, family):
            published.setdefault(framework, {})[signature(family.kernel_type, cells)] = us
        for database in databases:
            ours = durations(database, family.kernel_type)
            for framework, theirs in published.items():
                ratios = sorted(us / theirs[row] for row, us in ours.items() if row in theirs)
                if len(ratios) > 1:
                    tenths = quantiles(ratios, n=10, method="inclusive")
                    figures = f"{median(ratios):.2f} | {tenths[0]:.2f} | {tenths[-1]:.2f}"
                    print(f"| {database.name} | {name} | {framework} | {len(ratios)} | {figures} |")


def main(what: Literal["rows", "ratios"], aic: Path, /, *databases: Path, each: int = 20) -> int:
    """Writes rows, or prints ratios.

    Args:
        what: rows or ratios.
        aic: the folder of published tables.
        databases: one for rows, or some with durations.
        each: rows of each family.
    """
    if what == "rows":
        print(f"{write_rows(aic, databases[0], each)} rows")
    else:
        print_ratios(aic, databases)
    return 0


if __name__ == "__main__":
    run_benchmark(main)
