"""Attention kernels: mistakes that the check sees, and rows that are refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from opatlas.bench.implementations import torch as impl
from replaying import assert_mistake_is_caught
from sample_rows_attention import INDEXER, LATENT, PACKED, PAGED, RING_MLA, ROWS, SPARSE

from opatlas.row.errors import WrongResult
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.inputs.sequences import spread_positions
from opatlas.run.result_check import Comparison, Largest, check


class TestLargest:
    source = torch.tensor([[1.0, 7.0, 5.0, -torch.inf]], dtype=torch.float64)
    best = torch.tensor([[7.0, 5.0]], dtype=torch.float64)

    def select(self, indices, count=2):
        values = torch.tensor([[7.0, 5.0, 1.0, -torch.inf]], dtype=torch.float64)[:, :count]
        check(FormulaOf(Largest(self.source, values)), [], {}, [torch.tensor([indices])], 1)

    @pytest.mark.parametrize("indices", [[1, 2], [2, 1]])
    def test_any_order(self, indices):
        self.select(indices)

    def test_none_beyond_the_last(self):
        self.select([2, 0, 1, -1], 4)

    @pytest.mark.parametrize("indices", [[1, 0], [1, 1], [1, -1], [1, 3], [1, 4], [1, -2]])
    def test_others_are_wrong(self, indices):
        with pytest.raises(WrongResult):
            self.select(indices)

    def test_index_without_a_number(self):
        with pytest.raises(WrongResult):
            self.select([2, 0, 1, 3], 4)

    def test_a_swap_by_rounding_passes(self):
        source = torch.tensor([[5.0, 7.0, 5.01]], dtype=torch.float64)
        values = torch.tensor([[7.0, 5.01]], dtype=torch.float64)
        check(FormulaOf(Largest(source, values)), [], {}, [torch.tensor([[1, 0]])], 1)


@dataclass
class FormulaOf:
    """Expects the same of every result."""

    values: object
    name: str = "largest"

    def compare(self, arguments, keywords, results, seed):
        return [Comparison(result, self.values, exact=False) for result in results]


def mistaken(name, **changes):
    """The implementation with keyword arguments changed by functions of them."""
    right = getattr(impl, name)

    def wrong(*arguments, **keywords):
        changed = {key: change(keywords[key]) for key, change in changes.items()}
        return right(*arguments, **{**keywords, **changed})

    return wrong


def with_arguments(name, change):
    right = getattr(impl, name)
    return lambda *arguments, **keywords: right(*change(*arguments), **keywords)


def one_less(lengths):
    return [length - 1 for length in lengths]


MISTAKES = {
    "no mask": ("fused_infer_attention_score", {"sparse_mode": lambda mode: 0}, PAGED[0]),
    "no mask, packed": ("fused_infer_attention_score", {"sparse_mode": lambda mode: 0}, PACKED[0]),
    "no scale": ("fused_infer_attention_score", {"scale": lambda scale: 1.0}, PAGED[0]),
    "pages in their order": (
        "fused_infer_attention_score",
        {"block_table": lambda table: table.sort().values},
        PAGED[0],
    ),
    "last key left out": ("fused_infer_attention_score", {"actual_seq_lengths_kv": one_less}, PAGED[1]),
    "no rope part": (
        "fused_infer_attention_score",
        {"query_rope": torch.zeros_like},
        LATENT[0],
    ),
    "mask of a first step": ("ring_mla", {"mask_type": lambda mask: "no_mask"}, RING_MLA[1]),
    "earlier step forgotten": ("ring_mla", {"pre_out": lambda out: None}, RING_MLA[0]),
    "training without its mask": (
        "flash_attention_score",
        {"atten_mask": lambda mask: None},
        ROWS["FlashAttentionScore"][0],
    ),
    "gradient without its mask": (
        "flash_attention_grad",
        {"atten_mask": lambda m: None},
        ROWS["FlashAttentionScoreGrad"][0],
    ),
    "gradient without scale": (
        "flash_attention_grad",
        {"scale_value": lambda scale: 1.0},
        ROWS["FlashAttentionScoreGrad"][0],
    ),
    "result forgotten": (
        "flash_attention_grad",
        {"attention_in": torch.zeros_like},
        ROWS["FlashAttentionScoreGrad"][0],
    ),
    "indexer's pages": ("lightning_indexer", {"block_table": lambda table: table.flip(0)}, INDEXER[0]),
    "sparse rope part": ("sparse_flash_attention", {"key_rope": torch.zeros_like}, SPARSE[0]),
    "sparse pages": ("sparse_flash_attention", {"block_table": lambda table: table.flip(0)}, SPARSE[0]),
}
TYPES = {
    "fused_infer_attention_score": "FusedInferAttentionScore",
    "ring_mla": "RINGMLAPrefillBF16Kernel",
    "flash_attention_score": "FlashAttentionScore",
    "flash_attention_grad": "FlashAttentionScoreGrad",
    "lightning_indexer": "LightningIndexer",
    "sparse_flash_attention": "SparseFlashAttention",
}


@pytest.mark.parametrize(
    "name", MISTAKES, ids=[f"{TYPES[function]}-{name}" for name, (function, *_) in MISTAKES.items()]
)
def test_mistake_is_caught(monkeypatch, name):
    function, changes, row = MISTAKES[name]
    assert_mistake_is_caught(monkeypatch, function, mistaken(function, **changes), TYPES[function], row)


@pytest.mark.parametrize(
    ("function", "change", "row"),
    [
        ("lightning_indexer", lambda q, k, w: (q, k, w.abs()), INDEXER[0]),
        ("lightning_indexer", lambda q, k, w: (q, k, torch.ones_like(w)), INDEXER[0]),
        ("lightning_indexer", lambda q, k, w: (-q, k, w), INDEXER[0]),
        ("sparse_flash_attention", lambda q, k, v, at, s: (q, k, v, at.roll(1, 0), s), SPARSE[0]),
    ],
)
def test_mistaken_tensor_is_caught(monkeypatch, function, change, row):
    assert_mistake_is_caught(monkeypatch, function, with_arguments(function, change), TYPES[function], row)


def test_positions_are_ascending_and_seen():
    row = ReplayRow("SparseFlashAttention", {}, torch.device("cpu"))
    seen = [1, 3, 8, 9, 500, 100_000]
    positions = spread_positions(row, (len(seen), 1, 8), seen)
    for line, count in zip(positions[:, 0].tolist(), seen, strict=True):
        there = [position for position in line if position >= 0]
        assert there == sorted(set(there))
        assert len(there) == min(count, 8)
        assert there[-1] < count
        assert line == there + [-1] * (8 - len(there))
