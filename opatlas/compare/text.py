"""A comparison as text within 80 columns, and as Markdown: figures by kernel type, rows from both ends, losses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opatlas.compare.calls import MISSING
from opatlas.compare.comparison import FAST, DatabaseComparison, RivalFigures, RowComparison
from opatlas.compare.databases import ComparedDatabase
from opatlas.compare.step import ModelStep, total_of
from opatlas.compare.verdict import STANDARD_ERRORS, CallPair, PairVerdict
from opatlas.model.schema import Status
from opatlas.report.row_summary import markdown_table, microseconds_text, noise_text
from opatlas.text import COLUMNS, align_numbers, percent_text, pluralize, shorten, wrap

#: Rows of a list, and reasons of rows without a duration.
_ROWS_SHOWN = 10
_REASONS_SHOWN = 5
_NAMES_SHOWN = 10
#: In place of a mean of rows of which half are AMBIGUOUS, or more.
NO_MEAN = "-"
_PARTIAL, _COMPOSITION, _HOST_BOUND, _SPREAD = "*", "c", "h", "±"
_VERDICT_WORDS = {
    PairVerdict.SLOW: "SLOW",
    PairVerdict.FAST: "FAST",
    PairVerdict.SAME: "SAME",
    PairVerdict.AMBIGUOUS: "AMBIG.",
    PairVerdict.NOT_COMPARABLE: "N.COMP.",
}
_FAST_TITLE = "/".join(f"{p:g}x" for p in FAST)


@dataclass(frozen=True)
class _List:
    """Rows of one verdict of a rival, the most telling first."""

    title: str
    rows: Sequence[tuple[RowComparison, CallPair]]


def text_lines(comparison: DatabaseComparison) -> Iterator[str]:
    """Yields the lines for a terminal."""
    for database in (comparison.baseline, *_shown(comparison)):
        word = "baseline" if database is comparison.baseline else "against"
        yield from (f"{word:8}  {database.label}", f"          {database.place}")
    if not _is_over_time(comparison):
        yield ""
        yield wrap(f"fastest: {_fastest(comparison)}", indent=0)
    used: set[str] = set()
    measured = [rival for rival in _shown(comparison) if comparison.total(rival.name).measured]
    for rival in measured:
        yield from ("", f"{rival.label}: speed-up over {comparison.baseline.label}", "")
        yield from align_numbers(_figures_table(comparison, rival), least=8)
        if comparison.step is not None:
            yield ""
            yield wrap(_step_title(comparison, comparison.step, rival), indent=0)
            yield ""
            yield from align_numbers(_step_table(comparison, rival), least=8)
        yield ""
        yield from rival_lines(comparison, rival, used)
        if reasons := list(_reasons(comparison, rival)):
            yield ""
            yield from (shorten(line, COLUMNS) for line in reasons)
    for rival in _shown(comparison):
        if rival not in measured:
            yield from ("", f"{rival.label}: no row was measured")
            yield from (shorten(line, COLUMNS) for line in _reasons(comparison, rival))
    yield ""
    yield from (wrap(line, indent=0) for line in (*_notes(comparison), *mark_lines(used)))


def rival_lines(comparison: DatabaseComparison, rival: ComparedDatabase, used: set[str]) -> Iterator[str]:
    """Yields the numbers of rows by verdict, and rows of each verdict.

    Args:
        used: gets the marks and verdicts of the rows, which `mark_lines` explains.
    """
    yield wrap(_verdicts(comparison, rival), indent=0)
    if _is_noise(comparison.total(rival.name)):
        used.add(PairVerdict.AMBIGUOUS.value)
    if composed := _compositions(comparison, rival):
        yield wrap(composed, indent=0)
    for each in _lists(comparison, rival):
        header = (each.title, "baseline", "rival", "speed-up", "", "")
        cells = []
        for row, pair in each.rows[:_ROWS_SHOWN]:
            marks = _marks(comparison, rival, row, pair)
            used.update(marks, _SPREAD, {pair.verdict.value})
            cells.append((_cut(row.case_id), *_cells(pair), marks))
        yield ""
        yield from align_numbers([header, *cells])
        if more := len(each.rows) - len(cells):
            yield f"and {pluralize(more, 'row')} more"


def markdown_lines(comparison: DatabaseComparison) -> Iterator[str]:
    """Yields the lines of a comment on a pull request."""
    baseline = comparison.baseline.label
    yield f"### Speed-up over {_escape(baseline)}"
    yield ""
    if _is_over_time(comparison):
        of_time = [(rival.label, *_verdict_figures(comparison.total(rival.name))) for rival in _shown(comparison)]
        yield from markdown_table(["", *_VERDICT_TITLES], _named_rows(of_time))
    elif _shown(comparison):
        totals = [(rival.label, *_figures(comparison.total(rival.name))) for rival in _shown(comparison)]
        yield from markdown_table(["", *_TITLES], _named_rows(totals))
        yield ""
    if not _is_over_time(comparison):
        yield f"Fastest: {_fastest(comparison)}"
    used: set[str] = set()
    for rival in _shown(comparison):
        yield from ("", f"<details><summary>{_escape(rival.label)}</summary>", "")
        header, *rows = _figures_table(comparison, rival)
        yield from markdown_table([title or "rows" for title in header], _named_rows(rows))
        if comparison.step is not None:
            yield from ("", _escape(_step_title(comparison, comparison.step, rival)), "")
            header, *rows = _step_table(comparison, rival)
            yield from markdown_table(header, _named_rows(rows))
        yield from ("", _escape(_verdicts(comparison, rival)))
        if composed := _compositions(comparison, rival):
            yield from ("", _escape(composed))
        for each in _lists(comparison, rival):
            cells = []
            for row, pair in each.rows[:_ROWS_SHOWN]:
                marks = _marks(comparison, rival, row, pair)
                used.update(marks, _SPREAD, {pair.verdict.value})
                cells.append((_code(row.case_id), *_cells(pair), marks.replace(_PARTIAL, f"\\{_PARTIAL}")))
            yield ""
            yield from markdown_table([each.title, "baseline", "rival", "speed-up", "", ""], cells)
            if more := len(each.rows) - len(cells):
                yield from ("", f"and {pluralize(more, 'row')} more")
        if reasons := list(_reasons(comparison, rival)):
            yield ""
            yield from (f"- {_escape(line)}" for line in reasons)
        yield from ("", "</details>")
    yield ""
    yield from (f"- {_escape(line)}" for line in (*_notes(comparison), *mark_lines(used)))


def _shown(comparison: DatabaseComparison) -> list[ComparedDatabase]:
    """Returns the rivals that have rows in common with the baseline."""
    return [rival for rival in comparison.rivals if rival not in comparison.without_common_rows]


_TITLES = ("rows", "measured", "unsupported", "wrong", "crashed", "missing", "covered", "deployed", _FAST_TITLE)


def _figures(figures: RivalFigures) -> tuple[str, ...]:
    counts = (figures.rows, figures.measured, figures.unsupported, figures.wrong, figures.crashed, figures.missing)
    shares = [figures.fast[p] for p in FAST]
    return (
        *(f"{count:,}" if count else "" for count in counts),
        mean_text(figures, figures.covered),
        mean_text(figures, figures.deployed),
        NO_MEAN if _is_noise(figures) else "/".join("-" if each is None else f"{each * 100:.0f}" for each in shares),
    )


def _verdict_figures(figures: RivalFigures) -> tuple[str, ...]:
    counts = (figures.rows, *(figures.verdicts.get(verdict.value, 0) for verdict in _VERDICT_WORDS))
    others = (figures.lost, figures.new)
    return (*(f"{count:,}" if count else "" for count in (*counts, *others)), mean_text(figures, figures.covered))


def mean_text(figures: RivalFigures, mean: float | None) -> str:
    """Returns one of the means; "-" where half of the rows that compare are AMBIGUOUS: it is a mean of noise."""
    return NO_MEAN if mean is not None and _is_noise(figures) else _mean(mean)


def _is_noise(figures: RivalFigures) -> bool:
    """Returns whether half of the rows that compare, or more, are AMBIGUOUS."""
    told = (PairVerdict.SLOW, PairVerdict.FAST, PairVerdict.SAME)
    ambiguous = figures.verdicts.get(PairVerdict.AMBIGUOUS.value, 0)
    return ambiguous > 0 and ambiguous >= sum(figures.verdicts.get(each.value, 0) for each in told)


def _figures_table(comparison: DatabaseComparison, rival: ComparedDatabase) -> list[tuple[str, ...]]:
    """Returns the table of kernel types, without the missing rows and the columns in which all cells are empty."""
    over_time = rival.runs_as(comparison.baseline)
    figures = _verdict_figures if over_time else _figures
    titles = _VERDICT_TITLES if over_time else tuple(_SHORT.get(title, title) for title in _TITLES)
    total = comparison.total(rival.name)
    found = [each for each in comparison.figures(rival.name) if not (over_time and _is_unchanged(each))]
    rows = [(each.kernel_type, *figures(each)) for each in found]
    rows.append(("all rows", *figures(total)))
    short = ("kernel type", *titles)
    used = [column for column, title in enumerate(short) if title != "missing" and any(row[column] for row in rows)]
    return [tuple(row[column] for column in used) for row in (short, *rows)]


def _is_unchanged(figures: RivalFigures) -> bool:
    """Returns whether all rows of a kernel type are the SAME, and their mean, too."""
    same = figures.verdicts.get(PairVerdict.SAME.value, 0)
    return same == figures.rows and _mean(figures.covered) == ratio_text(1.0)


def _unchanged(comparison: DatabaseComparison, rival: ComparedDatabase) -> str:
    """Returns a sentence about the kernel types that the table leaves out; "" for none."""
    found = [each for each in comparison.figures(rival.name) if _is_unchanged(each)]
    if not found or not rival.runs_as(comparison.baseline):
        return ""
    return f"not listed: {pluralize(len(found), 'kernel type')} whose rows are all SAME"


def _is_over_time(comparison: DatabaseComparison) -> bool:
    """Returns whether all databases have one implementation: shares of supported rows then tell nothing."""
    return all(rival.runs_as(comparison.baseline) for rival in comparison.rivals)


_VERDICT_TITLES = ("rows", *_VERDICT_WORDS.values(), "lost", "new", "mean")


def _step_title(comparison: DatabaseComparison, step: ModelStep, rival: ComparedDatabase) -> str:
    """Returns what a step takes in both databases, and which of its calls do not compare."""
    figures = comparison.step_figures(rival.name)
    total = total_of(figures)
    if total.speed_up is None:
        return f"a step of {step.model}: none of its {total.calls:,} calls compares"
    took = f"{microseconds_text(total.baseline_us)} against {microseconds_text(total.rival_us)}"
    calls = f"{total.compared_calls:,} of its {pluralize(total.calls, 'call')}"
    text = f"a step of {step.model}, {calls}: {took}, {ratio_text(total.speed_up)}"
    without = [each.kernel_type for each in figures if each.compared_calls < each.calls]
    return f"{text}; calls that do not compare: {', '.join(without)}" if without else text


def _step_table(comparison: DatabaseComparison, rival: ComparedDatabase) -> list[tuple[str, ...]]:
    figures = comparison.step_figures(rival.name)
    total = total_of(figures)
    rows = [
        (
            each.kernel_type or "the step",
            f"{each.compared_calls:,}",
            microseconds_text(each.baseline_us),
            microseconds_text(each.rival_us),
            _mean(each.speed_up),
            percent_text(each.baseline_us / total.baseline_us),
        )
        for each in (*figures, total)
        if each.compared_calls
    ]
    return [("kernel type", "calls", "baseline", "rival", "speed-up", "share"), *rows]


#: Titles that leave room for names in 80 columns.
_SHORT = {"measured": "meas.", "unsupported": "uns.", "crashed": "crash"}


def _lists(comparison: DatabaseComparison, rival: ComparedDatabase) -> Iterator[_List]:
    """Yields the slower rows, the worst first, and the faster rows, the best first; of few rows the others, too."""
    pairs = [(row, pair) for row in comparison.rows if (pair := row.pairs.get(rival.name))]
    lists = {"slower": (PairVerdict.SLOW, 1), "faster": (PairVerdict.FAST, -1)}
    if len(pairs) <= _ROWS_SHOWN:
        lists |= {"ambiguous": (PairVerdict.AMBIGUOUS, 1), "same": (PairVerdict.SAME, 1)}
    for title, (verdict, sign) in lists.items():
        found = [(row, pair) for row, pair in pairs if pair.verdict is verdict]
        if found:
            yield _List(title, sorted(found, key=lambda each: sign * each[1].speed_up))


def _cells(pair: CallPair) -> tuple[str, ...]:
    spread = math.expm1(STANDARD_ERRORS * pair.standard_error)
    speed_up = ratio_text(pair.speed_up)
    return (
        microseconds_text(pair.baseline_us),
        microseconds_text(pair.rival_us),
        speed_up,
        noise_text(spread) if spread < 1 else ">100 %",
    )


def _marks(comparison: DatabaseComparison, rival: ComparedDatabase, row: RowComparison, pair: CallPair) -> str:
    marks = (
        (_PARTIAL, row.is_partial(comparison.baseline.name, rival.name)),
        (_COMPOSITION, row.is_composition),
        (_HOST_BOUND, pair.host_bound),
    )
    return "".join(mark for mark, holds in marks if holds)


def _reasons(comparison: DatabaseComparison, rival: ComparedDatabase) -> Iterator[str]:
    """Yields the most frequent reasons of rows that the rival ran in vain, and their numbers."""
    calls = [row.calls[rival.name] for row in comparison.rows]
    if missing := sum(call.status == MISSING for call in calls):
        yield f"{missing:,} missing: no such row, or it never ran"
    reasons = Counter((call.status, call.reason) for call in calls if Status.from_cell(call.status))
    of_losses = [(each, count) for each, count in reasons.most_common() if each[0] != Status.MEASURED.value]
    for (status, reason), count in of_losses[:_REASONS_SHOWN]:
        yield f"{count:,} {status}: {reason or 'no reason is known'}"
    if more := sum(count for _, count in of_losses[_REASONS_SHOWN:]):
        yield f"{pluralize(more, 'row')} for other reasons"


def _verdicts(comparison: DatabaseComparison, rival: ComparedDatabase) -> str:
    """Returns the numbers of rows by verdict, with the most frequent difference of those that do not compare."""
    pairs = [pair for row in comparison.rows if (pair := row.pairs.get(rival.name))]
    counts = Counter(pair.verdict for pair in pairs)
    texts = [f"{counts[verdict]:,} {verdict}" for verdict in PairVerdict if counts[verdict]]
    differences = Counter(pair.reason for pair in pairs if not pair.is_comparable)
    texts += [f"of which {count:,} by {difference}" for difference, count in differences.most_common(1)]
    unchanged = _unchanged(comparison, rival)
    return f"rows that both measured: {', '.join(texts) or 'none'}{unchanged and '; ' + unchanged}"


def _compositions(comparison: DatabaseComparison, rival: ComparedDatabase) -> str:
    """Returns a sentence about the rows that the means leave out; "" for none."""
    total = comparison.total(rival.name)
    if not total.compositions:
        return ""
    rows = pluralize(total.compositions, "row")
    mean = mean_text(total, total.composed)
    told = "" if mean == NO_MEAN else f": {mean} in the mean"
    return f"{rows} against a composition of torch operators, which no other mean has{told}"


def _fastest(comparison: DatabaseComparison) -> str:
    counts = comparison.fastest
    names = [each.name for each in (comparison.baseline, *comparison.rivals) if counts[each.name]]
    found = [f"{name} in {pluralize(counts[name], 'row')}" for name in names]
    return ", ".join(found + [f"nobody measured {pluralize(counts[''], 'row')}"] * bool(counts[""])) or "no rows"


def _notes(comparison: DatabaseComparison) -> Iterator[str]:
    """Yields what the figures mean."""
    if apart := comparison.without_common_rows:
        measured = (f"{each.label} ({pluralize(comparison.total(each.name).measured, 'row')})" for each in apart)
        base = comparison.baseline.label
        yield f"no rows in common with {base}: {', '.join(measured)}; --baseline chooses another one"
    names = comparison.without_rival
    if names:
        rows = sum(len(comparison.by_kernel_type[name]) for name in names)
        one = "no rival has measured a row" if len(comparison.rivals) > 1 else "the rival has measured no row"
        more = [f"{len(names) - _NAMES_SHOWN} more"] if len(names) > _NAMES_SHOWN else []
        shown = ", ".join([*names[:_NAMES_SHOWN], *more])
        yield f"{one} of {pluralize(len(names), 'kernel type')} ({pluralize(rows, 'row')}): {shown}"
    over_time = [rival for rival in comparison.rivals if rival.runs_as(comparison.baseline)]
    if over_time:
        yield "mean: geometric mean of the speed-ups of rows that both measured; above 1x the second is faster"
    if any(_is_noise(each) for rival in comparison.rivals for each in comparison.figures(rival.name)):
        yield f"{NO_MEAN}: no figure, since half of the rows that compare, or more, are AMBIGUOUS"
    if any((total := comparison.total(rival.name)).lost or total.new for rival in over_time):
        yield "lost, new: rows that only the first, only the second measured"
    if _shown(comparison) and not _is_over_time(comparison):
        yield "covered: geometric mean of the speed-ups of rows that both measured"
        yield "deployed: the same mean over all rows that the baseline measured; 1.0 where the rival has no duration"
        yield f"{_FAST_TITLE}: percent of all rows in which the rival is right and at least so fast"


def mark_lines(used: set[str]) -> Iterator[str]:
    """Yields what the marks and verdicts of rows mean."""
    if _SPREAD in used:
        yield f"{_SPREAD}: {STANDARD_ERRORS:g} standard errors of both calls' samples; SLOW and FAST differ by more"
    if PairVerdict.AMBIGUOUS.value in used:
        yield f"{PairVerdict.AMBIGUOUS}: the samples do not tell; measure noisy rows again on an idle machine"
    if _PARTIAL in used:
        yield f"{_PARTIAL}: outputs are missing, or inputs or results were converted outside the measured time"
    if _COMPOSITION in used:
        yield f"{_COMPOSITION}: the baseline is a composition of operators"
    if _HOST_BOUND in used:
        yield f"{_HOST_BOUND}: host-bound: the device waited between kernels, so the sums of kernels are compared"


def ratio_text(ratio: float) -> str:
    """Returns `1.35x`, `445x`, `0.012x`."""
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.2g}x"


def _mean(ratio: float | None) -> str:
    return "no rows" if ratio is None else ratio_text(ratio)


def _cut(case_id: str) -> str:
    """Returns an id that fits a line; the digest at its end stays."""
    return case_id if len(case_id) <= COLUMNS else f"{case_id[: COLUMNS - 16]}..{case_id[-14:]}"


def _named_rows(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Returns the rows of a Markdown table whose first cells are names; the table escapes `|` itself."""
    return [(_escape(name).replace("\\|", "|"), *cells) for name, *cells in rows]


def _code(text: str) -> str:
    """Returns text as code in Markdown."""
    return f"`{text.replace('`', chr(39))}`"


def _escape(text: str) -> str:
    """Returns text without a meaning in Markdown or HTML."""
    for character in "\\`*_|[]":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
