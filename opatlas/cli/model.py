"""Shows what a step of a model costs on one device, by the durations of a database.

A step is what an engine computes at once: the next token of each sequence (decode), or all tokens of each (prefill).
Each call is measured, interpolated, extrapolated, analytic or missing; what is missing is not in the sum.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict

from opatlas.cli.arguments import add_json, add_product_dtype, write_or_print_json
from opatlas.devices.discovery import available_devices, database_name
from opatlas.model.location import default_path, parse_implementation
from opatlas.model.versions import detect
from opatlas.options import names
from opatlas.progress import Progress
from opatlas.query.database import model_cost
from opatlas.query.model_cost import ModelCost, PartCost, PartField
from opatlas.text import percent_text, pluralize, shorten, show, wrap

_PART, _KERNEL, _IMPLEMENTATION = 16, 15, 10
#: Longer calls are shown without decimals.
_WHOLE_US = 10_000
#: Marks of durations that only compositions tell, and of durations whose rows may be compositions.
_MARKS = {True: "*", None: "?", False: ""}
#: Marks what rows of other dtypes tell.
_OTHER_DTYPES = "~"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 done, also if durations are missing; 1 a file failed; 2 wrong usage"
    parser.add_argument("model", metavar="MODEL", help="a model's name, or its config.json or the folder of that")
    parser.add_argument(
        "database",
        nargs="?",
        metavar="DB",
        help="a folder, or a device such as NVIDIA_H200 (default: the default database of this machine)",
    )
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="devices that share a layer (default: 1)")
    parser.add_argument(
        "--ep",
        type=int,
        default=1,
        metavar="N",
        help="devices that share the experts: 1, or some times --tp (default: 1)",
    )
    parser.add_argument("--batch", type=int, required=True, metavar="N", help="sequences of a step of --tp devices")
    parser.add_argument(
        "--context",
        type=int,
        required=True,
        metavar="N",
        help="tokens of each sequence, in decode with the one that is computed",
    )
    parser.add_argument(
        "--phase", choices=("prefill", "decode"), default="decode", help="what a step computes (default: %(default)s)"
    )
    add_product_dtype(parser)
    parser.add_argument(
        "--implementation",
        type=names,
        default=(),
        metavar="NAME[,NAME...]",
        help="implementations in their order, of which the first with rows of a kernel type answers; fastest: for each "
        "call the fastest (default: the stack that the database names)",
    )
    add_json(parser, "the parts and the sum")


def run(arguments: argparse.Namespace) -> int:
    """Prints the cost. Raises OpAtlasError."""
    place = arguments.database or default_path(database_name(available_devices(None)), detect())
    # The first questions about a database fit models, which takes up to half a minute.
    with Progress(0, "calls", label="model") as progress:
        cost = model_cost(
            place,
            arguments.model,
            tp=arguments.tp,
            ep=arguments.ep,
            batch=arguments.batch,
            context=arguments.context,
            phase=arguments.phase,
            dtype=arguments.dtype,
            implementation=arguments.implementation,
            tell=lambda kernel_type: progress.advance(1, kernel_type),
        )
    if not write_or_print_json(arguments.json, _as_json(cost)):
        show("\n".join(_lines(cost)))
    return 0


def _as_json(cost: ModelCost) -> dict[str, object]:
    return {
        "model": cost.model,
        "stack": list(cost.stack),
        "differs": cost.differs,
        "database": str(cost.database),
        "tp": cost.tp,
        "ep": cost.ep,
        "batch": cost.batch,
        "context": cost.context,
        "phase": cost.phase,
        "dtype": cost.dtype,
        "us": cost.us,
        "tokens_per_s": cost.tokens_per_s,
        "interval_us": cost.interval_us,
        "interval_of": "kernels",
        "us_by_how": cost.us_by_how(),
        "layers": cost.layers,
        "us_in_layers": cost.us_in_layers,
        "composition_us": cost.composition_us,
        "untold_us": cost.untold_us,
        "other_dtypes_us": cost.other_dtypes_us,
        "missing_calls_share": cost.missing_calls_share,
        "missing_bytes_share": cost.missing_bytes_share,
        "us_by_device": cost.us_by("device"),
        "us_by_source": cost.us_by("source"),
        "missing": [part.part for part in cost.missing],
        "parts": [{**asdict(part), "us": part.us} for part in cost.parts],
    }


def _lines(cost: ModelCost) -> Iterator[str]:
    differs = f", with differences: {'; '.join(cost.differs)}" if cost.differs else ""
    yield wrap(f"{cost.model} by {', then '.join(cost.stack)}{differs}", indent=0)
    if cost.missing:
        yield f"  {_missing(cost)}"
    yield f"  {cost.database}"
    sequences = pluralize(cost.batch, "sequence")
    yield f"  {cost.phase} of {sequences} of {cost.context:,} tokens, {cost.dtype}, tp {cost.tp}, ep {cost.ep}"
    if cost.us:
        source, device, cache, instrument = (
            _shares(cost, field) for field in ("source", "device", "cache", "instrument")
        )
        yield wrap(f"{source} on {device}; cache {cache}; {instrument}", indent=2)
    yield ""
    yield _line("part", "kernel", "calls", "us each", "share", "how known", "ran")
    for part in cost.parts:
        yield _part_line(part, cost.us)
    low, high = cost.interval_us
    yield ""
    if cost.missing:
        yield f"no total, {_missing(cost)}"
    what = "the others" if cost.missing else "sum"
    yield f"{what}: {cost.us:,.0f} us, 90 % interval {low:,.0f} to {high:,.0f} us"
    if cost.us:
        yield "  " + ", ".join(f"{percent_text(us / cost.us)} {how}" for how, us in cost.us_by_how().items())
        each, outside = cost.us_in_layers / cost.layers, cost.us - cost.us_in_layers
        yield f"  a layer, as the mean of {cost.layers}: {each:,.0f} us; outside of layers {outside:,.0f} us"
    if cost.tokens_per_s is not None:
        yield f"  {cost.tokens_per_s:,.0f} tokens/s, if steps follow each other without gaps"
    yield "  sum: one kernel after another, no gaps between launches, nothing overlaps"
    yield "  interval: of kernels only, not of a step; errors of one kernel type add up,"
    yield "    those of others are independent"
    for us, mark, what in (
        (cost.composition_us, _MARKS[True], "is that of compositions of torch operators, not of the kernel"),
        (cost.untold_us, _MARKS[None], "may be that of compositions: the rows do not tell"),
        (cost.other_dtypes_us, _OTHER_DTYPES, "comes from rows of other dtypes"),
    ):
        if us:
            yield f"  {mark} {percent_text(us / cost.us)} of the sum {what}"
    if cost.composition_us or cost.untold_us:
        yield "  Kernels of libraries in their place: opatlas bench --implementation all"
    if cost.missing:
        yield "missing, and in no sum:"
        for part in cost.missing:
            yield f"  {part.part}: {part.kernel_type}, {pluralize(part.calls, 'call')}: {part.reason}"


def _missing(cost: ModelCost) -> str:
    calls, moved = percent_text(cost.missing_calls_share), percent_text(cost.missing_bytes_share)
    return f"no duration: {calls} of the calls, {moved} of their estimated bytes"


def _shares(cost: ModelCost, field: PartField) -> str:
    """Returns the values of a field of the parts: one alone, several with their shares of the sum."""
    sums = cost.us_by(field)
    told = {value or "unknown": percent_text(us / cost.us) for value, us in sums.items()}
    return next(iter(told)) if len(told) == 1 else ", ".join(f"{value} {share}" for value, share in told.items())


def _part_line(part: PartCost, total: float) -> str:
    us = part.us_per_call
    each = "-" if us is None else f"{us:.2f}" if us < _WHOLE_US else f"{us:,.0f}"
    share = "-" if part.us is None or not total else percent_text(part.us / total)
    how = part.how + _MARKS[part.composed] + _OTHER_DTYPES * part.other_dtypes
    name, _ = parse_implementation(part.implementation)
    return _line(part.part, part.kernel_type, str(part.calls), each, share, how, name)


def _line(part: str, kernel: str, calls: str, each: str, share: str, how: str, implementation: str) -> str:
    names = f"{shorten(part, _PART):{_PART}} {shorten(kernel, _KERNEL):{_KERNEL}}"
    ran = shorten(implementation, _IMPLEMENTATION)
    return f"{names} {calls:>5} {each:>8} {share:>6} {how:14} {ran}".rstrip()
