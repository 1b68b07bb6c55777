"""The tables of an experiment as text within 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from opatlas.candidates.judgement import Level
from opatlas.compare.comparison import FAST
from opatlas.experiment.outcomes import Experiment
from opatlas.experiment.proportions import PassRate
from opatlas.experiment.report import ExperimentReport
from opatlas.experiment.strategies import CHOICE_LEVEL, Strategy, StrategyResult
from opatlas.experiment.tables import ErrorShare, LevelRate, ModelFigures, SpeedUps, VerdictCounts
from opatlas.show.formats import ratio as ratio_text
from opatlas.text import align_numbers, percent_text, pluralize, wrap

_NO_DATA = "no data"
_ALL = "all models"
_MEANINGS = {
    Strategy.BEST: "one model",
    Strategy.CHEAPEST: "cheapest",
    Strategy.TABLE: "table",
    Strategy.ORACLE: "oracle",
}
_LEVELS = (Level.STATIC, Level.COMPILE, Level.CORRECT)


def text_lines(experiment: Experiment, report: ExperimentReport) -> Iterator[str]:
    """Yields the lines for a terminal."""
    yield from _heading(experiment, report.task_sets)
    for title, figures in _figures_by_group(experiment, report):
        yield from ("", title, "")
        yield from align_numbers([_FIGURE_TITLES, *map(_figure_cells, figures)], least=8)
    yield from _by_complexity(report.complexities)
    yield from _errors(report)
    has_choice = len(experiment.models) > 1
    yield from _levels([each for each in report.levels if has_choice or each.model is not None])
    yield from _verdicts(report.verdicts)
    yield from _speeds([each for each in report.speed_ups if has_choice or each.model is not None])
    if has_choice:
        yield from _selection(report)
        yield from _strategies(experiment, report)


def _heading(experiment: Experiment, figures: Sequence[ModelFigures]) -> Iterator[str]:
    for run in experiment.runs:
        yield f"{run.path}"
        if told := [text for text in _irregularities(run.identical, run.restarted, run.gaps, run.torn) if text]:
            yield wrap("; ".join(told), indent=2)
    attempts = sum(len(outcome.attempts) for outcome in experiment.all_outcomes())
    yield wrap(
        f"{pluralize(attempts, 'attempt')} of {pluralize(len(experiment.models), 'model')} at "
        f"{pluralize(len(experiment.tasks), 'task')} of {pluralize(len(experiment.task_sets), 'set')}",
        indent=0,
    )
    estimated = sum(each.tokens_estimated for outcome in experiment.all_outcomes() for each in outcome.attempts)
    if estimated:
        yield wrap(f"tokens and cost of {pluralize(estimated, 'attempt')} are estimated from characters", indent=0)
    free = [each.model for each in figures if each.group is None and each.passed.of and not each.cost_usd]
    if free:
        yield wrap(f"without a price, so that tokens tell which is cheap: {', '.join(free)}", indent=0)
    if experiment.mixed_complexities:
        yield f"the higher of two complexities counts: {pluralize(experiment.mixed_complexities, 'task')}"
    for model in experiment.models:
        if missing := experiment.missing(model):
            yield wrap(
                f"{model}: {missing:,} of {pluralize(len(experiment.tasks), 'task')} not tried; its figures are of "
                "those that it tried",
                indent=0,
            )


def _irregularities(identical: int, restarted: int, gaps: int, torn: bool) -> Iterator[str]:
    yield f"{pluralize(identical, 'line')} repeated, counted once" if identical else ""
    yield f"{pluralize(restarted, 'task')} begun anew, the last attempts count" if restarted else ""
    yield f"{pluralize(gaps, 'task')} with missing attempts" if gaps else ""
    yield "the last line is cut off and left out" if torn else ""


_FIGURE_TITLES = ("model", "passed", "95 %", "first", "fixes", "cost", "a pass", "time(s)")


def _figures_by_group(experiment: Experiment, report: ExperimentReport) -> Iterator[tuple[str, Sequence[ModelFigures]]]:
    """Yields each set of tasks and all tasks; all tasks alone, if there is one set."""
    groups = [*(experiment.task_sets if len(experiment.task_sets) > 1 else ()), None]
    for group in groups:
        figures = sorted(
            (each for each in report.task_sets if each.group == group), key=lambda each: -(each.passed.rate or 0)
        )
        name = group if group is not None else "all tasks" if len(groups) > 1 else experiment.task_sets[0]
        yield name, figures


def _figure_cells(figures: ModelFigures) -> tuple[str, ...]:
    return (
        figures.model,
        *_rate_cells(figures.passed),
        f"{figures.passed_first:,}" if figures.passed.of else _NO_DATA,
        f"{figures.fixes:,}",
        _dollars(figures.cost_usd),
        _dollars(figures.cost_per_pass_usd),
        f"{figures.generation_s + figures.run_s:,.0f}",
    )


def _by_complexity(figures: Sequence[ModelFigures]) -> Iterator[str]:
    groups = list(dict.fromkeys(each.group or "none" for each in figures))
    rows: dict[str, list[str]] = {}
    for each in figures:
        rows.setdefault(each.model, []).append(
            f"{each.passed.passed}/{each.passed.of} {_percent(each.passed.rate)}" if each.passed.of else _NO_DATA
        )
    yield from ("", "passed by complexity", "")
    yield from align_numbers([("model", *groups), *((model, *cells) for model, cells in rows.items())], least=8)


def _errors(report: ExperimentReport) -> Iterator[str]:
    for title, of, lines in (
        ("error classes, of all", "all", report.classes),
        ("groups of errors, of the failed ones", "failed", report.groups),
    ):
        found = sorted((each for each in lines if each.model is None), key=lambda each: -each.attempts)
        yield from ("", title, "")
        yield from align_numbers([("", "attempts", of, "tasks", of), *map(_error_cells, found)]) if found else ["none"]


def _error_cells(share: ErrorShare) -> tuple[str, ...]:
    attempts, tasks = _percent(share.attempts_share), _percent(share.tasks_share)
    return share.error, f"{share.attempts:,}", attempts, f"{share.tasks:,}", tasks


def _levels(rates: Iterable[LevelRate]) -> Iterator[str]:
    yield from ("", "passed levels: share of attempts, share of tasks", "")
    rows: dict[str, list[str]] = {}
    for each in rates:
        if each.level in _LEVELS:
            cells = rows.setdefault(each.model or _ALL, [])
            cells += [_percent(each.attempts.rate), _percent(each.tasks.rate)]
    titles = [title for level in _LEVELS for title in (f"{level} att.", "tasks")]
    yield from align_numbers([("model", *titles), *((model, *cells) for model, cells in rows.items())], least=8)


def _verdicts(counts: Iterable[VerdictCounts]) -> Iterator[str]:
    yield from ("", "two verdicts: passed, and all elements within 1e-3", "")
    rows = [
        (each.of, *(f"{count:,}" for count in cells))
        for each in counts
        if each.model is None
        for cells in [(each.both, each.only_passed, each.only_within, each.neither, each.not_compared)]
    ]
    yield from align_numbers([("", "both", "passed only", "1e-3 only", "neither", "not compared"), *rows], least=8)


def _speeds(speed_ups: Sequence[SpeedUps]) -> Iterator[str]:
    yield from ("", "speed-up of the passed tasks; percent of all tasks with more than 1x, 1.5x, 2x", "")
    rows = [
        (
            each.model or _ALL,
            f"{each.timed}/{each.passed}",
            _NO_DATA if each.own is None else f"{each.own:,}",
            _NO_DATA if each.geometric_mean is None else ratio_text(each.geometric_mean),
            *(_percent(each.fast[p]) for p in FAST),
        )
        for each in speed_ups
    ]
    titles = ("model", "timed", "own kernels", "mean", *(f"{p:g}x" for p in FAST))
    yield from align_numbers([titles, *rows], least=8)
    if any(each.passed for each in speed_ups) and not any(each.timed for each in speed_ups):
        yield wrap(
            "to have speed-ups, measure the tasks too: `opatlas bench --tasks TASKS --database-path DB`", indent=0
        )


def _selection(report: ExperimentReport) -> Iterator[str]:
    yield from ("", f"model to choose, by the lower bound of the {_percent(CHOICE_LEVEL)} interval", "")
    rows = [
        (
            f"{'all' if each.complexity is None else each.complexity or 'none'}  {each.model}",
            f"{each.passed.passed}/{each.passed.of}",
            _percent(each.passed.rate),
            _percent(each.lower_bound),
            _dollars(each.cost_usd),
        )
        for each in report.selection
    ]
    yield from align_numbers([("", "passed", "", "at least", "a task"), *rows], least=8)


def _strategies(experiment: Experiment, report: ExperimentReport) -> Iterator[str]:
    tasks = len(experiment.common_tasks)
    yield ""
    if not tasks:
        yield wrap(
            f"strategies: {_NO_DATA}: no task was tried by all models; --models leaves out those that tried few",
            indent=0,
        )
        return
    missing = len(experiment.tasks) - tasks
    left_out = f"; {missing:,} others are left out" if missing else ""
    yield wrap(f"strategies at the {pluralize(tasks, 'task')} that all models tried{left_out}", indent=0)
    yield "each choice is made from the other tasks"
    yield ""
    titles = ("", "passed", "95 %", "cost", "a pass", "answers(s)", "runs(s)")
    estimates = [each for each in report.strategies if not each.in_sample]
    yield from align_numbers([titles, *map(_strategy_cells, estimates)], least=8)
    yield ""
    for each in estimates:
        chosen = ", ".join(f"{model} {count:,}" for model, count in each.models.items())
        yield wrap(f"{each.strategy} chooses: {chosen}", indent=0)
    for each in report.strategies:
        if each.in_sample:
            rate = f"{each.passed.passed:,} of {each.passed.of:,} ({_percent(each.passed.rate)})"
            yield wrap(
                f"{each.strategy} with choices from the very tasks: {rate}, an upper bound and no estimate", indent=0
            )


def _strategy_cells(result: StrategyResult) -> tuple[str, ...]:
    return (
        f"{result.strategy} {_MEANINGS[result.strategy]}",
        *_rate_cells(result.passed),
        _dollars(result.cost_usd),
        _dollars(result.cost_per_pass_usd),
        f"{result.generation_s:,.0f}",
        f"{result.run_s:,.0f}",
    )


def _rate_cells(rate: PassRate) -> tuple[str, str]:
    if rate.rate is None or rate.low is None or rate.high is None:
        return _NO_DATA, ""
    return f"{rate.passed}/{rate.of}", f"{_percent(rate.rate)} ({rate.low * 100:.0f}-{rate.high * 100:.0f})"


def _percent(share: float | None) -> str:
    return _NO_DATA if share is None else percent_text(share, 0)


def _dollars(cost: float | None) -> str:
    if cost is None:
        return _NO_DATA
    return f"${cost:,.0f}" if cost >= 1000 else f"${cost:.3g}"
