"""All tables of an experiment together, and their JSON for other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opatlas.errors import UsageError
from opatlas.outer.experiment import tables
from opatlas.outer.experiment.outcomes import Experiment, TaskOutcome
from opatlas.outer.experiment.strategies import Selection, Selector, StrategyResult, strategy_results
from opatlas.text import suggest


@dataclass(frozen=True)
class ExperimentReport:
    """The tables of an experiment.

    Attributes:
        task_sets, complexities: figures of each model, by sets of tasks and by complexity.
        classes, groups: shares of errors.
        levels, verdicts, speed_ups: of all models and of each.
        selection: the model to choose for each complexity.
        strategies: results of strategies.
    """

    task_sets: Sequence[tables.ModelFigures]
    complexities: Sequence[tables.ModelFigures]
    classes: Sequence[tables.ErrorShare]
    groups: Sequence[tables.ErrorShare]
    levels: Sequence[tables.LevelRate]
    verdicts: Sequence[tables.VerdictCounts]
    speed_ups: Sequence[tables.SpeedUps]
    selection: Sequence[Selection]
    strategies: Sequence[StrategyResult]


def make_report(experiment: Experiment, baseline: str = "") -> ExperimentReport:
    """Computes all tables.

    Args:
        baseline: the model of strategy A; "" for the model that the other tasks choose.

    Raises:
        UsageError: no attempt has the model `baseline`.
    """
    if baseline and baseline not in experiment.models:
        raise UsageError(
            f"--baseline {baseline}: no attempt has this model{suggest(baseline, experiment.models)}: give one of "
            f"{', '.join(experiment.models)}"
        )
    return ExperimentReport(
        tables.figures_by_task_set(experiment),
        tables.figures_by_complexity(experiment),
        tables.error_classes(experiment),
        tables.error_groups(experiment),
        tables.level_rates(experiment),
        tables.verdict_counts(experiment),
        tables.speed_ups(experiment),
        Selector(experiment).table(),
        strategy_results(experiment, baseline),
    )


def as_json(experiment: Experiment, report: ExperimentReport) -> Mapping[str, object]:
    """Returns the runs, all tables, and the outcome of each task, as msgspec encodes them."""
    return {
        "folders": [{**vars(run), "outcomes": len(run.outcomes)} for run in experiment.runs],
        "tasks": len(experiment.tasks),
        "common_tasks": len(experiment.common_tasks),
        "mixed_complexities": experiment.mixed_complexities,
        **vars(report),
        "outcomes": [_outcome(experiment, outcome) for outcome in experiment.all_outcomes()],
    }


def _outcome(experiment: Experiment, outcome: TaskOutcome) -> dict[str, object]:
    final, judgement, task = outcome.final, outcome.final.judgement, outcome.task
    return {
        "model": outcome.model,
        "task_set": task.task_set,
        "task": task.task,
        "complexity": experiment.complexities[task],
        "passed": outcome.passed,
        "passed_first": outcome.passed_first,
        "fixes": outcome.fixes,
        "error_class": judgement.error_class,
        "sub_class": judgement.sub_class,
        "level": outcome.level,
        "within_1e3": judgement.within_1e3,
        "duration_us": judgement.duration_us,
        "speed_up": outcome.speed_up,
        "kernel_share": judgement.kernel_share,
        "cost_usd": outcome.cost_usd,
        "generation_s": outcome.generation_s,
        "run_s": outcome.run_s,
        "tokens": outcome.tokens,
        "candidate": final.candidate,
        "notes": "; ".join(judgement.notes),
    }
