"""`opatlas score`: what was judged of kernels, by a suite of operators or in an experiment with models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from opatlas.ask.compare.comparison import FAST
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import expect_folder
from opatlas.formats import percent, ratio
from opatlas.outer.experiment.outcomes import Experiment, read_experiment
from opatlas.outer.experiment.report import ExperimentReport, as_json, make_report
from opatlas.outer.experiment.strategies import Strategy
from opatlas.outer.experiment.tables import ErrorShare, SpeedUps
from opatlas.outer.judging.judgement import Level
from opatlas.outer.suites.overload import is_folder
from opatlas.outer.suites.score import SuiteScore, read_score
from opatlas.row.location import default_database_of
from opatlas.show.output import Output
from opatlas.show.result import Column, Fields, Part, Result, Table

#: The operators that the text names.
_SHOWN = 20
_LEVELS = (Level.STATIC, Level.COMPILE, Level.CORRECT)
_ALL = "all"
_STRATEGIES = {
    Strategy.BEST: "one model",
    Strategy.CHEAPEST: "cheapest",
    Strategy.TABLE: "by complexity",
    Strategy.ORACLE: "oracle",
}

#: The columns of a table: each with the value that it has of a row.
_Columns = Mapping[Column | str, Callable[[Any], Any]]


def score(
    *paths: Annotated[Path, Parameter(name="PATH")],
    baseline: str = "",
    output: Annotated[Output, Parameter(parse=False)] = Output(),  # noqa: B008
) -> Result:
    """Scores kernels: right cases and speed-ups of a suite, or what models that write kernels achieve.

    Exit status: 0 done; 1 a file could not be read; 2 wrong usage.

    Args:
        paths: a database that a suite measured; or folders with attempts.jsonl, or above such, the oldest first: of a
            task that a model tried in several runs, the last run counts.
        baseline: model of strategy A of an experiment (default: for each task the model that is best at the others).
    """
    if not paths:
        raise UsageError("give the database of a suite, or the folders of runs with models")
    for path in paths:
        expect_folder(path, "name the database of a suite, or the folder of a run with models")
    if not any(is_folder(name) for path in paths for name in Database(path).kernel_types()):
        experiment = read_experiment(paths)
        report = make_report(experiment, baseline)
        return Result(list(_experiment_parts(experiment, report)), json=as_json(experiment, report))
    if len(paths) > 1 or baseline:
        raise UsageError(f"{', '.join(map(str, paths))}: give the database of a suite alone, without --baseline")
    return _suite_result(paths[0], _SHOWN if output.is_text else None)


def _suite_result(path: Path, most: int | None) -> Result:
    baseline = default_database_of(path)
    found = read_score(Database(path), Database(baseline) if baseline is not None else None)
    if not found.cases:
        raise OpAtlasError(f"{path}: has no case of a suite: `opatlas bench --suite opinfo` adds them")
    tried = [each for each in found.operators if each.was_tried]
    tried.sort(key=lambda each: (each.is_right, each.speed_up or 0.0, each.operator))
    operators = Table(
        ("operator", "right cases", "cases", Column("speed-up", ratio)),
        [(each.operator, each.right, len(each.cases), each.speed_up) for each in tried[:most]],
        title="operators, the worst first",
        left_out=len(tried[most:]) if most is not None else 0,
    )
    counts = Fields({**found.statuses, "operators without a kernel": len(found.operators) - len(tried)}, "cases")
    return Result([Fields(found.figures(), "score"), counts, operators], json=_suite_json(found))


def _suite_json(found: SuiteScore) -> dict[str, object]:
    return {
        "cases": found.cases,
        "right_cases": found.right,
        "operators": len(found.operators),
        "right_operators": found.right_operators,
        "speed_up": found.speed_up,
        "threshold": FAST[0],
        "faster_operators": found.faster(FAST[0]),
        "statuses": dict(found.statuses),
        "by_operator": [
            {"operator": each.operator, "cases": len(each.cases), "right_cases": each.right, "speed_up": each.speed_up}
            for each in found.operators
        ],
    }


def _experiment_parts(experiment: Experiment, report: ExperimentReport) -> Iterator[Part]:
    yield Fields(_counts(experiment))
    rate: _Columns = {
        "passed": lambda each: each.passed.passed,
        "tasks": lambda each: each.passed.of,
        Column("rate", percent): lambda each: each.passed.rate,
    }
    interval: _Columns = {
        Column("95 % from", percent): lambda each: each.passed.low,
        Column("to", percent): lambda each: each.passed.high,
    }
    costs: _Columns = {
        Column("cost($)", _dollars): lambda each: each.cost_usd,
        Column("a pass($)", _dollars): lambda each: each.cost_per_pass_usd,
        Column("answers(s)", _seconds): lambda each: each.generation_s,
        Column("runs(s)", _seconds): lambda each: each.run_s,
    }
    of_model: _Columns = {"model": lambda each: each.model or _ALL}
    several = len(experiment.task_sets) > 1
    figures = sorted(report.task_sets, key=lambda each: (each.group is None, each.group, -(each.passed.rate or 0)))
    yield _table(
        "passed tasks",
        [each for each in figures if several or each.group is None],
        {
            **({"set": lambda each: each.group or _ALL} if several else {}),
            **of_model,
            **rate,
            **interval,
            "first": lambda each: each.passed_first,
            "fixes": lambda each: each.fixes,
        },
    )
    tokens: _Columns = {"tokens": lambda each: each.tokens}
    yield _table(
        "costs of all tasks", [each for each in figures if each.group is None], {**of_model, **costs, **tokens}
    )
    yield _by_complexity(experiment, report)
    yield _errors("error classes", "all", report.classes)
    yield _errors("groups of errors", "failed", report.groups)
    yield _levels(report)
    yield _table(
        "verdicts: passed, and all elements within 1e-3",
        [each for each in report.verdicts if each.model is None],
        {
            "of": lambda each: each.of,
            "both": lambda each: each.both,
            "passed only": lambda each: each.only_passed,
            "1e-3 only": lambda each: each.only_within,
            "neither": lambda each: each.neither,
            "not compared": lambda each: each.not_compared,
        },
    )
    yield _table(
        "speed-ups of the passed tasks",
        report.speed_ups,
        {
            **of_model,
            "passed": lambda each: each.passed,
            "timed": lambda each: each.timed,
            "own kernels": lambda each: each.own,
            Column("mean", ratio): lambda each: each.geometric_mean,
            **{Column(f"> {p:g}x", percent): _fast(f"{p:g}") for p in FAST},
        },
    )
    if len(experiment.models) > 1:
        yield _table(
            "model to choose",
            report.selection,
            {
                "complexity": lambda each: _ALL if each.complexity is None else each.complexity,
                **of_model,
                **rate,
                Column("80 % from", percent): lambda each: each.lower_bound,
                Column("a task($)", _dollars): lambda each: each.cost_usd,
            },
        )
        name: _Columns = {"strategy": lambda each: f"{each.strategy} {_STRATEGIES[each.strategy]}"}
        title = f"strategies, at the {len(experiment.common_tasks):,} tasks that all models tried"
        yield _table(title, report.strategies, {**name, **rate, **interval, **costs})
        chosen = [
            (f"{each.strategy} {_STRATEGIES[each.strategy]}", model, tasks, tasks / each.passed.of)
            for each in report.strategies
            for model, tasks in each.models.items()
        ]
        yield Table(("strategy", "model", "tasks", Column("share", percent)), chosen, title="models that they choose")


def _counts(experiment: Experiment) -> dict[str, Any]:
    outcomes = list(experiment.all_outcomes())
    estimated = sum(each.tokens_estimated for outcome in outcomes for each in outcome.attempts)
    free = [model for model, of in experiment.outcomes.items() if not any(each.cost_usd for each in of.values())]
    irregular = {
        "runs": len(experiment.runs),
        "lines twice": sum(run.identical for run in experiment.runs),
        "tasks begun anew": sum(run.restarted for run in experiment.runs),
        "tasks with missing attempts": sum(run.gaps for run in experiment.runs),
        "lines cut off": sum(run.torn for run in experiment.runs),
        "tasks of two complexities": experiment.mixed_complexities,
        "attempts with estimated tokens": estimated,
    }
    return {
        "attempts": sum(len(outcome.attempts) for outcome in outcomes),
        "models": len(experiment.models),
        "tasks": (len(experiment.tasks), ", ".join(experiment.task_sets)),
        **{name: count or None for name, count in irregular.items()},
        "without a price": (len(free), ", ".join(free)) if free else None,
        **{f"not tried by {model}": experiment.missing(model) or None for model in experiment.models},
    }


def _by_complexity(experiment: Experiment, report: ExperimentReport) -> Table:
    groups = dict.fromkeys(each.group for each in report.complexities)
    rates = {(each.model, each.group): each.passed.rate for each in report.complexities}
    tasks = [sum(of == group for of in experiment.complexities.values()) for group in groups]
    names = [f"{group or 'none'} of {count:,}" for group, count in zip(groups, tasks, strict=True)]
    return Table(
        ("model", *(Column(name, percent) for name in names)),
        [(model, *(rates[model, group] for group in groups)) for model in experiment.models],
        title="pass rate by complexity",
    )


def _errors(title: str, of: str, shares: Sequence[ErrorShare]) -> Table:
    return _table(
        title,
        sorted((each for each in shares if each.model is None), key=lambda each: -each.attempts),
        {
            "error": lambda each: each.error,
            "attempts": lambda each: each.attempts,
            Column(f"of {of} attempts", percent): lambda each: each.attempts_share,
            "tasks": lambda each: each.tasks,
            Column(f"of {of} tasks", percent): lambda each: each.tasks_share,
        },
    )


def _levels(report: ExperimentReport) -> Table:
    rates = {(each.model, each.level): each for each in report.levels}
    columns = [Column(f"{level} {of}", percent) for level in _LEVELS for of in ("attempts", "tasks")]
    rows = []
    for model in dict.fromkeys(each.model for each in report.levels):
        passed = [rates[model, level] for level in _LEVELS]
        rows.append((model or _ALL, *(rate for each in passed for rate in (each.attempts.rate, each.tasks.rate))))
    return Table(("model", *columns), rows, title="passed levels")


def _table(title: str, rows: Iterable[Any], columns: _Columns) -> Table:
    return Table(list(columns), [[value(row) for value in columns.values()] for row in rows], title=title)


def _fast(p: str) -> Callable[[SpeedUps], float | None]:
    return lambda each: each.fast[p]


def _dollars(cost: float) -> str:
    return f"{cost:,.0f}" if cost >= 1000 else f"{cost:.3g}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f}"
