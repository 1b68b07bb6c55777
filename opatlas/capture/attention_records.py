"""Records of attention calls, as a serving process writes them: one JSON object a line (`CallRecord`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from io import BufferedIOBase
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from opatlas.files import BROKEN_GZIP, open_stream
from opatlas.row.columns import INPUT_SHAPES, RUNTIME_IN_SIGNATURE, RUNTIME_PREFIX
from opatlas.row.quality import number_cell
from opatlas.row.slots import split_cell
from opatlas.text import MOST_DIGITS, NOT_TEXT, is_text
from opatlas.typed_json import DecodeError, decode

Shape = tuple[int, ...]
_RAW = RUNTIME_PREFIX + "operator_input_shapes_raw"
#: Slots of FusedInferAttentionScore's 31 inputs.
_QUERY, _KEY, _VALUE, _MASK, _KV_LENGTHS, _BLOCK_TABLE = 0, 1, 2, 4, 6, 14
SHAPES = tuple(
    RUNTIME_PREFIX + name for name in ("actual_seq_lengths_shape", "actual_seq_lengths_kv_shape", "block_table_shape")
)
AVG_SEQ_LEN = RUNTIME_PREFIX + "avg_seq_len"
VALID_BLOCKS = RUNTIME_PREFIX + "block_table_valid_blocks"
Q_VALUES, KV_VALUES = RUNTIME_IN_SIGNATURE[:2]
_LAYOUT = RUNTIME_PREFIX + "input_layout"

#: Sizes and lengths have fewer digits than MOST_DIGITS.
_Size = Annotated[int, Meta(ge=0, lt=10**MOST_DIGITS)]
_Sizes = tuple[_Size, ...]


class JoinKey(NamedTuple):
    """The facts that both a capture and a recorded call have. None stands for a missing tensor or list."""

    query: Shape | None
    key: Shape | None
    value: Shape | None
    kv_sequences: int | None
    mask: Shape | None
    block_table: Shape | None

    def __str__(self) -> str:
        named = zip(self._fields, self, strict=True)
        return "; ".join(f"{name.replace('_', ' ')} {_cell(part) or 'none'}" for name, part in named)


class CallRecord(msgspec.Struct, frozen=True):
    """A call of attention. Each field may be null or missing; other fields are ignored.

    Attributes:
        query_shape, key_shape, value_shape, atten_mask_shape, block_table_shape: lists of dimensions.
        actual_seq_lengths, actual_seq_lengths_kv: lists of lengths, as passed to the call.
        block_table_valid_blocks: blocks in use: one number, or one a sequence.
        num_heads, num_key_value_heads, sparse_mode, input_layout, block_size: arguments of the call.
    """

    query_shape: _Sizes | None = None
    key_shape: _Sizes | None = None
    value_shape: _Sizes | None = None
    atten_mask_shape: _Sizes | None = None
    block_table_shape: _Sizes | None = None
    actual_seq_lengths: _Sizes | None = None
    actual_seq_lengths_kv: _Sizes | None = None
    block_table_valid_blocks: _Size | _Sizes | None = None
    num_heads: _Size | None = None
    num_key_value_heads: _Size | None = None
    sparse_mode: _Size | None = None
    #: `BSND`, `TND_NTD`. A signature drops blanks, quotes and brackets, so that no row would have such a layout.
    input_layout: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.-]*\Z")] | None = None
    block_size: _Size | None = None

    @property
    def key(self) -> JoinKey:
        sequences = None if self.actual_seq_lengths_kv is None else len(self.actual_seq_lengths_kv)
        shapes = self.query_shape, self.key_shape, self.value_shape
        return JoinKey(*shapes, sequences, self.atten_mask_shape, self.block_table_shape)

    def cells(self) -> dict[str, str]:
        """Returns the Runtime cells of the call's row."""
        lengths, kv_lengths = self.actual_seq_lengths, self.actual_seq_lengths_kv
        values = (
            *(lengths, kv_lengths, self.num_heads),
            # 0 means as many key heads as query heads.
            *(self.num_key_value_heads or self.num_heads, self.sparse_mode, self.input_layout, self.block_size),
        )
        shapes = (
            None if lengths is None else len(lengths),
            None if kv_lengths is None else len(kv_lengths),
            self.block_table_shape,
        )
        return {
            **{name: _cell(value) for name, value in zip(RUNTIME_IN_SIGNATURE, values, strict=True)},
            AVG_SEQ_LEN: self._average(),
            VALID_BLOCKS: _cell(self.block_table_valid_blocks),
            **{name: _cell(shape) for name, shape in zip(SHAPES, shapes, strict=True)},
        }

    def _average(self) -> str:
        """Returns the mean number of keys of a sequence."""
        lengths = self.actual_seq_lengths_kv
        if not lengths:
            return ""
        # Lengths of TND without a block table are cumulative sums.
        is_sum = self.input_layout == "TND" and self.block_table_shape is None
        return number_cell((lengths[-1] if is_sum else sum(lengths)) / len(lengths))


def row_key(cells: Mapping[str, str]) -> JoinKey | None:
    """Returns the key of an attention row; None if a shape is invalid."""
    slots = split_cell(cells.get(_RAW) or cells.get(INPUT_SHAPES, ""))
    try:
        shapes = [_shape(slots[at]) if at < len(slots) else None for at in range(_BLOCK_TABLE + 1)]
        _, kv_shape, table_shape = (_shape(split_cell(cells.get(name, ""))[0]) for name in SHAPES)
    except ValueError:
        return None
    kv_lengths = shapes[_KV_LENGTHS] or kv_shape
    sequences = None if kv_lengths is None else math.prod(kv_lengths)
    table = shapes[_BLOCK_TABLE] or table_shape
    return JoinKey(shapes[_QUERY], shapes[_KEY], shapes[_VALUE], sequences, shapes[_MASK], table)


