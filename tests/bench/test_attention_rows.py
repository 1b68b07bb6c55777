"""FusedInferAttentionScore rows and their Runtime columns give a call, or a refusal with a reason."""

from __future__ import annotations

import pytest
import torch
from replaying import cells_of, replay_of, runner
from sample_rows import FIA_SLOTS, MASK, ROWS, fia

from opatlas.row.columns import RUNTIME_PREFIX
from opatlas.row.status import Status
from opatlas.run.inputs.attention import read_attention, with_operator_shapes
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.job import Job

FIA = "FusedInferAttentionScore"


def call_of(row, **runtime):
    return read_attention(operator_row(row, **runtime))


def operator_row(row, **runtime):
    cells = {**cells_of(row), **{RUNTIME_PREFIX + name: value for name, value in runtime.items()}}
    return with_operator_shapes(ReplayRow(FIA, cells, torch.device("cpu")))


def assert_has(call, **expected):
    assert {name: call.keywords[name] for name in expected} == expected


def replayed(row, **runtime):
    cells = {**cells_of(row), **{RUNTIME_PREFIX + name: value for name, value in runtime.items()}}
    module, _, name = replay_of(FIA).rpartition(".")
    return runner().run(Job(module, "", name, FIA, cells, timeout_s=60))


DECODE = fia("3,4,16", query="3,4,16", key="9,8,16", mask=MASK, query_lengths="3", kv_lengths="3", table="3,4")


def test_paged_row_of_a_capture():
    call = call_of(ROWS[FIA][0])
    assert_has(call, input_layout="TND", num_heads=4, num_key_value_heads=2, block_size=8, sparse_mode=3)
    assert call.keywords["actual_seq_lengths"] == [3, 5, 7, 9]  # added up, the first one gets one more
    assert call.keywords["actual_seq_lengths_kv"] == [16] * 4  # each one's own: two of eleven blocks for each of four
    assert call.used_blocks == [2] * 4
    assert call.keywords["scale"] == 0.25
    assert not call.keywords["softmax_lse_flag"]


def test_latent_row_of_a_capture():
    call = call_of(ROWS[FIA][4])
    assert_has(call, input_layout="BNSD_NBSD", num_heads=4, num_key_value_heads=1, sparse_mode=0)
    assert call.keywords["actual_seq_lengths"] is None
    assert call.keywords["scale"] == pytest.approx((32 + 8) ** -0.5)


def test_packed_row_of_a_capture():
    call = call_of(ROWS[FIA][7])
    assert call.keywords["actual_seq_lengths"] == [8, 16, 23]
    assert call.keywords["actual_seq_lengths_kv"] == [11, 21, 31]
    assert (call.table, call.keywords["block_size"], call.keywords["sparse_mode"]) == (None, 0, 0)


@pytest.mark.parametrize(("shape", "flag"), [("", False), ("0", False), ("1", False), ("3,4,1", True)])
def test_second_output_selects_the_sums(shape, flag):
    assert call_of(DECODE.replace("3,4,16; |", f"3,4,16;{shape} |")).keywords["softmax_lse_flag"] is flag


class TestRuntimeColumns:
    def test_lengths(self):
        call = call_of(DECODE, actual_seq_lengths_values="1,2,3", actual_seq_lengths_kv_values="[31, 7; 8]")
        assert call.keywords["actual_seq_lengths_kv"] == [31, 7, 8]
        assert call.used_blocks == [4, 1, 1]

    @pytest.mark.parametrize("column", [RUNTIME_PREFIX + "avg_seq_len", "avg_seq_len"])
    def test_average(self, column):
        row = ReplayRow(FIA, {**cells_of(DECODE), column: "12.6"}, torch.device("cpu"))
        assert read_attention(row).keywords["actual_seq_lengths_kv"] == [13] * 3
        assert any("13 keys" in words for words in row.assumptions)

    def test_average_of_another_tool_that_means_none(self):
        row = ReplayRow(FIA, {**cells_of(DECODE), "avg_seq_len": "-1"}, torch.device("cpu"))
        assert read_attention(row).keywords["actual_seq_lengths_kv"] == [24] * 3

    def test_values_win_over_valid_blocks_and_average(self):
        runtime = {"block_table_valid_blocks": "1,1,1", "avg_seq_len": "9"}
        call = call_of(DECODE, actual_seq_lengths_kv_values="3,4,5", **runtime)
        assert_has(call, actual_seq_lengths_kv=[3, 4, 5])
        assert_has(call_of(DECODE, **runtime), actual_seq_lengths_kv=[8, 8, 8])

    def test_causal_mode_that_was_recorded_without_its_mask(self):
        row = ROWS[FIA][7]
        assert (call_of(row).keywords["sparse_mode"], call_of(row).mask_dtype) == (0, "")
        causal = call_of(row, sparse_mode="3")
        assert (causal.keywords["sparse_mode"], causal.mask_dtype) == (3, "INT8")
        assert replayed(row, sparse_mode="3").status is Status.MEASURED

    def test_shapes_of_slots_that_a_capture_lost(self):
        row = fia("3,4,16", query="3,4,16", key="9,8,16", mask=MASK)
        call = call_of(row, block_table_shape="3,4", actual_seq_lengths_shape="3", actual_seq_lengths_kv_shape="3")
        assert (call.table, call.keywords["actual_seq_lengths_kv"]) == ((3, 4), [24] * 3)

    def test_operator_shapes_win(self):
        """The profiler saw the tensors of another call, with a mask that this one has not."""
        row = fia(
            "16,2,1,32",
            query="99,16,8",
            key="99,16,8",
            mask=MASK,
            query_lengths="1",
            kv_lengths="1",
            table="2,3",
            query_rope="99,16,4",
            key_rope="99,16,4",
        )
        slots = [""] * 31
        shapes = {"query": "2,16,1,32", "key": "7,1,8,32", "value": "7,1,8,32", "query_lengths": "2", "kv_lengths": "2"}
        shapes |= {"table": "2,3", "query_rope": "2,16,1,8", "key_rope": "7,1,8,8"}
        for name, shape in shapes.items():
            slots[FIA_SLOTS[name]] = shape
        raw = ";".join(slots)
        call = call_of(row, operator_input_shapes_raw=raw)
        assert_has(call, input_layout="BNSD_NBSD", num_heads=16, actual_seq_lengths_kv=[24, 24], sparse_mode=0)
        outcome = replayed(row, operator_input_shapes_raw=raw)
        assert outcome.status is Status.MEASURED, outcome
