"""Replays of collectives: `pytest bench/test_collectives.py`. pytest collects this file only when it is named.

A case is a message of a group of devices (opatlas/run/message.py). The body runs on every rank of the group; `row` is
a Message, `replay` a TimedCollective.
"""

from __future__ import annotations

from opatlas.row.communication import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE_SCATTER
from opatlas.run.collective_plan import collective


@collective(ALL_REDUCE)
def test_all_reduce(row, replay):
    """Replaces the message of every rank by the sum of all messages."""
    from torch import distributed

    sent = row.input_tensor()
    result = sent.clone()
    replay(
        lambda: distributed.all_reduce(result),
        result,
        row.expected_sum,
        # Without it the sum would grow from call to call.
        restore=lambda: result.copy_(sent),
    )


@collective(ALL_GATHER)
def test_all_gather(row, replay):
    """Sends the message of every rank to all ranks."""
    from torch import distributed

    sent, result = row.input_tensor(), row.output_tensor(row.size)
    replay(lambda: distributed.all_gather_into_tensor(result, sent), result, row.expected_gather)


@collective(REDUCE_SCATTER)
def test_reduce_scatter(row, replay):
    """Sends from every rank a message for each rank, which receives the sum of its messages."""
    from torch import distributed

    sent, result = row.input_tensor(row.size), row.output_tensor()
    replay(lambda: distributed.reduce_scatter_tensor(result, sent), result, row.expected_scatter)


@collective(ALL_TO_ALL)
def test_all_to_all(row, replay, npu):
    """Sends from every rank a part of its message to each rank."""
    from torch import distributed

    sent, result = row.input_tensor(), row.output_tensor()
    # HCCL has another collective for parts of equal size; hcom_alltoallv_ takes the size of each part.
    parts = [row.count // row.size] * row.size if npu else None
    replay(lambda: distributed.all_to_all_single(result, sent, parts, parts), result, row.expected_exchange)


@collective(BROADCAST)
def test_broadcast(row, replay):
    """Sends the message of rank 0 to all other ranks."""
    from torch import distributed

    result = row.input_tensor() if row.rank == 0 else row.output_tensor()
    replay(lambda: distributed.broadcast(result, src=0), result, row.expected_broadcast)
