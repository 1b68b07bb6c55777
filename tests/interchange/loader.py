"""Finds durations in a database of an NPU by the rules of msmodeling's loader (ProfilingDataSource), without torch.

The rules are those of msmodeling 84fec85. Left out is what finds a duration where no row has the shapes asked for
(padding to blocks, interpolation): an answer here is the duration of one row. What the loader would stop at raises.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

Shape = tuple[int, ...]
#: A tensor of the simulation: its shape, and torch's name of its dtype.
Tensor = tuple[Shape, str]

#: The loader takes the first that has a positive number.
DURATIONS = ("Average Duration(us)", "Profiling Average Duration(us)", "Duration(us)")
#: The profiler's name that a dtype of torch must have to the letter: half precision counts as bfloat16.
DTYPES = {
    "bfloat16": "DT_BF16", "float16": "DT_BF16", "float32": "FLOAT", "int8": "INT8", "int32": "INT32",
    "int64": "INT64", "bool": "BOOL",
}  # fmt: skip
_BYTES = {"DT_BF16": 2, "DT_FLOAT16": 2, "FLOAT": 4, "DT_FLOAT": 4, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8}
_PRODUCTS = {"MatMulV2", "MatMulV3", "MatMulCommon", "QuantBatchMatmulV3", "BatchMatMulV2", "GroupedMatmul"}
_ROPES = {"ApplyRotaryPosEmb", "_triton_rope", "split_qkv_rmsnorm_rope_kernel"}
#: Their FLOAT and DT_BF16 are one dtype.
_LENIENT = {*_ROPES, "MatMulV2", "PadV3", "PadV3AiCore", "MoeGatingTopK"}
_LENGTHS_APART = 16


class Loader:
    """A database as msmodeling sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "op_mapping.yaml"
        content = yaml.safe_load(path.read_text()) if path.exists() else {}
        self._operators = content.get("operator_mappings", {})
        self._messages = (folder / content.get("communication_data_ref", ".")).resolve()

    def duration_us(self, operator: str, *inputs: Tensor, output: Tensor | None = None) -> float | None:
        """The duration of a call of a compute operator; None where the database has none."""
        fields = self._operators.get(operator)
        if fields is None:
            return None
        if fields.get("zero_cost") or fields.get("accepted_miss"):
            return 0.0
        if fields.get("query_mode") == "elementwise" and output is not None:
            return self._by_output(fields["kernel_type"], output)
        count = fields.get("tc_input_count")
        for kernel_type, row in self._rows(fields):
            if _matches(kernel_type, row, inputs[:count], count):
                return _duration(row)
        return None

    def attention_us(
        self, operator: str, query: Tensor, key: Shape, lengths: Sequence[int], sparse_mode: int = 3
    ) -> float | None:
        """The duration of an attention of `lengths`, those of keys and values."""
        fields = self._operators.get(operator)
        average = sum(lengths) // len(lengths)
        shape, dtype = query
        layout = {3: "TND", 4: "BNSD_NBSD"}.get(len(shape))
        found = []
        for _, row in self._rows(fields) if fields is not None else ():
            if pd.isna(row.get("Runtime avg_seq_len")):
                continue
            apart = abs(int(row["Runtime avg_seq_len"]) - average)
            wanted = {
                "Runtime sparse_mode": sparse_mode,
                "Runtime num_key_value_heads": key[-2],
                "Runtime input_layout": layout,
            }
            if (
                apart <= _LENGTHS_APART
                and shapes_of(str(row["Input Shapes"]).split(";")[0]) == [shape]
                and str(row["Input Data Types"]).split(";")[0] == DTYPES[dtype]
                and all(row.get(name) == value for name, value in wanted.items() if name in row.index)
            ):
                found.append((apart, _duration(row)))
        return min(found)[1] if found else None

    def message_us(self, operator: str, message_bytes: int, devices: int, tier: int) -> float | None:
        """The duration of a message of so many bytes, as HCCL counts them."""
        fields = self._operators.get(operator)
        if fields is None:
            return None
        name = f"{fields['kernel_type']}.csv"
        path = next((folder / name for folder in (self._messages, self.folder) if (folder / name).exists()), None)
        if path is None:
            return None
        frame = pd.read_csv(path)
        asked = (frame["message_bytes"] == message_bytes) & (frame["num_devices"] == devices)
        for _, row in frame[asked & (frame["topology_tier"] == tier)].iterrows():
            if (us := _duration(row)) is not None:
                return us
        return None

    def _rows(self, fields: dict[str, Any]) -> Iterator[tuple[str, pd.Series]]:
        """The rows with a duration, of the kernel type and then of its alternates."""
        for kernel_type in dict.fromkeys([fields["kernel_type"], *fields.get("alternate_kernel_types", [])]):
            path = self.folder / f"{kernel_type}.csv"
            for _, row in pd.read_csv(path).iterrows() if path.exists() else ():
                if _duration(row) is not None:
                    yield kernel_type, row

    def _by_output(self, kernel_type: str, output: Tensor) -> float | None:
        shape, dtype = output
        for _, row in self._rows({"kernel_type": kernel_type}):
            theirs = shapes_of(str(row["Output Shapes"]))
            if theirs and _without_batch(theirs[0]) == _without_batch(shape):
                (name, *_), us = words_of(row["Output Data Types"]), _duration(row)
                assert us is not None
                return us if name == DTYPES[dtype] else us * _BYTES[DTYPES[dtype]] / _BYTES[name]
        return None


