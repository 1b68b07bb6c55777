"""Reads records of attention calls, as a serving process writes them: one JSON object a line.

query_shape, key_shape, value_shape, atten_mask_shape, block_table_shape    lists of dimensions
actual_seq_lengths, actual_seq_lengths_kv                                   lists of lengths, as passed to the call
block_table_valid_blocks                                                    blocks in use: one number, or one a sequence
num_heads, num_key_value_heads, sparse_mode, input_layout, block_size       arguments of the call

Each field may be null or missing. Other fields are ignored.
"""

from __future__ import annotations

import heapq
import json
import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple

from opatlas.files import BROKEN_GZIP, open_stream
from opatlas.row.columns import INPUT_SHAPES, RUNTIME_IN_SIGNATURE, RUNTIME_PREFIX
from opatlas.row.quality import number_cell
from opatlas.row.slots import split_cell
from opatlas.text import MOST_DIGITS, shortened
from opatlas.text_format import NOT_TEXT, is_text

Shape = tuple[int, ...]
_RAW = RUNTIME_PREFIX + "operator_input_shapes_raw"
#: Slots of FusedInferAttentionScore's 31 inputs.
_QUERY, _KEY, _VALUE, _MASK, _KV_LENGTHS, _BLOCK_TABLE = 0, 1, 2, 4, 6, 14


class JoinKey(NamedTuple):
    """The facts that both a capture and a recorded call have. None stands for a missing tensor or list."""

    query: Shape | None
    key: Shape | None
    value: Shape | None
    kv_sequences: int | None
    atten_mask: Shape | None
    block_table: Shape | None

    def __str__(self) -> str:
        return "; ".join(f"{_WORDS[name]} {_text(part)}" for name, part in zip(self._fields, self, strict=True))


_WORDS = {
    "query": "query",
    "key": "key",
    "value": "value",
    "kv_sequences": "kv sequences",
    "atten_mask": "mask",
    "block_table": "block table",
}


def row_key(cells: Mapping[str, str]) -> JoinKey | None:
    """Returns the key of an attention row; None if a shape is invalid."""
    slots = split_cell(cells.get(_RAW) or cells.get(INPUT_SHAPES, ""))
    try:
        shapes = [_shape(slots[at]) if at < len(slots) else None for at in range(_BLOCK_TABLE + 1)]
        kv_lengths = shapes[_KV_LENGTHS] or _runtime_shape(cells, "actual_seq_lengths_kv_shape")
        return JoinKey(
            shapes[_QUERY],
            shapes[_KEY],
            shapes[_VALUE],
            None if kv_lengths is None else math.prod(kv_lengths),
            shapes[_MASK],
            shapes[_BLOCK_TABLE] or _runtime_shape(cells, "block_table_shape"),
        )
    except ValueError:
        return None


def _runtime_shape(cells: Mapping[str, str], name: str) -> Shape | None:
    return _shape(split_cell(cells.get(RUNTIME_PREFIX + name, ""))[0])


def _shape(word: str) -> Shape | None:
    return tuple(map(int, word.split(","))) if word else None


def _text(part: Shape | int | None) -> str:
    if part is None:
        return "none"
    return str(part) if isinstance(part, int) else ",".join(map(str, part))


_BOM = b"\xef\xbb\xbf"
#: The beginning of a list of objects. A list of numbers counts as one malformed line.
_ARRAY = re.compile(rb"\s*\[\s*(\{|\Z)")
#: A record of a few thousand sequences takes some 50 kB.
_LONGEST_LINE = 1 << 24
_MALFORMED_NAMED = 10
#: Sizes and lengths have fewer digits.
_LARGEST = 10**MOST_DIGITS
#: Characters of an invalid value in a message.
_SHOWN = 40
#: Lines between updates of the progress.
_LINES_PER_STEP = 2000

