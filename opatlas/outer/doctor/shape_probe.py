"""`python -m opatlas.outer.doctor.shape_probe`: the shapes that the installed DispatchFFNCombine accepts, by trying.

Each case runs in a group of ranks, as a row does. A case that crashes or hangs ends its group, and counts as
refused. Starting from an accepted case, the sizes (m, h, n, experts and top_k of a rank) vary one at a time, then
together. Theory rows are limited to accepted shapes (opatlas/theory/refused_shapes.py). Ctrl-C keeps the results so
far.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from opatlas import options
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest, code_digest, this_machine
from opatlas.errors import OpAtlasError
from opatlas.installation import measuring_code
from opatlas.progress import progress
from opatlas.row.columns import EP_SIZE
from opatlas.row.errors import DeviceGone
from opatlas.row.location import default_path
from opatlas.row.record import new_run_id
from opatlas.row.status import Status
from opatlas.row.versions import detect
from opatlas.run.devices.device import available_devices, database_name, kind_named
from opatlas.run.group import GroupSpec
from opatlas.run.group_pool import GroupNodes, GroupPool
from opatlas.run.inputs.experts import hccl_buffer_mib, needed_bytes
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job
from opatlas.run.scheduler import ExcludedDevices, Scheduler
from opatlas.show.output import print_note
from opatlas.show.parameters import Count, reads
from opatlas.show.result import Fields, Result, Table
from opatlas.text import parse_whole
from opatlas.theory.refused_shapes import AXES, MoeKernel, MoeShape, Trial, load_constraints, save_constraints

_KERNEL_TYPE = "DispatchFFNCombine"
_REPLAY = ("opatlas.bench.test_expert_parallel", "test_dispatch_ffn_combine")
#: Rows and columns of a FRACTAL_NZ block, by the weights' dtype.
BLOCKS = {"DT_BF16": (16, 16), "INT8": (16, 32)}
#: The number of random cases in which all sizes differ.
_RANDOM_CASES = 20


@dataclass
class ShapeProbe:
    """Tries cases on a group of ranks.

    Attributes:
        executor: runs the cases; its caller closes it.
        spec: the group of ranks.
        weights: dtype of the weights, a key of BLOCKS.
        weight_format: "ND" or "FRACTAL_NZ".
        replay: module and function that replay a case.
        trials: the cases and their outcomes, in order.
    """

    executor: Scheduler
    spec: GroupSpec
    weights: str
    weight_format: str
    replay: tuple[str, str] = _REPLAY
    trials: list[Trial] = field(default_factory=list)
    run_id: str = field(default_factory=new_run_id)

    @property
    def kernel(self) -> MoeKernel:
        return MoeKernel(self.spec.ranks, self.weights)

    @property
    def _block(self) -> tuple[int, int]:
        """Rows and columns of a block of the weights."""
        return BLOCKS[self.weights] if self.weight_format == "FRACTAL_NZ" else (1, 1)

    def run(
        self, path: Path, start: MoeShape, most: MoeShape, budget_s: float, random_cases: int = _RANDOM_CASES
    ) -> Path:
        """Tries cases until the time limit, and returns the file with the results.

        Args:
            path: the database.
            start: the case from which the sizes vary.
            most: the largest size of each axis.
            budget_s: time limit of all cases, in seconds.
            random_cases: the number of random cases in which all sizes differ.

        Raises:
            OpAtlasError: a precondition of all cases is missing, or a file cannot be written.
            DeviceGone: the device process ended for good.
        """
        path.mkdir(parents=True, exist_ok=True)
        began, end = time.time(), time.monotonic() + budget_s
        # Both weights, (H, N) and (N / 2, H), consist of whole blocks.
        rows, columns = self._block
        units = {"h": max(rows, columns), "n": max(2 * rows, columns)}
        for name, unit in units.items():
            if getattr(start, name) % unit:
                raise OpAtlasError(f"--start: {name} must be a multiple of {unit} in {self.weight_format}")
        axes = {axis: range(units.get(axis, 1), getattr(most, axis) + 1, units.get(axis, 1)) for axis in AXES}
        with progress(f"probe, cases, at most {budget_s:g} s", None) as advance:

            def accepts(shape: MoeShape) -> bool:
                if time.monotonic() >= end:
                    raise OutOfTime
                advance(1)
                return self._try(shape)

            try:
                search(accepts, axes, start, random_cases)
            except KeyboardInterrupt:
                print_note("interrupted: the results so far are kept")
        told = {**asdict(self.kernel), "format": self.weight_format, "start": asdict(start), "most": asdict(most)}
        Manifest(
            self.run_id,
            began,
            {"command": "shape_probe", **told, "time_budget_s": budget_s},
            code_digest(measuring_code()),
            device=asdict(self.executor.describe()) if self.trials else {},
            finished_at=time.time(),
            statuses=dict(Counter(trial.status.value for trial in self.trials)),
            **this_machine(),
        ).write(Database(path))
        return save_constraints(path, self.kernel, self.trials)

    def _try(self, shape: MoeShape) -> bool:
        module, function = self.replay
        cells = self._cells(shape)
        spec = replace(self.spec, hccl_buffer_mib=hccl_buffer_mib(needed_bytes(cells)))
        outcome = self.executor.run(Job(module, "", function, _KERNEL_TYPE, cells, _CASE_TIMEOUT_S, spec))
        if outcome.status is Status.SKIPPED:
            # A precondition of all cases is missing.
            raise OpAtlasError(outcome.reason)
        self.trials.append(Trial(self.kernel, shape, not self.trials, outcome.status, outcome.reason, self.run_id))
        return self.trials[-1].accepted

    def _cells(self, shape: MoeShape) -> dict[str, str]:
        m, h, n, experts, k = astuple(shape)
        up, down = self._weight(experts, h, n), self._weight(experts, n // 2, h)
        weights = self.kernel.weights
        return {
            "Input Shapes": f"{m},{h};{up};{down};{m},{k};{experts},{n};{experts},{h};{m},{k}",
            "Input Data Types": f"DT_BF16;{weights};{weights};INT32;FLOAT;FLOAT;FLOAT",
            "Input Formats": f"ND;{self.weight_format};{self.weight_format};ND;ND;ND;ND",
            "Output Shapes": f"{m},{h};{experts}",
            "Output Data Types": "DT_BF16;INT32",
            "Output Formats": "ND;ND",
            EP_SIZE: str(self.spec.ranks),
        }

    def _weight(self, experts: int, rows: int, columns: int) -> str:
        if self.weight_format == "ND":
            return f"{experts},{rows},{columns}"
        block_rows, block_columns = self._block
        return f"{experts},{columns // block_columns},{rows // block_rows},{block_rows},{block_columns}"


class OutOfTime(Exception):
    """The time limit of a search has passed. The results so far are kept."""


def search(accepts: Callable[[MoeShape], bool], axes: Mapping[str, range], base: MoeShape, random_cases: int) -> None:
    """Tries a case, its sizes one at a time, the largest and the smallest ones together, and random ones between.

    Args:
        accepts: tells whether the kernel accepts a case; called at most once for each. Ends the search by OutOfTime.
        axes: the sizes of each axis that may be tried.
    """
    tried = cache(accepts)
    with suppress(OutOfTime):
        if not tried(base):
            return
        ranges = {
            name: _accepted(partial(_with_size, tried, base, name), axes[name], getattr(base, name)) for name in AXES
        }
        drawn = random.Random(0)
        tried(MoeShape(**{name: sizes[-1] for name, sizes in ranges.items()}))
        tried(MoeShape(**{name: sizes[0] for name, sizes in ranges.items()}))
        for _ in range(random_cases):
            tried(MoeShape(**{name: drawn.choice(sizes) for name, sizes in ranges.items()}))


def _with_size(tried: Callable[[MoeShape], bool], base: MoeShape, name: str, size: int) -> bool:
    return tried(replace(base, **{name: size}))


def _accepted(accepts: Callable[[int], bool], axis: range, middle: int) -> range:
    """Returns the accepted sizes of one axis as a range: smallest, largest, and the step between accepted sizes."""
    step = axis.step
    while middle + step < axis.stop and not accepts(middle + step):
        step *= 2
        if step > middle:
            # No size up to twice the middle tells the step, so that smaller sizes are not tried.
            step = middle
            break
    high = _last(accepts, middle, step, axis.stop - 1)
    low = _last(accepts, middle, -step, axis.start)
    return range(low, high + 1, step)


def _last(accepts: Callable[[int], bool], start: int, step: int, end: int) -> int:
    """Returns the last accepted size from `start` towards `end`: growing strides, then bisection."""
    most = abs(end - start) // abs(step)
    good, stride, bad = 0, 1, most + 1
    while good < most:
        reach = min(good + stride, most)
        if not accepts(start + reach * step):
            bad = reach
            break
        good, stride = reach, stride * 2
    while bad <= most and bad - good > 1:
        half = (good + bad) // 2
        good, bad = (half, bad) if accepts(start + half * step) else (good, half)
    return start + good * step


#: The sizes of a large model in decoding, which every known version accepts.
_START = MoeShape(m=16, h=7168, n=4096, experts=16, top_k=8)
_MOST = MoeShape(m=65536, h=16384, n=16384, experts=256, top_k=32)
_CASE_TIMEOUT_S = 120.0


def _shape(text: str) -> MoeShape:
    sizes = [size for word in text.split(",") if (size := parse_whole(word))]
    if not len(sizes) == len(AXES) == text.count(",") + 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give {','.join(AXES)}, five whole numbers above 0")
    return MoeShape(*sizes)


def probe(
    *,
    device: str | None = None,
    database_path: Path | None = None,
    ep_size: Count = 16,
    weights: Literal["DT_BF16", "INT8"] = "INT8",
    weight_format: Literal["FRACTAL_NZ", "ND"] = "FRACTAL_NZ",
    start: Annotated[MoeShape | None, reads(_shape), Parameter(accepts_keys=False)] = None,
    time_budget: Annotated[float, reads(options.positive)] = 1800.0,
) -> Result:
    """Finds the shapes that DispatchFFNCombine accepts, by trying, and stores them in a database.

    Theory rows are limited to these shapes (docs/several-devices.md). Ctrl-C ends the search, and keeps the results so
    far.

    Exit status: 0 done; 1 no case was accepted, or the device cannot be used; 2 wrong usage.

    Args:
        device: as in `pytest bench/` (default: the device at hand).
        database_path: folder of the {KernelType}.csv files (default: that of the device and versions).
        ep_size: devices that share the experts.
        weights: dtype of the experts' weights.
        weight_format: format of the weights; in FRACTAL_NZ h and n are whole blocks.
        start: the first case M,H,N,EXPERTS,TOP_K, whose sizes are varied (default: 16,7168,4096,16,8).
        time_budget: time limit of the search, in seconds.
    """
    devices = available_devices(device)
    path = database_path or default_path(database_name(devices), detect())
    pool = GroupPool(
        GroupNodes(devices),
        MeasureSettings(repeat_count=1, cache="warm", instrument=kind_named(devices[0].kind).events),
        ExcludedDevices(None),
    )
    spec = GroupSpec(ep_size)
    if reason := pool.shortage(spec):
        raise OpAtlasError(f"--ep-size {ep_size} {reason}: give a smaller --ep-size, or show more devices")
    search = ShapeProbe(pool, spec, weights, weight_format)
    try:
        written = search.run(path, start or _START, _MOST, time_budget)
    except DeviceGone as error:
        raise OpAtlasError(str(error)) from None
    finally:
        pool.close()
    limits = load_constraints(path).limits(MoeKernel(ep_size, weights))
    if not limits:
        first = search.trials[0] if search.trials else None
        why = f" ({first.status}: {first.reason})" if first else ""
        raise OpAtlasError(f"the first case was not accepted{why}: give another first case with --start")
    rows = [(axis, *asdict(limit).values()) for axis, limit in limits.items()]
    accepted = sum(trial.accepted for trial in search.trials)
    counts = Fields({"cases": len(search.trials), "accepted": accepted, "constraints": str(written)})
    return Result([Table(("size", "of the first case", "step", "least", "most"), rows), counts])


if __name__ == "__main__":
    # The commands are above this package.
    sys.exit(import_module("opatlas.cli.app").run_tool(probe, "python -m opatlas.outer.doctor.shape_probe"))
