"""What a run of `pytest shapes/` tells: rows by kernel type, and which shapes of models are covered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from database.terminal import counted
from shapes.results import Density, KernelResult, ModelCoverage

#: On a terminal; the report has all of them.
_MISSING_NAMED = 3


def summary_lines(results: Sequence[KernelResult], *, plan_only: bool) -> Iterator[str]:
    """A table of the kernel types, then one of the models."""
    ordered = sorted(results, key=lambda result: result.kernel_type)
    width = max(len(result.kernel_type) for result in ordered)
    verb = "to add" if plan_only else "added"
    yield f"{'kernel type':{width}}  {verb:>8}  {'there':>8}  {'too large':>9}  {'largest':>8}  {'together':>8}"
    for result in ordered:
        yield (
            f"{result.kernel_type:{width}}  {result.added:8,}  {result.there:8,}  {result.over_budget:9,}  "
            f"{_size(result.largest_bytes):>8}  {_size(result.total_bytes):>8}"
        )
        if result.refused:
            yield f"  {counted(result.refused, 'row')} left out, which the device's kernel refuses (constraints/)"
        if result.unknown_dtypes:
            yield f"  nothing is taken from rows with the dtypes {', '.join(result.unknown_dtypes)}"
    total = sum(result.added for result in ordered)
    there = sum(result.there for result in ordered)
    added = f"{counted(total, 'row')} {'would be ' if plan_only else ''}added to {counted(len(ordered), 'kernel type')}"
    yield f"{added}, {there:,} {'was' if there == 1 else 'were'} there"
    by_model: dict[str, list[ModelCoverage]] = {}
    for result in ordered:
        for coverage in result.coverage:
            by_model.setdefault(coverage.model, []).append(coverage)
    for model, parts in by_model.items():
        shapes, present = sum(part.shapes for part in parts), sum(part.present for part in parts)
        are = "is" if present == 1 else "are"
        of_all = f"{present:,} of {counted(shapes, 'shape')} {are} in the database"
        yield f"{model}: {of_all}{', missing:' if present < shapes else ''}"
        missing = [f"  {part.kernel_type} {name}" for part in parts for name in part.missing]
        yield from missing[:_MISSING_NAMED]
        if len(missing) > _MISSING_NAMED:
            yield f"  and {len(missing) - _MISSING_NAMED:,} more"


def coverage_page(results: Sequence[KernelResult], title: str) -> str:
    """The coverage report, in Markdown."""
    lines = [
        "# Coverage",
        "",
        f"{title}. A shape is what a model gives a kernel type on one device, for each way to divide the model; it is",
        "covered by a row of any number of tokens. Sizes, gap and ratio are of the axes that rows tell: how many sizes",
        "the shape with the fewest has, and which neighbours have the largest difference and ratio.",
        "",
        "| kernel type | model | shapes | covered | axis | sizes | largest gap | largest ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    missing: list[str] = []
    for result in sorted(results, key=lambda result: result.kernel_type):
        for part in result.coverage:
            head = f"| {part.kernel_type} | {part.model} | {part.shapes} | {part.present} |"
            lines += [f"{head} {_density(density)} |" for density in part.densities] or [f"{head} | | | |"]
            missing += [f"- {part.kernel_type}, {part.model}: {name}" for name in part.missing]
    lines += ["", "## Missing shapes", "", *(missing or ["None."])]
    return "\n".join(lines) + "\n"


def _density(density: Density) -> str:
    gap = f"{density.gap:,} ({density.gap_from} to {density.gap_to})"
    ratio = f"{density.ratio:.2f} ({density.ratio_from} to {density.ratio_to})"
    return f"{density.axis} | {density.sizes} | {gap} | {ratio}"


def _size(count: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