SHAPES = tuple(
    RUNTIME_PREFIX + name for name in ("actual_seq_lengths_shape", "actual_seq_lengths_kv_shape", "block_table_shape")
)
AVG_SEQ_LEN = RUNTIME_PREFIX + "avg_seq_len"
VALID_BLOCKS = RUNTIME_PREFIX + "block_table_valid_blocks"
Q_VALUES, KV_VALUES = RUNTIME_IN_SIGNATURE[:2]
_LAYOUT = RUNTIME_PREFIX + "input_layout"
#: `BSND`, `TND_NTD`. A signature drops blanks, quotes and brackets, so that no row would have such a layout.
_LAYOUT_NAME = re.compile(r"[A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class CallValues:
    """The values of a record beside its key, as cells.

    Attributes:
        case: the cells of RUNTIME_IN_SIGNATURE, in order. Records with equal cells are the same case.
        average: mean number of keys of a sequence.
        valid_blocks: blocks in use, of each sequence.
        shapes: the cells of SHAPES.
    """

    case: tuple[str, ...]
    average: str
    valid_blocks: str
    shapes: tuple[str, ...]

    def cells(self) -> dict[str, str]:
        return {
            **dict(zip(RUNTIME_IN_SIGNATURE, self.case, strict=True)),
            AVG_SEQ_LEN: self.average,
            VALID_BLOCKS: self.valid_blocks,
            **dict(zip(SHAPES, self.shapes, strict=True)),
        }


class DistinctRecords:
    """The distinct records of a key. Beyond a limit, those with the smallest digests stay.

    The selection is unbiased, takes bounded memory, and does not depend on the order of the records.
    """

    def __init__(self, limit: int) -> None:
        """`limit` is the largest number of records to keep; 0: all."""
        self._limit = limit
        self._by_digest: dict[int, CallValues] = {}
        self._largest: list[int] = []
        self.records = 0
        self.left_out = 0

    def add(self, values: CallValues) -> None:
        self.records += 1
        digest = int.from_bytes(blake2b("|".join(values.case).encode(), digest_size=8).digest(), "big")
        if digest in self._by_digest:
            return
        if not self._limit:
            self._by_digest[digest] = values
        elif len(self._by_digest) < self._limit:
            heapq.heappush(self._largest, -digest)
            self._by_digest[digest] = values
        else:
            self.left_out += 1
            if digest < -self._largest[0]:
                del self._by_digest[-heapq.heapreplace(self._largest, -digest)]
                self._by_digest[digest] = values

    def values(self) -> list[CallValues]:
        """Returns the kept records in the order in which they were added."""
        return list(self._by_digest.values())


def _format_problem(begin: bytes) -> str:
    """Returns why a file is not JSON Lines, and the remedy; "" for a valid file."""
    if not is_text(begin):
        return f"{NOT_TEXT}: write one JSON object a line"
    if _ARRAY.match(begin):
        return "this is a JSON array, not JSON Lines: write one object a line (`jq -c '.[]'` does so)"
    return ""


@dataclass
class UnmatchedKey:
    """A key that no row has: the number of its records, and `file:line` of the first."""

    first: str
    count: int = 0


@dataclass
class Records:
    """The records of some files.

    Attributes:
        count: records, without malformed lines.
        matched: the records of each key that a row has.
        unmatched: the keys that no row has.
        malformed: the first malformed lines, each as `file:line: why`.
        malformed_count: all malformed lines.
        problems: files that could not be read completely.
    """

    count: int = 0
    matched: dict[JoinKey, DistinctRecords] = field(default_factory=dict)
    unmatched: dict[JoinKey, UnmatchedKey] = field(default_factory=dict)
    malformed: list[str] = field(default_factory=list)
    malformed_count: int = 0
    problems: list[str] = field(default_factory=list)

    def add_file(self, path: Path, wanted: Container[JoinKey], limit: int, on_step: Callable[[float], None]) -> None:
        """Reads the records of a file. Memory grows with the number of distinct keys, not of records.

        Args:
            wanted: the keys that rows have.
            limit: the largest number of distinct records of a key to keep; 0: all.
            on_step: called from time to time with the MB read since the last call.

        Raises:
            OpAtlasError: the file cannot be opened.
        """
        read_mb = 0.0

        def on_bytes(size: int) -> None:
            nonlocal read_mb
            read_mb += size / 1e6

        with open_stream(path, on_bytes) as file:
            # Lines repeat, because every layer of a model makes the same call.
            last, last_add = b"", None
            for number, line in self._lines(path, file):
                if number % _LINES_PER_STEP == 0:
                    on_step(read_mb)
                    read_mb = 0.0
                if line == last and last_add is not None:
                    last_add()
                    self.count += 1
                    continue
                last, last_add = line, None
                if not line.strip():
                    continue
                try:
                    key, values = parse_record(line)
                except RecordError as error:
                    self._reject(f"{path}:{number}: {error}")
                    continue
                last_add = self._adder(key, values, wanted, limit, f"{path}:{number}")
                last_add()
                self.count += 1
        on_step(read_mb)

    def _lines(self, path: Path, file: BufferedIOBase) -> Iterator[tuple[int, bytes]]:
        number = 0
        try:
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if number == 1:
                    line = line.removeprefix(_BOM)
                    if problem := _format_problem(line):
                        self.problems.append(f"{path}: {problem}")
                        return
                if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
                    self._reject(f"{path}:{number}: longer than {_LONGEST_LINE >> 20} MB")
                    while line and not line.endswith(b"\n"):
                        line = file.readline(_LONGEST_LINE)
                    continue
                yield number, line
        except BROKEN_GZIP as error:
            self.problems.append(f"{path}: ends early after line {number} ({error}): the earlier lines were read")
        except OSError as error:
            self.problems.append(f"{path}: cannot be read after line {number} ({error.strerror or error})")

    def _adder(
        self, key: JoinKey, values: CallValues, wanted: Container[JoinKey], limit: int, place: str
    ) -> Callable[[], None]:
        if key in wanted:
            chosen = self.matched.setdefault(key, DistinctRecords(limit))
            return lambda: chosen.add(values)
        unmatched = self.unmatched.setdefault(key, UnmatchedKey(place))

        def count() -> None:
            unmatched.count += 1

        return count

    def _reject(self, problem: str) -> None:
        self.malformed_count += 1
        if len(self.malformed) < _MALFORMED_NAMED:
            self.malformed.append(problem)


class RecordError(ValueError):
    """A line that is not a record.

    Attributes:
        field: the field with an invalid value; "" if the line as a whole is invalid.
    """

    def __init__(self, problem: str, field: str = "") -> None:
        self.field = field
        super().__init__(problem)


def parse_record(line: bytes) -> tuple[JoinKey, CallValues]:
    """Returns key and values of a line. Raises RecordError."""
    try:
        # json.loads would guess UTF-16 from bytes, and accept halves of surrogate pairs.
        record = json.loads(line.strip().decode("utf-8"))
    except UnicodeDecodeError:
        raise RecordError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise RecordError(f"not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise RecordError("not a record (nested too deep)") from None
    except ValueError:
        # Python refuses to convert more digits.
        raise RecordError("not a record (a number of more than 4,300 digits)") from None
    if not isinstance(record, dict):
        raise RecordError("not a JSON object")
    query, key, value, mask, table = (
        _numbers(record, f"{name}_shape") for name in ("query", "key", "value", "atten_mask", "block_table")
    )
    q_lengths, kv_lengths = _numbers(record, "actual_seq_lengths"), _numbers(record, "actual_seq_lengths_kv")
    layout = record.get("input_layout")
    if layout is not None and not (isinstance(layout, str) and _LAYOUT_NAME.fullmatch(layout)):
        raise RecordError(f"input_layout is {layout!r}, not a word", "input_layout")
    heads = _number(record, "num_heads")
    case = (
        _cell(q_lengths),
        _cell(kv_lengths),
        _cell(heads),
        # 0 means as many key heads as query heads.
        _cell(_number(record, "num_key_value_heads") or heads),
        _cell(_number(record, "sparse_mode")),
        layout or "",
        _cell(_number(record, "block_size")),
    )
    blocks = record.get("block_table_valid_blocks")
    valid_blocks = _cell((_number if isinstance(blocks, int) else _numbers)(record, "block_table_valid_blocks"))
    sequences = None if kv_lengths is None else len(kv_lengths)
    shapes = ("" if q_lengths is None else str(len(q_lengths)), _cell(sequences), _cell(table))
    average = _average(kv_lengths, cumulative=layout == "TND" and table is None)
    return JoinKey(query, key, value, sequences, mask, table), CallValues(case, average, valid_blocks, shapes)


def is_complete(cells: dict[str, str]) -> bool:
    """Returns whether the Runtime cells of a row state everything that the kernel's work depends on."""
    # In other layouts the shape of the queries has their length.
    needed = [name for name in RUNTIME_IN_SIGNATURE if name != Q_VALUES or cells[_LAYOUT] == "TND"]
    return all(cells[name] for name in needed)


def _average(kv_lengths: Shape | None, *, cumulative: bool) -> str:
    """Returns the mean number of keys of a sequence. Lengths of TND without a block table are cumulative sums."""
    if not kv_lengths:
        return ""
    return number_cell((kv_lengths[-1] if cumulative else sum(kv_lengths)) / len(kv_lengths))


def _numbers(record: dict[str, Any], name: str) -> Shape | None:
    numbers = record.get(name)
    if numbers is None:
        return None
    if not isinstance(numbers, list) or not all(map(_is_size, numbers)):
        raise RecordError(
            f"{name} is {shortened(json.dumps(numbers), _SHOWN)}, not a list of whole numbers from 0, below 10^18", name
        )
    return tuple(numbers)


def _number(record: dict[str, Any], name: str) -> int | None:
    number = record.get(name)
    if number is not None and not _is_size(number):
        raise RecordError(
            f"{name} is {shortened(json.dumps(number), _SHOWN)}, not a whole number from 0, below 10^18", name
        )
    return number


def _is_size(number: object) -> bool:
    return type(number) is int and 0 <= number < _LARGEST


def _cell(value: int | Sequence[int] | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else ",".join(map(str, value))
