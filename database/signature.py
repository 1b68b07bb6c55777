"""The signature of a row: rows with equal signatures are the same case.

One function for everybody who compares rows: ingest, theory rows, replay matching, write-back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

import pandas as pd

from database.schema import EP_SIZE, INPUT_SLOTS, OUTPUT_SLOTS, RUNTIME_IN_SIGNATURE
from database.slots import slot_words

Words = tuple[tuple[str, str, str], ...]

_SHAPE, _DTYPE, _FORMAT = 0, 1, 2


def signature(kernel_type: str, row: Mapping[str, str]) -> str:
    """The signature of one row.

    Args:
        kernel_type: the profiler's `Type`, normalized.
        row: cells by column name; missing columns count as empty.

    Returns:
        Text that is equal for the same case and differs for another: input shapes, dtypes and
        formats, output shapes and dtypes, normalized, then what the kernel type adds.
    """
    cells = [row.get(column, "") for column in (*INPUT_SLOTS, *OUTPUT_SLOTS)]
    extra = [row.get(column, "") for column in _extra_columns(kernel_type, row)]
    return _build(kernel_type, cells, extra)


def signatures(kernel_type: str, frame: pd.DataFrame) -> list[str]:
    """The signature of every row of a table of text cells, in its order."""

    def cells(column: str) -> Sequence[str]:
        return frame[column].tolist() if column in frame.columns else [""] * len(frame)

    slots = [cells(column) for column in (*INPUT_SLOTS, *OUTPUT_SLOTS)]
    extra = [cells(column) for column in _extra_columns(kernel_type, frame.columns)]
    return [_build(kernel_type, row[:6], row[6:]) for row in zip(*slots, *extra, strict=True)]


def digest(kernel_type: str, signature: str) -> str:
    """Twelve hexadecimal digits that name a signature in ids and file names."""
    return blake2b(f"{kernel_type}|{signature}".encode(), digest_size=6).hexdigest()


_FAMILY_TAIL = re.compile(r"(?:_kernel)_\d+$")


def normalized_kernel_type(name: str) -> str:
    """A kernel type without the launch variant that Triton kernels carry.

    `split_qkv_rmsnorm_rope_kernel_0` and `muls_add_kernel_1` are `..._kernel`.
    """
    return _FAMILY_TAIL.sub("_kernel", name.strip())


def _build(kernel_type: str, cells: Sequence[str], extra: Sequence[str]) -> str:
    inputs = slot_words(cells[0], cells[1], cells[2])
    outputs = slot_words(cells[3], cells[4], cells[5])
    text = _RULES.get(kernel_type, _every_slot)(inputs, outputs)
    if any(extra):
        text += "|" + "|".join(_plain(cell) for cell in extra)
    return text


def _every_slot(inputs: Words, outputs: Words) -> str:
    return f"{_column(inputs, _SHAPE)}|{_column(inputs, _DTYPE)}|{_column(inputs, _FORMAT)}|" + _outputs(outputs)


def _first_input(inputs: Words, outputs: Words) -> str:
    """The other inputs only describe the call (offsets, sizes, a permutation)."""
    return _every_slot(inputs[:1], outputs)


def _source_and_rows(inputs: Words, outputs: Words) -> str:
    """Index: the source, and how many rows are taken from it."""
    rows = outputs[0][_SHAPE].partition(",")[0] if outputs else ""
    dtypes = _column(outputs, _DTYPE)
    return f"{_column(inputs[:1], _SHAPE)}|{_column(inputs[:1], _DTYPE)}|{_column(inputs[:1], _FORMAT)}|{rows}|{dtypes}"


_RULES: dict[str, Callable[[Words, Words], str]] = {
    "Index": _source_and_rows,
    "Slice": _first_input,
    "SliceAiCore": _first_input,
    "Transpose": _first_input,
    "TransposeAiCore": _first_input,
}


def _column(words: Words, which: int) -> str:
    return ";".join([slot[which] for slot in words])


def _outputs(outputs: Words) -> str:
    return f"{_column(outputs, _SHAPE)}|{_column(outputs, _DTYPE)}"


def _extra_columns(kernel_type: str, columns: Mapping[str, str] | pd.Index) -> list[str]:
    wanted = (EP_SIZE,) if kernel_type == "DispatchFFNCombine" else RUNTIME_IN_SIGNATURE
    return [column for column in wanted if column in columns]


def _plain(cell: str) -> str:
    return "".join(cell.split()).strip("\"'").upper()
