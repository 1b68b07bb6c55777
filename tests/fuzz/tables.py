"""CSVs of a database: read as csv.reader reads them, written so that they are read again, and their signatures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import captures
import pandas as pd
from frames import write_frame

from opatlas.data.csv_files import read_frame, read_text_csv
from opatlas.row.columns import BASE
from opatlas.row.signature import signature, signatures

from .target import Target, expect, refusing

_CELLS = captures.cells("16,32;64,32", "16,64")
_HEADER = [*_CELLS, "Average Duration(us)", "Remark"]
_ROWS = [
    [*_CELLS.values(), "3.5", "plain"],
    [*_CELLS.values(), "", 'a "quoted", cell\nof two lines'],
    ["", "DT_BF16", "ND", "00", "", "", "true", " 2026-11-22 "],
]
#: Between cells, and between rows, of a table that is to be written.
_CELL_END, _ROW_END = "\x1e", "\x1d"


def _text(rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _seeds() -> Iterator[bytes]:
    yield _text([_HEADER, *_ROWS])
    yield b"\xef\xbb\xbf" + _text([_HEADER, *_ROWS[:1]])
    yield _text([_HEADER, *_ROWS[:1]]).replace(b"\n", b"\r\n")


def _read(data: bytes, folder: Path) -> None:
    path = folder / "MatMulV3.csv"
    path.write_bytes(data)
    frame = None
    with refusing(path):
        frame = read_text_csv(path)
    if frame is None:
        return
    lines = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")))
    # A line without any cell is not a row; it is not even one of an only column.
    rows = [line for line in lines[1:] if line]
    expect([name.strip() for name in lines[0]] == [str(name).strip() for name in frame.columns], "another header")
    found = frame.to_numpy().tolist()
    expect(found == rows, f"cells differ from those of csv.reader: {found[:3]} and {rows[:3]}")
    with refusing(path):
        read_frame(path)


def _seeds_of_written() -> Iterator[bytes]:
    for rows in ([_HEADER, *_ROWS], [_HEADER[:3], *[row[:3] for row in _ROWS]]):
        yield _ROW_END.join(_CELL_END.join(row) for row in rows).encode()


def _round_trip(data: bytes, folder: Path) -> None:
    header, *rows = (row.split(_CELL_END) for row in data.decode(errors="replace").split(_ROW_END))
    # A table has more than one column.
    names = list(dict.fromkeys([*header, "Remark", "Note"]))
    rows = [(row + [""] * len(names))[: len(names)] for row in rows]
    # Both ways of writing: row by row, and by columns.
    for times in (1, 201):
        frame = pd.DataFrame(rows * times, columns=names, dtype=str)
        path = folder / "MatMulV3.csv"
        path.unlink(missing_ok=True)
        with refusing(path):
            write_frame(frame, path)
        if not path.exists():
            continue
        with open(path, encoding="utf-8", newline="") as file:
            expect(list(csv.reader(file)) == [names, *rows * times], "csv.reader reads something else than was written")
        again = read_text_csv(path)
        expect([str(name) for name in again.columns] == names, "the header is another one when it is read")
        expect(again.to_numpy().tolist() == rows * times, "cells are others when they are read")


def _seeds_of_signature() -> Iterator[bytes]:
    for kernel_type in (
        "MatMulV3",
        "Slice",
        "Index",
        "DispatchFFNCombine",
        "FusedInferAttentionScore",
        "hcom_allReduce_",
    ):
        yield _CELL_END.join([kernel_type, *_CELLS.values(), "8", "3,5", "TND"]).encode()


def _signature(data: bytes, folder: Path) -> None:
    del folder
    kernel_type, *cells = data.decode(errors="replace").split(_CELL_END)
    row = dict(zip([*_CELLS, "EP Size", *(f"Runtime {name}" for name in _RUNTIME)], cells, strict=False))
    one = signature(kernel_type, row)
    expect(one == signature(kernel_type, row), "a second signature is another one")
    full = {**dict.fromkeys(BASE, ""), **row}
    (of_column,) = signatures(kernel_type, pd.DataFrame([full]))
    expect(signature(kernel_type, full) == of_column, "of one row, and by columns, the signature differs")
    expect(one == of_column, "columns that are empty change the signature")
    quoted = {name: f'"{cell}"' if name.startswith(("Input", "Output")) else cell for name, cell in row.items()}
    expect(signature(kernel_type, quoted) == one, "the quotes of a profiler change the signature")


_RUNTIME = ("actual_seq_lengths_values", "input_layout")

TABLE = Target(
    "table", "a CSV is read as csv.reader reads it, or refused", _seeds, _read, (b"Input Shapes", b"OP State")
)
ROUND_TRIP = Target(
    "round-trip",
    "any cells and names are read again as they were written, or refused when they are written",
    _seeds_of_written,
    _round_trip,
    (_CELL_END.encode(), _ROW_END.encode()),
)
SIGNATURE = Target(
    "signature",
    "one row and a table give the same signature, with and without quotes",
    _seeds_of_signature,
    _signature,
    (_CELL_END.encode(), b"DT_UNDEFINED", b"FORMAT_ND", b"N/A", b";;", b"NULL"),
)
