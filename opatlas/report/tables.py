"""Tables of what a session measured: a line for each kernel type, the slowest and the noisiest rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from opatlas.model.quality import NOISE_LIMIT, Quality
from opatlas.report.figures import (
    Figures,
    OfType,
    by_type,
    microseconds_text,
    noise_text,
    noisiest,
    share_text,
    slowest,
)
from opatlas.text import counted, shortened

_SHOWN = 5
_TITLES = ("kernel type", "rows", "median", "range", "noise", "not quiet", "best rate", "of peak")
#: Columns that a narrow terminal goes without, the first one first.
_LEFT_OUT = ("range", "not quiet", "of peak")
_LEAST_NAME = 16
_BETWEEN = "  "


def terminal_tables(rows: Collection[Figures], width: int) -> Iterator[str]:
    """The tables in lines of at most `width` columns."""
    yield from _of_types(by_type(rows), width)
    for title, found in _lists(rows):
        yield f"{title}:"
        numbers = [row.text(44) for row in found]
        widest = max(map(len, numbers))
        for row, text in zip(found, numbers, strict=True):
            yield shortened(f"  {text:{widest}}  {row.name}", width)


def markdown_tables(rows: Collection[Figures]) -> Iterator[str]:
    """The tables in Markdown."""
    types = by_type(rows)
    columns = [column for column in range(len(_TITLES)) if column in _used(types)]
    yield from markdown_table(
        [_TITLES[column].capitalize() for column in columns],
        [[_cells(of_type)[column] for column in columns] for of_type in types],
    )
    for title, found in _lists(rows):
        yield from ("", f"### The {title} rows", "")
        yield from markdown_table(
            ("Duration", "Kernel type", "Shapes", "Quality"),
            [(row.text(), row.kernel_type, f"`{row.shapes}`", row.quality.value) for row in found],
        )


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A table in Markdown."""
    body = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header), *body]


def quality_lines(rows: Collection[Figures], cause: str) -> Iterator[str]:
    """How many rows are not quiet, in a line for noise and a line for all else; `cause` is what may have made noise."""
    counts = Counter(row.quality for row in rows)
    all_rows = counted(len(rows), "row")
    if noisy := counts.pop(Quality.NOISY, 0):
        why = f": {cause}" if cause else ""
        yield f"{noisy:,} of {all_rows} {_are(noisy)} noisier than {100 * NOISE_LIMIT:.0f} %{why}"
    if too_few := counts.pop(Quality.UNKNOWN, 0):
        have = "has" if too_few == 1 else "have"
        yield f"{too_few:,} of {all_rows} {have} fewer than 3 samples, which tell no noise"
    counts.pop(Quality.QUIET, None)
    if counts:
        (first, count), *more = counts.most_common()
        others = "".join(f", {each:,} {_are(each)} {quality}" for quality, each in more)
        yield f"{count:,} of {all_rows} {_are(count)} {first}{others}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _lists(rows: Collection[Figures]) -> Iterator[tuple[str, list[Figures]]]:
    # Of fewer the table says as much.
    if len(rows) > _SHOWN:
        for title, found in (("slowest", slowest(rows, _SHOWN)), ("noisiest", noisiest(rows, _SHOWN))):
            if found:
                yield title, found


def _cells(of_type: OfType) -> tuple[str, ...]:
    # Numbers of a column stand below each other, so a range is written without its unit.
    low, high = (microseconds_text(value) for value in (of_type.shortest_us, of_type.longest_us))
    return (
        of_type.kernel_type,
        f"{of_type.rows:,}",
        microseconds_text(of_type.median_us),
        f"{low.removesuffix(' us')} to {high}" if of_type.rows > 1 else "",
        noise_text(of_type.noise).removeprefix("±"),
        f"{of_type.not_quiet:,}" if of_type.not_quiet else "",
        of_type.rate,
        "" if of_type.share is None else share_text(of_type.share),
    )


def _used(types: Sequence[OfType]) -> list[int]:
    """Columns in which anything stands."""
    return [column for column in range(len(_TITLES)) if any(_cells(of_type)[column] for of_type in types)]


def _of_types(types: Sequence[OfType], width: int) -> Iterator[str]:
    cells = [_TITLES, *map(_cells, types)]
    columns = _used(types)
    widths = [max(len(line[column]) for line in cells) for column in range(len(_TITLES))]

    def needed() -> int:
        return sum(widths[column] for column in columns) + len(_BETWEEN) * (len(columns) - 1)

    for title in _LEFT_OUT:
        if needed() - widths[0] + min(widths[0], _LEAST_NAME + 8) > width and _TITLES.index(title) in columns:
            columns.remove(_TITLES.index(title))
    widths[0] -= max(min(needed() - width, widths[0] - _LEAST_NAME), 0)
    for line in cells:
        name, *others = (line[column] for column in columns)
        aligned = [f"{cell:>{widths[column]}}" for column, cell in zip(columns[1:], others, strict=True)]
        yield _BETWEEN.join([f"{shortened(name, widths[0]):{widths[0]}}", *aligned]).rstrip()
