"""Finds the shapes that the DispatchFFNCombine kernel of this machine accepts, and stores the results in a database.

Theory rows are limited to these shapes (docs/several-devices.md). Ctrl-C ends the search, and keeps the results so far.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import astuple

from opatlas.cli.main import run_tool
from opatlas.devices.discovery import available_devices, database_name
from opatlas.doctor.shape_probe import BLOCKS, ShapeProbe
from opatlas.engine.group_spec import GroupSpec
from opatlas.errors import OpAtlasError
from opatlas.instruments.instrument import EVENTS, MeasureSettings
from opatlas.isolation.device_pool import ExcludedDevices
from opatlas.isolation.groups.nodes import GroupNodes
from opatlas.isolation.groups.pool import GroupPool
from opatlas.model.errors import DeviceGone
from opatlas.model.location import default_path
from opatlas.model.versions import detect
from opatlas.options import add_database_path, at_least, positive
from opatlas.text import parse_whole, show
from opatlas.theory.refused_shapes import AXES, MoeKernel, MoeShape, load_constraints

#: The sizes of a large model in decoding, which every known version accepts.
_START = MoeShape(m=16, h=7168, n=4096, experts=16, top_k=8)
_MOST = MoeShape(m=65536, h=16384, n=16384, experts=256, top_k=32)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="NAME", help="as in pytest bench/ (default: the device at hand)")
    add_database_path(parser)
    parser.add_argument(
        "--ep-size",
        type=at_least(1),
        default=16,
        metavar="N",
        help="devices that share the experts (default: %(default)s)",
    )
    parser.add_argument(
        "--weights", choices=BLOCKS, default="INT8", help="dtype of the experts' weights (default: %(default)s)"
    )
    parser.add_argument(
        "--format",
        choices=("FRACTAL_NZ", "ND"),
        default="FRACTAL_NZ",
        help="format of the weights; in FRACTAL_NZ h and n are whole blocks (default: %(default)s)",
    )
    for name, shape in (("start", _START), ("most", _MOST)):
        what = "the first case, whose sizes are varied" if name == "start" else "the largest sizes to try"
        parser.add_argument(
            f"--{name}",
            type=_shape,
            default=shape,
            metavar=",".join(AXES).upper(),
            help=f"{what} (default: {','.join(map(str, astuple(shape)))})",
        )
    parser.add_argument(
        "--time-budget",
        type=positive,
        default=1800.0,
        metavar="SECONDS",
        help="time limit of the search (default: %(default)g)",
    )
    parser.add_argument(
        "--case-timeout",
        type=positive,
        default=120.0,
        metavar="SECONDS",
        help="time limit of a case (default: %(default)g)",
    )


def run(arguments: argparse.Namespace) -> int:
    devices = available_devices(arguments.device)
    path = arguments.database_path or default_path(database_name(devices), detect())
    pool = GroupPool(
        GroupNodes(devices),
        MeasureSettings(repeat_count=1, cache="warm", instrument=EVENTS.get(devices[0].kind)),
        ExcludedDevices(None),
    )
    spec = GroupSpec(arguments.ep_size)
    if reason := pool.shortage(spec):
        raise OpAtlasError(f"--ep-size {arguments.ep_size} {reason}: give a smaller --ep-size, or show more devices")
    probe = ShapeProbe(pool, spec, arguments.weights, arguments.format, arguments.case_timeout)
    try:
        written = probe.run(path, arguments.start, arguments.most, arguments.time_budget)
    except DeviceGone as error:
        raise OpAtlasError(str(error)) from None
    finally:
        pool.close()
    kernel = MoeKernel(arguments.ep_size, arguments.weights)
    limits = load_constraints(path).limits(kernel)
    for axis, limit in limits.items():
        show(f"{axis:8} {limit}")
    accepted = sum(trial.accepted for trial in probe.trials)
    show(f"{len(probe.trials)} cases tried, {accepted} accepted: {written}")
    if not limits:
        first = probe.trials[0] if probe.trials else None
        why = f" ({first.status}: {first.reason})" if first else ""
        raise OpAtlasError(f"the first case was not accepted{why}: give another first case with --start")
    return 0


def _shape(text: str) -> MoeShape:
    sizes = [size for word in text.split(",") if (size := parse_whole(word))]
    if not len(sizes) == len(AXES) == text.count(",") + 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give {','.join(AXES)}, five whole numbers above 0")
    return MoeShape(*sizes)


if __name__ == "__main__":
    sys.exit(run_tool("opatlas.cli.probe_dispatch_ffn_combine"))
