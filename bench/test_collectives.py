"""Collectives over HCCL, NCCL and Gloo: `pytest bench/test_collectives.py`, which nothing but its name collects.

A case is a message of a group of devices; the options (opatlas/collectives/options.py) say which, and
docs/collectives.md
what is measured. The body runs on every rank of the group.
"""

from __future__ import annotations

from opatlas.collectives.rows import collective
from opatlas.model.communication import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE_SCATTER,
)


@collective(ALL_REDUCE)
def test_all_reduce(row, replay):
    """Every rank gives a message, and gets the sum of all in its place."""
    from torch import distributed

    given = row.given()
    result = given.clone()
    replay(
        lambda: distributed.all_reduce(result),
        result,
        row.summed,
        # The sum of sums would grow from call to call.
        restore=lambda: result.copy_(given),
    )


@collective(ALL_GATHER)
def test_all_gather(row, replay):
    """Every rank gives a message, and gets those of all."""
    from torch import distributed

    given, result = row.given(), row.empty(row.size)
    replay(lambda: distributed.all_gather_into_tensor(result, given), result, row.gathered)


@collective(REDUCE_SCATTER)
def test_reduce_scatter(row, replay):
    """Every rank gives a message for each, and gets the sum of those that are for it."""
    from torch import distributed

    given, result = row.given(row.size), row.empty()
    replay(lambda: distributed.reduce_scatter_tensor(result, given), result, row.scattered)


@collective(ALL_TO_ALL)
def test_all_to_all(row, replay):
    """Every rank gives a message, a part of it to each, and gets a part from each."""
    from torch import distributed

    given, result = row.given(), row.empty()
    # HCCL has a collective of its own for parts that are all alike; hcom_alltoallv_ is the one that takes their sizes.
    parts = [row.count // row.size] * row.size if given.device.type == "npu" else None
    replay(lambda: distributed.all_to_all_single(result, given, parts, parts), result, row.exchanged)


@collective(BROADCAST)
def test_broadcast(row, replay):
    """The first rank gives a message, and all others get it."""
    from torch import distributed

    result = row.given() if row.rank == 0 else row.empty()
    replay(lambda: distributed.broadcast(result, src=0), result, row.of_first)
