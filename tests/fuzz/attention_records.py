"""Records of attention calls into the rows of a database."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import captures

from opatlas.row.columns import INPUT_SLOTS, OUTPUT_SLOTS, RUNTIME_PREFIX

from .target import Target, command, expect, packed, tables_of

_DECODE = ";".join([*captures.DECODE_SHAPES, *[""] * 16])
_ROW = {
    **captures.cells(),
    INPUT_SLOTS[0]: _DECODE,
    INPUT_SLOTS[1]: ";".join("DT_BF16" if shape else "DT_UNDEFINED" for shape in _DECODE.split(";")),
    INPUT_SLOTS[2]: ";".join("ND" for _ in _DECODE.split(";")),
    OUTPUT_SLOTS[0]: captures.DECODE_SHAPES[0],
    "Remark": "x\u00e9 ,\n",
}
_TABLE = "FusedInferAttentionScore.csv"


def _seeds() -> Iterator[bytes]:
    other = {**captures.DECODE_RECORD, "actual_seq_lengths_kv": [1, 2, 3], "block_table_valid_blocks": 3}
    no_row = {**captures.DECODE_RECORD, "query_shape": [7, 4, 128], "input_layout": "BSH"}
    lines = [json.dumps(record) for record in (captures.DECODE_RECORD, other, other, no_row)]
    yield "".join(line + "\n" for line in lines).encode()
    yield lines[0].encode()


def _check(name: str, data: bytes, folder: Path) -> None:
    path, database = folder / name, folder / "database"
    path.write_bytes(data)
    database.mkdir()
    with open(database / _TABLE, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([list(_ROW), list(_ROW.values())])
    fill = ("ingest", "--attention-records", path, "--database-path", database)
    status, _, err = command(*fill)
    expect(not err or name in err, f"an error that does not name the records: {err}")
    tables = tables_of(database)
    with open(database / _TABLE, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        kept = {column: cell for column, cell in row.items() if not column.startswith(RUNTIME_PREFIX) and cell}
        expect(kept == {column: cell for column, cell in _ROW.items() if cell}, f"cells of others changed: {row}")
    again, _, _ = command(*fill)
    expect(again == status and tables_of(database) == tables, "the same records again changed a table")


_WORDS = (
    b'"query_shape"',
    b'"actual_seq_lengths_kv"',
    b'"block_table_valid_blocks"',
    b'"input_layout"',
    b'"BSND"',
    b"[1, 2]",
)
RECORDS = Target(
    "attention-records",
    "--attention-records: invalid lines are reported, other columns untouched, a second run changes nothing",
    _seeds,
    partial(_check, "calls.jsonl"),
    _WORDS,
)
PACKED_RECORDS = Target(
    "attention-records-gz", "the same, packed by gzip", packed(_seeds), partial(_check, "calls.jsonl.gz"), _WORDS
)
