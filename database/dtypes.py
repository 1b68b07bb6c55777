"""Data types by the profiler's names: what they are in torch, and how many bytes they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from database.schema import INPUT_DTYPES, OUTPUT_DTYPES
from database.slots import dtype_name, split_cell


@dataclass(frozen=True)
class Dtype:
    """`torch_name` is the attribute of torch; `is_float` tells real numbers from integers and bool."""

    name: str
    torch_name: str
    bytes: int
    is_float: bool = False


_KNOWN = {
    dtype.name: dtype
    for dtype in (
        Dtype("FLOAT", "float32", 4, is_float=True),
        Dtype("FLOAT16", "float16", 2, is_float=True),
        Dtype("BF16", "bfloat16", 2, is_float=True),
        Dtype("DOUBLE", "float64", 8, is_float=True),
        Dtype("INT4", "int4", 1),
        Dtype("INT8", "int8", 1),
        Dtype("INT16", "int16", 2),
        Dtype("INT32", "int32", 4),
        Dtype("INT64", "int64", 8),
        Dtype("UINT8", "uint8", 1),
        Dtype("UINT16", "uint16", 2),
        Dtype("UINT32", "uint32", 4),
        Dtype("UINT64", "uint64", 8),
        Dtype("BOOL", "bool", 1),
        Dtype("COMPLEX64", "complex64", 8),
    )
}
_SYNONYMS = {"FLOAT32": "FLOAT", "BFLOAT16": "BF16", "FP16": "FLOAT16", "FP32": "FLOAT", "FLOAT64": "DOUBLE"}


#: What profilers call the dtypes that are known.
DTYPE_NAMES = tuple(_KNOWN)


@cache
def known_dtype(name: str) -> Dtype | None:
    """The dtype of a profiler's name ("DT_BF16", "BF16", "FLOAT"); None for one that is not known."""
    name = dtype_name(name.strip().upper())
    return _KNOWN.get(_SYNONYMS.get(name, name))


def unknown_dtypes(cells: Mapping[str, str]) -> tuple[str, ...]:
    """Dtypes of a row that OpAtlas cannot name (65534).

    Such a row is kept: its duration is measured whatever the tensors hold. A newer OpAtlas may know
    the dtype, and a replay that cannot build the tensors says so.
    """
    unknown = {*_unknown_words(cells[INPUT_DTYPES]), *_unknown_words(cells[OUTPUT_DTYPES])}
    return tuple(sorted(unknown))


@lru_cache(maxsize=4096)
def _unknown_words(dtypes: str) -> tuple[str, ...]:
    return tuple(word for word in split_cell(dtypes) if word and known_dtype(word) is None)
