"""The results of `pytest shapes/` for each kernel type, as lines for a terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opatlas.progress import format_seconds
from opatlas.store.manifest import Manifest
from opatlas.text import pluralize


@dataclass(frozen=True)
class AxisCoverage:
    """The sizes of an axis that rows have, counted in octaves (1, 2 to 3, 4 to 7, ...).

    Attributes:
        axis: the variable.
        wanted: octaves between the smallest and the largest size of the catalog's grid.
        shapes: shapes with this axis, with or without a row.
        fewest: the smallest number of octaves with a row, over the shapes with rows.
        found: octaves with a row, over all shapes.
        at_one_size: shapes with rows of a single size, where several are wanted, as "gate_up, tp 1: n 512, k 64: m 1".
        gap_from, gap_to: the neighbouring sizes with the largest ratio, of any shape with a row. The ends of the grid
            count as neighbours.
    """

    axis: str
    wanted: int
    shapes: int
    fewest: int
    found: int
    gap_from: int
    gap_to: int
    at_one_size: Sequence[str] = ()


@dataclass
class ModelCoverage:
    """The coverage of a model's shapes by the rows of a kernel type.

    Attributes:
        shapes: the number of shapes that the model gives the kernel type.
        missing: dtypes without a row, by shape, as "gate_up, tp 8: n 4608, k 7168".
        sizes: coverage of the axes whose sizes follow from the rows.
    """

    kernel_type: str
    model: str
    shapes: int = 0
    missing: dict[str, list[str]] = field(default_factory=dict)
    sizes: list[AxisCoverage] = field(default_factory=list)

    @property
    def present(self) -> int:
        return self.shapes - sum(map(len, self.missing.values()))


@dataclass(frozen=True)
class KernelResult:
    """The result of a run for a kernel type. All values are plain, so that processes can exchange the result.

    Attributes:
        added: rows that were added, or would be.
        existing: rows of the run that the database had before.
        largest_bytes, total_bytes: bytes of the tensors of the largest new row, and of all new rows.
        beyond_rows: rows of further sizes that --rows leaves out.
        refused: rows left out because the device's kernel refuses them.
        over_budget: points of the grid left out because their tensors exceed the memory budget.
        smallest_bytes: bytes of the tensors of the smallest of these points; 0 if there are none.
        missing: sources of sizes that none of the models has, for each pattern without rows.
        unknown_dtypes: dtypes in the database without a known size; their rows give no forms.
        coverage: coverage of each model; empty unless computed.
    """

    kernel_type: str
    added: int = 0
    existing: int = 0
    largest_bytes: int = 0
    total_bytes: int = 0
    beyond_rows: int = 0
    refused: int = 0
    over_budget: int = 0
    smallest_bytes: int = 0
    missing: tuple[str, ...] = ()
    unknown_dtypes: tuple[str, ...] = ()
    coverage: tuple[ModelCoverage, ...] = ()

    def with_new(self, sizes: Sequence[int]) -> KernelResult:
        """Returns the result with new rows whose tensors have these sizes in bytes."""
        return replace(self, added=len(sizes), largest_bytes=max(sizes, default=0), total_bytes=sum(sizes))

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> KernelResult:
        """Returns the result that `dataclasses.asdict` turned into values."""
        coverage = [
            ModelCoverage(**{**model, "sizes": [AxisCoverage(**sizes) for sizes in model["sizes"]]})
            for model in values["coverage"]
        ]
        return cls(**{**values, "coverage": tuple(coverage)})


#: Missing shapes of a model on the terminal; the report has all.
_MISSING_NAMED = 3
#: Pace for databases without a replay; the rows of a starter database take about as long.
_ASSUMED_S_A_ROW = 1.0


@dataclass(frozen=True)
class Pace:
    """The time of a row in a replay, with its start and its check.

    Attributes:
        seconds_a_row: seconds for each row.
        run_id: the run in which the pace was measured; "" for an assumed pace.
    """

    seconds_a_row: float = _ASSUMED_S_A_ROW
    run_id: str = ""

    def time_of(self, rows: int) -> str:
        """Returns the time of some rows and the source of the pace: `16 min 40 s, at 0.5 s a row (as in run X)`."""
        where = f"as in run {self.run_id}" if self.run_id else "assumed: this database has no replay yet"
        return f"{format_seconds(rows * self.seconds_a_row)}, at {self.seconds_a_row:.3g} s a row ({where})"


def replay_pace(manifests: Iterable[Manifest]) -> Pace:
    """Returns the pace of the newest run that replayed rows to its end."""
    for manifest in sorted(manifests, key=lambda each: (each.started_at, each.run_id), reverse=True):
        rows = sum(count for status, count in manifest.statuses.items() if status not in ("added", "not run"))
        if rows and manifest.finished_at is not None and manifest.finished_at > manifest.started_at:
            return Pace((manifest.finished_at - manifest.started_at) / rows, manifest.run_id)
    return Pace()


def summary_lines(results: Sequence[KernelResult], pace: Pace, *, read_only: bool) -> Iterator[str]:
    """Yields a table of the kernel types, then the coverage of each model.

    Args:
        pace: the pace of a replay, for the time that the new rows take.
    """
    ordered = sorted(results, key=lambda result: result.kernel_type)
    width = max(len(result.kernel_type) for result in ordered)
    verb = "to add" if read_only else "added"
    yield f"{'kernel type':{width}}  {verb:>8}  {'existing':>8}  {'too large':>9}  {'largest':>8}  {'in all':>8}"
    for result in ordered:
        yield (
            f"{result.kernel_type:{width}}  {result.added:8,}  {result.existing:8,}  {result.over_budget:9,}  "
            f"{_size(result.largest_bytes):>8}  {_size(result.total_bytes):>8}"
        )
        if result.beyond_rows:
            yield f"  {pluralize(result.beyond_rows, 'row')} of further sizes left out by --rows"
        if result.refused:
            yield f"  {pluralize(result.refused, 'row')} left out, which the device's kernel refuses (constraints/)"
        if result.unknown_dtypes:
            yield f"  rows with unknown dtypes give no forms: {', '.join(result.unknown_dtypes)}"
    total = sum(result.added for result in ordered)
    existing = sum(result.existing for result in ordered)
    some = sum(result.added > 0 for result in ordered)
    to = f"{f'{some:,} of ' if 0 < some < len(ordered) else ''}{pluralize(len(ordered), 'kernel type')}"
    added = f"{pluralize(total, 'row')} {'would be ' if read_only else ''}added to {to}"
    yield f"{added}, {existing:,} existed before"
    if total:
        yield f"to replay {'it' if total == 1 else 'them'} takes about {pace.time_of(total)}"
    by_model: dict[str, list[ModelCoverage]] = {}
    for result in ordered:
        for coverage in result.coverage:
            by_model.setdefault(coverage.model, []).append(coverage)
    for model, parts in by_model.items():
        shapes, present = sum(part.shapes for part in parts), sum(part.present for part in parts)
        has = "has" if present == 1 else "have"
        sizes = [axis for part in parts for axis in part.sizes]
        line = f"{model}: {present:,} of {pluralize(shapes, 'shape')} {has} rows"
        if wanted := sum(axis.wanted * axis.shapes for axis in sizes):
            line += f", of {sum(axis.found for axis in sizes):,} of {pluralize(wanted, 'size')}"
        if alone := sum(len(axis.at_one_size) for axis in sizes):
            line += f" ({pluralize(alone, 'shape')} of one size only)"
        yield f"{line}{'; missing:' if present < shapes else ''}"
        missing = [f"  {part.kernel_type} {name}" for part in parts for name in part.missing]
        yield from missing[:_MISSING_NAMED]
        if len(missing) > _MISSING_NAMED:
            yield f"  and {len(missing) - _MISSING_NAMED:,} more"


def coverage_page(results: Sequence[KernelResult], title: str) -> str:
    """Returns the coverage report in Markdown."""
    lines = [
        "# Coverage",
        "",
        f"{title}. A shape is what a model gives a kernel type on one device, for each way to divide the model.",
        "Sizes are those of an axis, counted in octaves (1, 2 to 3, 4 to 7, ...) of the catalog's range. The gap is",
        "the widest between neighbouring sizes of any shape that has a row; the ends of the range are neighbours too.",
        "",
        "| kernel type | model | shapes with a row | axis | sizes | fewest of a shape | of one size | widest gap |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    missing: list[str] = []
    alone: list[str] = []
    for result in sorted(results, key=lambda result: result.kernel_type):
        for part in result.coverage:
            head = f"| {part.kernel_type} | {part.model} | {part.present:,} of {part.shapes:,} |"
            lines += [f"{head} {_sizes(sizes)} |" for sizes in part.sizes] or [f"{head} | | | | |"]
            head = f"- {part.kernel_type}, {part.model}"
            missing += [f"{head}: {name} ({', '.join(dtypes)})" for name, dtypes in part.missing.items()]
            alone += dict.fromkeys(f"{head}: {name}" for sizes in part.sizes for name in sizes.at_one_size)
    lines += ["", "## Missing shapes", "", *(missing or ["None."])]
    lines += ["", "## Shapes of one size only", "", *(alone or ["None."])]
    return "\n".join(lines) + "\n"


def _sizes(sizes: AxisCoverage) -> str:
    gap = f"{sizes.gap_from:,} to {sizes.gap_to:,}" if sizes.gap_from < sizes.gap_to and sizes.found else ""
    found = f"{sizes.found:,} of {sizes.wanted * sizes.shapes:,}"
    fewest = f"{sizes.fewest} of {sizes.wanted}"
    return f"{sizes.axis} | {found} | {fewest} | {len(sizes.at_one_size) or ''} | {gap}"


def _size(count: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
