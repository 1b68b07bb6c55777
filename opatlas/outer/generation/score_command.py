"""`opatlas score`: what was judged of kernels, by a suite of operators or in an experiment with models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from opatlas.ask.compare.comparison import FAST
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import expect_folder
from opatlas.formats import percent, ratio
from opatlas.outer.judging.judgement import ErrorClass
from opatlas.row.location import default_database_of
from opatlas.show.result import Column, Fields, Part, Result, Table

from . import experiment as achieved

_ALL, _OF_ALL = "all", ("group", "complexity", "model")
_STRATEGIES = {
    achieved.Strategy.BEST: "one model",
    achieved.Strategy.CHEAPEST: "cheapest",
    achieved.Strategy.TABLE: "by complexity",
    achieved.Strategy.ROUTE: "routed: C as it ran",
}


def _dollars(usd: float) -> str:
    return f"{usd:,.0f}" if usd >= 1000 else f"{usd:.3g}"


#: The columns of the tables, by what they show of a line, with those of its pass rate.
_COLUMNS: Mapping[str, Column] = {
    "group": Column("set"),
    "model": Column("model"),
    "complexity": Column("complexity"),
    "strategy": Column("strategy", lambda each: f"{each} {_STRATEGIES[each]}"),
    "error": Column("error"),
    "passed": Column("passed"),
    "of": Column("tasks"),
    "rate": Column("rate", percent),
    "low": Column("95 % from", percent),
    "high": Column("to", percent),
    "lower_bound": Column("80 % from", percent),
    "passed_first": Column("first"),
    "fixes": Column("fixes"),
    "cost_usd": Column("cost($)", _dollars),
    "cost_per_pass_usd": Column("a pass($)", _dollars),
    "generation_s": Column("answers(s)", "{:,.0f}".format),
    "run_s": Column("runs(s)", "{:,.0f}".format),
    "tokens": Column("tokens"),
    "attempts": Column("attempts"),
    "attempts_share": Column("of the attempts", percent),
    "tasks": Column("tasks"),
    "tasks_share": Column("of the tasks", percent),
    "timed": Column("timed"),
    "own": Column("own kernels"),
    "geometric_mean": Column("mean", ratio),
    **{f"{p:g}": Column(f"> {p:g}x", percent) for p in FAST},
}


def score(*paths: Annotated[Path, Parameter(name="PATH")]) -> Result:
    """Scores kernels: right cases and speed-ups of a suite, or what models that write kernels achieve.

    Exit status: 0 done; 1 a file could not be read; 2 wrong usage.

    Args:
        paths: a database that a suite measured; or folders with attempts.jsonl, or above such, the oldest first: of a
            task that a model tried in several runs, the last run counts.
    """
    if not paths:
        raise UsageError("give the database of a suite, or the folders of runs with models")
    for path in paths:
        expect_folder(path, "name the database of a suite, or the folder of a run with models")
    if any(_is_of_suite(path) for path in paths):
        if len(paths) > 1:
            raise UsageError(f"{', '.join(map(str, paths))}: give the database of a suite alone")
        return _suite_result(paths[0])
    experiment = achieved.read_experiment(paths)
    report = make_report(experiment)
    return Result(list(_parts(experiment, report)), json=report_as_json(experiment, report))


def _suite_result(path: Path) -> Result:
    from opatlas.outer.suites.score import read_score

    baseline = default_database_of(path)
    found = read_score(Database(path), Database(baseline) if baseline is not None else None)
    if not found.cases:
        raise OpAtlasError(f"{path}: has no case of a suite: `opatlas bench --suite opinfo` adds them")
    tried = [each for each in found.operators if each["tried"]]
    tried.sort(key=lambda each: (each["is_right"], each["speed_up"] or 0.0, each["operator"]))
    operators = Table(
        ("operator", "right cases", "cases", Column("speed-up", ratio)),
        [tuple(each[name] for name in ("operator", "right", "cases", "speed_up")) for each in tried],
        title="operators, the worst first",
    )
    counts = Fields({**found.statuses, "operators without a kernel": len(found.operators) - len(tried)}, "cases")
    content = {
        "cases": found.cases,
        "right_cases": found.right,
        "pass_through_cases": found.torchs,
        "operators": len(found.operators),
        "right_operators": found.right_operators,
        "speed_up": found.speed_up,
        "threshold": FAST[0],
        "faster_operators": found.faster(FAST[0]),
        "statuses": dict(found.statuses),
        "by_operator": [
            {name.replace("right", "right_cases"): each[name] for name in ("operator", "cases", "right", "speed_up")}
            for each in found.operators
        ],
    }
    return Result([Fields(found.figures(), "score"), counts, operators], json=content)


def _is_of_suite(path: Path) -> bool:
    try:
        # A package of its own, which may have been deleted.
        from opatlas.outer.suites.texts import is_folder
    except ModuleNotFoundError:
        return False
    return any(is_folder(file.stem) for file in path.glob("*.csv"))


#: The tables of an experiment: task_sets and complexities (figures of each model), classes (shares of errors),
#: speed_ups, selection (the model to choose for each complexity), strategies.
ExperimentReport = Mapping[str, Sequence[achieved.Figures]]


def make_report(experiment: achieved.Experiment) -> ExperimentReport:
    """Computes all tables."""
    return {
        "task_sets": achieved.figures_by(experiment, "task_set", [*experiment.task_sets, None]),
        "complexities": achieved.figures_by(experiment, "complexity", sorted(set(experiment.complexities.values()))),
        "classes": error_shares(experiment),
        "speed_ups": [
            achieved.figures(experiment.outcomes),
            *(achieved.figures(own, model) for model, own in experiment.by_model()),
        ],
        "selection": achieved.Selector(experiment).table(),
        "strategies": achieved.strategy_results(experiment),
    }


def report_as_json(experiment: achieved.Experiment, report: ExperimentReport) -> Mapping[str, object]:
    """Returns the runs, all tables, and the outcome of each task, as msgspec encodes them."""
    outcomes = experiment.outcomes.drop(columns="asked").astype(object)
    return {
        "folders": [
            {"path": run.path, "outcomes": len(run.loops), "attempts": run.attempts, "torn": run.torn}
            for run in experiment.runs
        ],
        "tasks": len(experiment.complexities),
        "common_tasks": len(experiment.common_tasks),
        **report,
        "outcomes": outcomes.where(outcomes.notna(), None).to_dict("records"),
    }


def _parts(experiment: achieved.Experiment, report: ExperimentReport) -> Iterator[Part]:
    yield Fields(_counts(experiment))
    several = len(experiment.task_sets) > 1
    rank = {name: at for at, name in enumerate([*experiment.task_sets, None])}
    lines = sorted(report["task_sets"], key=lambda each: (rank[each["group"]], -(each["passed"]["rate"] or 0)))
    of_all = [each for each in lines if each["group"] is None]
    names = f"{'group ' * several}model passed of rate low high passed_first fixes"
    yield _table("passed tasks", lines if several else of_all, names)
    costs = "cost_usd cost_per_pass_usd generation_s run_s"
    yield _table("costs of all tasks", of_all, f"model {costs} tokens")
    yield _by_complexity(experiment, report)
    found = sorted((each for each in report["classes"] if each["model"] is None), key=lambda each: -each["attempts"])
    yield _table("error classes", found, "error attempts attempts_share tasks tasks_share")
    fast = " ".join(f"{p:g}" for p in FAST)
    yield _table("speed-ups of the passed tasks", report["speed_ups"], f"model passed timed own geometric_mean {fast}")
    if report["selection"]:
        title = "model to choose, with the mean cost of a task"
        yield _table(title, report["selection"], "complexity model passed of rate lower_bound cost_usd")
    title = f"strategies, at the {len(experiment.common_tasks):,} tasks that all models tried"
    yield _table(title, report["strategies"], f"strategy passed of rate low high {costs}")
    chosen = [
        (each["strategy"], model, tasks, tasks / each["passed"]["of"], each["passed_by_model"][model])
        for each in report["strategies"]
        for model, tasks in each["models"].items()
    ]
    columns = (_COLUMNS["strategy"], "model", "tasks", Column("share", percent), "passed")
    yield Table(columns, chosen, title="models that they choose")


def _table(title: str, lines: Iterable[achieved.Figures], names: str) -> Table:
    """Returns a table of lines; a line is of all models, sets or complexities where it names none."""
    columns, rows = names.split(), []
    for line in lines:
        values = {**line, **line.get("fast", {}), **line.get("passed", {})}
        rows.append([_ALL if values[name] is None and name in _OF_ALL else values[name] for name in columns])
    return Table([_COLUMNS[name] for name in columns], rows, title=title)


def _counts(experiment: achieved.Experiment) -> dict[str, Any]:
    attempts = [attempt for loop in experiment.loops.values() for attempt in loop]
    free = [model for model, own in experiment.by_model() if not own["cost_usd"].any()]
    irregular = {
        "lines cut off": sum(run.torn for run in experiment.runs),
        **{f"not tried by {model}": len(experiment.complexities) - len(own) for model, own in experiment.by_model()},
    }
    return {
        "runs": len(experiment.runs),
        "attempts": len(attempts),
        "models": len(experiment.models),
        "tasks": (len(experiment.complexities), ", ".join(experiment.task_sets)),
        **{name: count or None for name, count in irregular.items()},
        "without a price": (len(free), ", ".join(free)) if free else None,
    }


def _by_complexity(experiment: achieved.Experiment, report: ExperimentReport) -> Table:
    rates = {(each["model"], each["group"]): each["passed"]["rate"] for each in report["complexities"]}
    tasks = Counter(experiment.complexities.values())
    names = [f"{group or 'none'} of {tasks[group]:,}" for group in sorted(tasks)]
    return Table(
        ("model", *(Column(name, percent) for name in names)),
        [(model, *(rates[model, group] for group in sorted(tasks))) for model in experiment.models],
        title="pass rate by complexity",
    )


def error_shares(experiment: achieved.Experiment) -> list[achieved.Figures]:
    """Returns how often attempts, and tasks by their final attempt, ended with each class: of all models, then each."""
    found: list[achieved.Figures] = []
    for model in (None, *experiment.models):
        loops = [loop for (name, _), loop in experiment.loops.items() if model in (None, name)]
        attempts = Counter(attempt.judgement.error_class for loop in loops for attempt in loop)
        tasks = Counter(achieved.final_attempt(loop).judgement.error_class for loop in loops)
        found += [
            {
                "model": model,
                "error": str(kind),
                "attempts": attempts[kind],
                "attempts_share": achieved.share_of(attempts[kind], attempts.total()),
                "tasks": tasks[kind],
                "tasks_share": achieved.share_of(tasks[kind], tasks.total()),
            }
            for kind in ErrorClass
            if attempts[kind]
        ]
    return found
