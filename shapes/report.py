"""The results of `pytest shapes/` for each kernel type, as tables for a terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from opatlas.data.manifest import Pace
from opatlas.formats import size
from opatlas.show.result import Column, Fields, Part, Table, markdown
from opatlas.theory.known_rows import ENOUGH_SIZES, ShapeCoverage
from opatlas.theory.plan import KernelResult

#: Shapes of a model with too few sizes that the terminal names; the report has all.
_FEW_NAMED = 3


def summary_parts(results: Sequence[KernelResult], pace: Pace, *, read_only: bool) -> Iterator[Part]:
    """Yields a table of the kernel types, then the coverage of each model.

    Args:
        pace: the pace of a replay, for the time that the new rows take.
    """
    ordered = sorted(results, key=lambda result: result.kernel_type)
    columns = (
        *("kernel type", "to add" if read_only else "added", "existing", "too large", "refused"),
        *(Column("largest", size), Column("in all", size), "unknown dtypes"),
    )
    cells = [
        (
            *(each.kernel_type, each.added, each.existing, each.over_budget, each.refused),
            *(each.largest_bytes or None, each.total_bytes or None, ", ".join(each.unknown_dtypes) or None),
        )
        for each in ordered
    ]
    total = sum(result.added for result in ordered)
    sums = (
        *("all", total, sum(each.existing for each in ordered), sum(each.over_budget for each in ordered)),
        *(sum(each.refused for each in ordered), max((each.largest_bytes for each in ordered), default=0) or None),
        *(sum(each.total_bytes for each in ordered) or None, None),
    )
    yield Table(columns, [*cells, sums])
    if total:
        yield Fields({"to replay them": pace.time_of(total)})
    yield from _coverage_parts(ordered)


def _coverage_parts(results: Sequence[KernelResult]) -> Iterator[Part]:
    by_model: dict[str, list[tuple[str, ShapeCoverage]]] = {}
    for result in results:
        for part in result.coverage:
            by_model.setdefault(part.model, []).extend((part.kernel_type, shape) for shape in part.shapes)
    rows, few = [], dict[tuple[str, str], None]()
    for model, named in by_model.items():
        shapes = [shape for _, shape in named]
        enough = sum(shape.is_enough for shape in shapes)
        rows.append((model, len(shapes), enough, _share(shapes, None)))
        short = [(kernel_type, shape) for kernel_type, shape in named if not shape.is_enough]
        # Kernel types without any row are shown last: a database may be without them on purpose.
        measured = {kernel_type for kernel_type, shape in named if shape.has_rows}
        short.sort(key=lambda pair: (pair[0] not in measured, -sum(pair[1].calls.values()), pair[1].sizes))
        # Shapes that differ only in their dtypes are one line.
        few |= dict.fromkeys((kernel_type, str(shape)) for kernel_type, shape in short)
    if rows:
        header = ("model", "shapes", f"with {ENOUGH_SIZES} sizes", "of the calls in a step")
        yield Table(header, rows, "coverage")
    if few:
        shown = list(few)[:_FEW_NAMED]
        title = f"shapes with fewer than {ENOUGH_SIZES} sizes"
        yield Table(("kernel type", "shape"), shown, title, left_out=len(few) - len(shown))


def _divisions(shapes: Iterable[ShapeCoverage]) -> list[str]:
    """Returns the ways to divide a model: "", "ep 1", "ep 2", ... "tp 16"."""
    found = {division for shape in shapes for division in shape.calls}
    return sorted(found, key=lambda division: (division.rstrip("0123456789"), len(division), division))


def _share(shapes: Sequence[ShapeCoverage], division: str | None) -> str:
    """Returns the share of the calls in a step whose shapes have enough sizes.

    Args:
        division: a way to divide the model; None: all ways together. A part that every device has counts in each size
            of tensor parallelism.
    """
    wanted = [division] if division is not None else _divisions(shapes)
    if any(each.startswith("tp") for each in wanted):
        wanted = [each for each in wanted if each]
    enough = total = 0
    for each in wanted:
        for shape in shapes:
            calls = shape.calls.get(each, 0) + (shape.calls.get("", 0) if each.startswith("tp") else 0)
            total += calls
            enough += calls * shape.is_enough
    # Rounded down, so that 100 % means all.
    return f"{100 * enough // total if total else 0} %"


def coverage_page(results: Sequence[KernelResult], title: str) -> str:
    """Returns the coverage report in Markdown.

    A shape is one of a model for a kernel type on one device, for each way to divide the model. Its sizes are the
    different numbers of tokens, sequences or keys of its rows.
    """
    rows, few = [], []
    for result in sorted(results, key=lambda result: result.kernel_type):
        for part in result.coverage:
            for division in _divisions(part.shapes):
                shapes = [shape for shape in part.shapes if division in shape.calls]
                rows.append((part.kernel_type, part.model, division or "no", *_counts(shapes, division)))
            few += [
                (part.kernel_type, part.model, str(shape), shape.dtypes) for shape in part.shapes if not shape.is_enough
            ]
    columns = (
        *("kernel type", "model", "divided", "shapes", "with a row", f"with {ENOUGH_SIZES} sizes"),
        *("of the calls in a step", "fewest sizes", "widest gap between sizes"),
    )
    short = Table(("kernel type", "model", "shape", "dtypes"), few, f"Shapes with fewer than {ENOUGH_SIZES} sizes")
    return f"# Coverage: {title}\n\n{markdown([Table(columns, rows), short])}\n"


def _counts(shapes: Sequence[ShapeCoverage], division: str) -> tuple[int | str | None, ...]:
    """Returns the cells of `coverage_page` for a way to divide a model."""
    present, enough = sum(shape.has_rows for shape in shapes), sum(shape.is_enough for shape in shapes)
    counted = [shape for shape in shapes if shape.wanted]
    fewest = min((shape.sizes for shape in counted), default=None)
    widest = max(
        (shape for shape in counted if shape.has_rows and shape.gap_from < shape.gap_to),
        key=lambda shape: shape.gap_to / shape.gap_from,
        default=None,
    )
    gap = f"{widest.gap_from:,} to {widest.gap_to:,}" if widest is not None else ""
    return len(shapes), present, enough, _share(shapes, division), fewest, gap
