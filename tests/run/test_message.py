"""The results of every rank: right collectives pass, and each kind of mistake is found. Computed without a group."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opatlas.row.communication import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    COLLECTIVES,
    REDUCE_SCATTER,
    Collective,
)
from opatlas.row.errors import InvalidRow, WrongResult
from opatlas.run.collectives import message as module
from opatlas.run.collectives.message import Message

DTYPES = ["DT_BF16", "DT_FLOAT16", "DT_FLOAT", "DT_INT8"]


def ranks_of(collective: Collective, elements: int, size: int, dtype: str = "DT_BF16") -> list[Message]:
    element_bytes = {"DT_FLOAT": 4, "DT_INT8": 1}.get(dtype, 2)
    message_bytes = collective.message_bytes(elements * element_bytes, size, element_bytes)
    cells = {"message_bytes": str(message_bytes), "num_devices": str(size), "dtype": dtype, "topology_tier": "1"}
    return [Message(collective.kernel_type, cells, torch.device("cpu"), rank, size) for rank in range(size)]


def done(collective: Collective, ranks: list[Message]) -> list[tuple[torch.Tensor, Callable]]:
    """The right result of the collective on each rank, in its own dtype, and the expected one."""
    size = len(ranks)
    if collective is ALL_REDUCE:
        total = sum((rank.input_tensor() for rank in ranks[1:]), ranks[0].input_tensor())
        return [(total.clone(), rank.expected_sum) for rank in ranks]
    if collective is ALL_GATHER:
        together = torch.cat([rank.input_tensor() for rank in ranks])
        return [(together.clone(), rank.expected_gather) for rank in ranks]
    if collective is REDUCE_SCATTER:
        total = sum((rank.input_tensor(size) for rank in ranks[1:]), ranks[0].input_tensor(size))
        return [(chunk.clone(), rank.expected_scatter) for rank, chunk in zip(ranks, total.chunk(size), strict=True)]
    if collective is BROADCAST:
        return [(ranks[0].input_tensor(), rank.expected_broadcast) for rank in ranks]
    parts = [rank.input_tensor().chunk(size) for rank in ranks]
    return [(torch.cat([parts[r][me.rank] for r in range(size)]), me.expected_exchange) for me in ranks]


@settings(max_examples=60)
@given(st.sampled_from(COLLECTIVES), st.integers(1, 300), st.integers(2, 9), st.sampled_from(DTYPES))
def test_a_right_result_passes_on_every_rank(collective: Collective, elements: int, size: int, dtype: str) -> None:
    ranks = ranks_of(collective, elements, size, dtype)
    for rank, (result, expected) in zip(ranks, done(collective, ranks), strict=True):
        assert rank.check(result, expected) == result.numel()


@settings(max_examples=60)
@given(st.sampled_from(COLLECTIVES), st.integers(64, 300), st.integers(2, 9), st.data())
def test_a_result_of_other_ranks_or_places_does_not(
    collective: Collective, elements: int, size: int, data: st.DataObject
) -> None:
    ranks = ranks_of(collective, elements, size)
    result, expected = done(collective, ranks)[0]
    shift = data.draw(st.integers(1, result.numel() - 1))
    wrong = {
        "shifted": result.roll(shift),
        "not written": torch.full_like(result, 99),
        "half of it not written": torch.cat(
            [result[: len(result) // 2], ranks[0].output_tensor()[: -(-len(result) // 2)]]
        )
        if collective is not ALL_GATHER
        else torch.full_like(result, 99),
        "a fraction off": result + 0.5,
    }
    if collective in (ALL_REDUCE, REDUCE_SCATTER):
        own = ranks[0].rank_values(0, 0, result.numel()).to(result.dtype)
        wrong |= {"one rank left out": result - own, "one rank twice": result + own}
    if collective is ALL_GATHER:
        wrong["two ranks swapped"] = torch.cat(
            [ranks[1].input_tensor(), ranks[0].input_tensor(), *(r.input_tensor() for r in ranks[2:])]
        )
    for tensor in wrong.values():
        with pytest.raises(WrongResult, match=f"rank 0 of {size}"):
            ranks[0].check(tensor, expected)


def test_sums_of_many_ranks_are_exact_in_every_dtype() -> None:
    for dtype in DTYPES:
        ranks = ranks_of(ALL_REDUCE, 500, 100, dtype)
        result, expected = done(ALL_REDUCE, ranks)[0]
        ranks[0].check(result, expected)
        # And every rank counts in some element.
        assert all(bool((rank.input_tensor() != 0).any()) for rank in ranks)


def test_of_a_large_result_both_ends_and_places_between_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_COMPARED", 640)
    rank = ranks_of(ALL_REDUCE, 100_000, 2)[0]
    result, expected = done(ALL_REDUCE, ranks_of(ALL_REDUCE, 100_000, 2))[0]
    assert rank.check(result, expected) == 640
    for place in (0, 99_999):
        wrong = result.clone()
        wrong[place] += 1
        with pytest.raises(WrongResult, match=f"element {place} of 100000"):
            rank.check(wrong, expected)
    wrong = result.clone()
    wrong[40_000:60_000] += 1
    with pytest.raises(WrongResult):
        rank.check(wrong, expected)


@pytest.mark.parametrize(
    ("kernel_type", "cells", "words"),
    [
        ("hcom_batchSendRecv_", {}, "hcom_batchSendRecv_"),
        ("hcom_allReduce_", {"dtype": "DT_FP5"}, "'dtype' = 'DT_FP5'"),
        ("hcom_allReduce_", {"num_devices": "4"}, "'num_devices' = '4'.* 2 ranks"),
        ("hcom_allReduce_", {"message_bytes": "3"}, "'message_bytes' = 3 .*BF16"),
        ("hcom_alltoallv_", {"message_bytes": "6"}, "'message_bytes' = 6 .*2 devices"),
        ("hcom_allReduce_", {"message_bytes": "1 KiB"}, "'message_bytes' = '1 KiB'"),
        ("hcom_allReduce_", {"message_bytes": "0"}, "'message_bytes' = '0'"),
    ],
)
def test_cells_without_a_message(kernel_type: str, cells: dict[str, str], words: str) -> None:
    row = {"message_bytes": "8", "num_devices": "2", "dtype": "DT_BF16", "topology_tier": "1"} | cells
    with pytest.raises(InvalidRow, match=words):
        Message(kernel_type, row, torch.device("cpu"), 0, 2)
