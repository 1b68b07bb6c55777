"""Which shapes a kernel takes, found by trying: with a stand-in that refuses some and dies of others."""

from __future__ import annotations

import json
from dataclasses import replace

import choosy_replay
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opatlas.plugins.session_context import present_code

from opatlas.errors import OpAtlasError
from opatlas.outer.doctor.shape_probe import OutOfTime, ShapeProbe, search
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.group import GroupSpec
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.process.device_process import GroupProcess
from opatlas.theory.refused_shapes import (
    AXES,
    Constraints,
    MoeKernel,
    MoeShape,
    Trial,
    constraints_file,
    load_constraints,
    save_constraints,
)

KERNEL = MoeKernel(2, "DT_BF16")
START = MoeShape(m=8, h=64, n=32, experts=4, top_k=3)
UNITS = {"n": 2}


def searched(takes, most: MoeShape, start: MoeShape = START, tries: int = 10_000, together: int = 0) -> list[Trial]:
    trials: list[Trial] = []

    def taken(shape: MoeShape) -> bool:
        if len(trials) >= tries:
            raise OutOfTime
        status = Status.MEASURED if takes(shape) else Status.FAILED
        trials.append(Trial(KERNEL, shape, not trials, status, "", "run"))
        return trials[-1].accepted

    axes = {axis: range(UNITS.get(axis, 1), getattr(most, axis) + 1, UNITS.get(axis, 1)) for axis in AXES}
    search(taken, axes, start, together)
    return trials


@settings(deadline=None)
@given(
    step=st.sampled_from([1, 2, 16, 64]),
    high=st.integers(64, 1000),
    low=st.integers(1, 64),
    size=st.integers(1, 1000),
)
def test_steps_and_ends_of_a_size_are_found(step: int, high: int, low: int, size: int) -> None:
    def takes(shape: MoeShape) -> bool:
        return shape.h % step == 0 and low <= shape.h <= high

    most = MoeShape(8, 1000, 32, 4, 3)
    trials = searched(takes, most)
    asked = replace(START, h=size)
    # Where no larger one is taken, none gives the step: then only known sizes are accepted.
    if high >= START.h + step:
        assert Constraints(tuple(trials)).accepts(asked, ep_size=2, weights="DT_BF16") == takes(asked)
    elif Constraints(tuple(trials)).accepts(asked, ep_size=2, weights="DT_BF16"):
        assert takes(asked)
    assert len(trials) < 80
    assert len({trial.shape for trial in trials}) == len(trials)


def test_sizes_too_large_together_stay_so() -> None:
    trials = searched(lambda shape: shape.m * shape.h <= 4096, MoeShape(64, 512, 32, 4, 3))
    constraints = Constraints(tuple(trials))
    assert {(limit.low, limit.high, limit.step) for limit in constraints.limits(KERNEL).values()} == {(None, None, 1)}
    for m, h, accepted in ((64, 64, True), (8, 512, True), (64, 512, False), (80, 600, False)):
        assert constraints.accepts(replace(START, m=m, h=h), ep_size=2, weights="DT_BF16") == accepted


def test_tables_of_several_kernels_are_one_file(tmp_path) -> None:
    trials = searched(lambda shape: shape.m <= 40 and shape.h % 16 == 0, MoeShape(64, 512, 64, 4, 3))
    save_constraints(tmp_path, KERNEL, trials)
    other = MoeKernel(16, "INT8")
    save_constraints(tmp_path, other, [replace(trial, kernel=other, reason='a "reason", and why') for trial in trials])
    save_constraints(tmp_path, KERNEL, trials[:3])
    loaded = load_constraints(tmp_path).trials
    assert [trial for trial in loaded if trial.kernel == KERNEL] == trials[:3]
    assert len(loaded) == len(trials) + 3
    path = constraints_file(tmp_path)
    path.write_text(path.read_text().replace("measured", "measures", 1))
    with pytest.raises(OpAtlasError, match=rf"{path}:2: 'measures'"):
        load_constraints(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"\n", bytes(100), b"a,b\n1,2\n", b"\xff", b"2,DT_BF16\n", b"x" * 200_000])
def test_a_damaged_table_is_an_error_that_names_the_table(tmp_path, damage) -> None:
    path = save_constraints(tmp_path, KERNEL, [])
    path.write_bytes(damage if len(damage) < 2 else path.read_bytes() + damage)
    with pytest.raises(OpAtlasError) as raised:
        load_constraints(tmp_path)
    assert str(path) in str(raised.value)


def test_a_kernel_that_refuses_and_dies_is_probed(forks, tmp_path, capsys) -> None:
    """On a group of two ranks over gloo: what its ranks say, and die of, is what the table says."""
    spec = GroupSpec(2)
    group = GroupProcess(spec, [DeviceSpec("cpu")] * 2, MeasureSettings(repeat_count=1, cache="warm", threads=1))
    probe = ShapeProbe(group, spec, "DT_BF16", "ND", ("choosy_replay", "dispatch_ffn_combine"))
    # Near the limits of choosy_replay, since each case that is refused costs the group.
    most = MoeShape(42, 128, 130, 4, 7)
    try:
        path = probe.run(tmp_path, replace(START, m=30, h=96, n=126, top_k=5), most, budget_s=200, random_cases=1)
    finally:
        group.close()
    constraints = load_constraints(tmp_path)
    assert path == constraints_file(tmp_path)
    assert any(trial.status is Status.CRASHED for trial in constraints.trials)
    assert any("EZ1001" in trial.reason for trial in constraints.trials)
    assert [trial.accepted for trial in constraints.trials] == [
        choosy_replay.takes(**vars(trial.shape), ranks=2) for trial in constraints.trials
    ]
    limits = constraints.limits(KERNEL)
    assert (limits["m"].high, limits["h"].step, limits["n"].high, limits["top_k"].high) == (40, 32, 128, 6)
    assert not constraints.accepts(replace(START, h=96, n=128, m=41), ep_size=2, weights="DT_BF16")
    (manifest,) = (tmp_path / "runs").glob("*.json")
    assert manifest.stem == constraints.trials[0].run_id
    assert json.loads(manifest.read_text())["code"] == present_code()
