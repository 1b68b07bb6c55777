"""`python -m opatlas.cli.probe_dispatch_ffn_combine`: the shapes that the kernel of this machine accepts."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from opatlas import options
from opatlas.cli.app import run_tool
from opatlas.errors import OpAtlasError
from opatlas.outer.doctor.shape_probe import ShapeProbe
from opatlas.row.errors import DeviceGone
from opatlas.row.location import default_path
from opatlas.row.versions import detect
from opatlas.run.devices.device import available_devices, database_name, kind_named
from opatlas.run.group_spec import GroupSpec
from opatlas.run.groups.pool import GroupNodes, GroupPool
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.scheduler import ExcludedDevices
from opatlas.show.parameters import Count, reads
from opatlas.show.result import Fields, Result, Table
from opatlas.text import parse_whole
from opatlas.theory.refused_shapes import AXES, MoeKernel, MoeShape, load_constraints

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
    search = ShapeProbe(pool, spec, weights, weight_format, _CASE_TIMEOUT_S)
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
    sys.exit(run_tool(probe, "python -m opatlas.cli.probe_dispatch_ffn_combine"))
