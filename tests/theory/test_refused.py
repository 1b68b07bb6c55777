"""Rows that a device's DispatchFFNCombine was found to refuse are not added."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from opatlas.shapes.models import DEEPSEEK_V3
from tests_of_shapes import request

from opatlas.data.database import Database
from opatlas.row.columns import INPUT_SHAPES
from opatlas.row.status import Status
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.plan import KernelPlan, plan_kernel, read_table
from opatlas.theory.refused_shapes import MoeKernel, MoeShape, Trial, save_constraints

KERNEL_TYPE = "DispatchFFNCombine"


def planned(database: Path, rows: int = 0) -> KernelPlan:
    table = read_table(Database(database), KERNEL_TYPE)
    return plan_kernel(built_in_catalog().kernel(KERNEL_TYPE), table, request(DEEPSEEK_V3, rows=rows, gb=200))


def tokens(plan: KernelPlan) -> set[int]:
    return {int(shapes.partition(",")[0]) for shapes in plan.frame[INPUT_SHAPES]}


def test_sizes_beyond_the_limits_of_the_kernel_are_left_out(tmp_path: Path) -> None:
    free = planned(tmp_path)
    assert not free.result.refused
    assert max(tokens(free)) > 64
    base = MoeShape(m=64, h=7168, n=4096, experts=256, top_k=8)
    for weights in ("DT_BF16", "INT8"):
        # One after the other was tried: 63 and 64 tokens are taken, 65 are not.
        kernel = MoeKernel(1, weights)
        tried = {63: Status.MEASURED, 64: Status.MEASURED, 65: Status.FAILED}
        trials = [Trial(kernel, replace(base, m=m), m == base.m, status, "", "run") for m, status in tried.items()]
        save_constraints(tmp_path, kernel, trials)
    bound = planned(tmp_path)
    assert bound.result.refused
    assert bound.result.refused + len(bound.signatures) == len(free.signatures)
    assert tokens(bound) == {m for m in tokens(free) if m <= base.m}
