"""Keys that an index chooses: what the check takes for right, and the positions that rows get."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from opatlas.row.errors import WrongResult
from opatlas.run.inputs.replay_row import ReplayRow
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


def test_positions_are_ascending_and_seen():
    row = ReplayRow("SparseFlashAttention", {}, torch.device("cpu"))
    seen = [1, 3, 8, 9, 500, 100_000]
    positions = row.spread_positions((len(seen), 1, 8), seen)
    for line, count in zip(positions[:, 0].tolist(), seen, strict=True):
        there = [position for position in line if position >= 0]
        assert there == sorted(set(there))
        assert len(there) == min(count, 8)
        assert there[-1] < count
        assert line == there + [-1] * (8 - len(there))
