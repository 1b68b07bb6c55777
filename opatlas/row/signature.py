"""The signature of a row: rows with equal signatures are the same case. Row ids are derived from it.

Ingest, theory rows, replays and write-back all compare rows with these functions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from opatlas.errors import OpAtlasError
from opatlas.row import columns as col
from opatlas.row.communication import COLLECTIVES, is_communication, message_signature
from opatlas.row.slots import (
    SlotNumbers,
    dtype_name,
    format_name,
    optional_inputs,
    optional_outputs,
    slot_words,
    split_cell,
)
from opatlas.text import parse_real

if TYPE_CHECKING:
    import pandas as pd

Words = tuple[tuple[str, str, str], ...]

_SLOT_COLUMNS = (*col.INPUT_SLOTS, *col.OUTPUT_SLOTS)
_SLOT = _SHAPE, _DTYPE, _FORMAT = 0, 1, 2


def signature(kernel_type: str, row: Mapping[str, str]) -> str:
    """Returns the signature of a row.

    Args:
        kernel_type: the profiler's `Type`, normalized.
        row: cells by column name; missing columns count as empty.

    Returns:
        Normalized input shapes, dtypes and formats, output shapes and dtypes, then the columns that the kernel type
        adds. For a collective, the message.
    """
    if is_communication(kernel_type):
        return message_signature(row)
    cells = [row.get(column, "") for column in _SLOT_COLUMNS]
    extra = [row.get(column, "") for column in _extra_columns(kernel_type, row)]
    return _build(kernel_type, cells, extra)


def signatures(kernel_type: str, frame: pd.DataFrame) -> list[str]:
    """Returns the signature of each row of a table of text cells."""
    return signatures_of(kernel_type, frame.columns, lambda name: column_cells(frame, name))


def signatures_of(kernel_type: str, names: Container[str], cells: Callable[[str], Sequence[str]]) -> list[str]:
    """Returns the signature of each row.

    Args:
        names: the columns that there are.
        cells: returns the cells of a column; empty cells if the column is missing.
    """
    if is_communication(kernel_type):
        rows = zip(*map(cells, col.MESSAGE), strict=True)
        return [message_signature(dict(zip(col.MESSAGE, row, strict=True))) for row in rows]
    columns = (*_SLOT_COLUMNS, *_extra_columns(kernel_type, names))
    return [_build(kernel_type, row[:6], row[6:]) for row in zip(*map(cells, columns), strict=True)]


def column_cells(frame: pd.DataFrame, name: str) -> list[str]:
    """Returns the cells of a column of a table of text cells; empty cells if the column is missing."""
    return frame[name].tolist() if name in frame.columns else [""] * len(frame)


def row_cells(frame: pd.DataFrame) -> Iterator[dict[str, str]]:
    """Yields the cells of each row of a table of text cells by column, several times faster than `to_dict`."""
    names = [str(name) for name in frame.columns]
    columns = [frame.iloc[:, i].tolist() for i in range(len(names))]
    for row in zip(*columns, strict=True) if columns else [()] * len(frame):
        yield dict(zip(names, row, strict=True))


def digest(kernel_type: str, signature: str) -> str:
    """Returns twelve hexadecimal digits that stand for a signature in ids and file names."""
    return blake2b(f"{kernel_type}|{signature}".encode(), digest_size=6).hexdigest()


_FAMILY_TAIL = re.compile(r"(?:_kernel)_\d+$")


def normalized_kernel_type(name: str) -> str:
    """Returns a kernel type without the number of a Triton launch variant.

    `muls_add_kernel_1` becomes `muls_add_kernel`.
    """
    return _FAMILY_TAIL.sub("_kernel", name.strip())


def _build(kernel_type: str, cells: Sequence[str], extra: Sequence[str]) -> str:
    rule, inputs, outputs = _RULES.get(kernel_type), optional_inputs(kernel_type), optional_outputs(kernel_type)
    if rule is None:
        text = f"{_text(cells[0], cells[1], cells[2], inputs)}|{_text(cells[3], cells[4], None, outputs)}"
    else:
        text = rule(slot_words(*cells[:3], inputs), slot_words(*cells[3:], outputs))
    return text + _extra_text(extra) if any(extra) else text


def _text(shapes: str, dtypes: str, formats: str | None, optional: SlotNumbers) -> str:
    """Returns the slots of three cells as `shapes|dtypes|formats`, or as `shapes|dtypes` if `formats` is None."""
    # The fast path for most rows: every slot has dimensions, so no slot is absent, and each cell is normalized alone.
    text = shapes.strip('"')
    rest, count = _dtypes_and_formats(dtypes, formats)
    if (
        text.count(";") + 1 == count
        and text.replace(",", "").replace(";", "").isdigit()
        and ";;" not in text
        and text[0] != ";" != text[-1]
    ):
        return text + rest
    words = slot_words(shapes, dtypes, formats or "", optional)
    return "|".join(_column(words, which) for which in _SLOT[: 2 if formats is None else 3])


@lru_cache(maxsize=4096)
def _dtypes_and_formats(dtypes: str, formats: str | None) -> tuple[str, int]:
    """Returns the text of two cells, and their number of slots; 0 if they differ in it."""
    names = [dtype_name(word) for word in split_cell(dtypes)]
    if formats is None:
        return f"|{';'.join(names)}", len(names)
    words = [format_name(word) for word in split_cell(formats)]
    return f"|{';'.join(names)}|{';'.join(words)}", len(names) if len(words) == len(names) else 0


def _first_input(inputs: Words, outputs: Words) -> str:
    """Returns the signature of a kernel whose other inputs describe the call (offsets, sizes, a permutation)."""
    return f"{_input(inputs)}|{_column(outputs, _SHAPE)}|{_column(outputs, _DTYPE)}"


def _source_and_indices(inputs: Words, outputs: Words) -> str:
    """Returns the signature of an Index without slot 2, which lists the steps of the source's axes.

    Slot 1 has an element for each axis up to the last indexed axis. Slots from 3 on are the indices. The shape grid of
    msmodeling has the indices in slot 2 and one element in slot 3: `16,51;1;11;1 -> 11,51`.
    """
    axes, indices = inputs[1:2], inputs[3:]
    if [slot[_SHAPE] for slot in indices] == ["1"] and outputs:
        size = inputs[2][_SHAPE]
        if outputs[0][_SHAPE].split(",") == [size, *inputs[0][_SHAPE].split(",")[1:]]:
            indices = inputs[2:3]
    return _all((*inputs[:1], *axes, *indices), outputs)


def _with_output_formats(inputs: Words, outputs: Words) -> str:
    """Returns a signature with output formats: 32,32 is 2,2,16,16 in FRACTAL_NZ and in FRACTAL_Z."""
    return f"{_all(inputs, outputs)}|{_column(outputs, _FORMAT)}"


_RULES: dict[str, Callable[[Words, Words], str]] = {
    "Index": _source_and_indices,
    "Slice": _first_input,
    "SliceAiCore": _first_input,
    "Transpose": _first_input,
    "TransposeAiCore": _first_input,
    "TransData": _with_output_formats,
}


def _all(inputs: Words, outputs: Words) -> str:
    return "|".join([*(_column(inputs, which) for which in _SLOT), *(_column(outputs, which) for which in _SLOT[:2])])


def reads_first_input(kernel_type: str) -> bool:
    """Returns whether the signature of a kernel type has the first input only; the others describe the call."""
    return _RULES.get(kernel_type) is _first_input


def _input(inputs: Words) -> str:
    return "|".join(inputs[0]) if inputs else "||"


def _column(words: Words, which: int) -> str:
    return ";".join([slot[which] for slot in words])


#: Kernels that read keys in pages; the lengths of the sequences say how many.
_PAGED = frozenset(
    {"FusedInferAttentionScore", "LightningIndexer", "SparseFlashAttention", "_topk_index_kernel"}
    | {"NsaCompressAttentionInfer", "NsaSelectedAttentionInfer", "SparseAttentionScore", "_decode_index_score_kernel"}
)


_LENGTHS = (*col.RUNTIME_IN_SIGNATURE, *col.LENGTHS_IN_SIGNATURE)


def _extra_columns(kernel_type: str, columns: Container[str]) -> Sequence[str]:
    """Returns the extra columns of a kernel type if the row has one of these columns; otherwise no columns."""
    if col.SAMPLE in columns:
        return (col.SAMPLE,)
    if col.TASK_DIGEST in columns:
        return col.TASK
    if col.STEP in columns:
        return col.STEP_COLUMNS
    if kernel_type in col.EXPERT_PARALLEL:
        wanted: Sequence[str] = col.EXPERTS
    elif kernel_type in col.GROUPED:
        wanted = (col.EXPERT_LOAD,)
    else:
        wanted = _LENGTHS if kernel_type in _PAGED else col.RUNTIME_IN_SIGNATURE
    return wanted if any(map(columns.__contains__, wanted)) else ()


def _extra_text(extra: Sequence[str]) -> str:
    """Returns the extra columns as text. If the lengths of the keys are empty, adds the columns that imply them."""
    values, lengths = extra[: len(col.RUNTIME_IN_SIGNATURE)], extra[len(col.RUNTIME_IN_SIGNATURE) :]
    texts = [_plain(cell) for cell in values]
    # Without a window, or a load, a signature is that of before there were any.
    texts = texts if texts[-1:] != [""] else texts[:-1]
    if lengths and not values[_KV_VALUES]:
        blocks, *averages = lengths
        average = next(filter(None, map(_average, averages)), "")
        if _plain(blocks) or average:
            return "|" + "|".join([*texts, _plain(blocks), average])
    return "|" + "|".join(texts) if any(texts) else ""


_KV_VALUES = 1


def _average(cell: str) -> str:
    """Returns the mean number of keys as replays use it; "" if unknown (older tools write -1)."""
    number = parse_real(_plain(cell)) or 0.0
    return str(round(number)) if math.isfinite(number) and number > 0 else ""


def _plain(cell: str) -> str:
    return "".join(cell.split()).strip("\"'").upper()


#: Characters of the readable part of an id.
_READABLE = 72
_SEPARATORS = str.maketrans({",": "x", ";": "_"})
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.x+-]+")


def make_case_id(kernel_type: str, signature: str, row_digest: str = "") -> str:
    """Returns the id of a row: a readable part, then a unique digest.

    `MatMulV2-4096x4096_4096x1024-BF16_BF16-4096x1024-1f0c9a72b3de`, or for a collective
    `hcom_allReduce_-1048576-BF16-16-tier1-0c9a72b3de1f`.
    """
    if is_communication(kernel_type):
        message_bytes, devices, dtype, tier = signature.split("|")
        readable = f"{message_bytes}-{dtype}-{devices}-tier{tier}"
    elif kernel_type == col.STEP:
        readable = signature.split("|")[5].lower().replace(",", "-")
    else:
        inputs, dtypes, _formats, outputs = signature.split("|")[:4]
        readable = f"{inputs}-{dtypes}-{outputs}".translate(_SEPARATORS)
    return f"{kernel_type}-{_NOT_IN_IDS.sub('', readable)[:_READABLE]}-{row_digest or digest(kernel_type, signature)}"


def case_id_in(nodeid: str) -> str:
    """Returns the id of the row in a node id of pytest: the text in the last brackets."""
    return nodeid.rpartition("[")[2].removesuffix("]")


#: Words of the field for kernel types with other names.
_ALIASES = {"attention": "FusedInferAttentionScore", **{each.name: each.kernel_type for each in COLLECTIVES}}
_VERSION = re.compile(r"v\d+$")


def kernel_types_meant(word: str, known: Iterable[str]) -> list[str]:
    """Returns the kernel types that a word of a user means, the nearest first; the word itself if it means none.

    The first that fits: the name; names in any case, without `_`, and of all versions where the word has none;
    attention, or a collective as torch names it.

    Args:
        word: as on a command line: `MatMulV2`, `matmul`, `rms_norm`, `attention`, `all_reduce`.
        known: the kernel types to choose from.
    """
    names = list(known)
    if word in names:
        return [word]
    asked = _letters(word)
    if found := [name for name in names if asked in (_letters(name), _VERSION.sub("", _letters(name)))]:
        return sorted(found, key=lambda name: _letters(name) != asked)
    meant = next((name for alias, name in _ALIASES.items() if _letters(alias) == asked), "")
    return [meant] if meant in names else [word]


def _letters(name: str) -> str:
    return name.lower().replace("_", "")


@dataclass(frozen=True)
class RowChoice:
    """The rows that a user names on a command line.

    Attributes:
        names: kernel types, ids, node ids of pytest, digests at the end of ids, or parts of ids in any case; empty
            for all rows.
        kernel_types: kernel types that are known: their names are not parts of ids, so that Mul is not MatMulV2.
    """

    names: Sequence[str] = ()
    kernel_types: Collection[str] = ()

    def holds(self, kernel_type: str, signature: str) -> bool:
        """Returns whether a row is chosen."""
        if not self.names or kernel_type in self.names:
            return True
        parts = [name for name in self.names if name not in self.kernel_types]
        case_id = make_case_id(kernel_type, signature).lower() if parts else ""
        return any((case_id_in(name) if "[" in name else name).lower() in case_id for name in parts)

    def expect(self, found: int, where: str) -> None:
        """Raises OpAtlasError if names were given and `found` is 0; `where` names the place of the search."""
        if self.names and not found:
            raise OpAtlasError(f"no row of {where} is named {' or '.join(self.names)}: give a kernel type or an id")