def completeness(cells: Mapping[str, str]) -> str:
    """Returns whether the Runtime cells of a row state everything that the kernel's work depends on, as a cell."""
    # In other layouts the shape of the queries has their length.
    needed = [name for name in RUNTIME_IN_SIGNATURE if name != Q_VALUES or cells[_LAYOUT] == "TND"]
    return "complete" if all(cells[name] for name in needed) else "partial"


def case_of(cells: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the cells of RUNTIME_IN_SIGNATURE. Records with equal ones are the same case."""
    return tuple(cells[name] for name in RUNTIME_IN_SIGNATURE)


def _shape(word: str) -> Shape | None:
    return tuple(map(int, word.split(","))) if word else None


def _cell(value: int | str | Sequence[int] | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, (int, str)) else ",".join(map(str, value))


_BOM = b"\xef\xbb\xbf"
#: The beginning of a list of objects. A list of numbers counts as one malformed line.
_ARRAY = re.compile(rb"\s*\[\s*(\{|\Z)")
#: A record of a few thousand sequences takes some 50 kB.
_LONGEST_LINE = 1 << 24
_MALFORMED_NAMED = 10


@lru_cache(maxsize=16)
def _parse(line: bytes) -> tuple[JoinKey, Mapping[str, str]]:
    """Cached, because lines repeat: every layer of a model makes the same call. Raises DecodeError."""
    record = decode(line, CallRecord, "")
    return record.key, record.cells()


@dataclass
class DistinctRecords:
    """The cells of the distinct records of a key, and how many were left out.

    Beyond a limit, those with the smallest digests stay. So the choice is unbiased, takes bounded memory, and does not
    depend on the order of the records.
    """

    cells: dict[bytes, Mapping[str, str]] = field(default_factory=dict)
    left_out: int = 0

    def add(self, cells: Mapping[str, str], limit: int) -> None:
        self.cells.setdefault(blake2b("|".join(case_of(cells)).encode(), digest_size=8).digest(), cells)
        if limit and len(self.cells) > 2 * limit:
            self.cut(limit)

    def cut(self, limit: int) -> None:
        if limit and len(self.cells) > limit:
            kept = {*sorted(self.cells)[:limit]}
            self.left_out += len(self.cells) - limit
            self.cells = {digest: cells for digest, cells in self.cells.items() if digest in kept}


@dataclass
class Records:
    """The records of some files.

    Attributes:
        count: records, without malformed lines.
        matched: the records of each key that a row has.
        unmatched: the number of records of each key that no row has, and `file:line` of the first.
        malformed: the first malformed lines, each as `file:line: why`.
        malformed_count: all malformed lines.
        problems: files that could not be read completely.
    """

    count: int = 0
    matched: dict[JoinKey, DistinctRecords] = field(default_factory=dict)
    unmatched: dict[JoinKey, tuple[int, str]] = field(default_factory=dict)
    malformed: list[str] = field(default_factory=list)
    malformed_count: int = 0
    problems: list[str] = field(default_factory=list)

    def add_file(self, path: Path, wanted: Container[JoinKey], limit: int, on_mb: Callable[[float], None]) -> None:
        """Reads the records of a file. Memory grows with the number of distinct keys, not of records.

        Args:
            wanted: the keys that rows have.
            limit: the largest number of distinct records of a key to keep; 0: all.
            on_mb: called with the MB read since the last call.

        Raises:
            OpAtlasError: the file cannot be opened.
        """
        with open_stream(path, lambda size: on_mb(size / 1e6)) as file:
            for number, line in self._lines(path, file):
                try:
                    key, cells = _parse(line)
                except DecodeError as error:
                    self.malformed_count += 1
                    if len(self.malformed) < _MALFORMED_NAMED:
                        self.malformed.append(f"{path}:{number}: {error.problem}")
                    continue
                self.count += 1
                if key in wanted:
                    self.matched.setdefault(key, DistinctRecords()).add(cells, limit)
                else:
                    count, first = self.unmatched.get(key, (0, f"{path}:{number}"))
                    self.unmatched[key] = count + 1, first
        for records in self.matched.values():
            records.cut(limit)

    def _lines(self, path: Path, file: BufferedIOBase) -> Iterator[tuple[int, bytes]]:
        """Yields the lines that are not blank, with their numbers."""
        number = 0
        try:
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if number == 1:
                    line = line.removeprefix(_BOM)
                    if not is_text(line):
                        self.problems.append(f"{path}: {NOT_TEXT}: write one JSON object a line")
                        return
                    if _ARRAY.match(line):
                        self.problems.append(
                            f"{path}: this is a JSON array, not JSON Lines: write one object a line "
                            f"(`jq -c '.[]'` does so)"
                        )
                        return
                if len(line) == _LONGEST_LINE:
                    self.problems.append(f"{path}:{number}: longer than {_LONGEST_LINE >> 20} MB: not read from here")
                    return
                if line.strip():
                    yield number, line
        except (*BROKEN_GZIP, OSError) as error:
            self.problems.append(f"{path}: cannot be read after line {number} ({error}): the earlier lines were read")
