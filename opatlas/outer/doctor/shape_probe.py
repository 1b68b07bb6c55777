"""`python -m opatlas.outer.doctor.shape_probe`: rows that tell which shapes the installed DispatchFFNCombine accepts.

A session runs them, as any rows; one that fails or crashes is a shape that the kernel refuses. The sizes (m, h, n,
experts and top_k of a rank) vary one at a time from a case that is known to run; a further call adds rows between the
sizes that are accepted and those that are not, and rows in which all sizes differ. Theory rows are limited to accepted
shapes (opatlas/theory/refused_shapes.py).
"""

from __future__ import annotations

import argparse
import operator
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from opatlas.data.database import Database
from opatlas.data.fold import add_rows
from opatlas.errors import OpAtlasError
from opatlas.row import columns as col
from opatlas.row.location import default_path
from opatlas.row.versions import detect
from opatlas.run.devices.device import available_devices, database_name
from opatlas.show.parameters import Count, reads
from opatlas.show.result import Fields, Part, Result, Table
from opatlas.text import parse_whole
from opatlas.theory.refused_shapes import AXES, MoeKernel, MoeShape, read_constraints

_KERNEL_TYPE = "DispatchFFNCombine"
#: Rows and columns of a FRACTAL_NZ block, by the weights' dtype.
BLOCKS = {"DT_BF16": (16, 16), "INT8": (16, 32)}
#: The number of random cases in which all sizes differ.
_RANDOM_CASES = 20
#: The sizes of a large model in decoding, which every known version accepts.
_START = MoeShape(m=16, h=7168, n=4096, experts=16, top_k=8)
_MOST = MoeShape(m=65536, h=16384, n=16384, experts=256, top_k=32)


def _shape(text: str) -> MoeShape:
    sizes = [size for word in text.split(",") if (size := parse_whole(word))]
    if not len(sizes) == len(AXES) == text.count(",") + 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give {','.join(AXES)}, five whole numbers above 0")
    return MoeShape(*sizes)


