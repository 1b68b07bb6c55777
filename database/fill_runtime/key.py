"""What records and rows of attention are joined by, and which key is nearest to one that has no partner."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Generic, NamedTuple, TypeVar

from database.schema import INPUT_SHAPES, RUNTIME_PREFIX
from database.slots import split_cell

Shape = tuple[int, ...]
_RAW = RUNTIME_PREFIX + "operator_input_shapes_raw"
#: Slots of FusedInferAttentionScore's 31 inputs.
_QUERY, _KEY, _VALUE, _MASK, _KV_LENGTHS, _BLOCK_TABLE = 0, 1, 2, 4, 6, 14


class JoinKey(NamedTuple):
    """What a capture and a call at run time both know. None: there is no such tensor, or no such list."""

    query: Shape | None
    key: Shape | None
    value: Shape | None
    kv_sequences: int | None
    atten_mask: Shape | None
    block_table: Shape | None

    def __str__(self) -> str:
        return "; ".join(f"{_WORDS[name]} {_text(part)}" for name, part in zip(self._fields, self, strict=True))

    def unlike(self, other: JoinKey) -> str:
        """The components that differ: `kv sequences 4 (there 5)`."""
        pairs = zip(self._fields, self, other, strict=True)
        return ", ".join(f"{_WORDS[name]} {_text(a)} (there {_text(b)})" for name, a, b in pairs if a != b)


_WORDS = {
    "query": "query",
    "key": "key",
    "value": "value",
    "kv_sequences": "kv sequences",
    "atten_mask": "mask",
    "block_table": "block table",
}


def key_of_row(cells: Mapping[str, str]) -> JoinKey | None:
    """The key of an attention row; None where a shape of it is not one."""
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


Place = TypeVar("Place")


class Nearest(Generic[Place]):
    """Finds the key that differs from another in the fewest components; of several, the first."""

    def __init__(self, keys: Iterable[tuple[JoinKey, Place]]) -> None:
        """Each key with where it stands."""
        self._keys = list(keys)
        # By the components that agree, the most first: a look-up each, however many keys there are.
        self._agreeing = [kept for count in range(5, 0, -1) for kept in combinations(range(6), count)]
        self._tables: dict[tuple[int, ...], dict[tuple[object, ...], int]] = {}

    def to(self, key: JoinKey) -> tuple[JoinKey, Place] | None:
        """None where no key agrees in any component that is there."""
        for kept in self._agreeing:
            wanted = tuple([key[at] for at in kept])
            if any(part is not None for part in wanted) and wanted in (table := self._table(kept)):
                return self._keys[table[wanted]]
        return None

    def _table(self, kept: tuple[int, ...]) -> dict[tuple[object, ...], int]:
        if kept not in self._tables:
            table: dict[tuple[object, ...], int] = {}
            for place, (key, _) in enumerate(self._keys):
                table.setdefault(tuple([key[at] for at in kept]), place)
            self._tables[kept] = table
        return self._tables[kept]