def shapes_of(cell: str) -> list[Shape]:
    """The shapes of a cell: empty slots are passed over, and words that are no numbers raise ValueError."""
    parts = [part.strip() for part in cell.strip().strip('"').split(";")]
    return [() if part == "()" else tuple(int(size) for size in part.split(",")) for part in parts if part]


def words_of(cell: object) -> list[str]:
    """The dtypes or formats of a cell; empty slots are passed over."""
    return [word.strip() for word in str(cell).strip().strip('"').split(";") if word.strip()]


def _duration(row: pd.Series) -> float | None:
    for column in DURATIONS:
        number = pd.to_numeric(row.get(column), errors="coerce")
        if number is not None and math.isfinite(number) and number > 0:
            return float(number)
    return None


def _matches(kernel_type: str, row: pd.Series, inputs: Sequence[Tensor], count: int | None) -> bool:
    shapes, dtypes = shapes_of(str(row["Input Shapes"]))[:count], words_of(row["Input Data Types"])[:count]
    formats = words_of(row["Input Formats"])[:count]
    asked = list(inputs)
    if kernel_type in _ROPES and len(asked) >= 2:
        # Both operands change places, and heads come behind the sequence.
        asked[:2] = [((*s[:-3], s[-2], s[-3], s[-1]) if len(s) == 4 else s, d) for s, d in reversed(asked[:2])]
    if kernel_type == "SwiGlu" and len(asked) == 2 and len(shapes) == 1:
        (gate, dtype), (up, _) = asked
        asked = [((*_without_batch(gate)[:-1], gate[-1] + up[-1]), dtype)]
    if len(asked) != len(shapes):
        return False
    for slot, (shape, dtype) in enumerate(asked):
        if slot >= len(dtypes) or not _same_dtype(kernel_type, DTYPES[dtype], dtypes[slot]):
            return False
        theirs = shapes[slot]
        if slot < len(formats) and formats[slot] == "FRACTAL_NZ" and len(theirs) >= 4:
            *batch, h, w, rows, columns = theirs
            theirs = (*batch, h * columns, w * rows)
        mine = _without_batch(shape)
        is_transposed = kernel_type in _PRODUCTS and slot > 0 and mine[:-2] + mine[:-3:-1] == theirs
        if _without_batch(theirs) != mine and not is_transposed:
            return False
    return True


def _same_dtype(kernel_type: str, asked: str, theirs: str) -> bool:
    return asked == theirs or (kernel_type in _LENIENT and {asked, theirs} == {"DT_BF16", "FLOAT"})


def _without_batch(shape: Shape) -> Shape:
    return shape[1:] if len(shape) > 1 and shape[0] == 1 else shape
