"""What a run of `pytest shapes/` tells: rows by kernel type, and which shapes of models are covered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: On a terminal; the report has all of them.
_MISSING_NAMED = 3


@dataclass(frozen=True)
class KernelResult:
    """What became of a kernel type. Plain values only, because it travels between processes.

    Attributes:
        added: rows that were added, or would be.
        there: rows of the run that the database had.
        largest_bytes, total_bytes: of the tensors of the largest of the added rows, and of all.
        refused: rows that the device's kernel was found to refuse.
        over_budget: rows that need more memory than there is.
        smallest_bytes: of the tensors of the smallest of these; 0 where there are none.
        missing: what none of the models has.
        unknown_dtypes: of rows that nothing was taken from.
        coverage: a `shapes.coverage.ModelCoverage` for each model, as a dictionary.
    """

    kernel_type: str
    added: int
    there: int
    largest_bytes: int
    total_bytes: int
    refused: int
    over_budget: int
    smallest_bytes: int
    missing: Sequence[str]
    unknown_dtypes: Sequence[str]
    coverage: Sequence[Mapping[str, Any]]


def summary_lines(results: Sequence[KernelResult], *, plan_only: bool) -> Iterator[str]:
    """A table of the kernel types, then one of the models."""
    ordered = sorted(results, key=lambda result: result.kernel_type)
    width = max(len(result.kernel_type) for result in ordered)
    verb = "would add" if plan_only else "added"
    yield f"{'kernel type':{width}}  {verb:>9}  {'there':>8}  {'too large':>9}  {'largest':>9}  {'together':>9}"
    for result in ordered:
        yield (
            f"{result.kernel_type:{width}}  {result.added:9,}  {result.there:8,}  {result.over_budget:9,}  "
            f"{_size(result.largest_bytes):>9}  {_size(result.total_bytes):>9}"
        )
        if result.refused:
            yield f"{'':{width}}  {result.refused:,} rows left out: the device's kernel refuses them (constraints/)"
        if result.unknown_dtypes:
            yield f"{'':{width}}  nothing is taken from rows with the dtypes {', '.join(result.unknown_dtypes)}"
    total = sum(result.added for result in ordered)
    there = sum(result.there for result in ordered)
    yield f"{total:,} rows {'would be ' if plan_only else ''}added to {len(ordered)} kernel types, {there:,} were there"
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for result in ordered:
        for coverage in result.coverage:
            by_model.setdefault(coverage["model"], []).append(coverage)
    for model, parts in by_model.items():
        shapes = sum(part["shapes"] for part in parts)
        missing = [f"{part['kernel_type']} {name}" for part in parts for name in part["missing"]]
        named = "; ".join(missing[:_MISSING_NAMED])
        more = f" and {len(missing) - _MISSING_NAMED:,} more" if len(missing) > _MISSING_NAMED else ""
        told = f", missing: {named}{more}" if missing else ""
        yield f"{model}: {shapes - len(missing):,} of {shapes:,} shapes are in the database{told}"


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
            covered = part["shapes"] - len(part["missing"])
            head = f"| {part['kernel_type']} | {part['model']} | {part['shapes']} | {covered} |"
            lines += [f"{head} {_density(density)} |" for density in part["densities"]] or [f"{head} | | | |"]
            missing += [f"- {part['kernel_type']}, {part['model']}: {name}" for name in part["missing"]]
    lines += ["", "## Missing shapes", "", *(missing or ["None."])]
    return "\n".join(lines) + "\n"


def _density(density: Mapping[str, Any]) -> str:
    gap = f"{density['gap_to'] - density['gap_from']:,} ({density['gap_from']} to {density['gap_to']})"
    ratio = f"{density['ratio_to'] / density['ratio_from']:.2f} ({density['ratio_from']} to {density['ratio_to']})"
    return f"{density['axis']} | {density['sizes']} | {gap} | {ratio}"


def _size(count: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
