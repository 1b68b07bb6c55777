"""Records of attention calls: what a line holds, and which records are chosen."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from attention_calls import DECODE, decode
from hypothesis import given
from hypothesis import strategies as st

from opatlas.capture.attention_records import VALID_BLOCKS, CallRecord, DistinctRecords, JoinKey, row_key
from opatlas.row.columns import INPUT_SHAPES, RUNTIME_IN_SIGNATURE, RUNTIME_PREFIX
from opatlas.typed_json import DecodeError
from opatlas.typed_json import decode as decode_json


def parse(line: bytes) -> CallRecord:
    return decode_json(line, CallRecord, "calls.jsonl:1")


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b'{"query_shape": [1, -2]}', "query_shape"),
        (b'{"query_shape": [1.5]}', "query_shape"),
        (b'{"actual_seq_lengths_kv": 7}', "actual_seq_lengths_kv"),
        (b'{"actual_seq_lengths_kv": [%s, 1]}' % (b"9" * 4000), ""),
        (b'{"sparse_mode": true}', "sparse_mode"),
        (b'{"block_table_valid_blocks": ["1"]}', "block_table_valid_blocks"),
        (b'{"input_layout": 3}', "input_layout"),
        (b'{"input_layout": "TN D"}', "input_layout"),
        (b"\xff\xfe{", ""),
        ('{"num_heads": 4}'.encode("utf-16"), ""),
        (b'{"input_layout": "\xed\xa0\x80"}', ""),
        (b"[" * 100_000, ""),
    ],
    ids=range(12),
)
def test_an_invalid_line_is_refused_with_its_field(line, field):
    with pytest.raises(DecodeError) as error:
        parse(line)
    assert field in error.value.problem


@given(st.binary() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_line_is_a_record_or_refused(line):
    with suppress(DecodeError):
        record = parse(line if isinstance(line, bytes) else line.encode())
        assert isinstance(record.key, JoinKey)
        assert all(isinstance(cell, str) for cell in record.cells().values())


def test_blocks_in_use_may_be_one_number():
    assert parse(json.dumps(decode(block_table_valid_blocks=7)).encode()).cells()[VALID_BLOCKS] == "7"


def test_the_shapes_that_the_operator_saw_count():
    cells = {INPUT_SHAPES: "1,1;1,1;1,1", RUNTIME_PREFIX + "operator_input_shapes_raw": f'"{DECODE}"'}
    key = row_key(cells)
    assert key == JoinKey((3, 4, 128), (99, 128, 128), (99, 128, 128), 3, (2048, 2048), (3, 16))
    assert row_key({INPUT_SHAPES: "a,b;1;1"}) is None


@given(st.lists(st.integers(0, 40), max_size=80), st.integers(1, 10))
def test_a_choice_does_not_depend_on_the_order(numbers, limit):
    def chosen(order):
        choice = DistinctRecords()
        for number in order:
            choice.add(dict.fromkeys(RUNTIME_IN_SIGNATURE, str(number)), limit)
        choice.cut(limit)
        return choice.cells.keys()

    assert chosen(numbers) == chosen(sorted(numbers))
    assert len(chosen(numbers)) == min(limit, len(set(numbers)))