def first_cases(start: MoeShape, units: Mapping[str, int], most: MoeShape = _MOST) -> Iterator[MoeShape]:
    """Yields a case, and those whose sizes differ from it one at a time, by a unit and its doubles, and the ends."""
    yield start
    for axis in AXES:
        middle, unit, end = getattr(start, axis), units.get(axis, 1), getattr(most, axis)
        steps = [unit << power for power in range((end // unit).bit_length())]
        sizes = {unit, end // unit * unit, *(middle + sign * step for step in steps for sign in (-1, 1))}
        yield from (replace(start, **{axis: size}) for size in sorted(sizes) if unit <= size <= end)


def further_cases(tried: Mapping[MoeShape, bool], base: MoeShape, units: Mapping[str, int]) -> Iterator[MoeShape]:
    """Yields cases between accepted and refused ones, and accepted sizes together: largest, smallest, random ones."""
    accepted: dict[str, list[int]] = {}
    for axis in AXES:
        along = sorted(
            (getattr(shape, axis), taken)
            for shape, taken in tried.items()
            if replace(shape, **{axis: getattr(base, axis)}) == base
        )
        accepted[axis] = [size for size, taken in along if taken]
        for (size, taken), (other, also) in pairwise(along):
            between = (size + other) // 2 // units.get(axis, 1) * units.get(axis, 1)
            if taken is not also and size < between < other:
                yield replace(base, **{axis: between})
    drawn = random.Random(len(tried))
    yield MoeShape(**{axis: sizes[-1] for axis, sizes in accepted.items()})
    yield MoeShape(**{axis: sizes[0] for axis, sizes in accepted.items()})
    together = sum(sum(map(operator.ne, astuple(shape), astuple(base))) > 1 for shape in tried)
    for _ in range(_RANDOM_CASES - together):
        yield MoeShape(**{axis: drawn.choice(sizes) for axis, sizes in accepted.items()})


def row_cells(shape: MoeShape, kernel: MoeKernel, weight_format: str) -> dict[str, str]:
    """Returns the cells of the row of a case."""
    m, h, n, experts, k = astuple(shape)
    rows, columns = BLOCKS[kernel.weights]

    def weight(height: int, width: int) -> str:
        if weight_format == "ND":
            return f"{experts},{height},{width}"
        return f"{experts},{width // columns},{height // rows},{rows},{columns}"

    return {
        **dict.fromkeys(col.BASE, ""),
        col.INPUT_SHAPES: f"{m},{h};{weight(h, n)};{weight(n // 2, h)};{m},{k};{experts},{n};{experts},{h};{m},{k}",
        col.INPUT_DTYPES: f"DT_BF16;{kernel.weights};{kernel.weights};INT32;FLOAT;FLOAT;FLOAT",
        col.INPUT_FORMATS: f"ND;{weight_format};{weight_format};ND;ND;ND;ND",
        col.OUTPUT_SHAPES: f"{m},{h};{experts}",
        col.OUTPUT_DTYPES: "DT_BF16;INT32",
        col.OUTPUT_FORMATS: "ND;ND",
        col.EP_SIZE: str(kernel.ep_size),
    }


def probe(
    *,
    database_path: Path | None = None,
    ep_size: Count = 16,
    weights: Literal["DT_BF16", "INT8"] = "INT8",
    weight_format: Literal["FRACTAL_NZ", "ND"] = "FRACTAL_NZ",
    start: Annotated[MoeShape, reads(_shape), Parameter(accepts_keys=False)] = _START,
) -> Result:
    """Adds rows that tell which shapes DispatchFFNCombine accepts, once a session has run them.

    Call it again after the session: it shows the limits so far, and adds rows that tell more (docs/several-devices.md).

    Exit status: 0 done; 1 a file cannot be read or written; 2 wrong usage.

    Args:
        database_path: folder of the {KernelType}.csv files (default: that of the device at hand and versions).
        ep_size: devices that share the experts.
        weights: dtype of the experts' weights.
        weight_format: format of the weights; in FRACTAL_NZ h and n are whole blocks.
        start: the first case M,H,N,EXPERTS,TOP_K, whose sizes are varied (default: 16,7168,4096,16,8).
    """
    path = database_path or default_path(database_name(available_devices(None)), detect())
    kernel = MoeKernel(ep_size, weights)
    # Both weights, (H, N) and (N / 2, H), consist of whole blocks.
    rows, columns = BLOCKS[weights] if weight_format == "FRACTAL_NZ" else (1, 1)
    units = {"h": max(rows, columns), "n": max(2 * rows, columns)}
    for name, unit in units.items():
        if getattr(start, name) % unit:
            raise OpAtlasError(f"--start: {name} must be a multiple of {unit} in {weight_format}")
    database = Database(path)
    constraints = read_constraints(database.read_or_empty(_KERNEL_TYPE))
    tried = {trial.shape: trial.accepted for trial in constraints.trials if trial.kernel == kernel}
    limits = constraints.limits(kernel)
    base = MoeShape(**{axis: limit.base for axis, limit in limits.items()}) if limits else start
    shapes = [*first_cases(base, units), *(further_cases(tried, base, units) if limits else ())]
    path.mkdir(parents=True, exist_ok=True)
    added = add_rows(database, {_KERNEL_TYPE: [row_cells(shape, kernel, weight_format) for shape in shapes]})
    parts: list[Part] = [Fields({"rows added": added, "run": len(tried), "accepted": sum(tried.values())})]
    if limits:
        found = [(axis, *asdict(limit).values()) for axis, limit in limits.items()]
        parts.append(Table(("size", "of a case", "step", "least", "most"), found))
    return Result([*parts, f"next: opatlas bench --ops {_KERNEL_TYPE} --database-path {path} --ep-size {ep_size}"])


if __name__ == "__main__":
    # The commands are above this package.
    sys.exit(import_module("opatlas.cli.app").run_tool(probe, "python -m opatlas.outer.doctor.shape_probe"))
