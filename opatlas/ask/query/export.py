"""The stored rows of a database for other tools: one long typed table, and the tables of aiconfigurator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from opatlas.ask.query.database import OpenDatabase
from opatlas.data.csv_files import write_atomically, write_text
from opatlas.data.origin import are_one_device
from opatlas.progress import track
from opatlas.row.columns import (
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
    RUNTIME_PREFIX,
)
from opatlas.row.communication import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BY_KERNEL_TYPE,
    REDUCE_SCATTER,
    is_communication,
)
from opatlas.row.durations import Source
from opatlas.row.location import implementation_of, parse_path
from opatlas.row.siblings import MATMUL_FAMILY
from opatlas.row.slots import dtype_name, known_dtype
from opatlas.text import parse_whole

#: The columns of the long table, with their pandas dtypes; columns of tensors have the text of the CSVs.
COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("kernel_type", "implementation", "id"), "string"),
    **dict.fromkeys(("input_shapes", "input_dtypes", "input_formats"), "string"),
    **dict.fromkeys(("output_shapes", "output_dtypes", "output_formats"), "string"),
    **dict.fromkeys(("dtype", "format"), "string"),
    **dict.fromkeys(("batch", "m", "n", "k"), "Int64"),
    **dict.fromkeys(("sequences", "queries", "keys", "pairs", "heads", "kv_heads", "head_size", "pages"), "Int64"),
    **dict.fromkeys(("message_bytes", "num_devices", "topology_tier", "bytes"), "Int64"),
    **dict.fromkeys(("duration_us", "median_us", "std_us", "tflops", "gbps"), "Float64"),
    **dict.fromkeys(("samples", "machines"), "Int64"),
    "machine_spread": "Float64",
    "composed": "boolean",
    **dict.fromkeys(("quality", "device", "source", "cache", "instrument", "run_id"), "string"),
}
_CELLS = {
    "input_shapes": INPUT_SHAPES,
    "input_dtypes": INPUT_DTYPES,
    "input_formats": INPUT_FORMATS,
    "output_shapes": OUTPUT_SHAPES,
    "output_dtypes": OUTPUT_DTYPES,
    "output_formats": OUTPUT_FORMATS,
}


def long_table(database: OpenDatabase) -> pd.DataFrame:
    """Returns the rows of all kernel types and implementations as one table with the columns COLUMNS.

    Collectives are those of the newest communication database of the device. Cells that a row lacks are missing.

    Raises:
        OpAtlasError: a table cannot be read.
    """
    tables = [_rows_of(each, kernel_type) for each, kernel_type in _sources(database)]
    table: pd.DataFrame = pd.concat([each for each in tables if len(each)] or tables[:1], ignore_index=True)
    table = table.reindex(columns=list(COLUMNS)).astype(dict(COLUMNS))
    words = [name for name, dtype in COLUMNS.items() if dtype == "string"]
    table = table.assign(**{name: table[name].replace("", pd.NA) for name in words})
    return table


def of_other_devices(database: OpenDatabase) -> Counter[str]:
    """Returns the number of durations of other devices than the one that answers, which no table has, by device."""
    answers, counts = database.answers, Counter[str]()
    for kernel_type in database.kernel_types():
        for name in database.implementations:
            rows = answers.stored_rows(kernel_type, name)
            found = [*rows.left_out.values(), *(each for others in rows.others for each in others)]
            counts.update(each.device for each in found if not are_one_device(each.device, answers.device))
    return counts


def _sources(database: OpenDatabase) -> Iterator[tuple[OpenDatabase, str]]:
    """Yields the kernel types, each with its database; messages may be in a database of their own."""
    for kernel_type in track(database.kernel_types(), "export, kernel types"):
        yield database, kernel_type
    messages = database.messages
    if messages is not None and messages is not database:
        yield from ((messages, kernel_type) for kernel_type in messages.kernel_types())


def _rows_of(database: OpenDatabase, kernel_type: str) -> pd.DataFrame:
    parts = []
    for name in database.implementations:
        rows = database.answers.stored_rows(kernel_type, name)
        cells = {} if is_communication(kernel_type) else {own: rows.cells(column) for own, column in _CELLS.items()}
        if len(rows):
            parts.append(rows.typed().assign(**cells))
    table: pd.DataFrame = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))
    if "dtype" in table:
        table["dtype"] = table["dtype"].map(_dtype)
    table["kernel_type"] = kernel_type
    return table


def _dtype(word: object) -> str:
    known = known_dtype(str(word))
    return dtype_name(str(word)) if known is None else known.name


def write_parquet(table: pd.DataFrame, path: Path) -> None:
    """Writes a table as Parquet. Raises OpAtlasError."""
    content = pa.Table.from_pandas(table, preserve_index=False)

    def write(temporary: str) -> None:
        with open(temporary, "wb") as file:
            pyarrow.parquet.write_table(content, file)

    write_atomically(path, write)


# The tables of aiconfigurator: latencies are in milliseconds, and the first row of a key counts.

_OWN = ("framework", "version", "device", "op_name", "kernel_source")
#: Names of dtypes, of products by the dtype of the activation.
_GEMM_DTYPES = {"BF16": "bfloat16", "FLOAT8_E4M3FN": "fp8", "INT8": "sq"}
_GEMM_TYPES = (*MATMUL_FAMILY, "MatMul", "QuantBatchMatmulV3")
_ATTENTION = "FusedInferAttentionScore"
#: nccl-tests has these names, and counts elements.
_OP_NAMES = {
    ALL_REDUCE: "all_reduce",
    ALL_GATHER: "all_gather",
    REDUCE_SCATTER: "reduce_scatter",
    ALL_TO_ALL: "alltoall",
}
_MESSAGE_DTYPES = {"BF16": "half", "FLOAT16": "half", "INT8": "int8"}


@dataclass(frozen=True)
class PerfTable:
    """A table of aiconfigurator.

    Attributes:
        path: `{family}/{framework}/{version}/{table}.parquet`, below the folder of a system.
        rows: the rows; `latency` is in milliseconds.
    """

    path: Path
    rows: pd.DataFrame


def perf_tables(database: OpenDatabase) -> list[PerfTable]:
    """Returns the tables of aiconfigurator that the measured rows of a database fill.

    Each key has the fastest of its rows. Where rows do not say whether a composition of operators ran, `kernel_source`
    says so.
    """
    found: dict[tuple[str, str, str, str], list[dict[str, object]]] = {}
    for source, kernel_type in _sources(database):
        for family, table, sizes in _makers(kernel_type):
            for name, each in source.implementations.items():
                rows = source.answers.stored_rows(kernel_type, name)
                framework, version = _software(each.path, name)
                if not len(rows):
                    continue
                for line, own_row in zip(_records(rows.typed()), rows, strict=True):
                    row = sizes(kernel_type, line, own_row.cells)
                    if row is None:
                        continue
                    untold = ", may be a composition" if line["composed"] is None else ""
                    composed = ", composition" if line["composed"] else ""
                    captured = ", captured" if line["source"] == Source.CAPTURED.value else ""
                    own = {
                        "framework": framework,
                        "version": version,
                        "device": str(line["device"]).replace("_", " "),
                        "op_name": row.pop("op_name"),
                        "kernel_source": f"{framework} {kernel_type}{untold}{composed}{captured}",
                    }
                    latency = {"latency": float(line["duration_us"]) / 1e3}
                    found.setdefault((family, framework, version, table), []).append({**own, **row, **latency})
    return [
        PerfTable(Path(family, framework.lower(), version, f"{table}.parquet"), _fastest(pd.DataFrame(rows)))
        for (family, framework, version, table), rows in sorted(found.items())
    ]


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): cell for name, cell in row.items()} for row in table.to_dict("records")]


def write_perf_tables(tables: Sequence[PerfTable], folder: Path) -> None:
    """Writes tables as Parquet, and the files with which aiconfigurator finds them. Raises OpAtlasError."""
    by_folder: dict[Path, list[PerfTable]] = {}
    for table in tables:
        write_parquet(table.rows, folder / table.path)
        by_folder.setdefault(table.path.parent, []).append(table)
    for place, own in by_folder.items():
        _, framework, version = place.parts
        lines = ["schema_version: 1", "provenance: legacy", "runtime:"]
        lines += [f"  framework: {framework}", f'  version: "{version}"', "tables:"]
        for table in own:
            lines += [f"  {table.path.stem}:", "    status: partial"]
        write_text(folder / place / "collection_meta.yaml", "\n".join(lines) + "\n")


_Line = Mapping[str, Any]
_Maker = Callable[[str, _Line, Mapping[str, str]], "dict[str, object] | None"]


def _makers(kernel_type: str) -> Iterator[tuple[str, str, _Maker]]:
    """Yields the tables that rows of a kernel type belong to: family, name, and the function that makes a row."""
    if kernel_type in _GEMM_TYPES:
        yield "gemm", "gemm_perf", _gemm
    elif kernel_type == _ATTENTION:
        yield "attention", "context_attention_perf", _context_attention
        yield "attention", "generation_attention_perf", _generation_attention
    elif BY_KERNEL_TYPE.get(kernel_type) in _OP_NAMES:
        yield "comm", "nccl_perf", _message


def _gemm(kernel_type: str, line: _Line, cells: Mapping[str, str]) -> dict[str, object] | None:
    dtype = _GEMM_DTYPES.get(_dtype(line.get("dtype")))
    if dtype is None or line.get("batch") != 1:
        return None
    return {"op_name": "gemm", "gemm_dtype": dtype, **{name: _whole(line[name]) for name in ("m", "n", "k")}}


def _context_attention(kernel_type: str, line: _Line, cells: Mapping[str, str]) -> dict[str, object] | None:
    """A prompt without a prefix: each sequence has as many queries as keys."""
    lengths = _lengths(line, cells)
    if lengths is None or lengths[0] != lengths[1] or lengths[1] == 1:
        return None
    return {"op_name": "context_attention", **_attention(line, lengths[0], 0)}


def _generation_attention(kernel_type: str, line: _Line, cells: Mapping[str, str]) -> dict[str, object] | None:
    """One query for each sequence; isl + step is the number of its keys."""
    lengths = _lengths(line, cells)
    if lengths is None or lengths[0] != 1:
        return None
    return {"op_name": "generation_attention", **_attention(line, 1, lengths[1] - 1)}


def _attention(line: _Line, isl: int, step: int) -> dict[str, object]:
    return {
        "batch_size": _whole(line["sequences"]),
        "isl": isl,
        "num_heads": _whole(line["heads"]),
        "num_key_value_heads": _whole(line["kv_heads"]),
        "head_dim": _whole(line["head_size"]),
        "beam_width": 1,
        "attn_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16",
        "step": step,
        "window_size": 0,
    }


def _lengths(line: _Line, cells: Mapping[str, str]) -> tuple[int, int] | None:
    """Returns the queries and keys of each sequence; None if they differ, or if the attention is of another kind."""
    if _dtype(line.get("dtype")) != "BF16" or pd.isna(line.get("sequences", pd.NA)):
        return None
    sequences, queries, keys = (_whole(line[name]) for name in ("sequences", "queries", "keys"))
    lengths = [parse_whole(word) for word in cells.get(f"{RUNTIME_PREFIX}actual_seq_lengths_kv_values", "").split(",")]
    own = [end - start for start, end in zip([0, *_known(lengths)], _known(lengths), strict=False)]
    equal = len(set(lengths)) == 1 if sum(_known(lengths)) == keys else len(set(own)) == 1 and sum(own) == keys
    latent = len(cells.get(INPUT_SHAPES, "").split(";")) > _QUERY_ROPE and cells[INPUT_SHAPES].split(";")[_QUERY_ROPE]
    if latent or not equal or len(lengths) != sequences or queries % sequences or keys % sequences:
        return None
    return queries // sequences, keys // sequences


#: The input slot of FusedInferAttentionScore with the rotary part of latent queries.
_QUERY_ROPE = 24


def _known(lengths: Sequence[int | None]) -> list[int]:
    return [length or 0 for length in lengths]


def _message(kernel_type: str, line: _Line, cells: Mapping[str, str]) -> dict[str, object] | None:
    known = known_dtype(str(line.get("dtype")))
    if known is None or known.name not in _MESSAGE_DTYPES:
        return None
    collective, devices = BY_KERNEL_TYPE[kernel_type], _whole(line["num_devices"])
    # nccl-tests counts all chunks, and a row one.
    chunks = devices if collective in (ALL_GATHER, REDUCE_SCATTER) else 1
    return {
        "op_name": _OP_NAMES[collective],
        "nccl_dtype": _MESSAGE_DTYPES[known.name],
        "num_gpus": devices,
        "message_size": _whole(line["message_bytes"]) * chunks // known.bytes,
    }


def _whole(value: object) -> int:
    return int(str(value).partition(".")[0])


def _fastest(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns the fastest row of each key, by key: of equal keys aiconfigurator takes the first row."""
    key = ["op_name", *(name for name in rows.columns if name not in (*_OWN, "latency"))]
    fastest = rows.sort_values("latency", kind="stable").drop_duplicates(key)
    table: pd.DataFrame = fastest.sort_values(key, ignore_index=True)
    return table


def _software(path: Path, name: str) -> tuple[str, str]:
    """Returns the framework and its version, as the path of a database names them; else the implementation's name."""
    own, version = implementation_of(path)
    if own:
        return own, version
    place = parse_path(path)
    return (path.parent.name, next(iter(place[1].values()))) if place is not None else (name, "unknown")
