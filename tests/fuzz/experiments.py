"""`opatlas score`: the file with the attempts of models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
from simulated_attempts import attempt, loop

from opatlas.outer.experiment.command import make_report, report_as_json
from opatlas.outer.experiment.outcomes import read_experiment
from opatlas.outer.generation.attempts import ATTEMPTS, attempt_line

from .target import Target, expect, refusing


def _seeds() -> Iterator[bytes]:
    attempts = [
        *loop("a", "relu", 2, passes=True),
        *loop("b", "relu", 1, passes=False, complexity="C2"),
        attempt("b", "sort", within_1e3=True, duration_us=2.5, baseline_us=5.0, kernel_share=1.0, tokens_in=7),
    ]
    yield "".join(map(attempt_line, attempts)).encode()


def _check(data: bytes, folder: Path) -> None:
    (folder / ATTEMPTS).write_bytes(data)
    with refusing(folder):
        experiment = read_experiment([folder])
        report = make_report(experiment)
        json.dumps(msgspec.to_builtins(report_as_json(experiment, report), enc_hook=str), allow_nan=False)
        for each in report.strategies:
            expect(each.passed.of == len(experiment.common_tasks), "a strategy lost a task")
        expect(sum(each.attempts for each in experiment.runs) <= data.count(b"\n") + 1, "more attempts than lines")


MODELS = Target(
    "attempts",
    "attempts are evaluated without NaN, or refused with the file",
    _seeds,
    _check,
    (
        b'"model"',
        b'"number"',
        b'"pass"',
        b'"C9"',
        b"1e308",
        b"5e-324",
        b"9223372036854775807",
        b"null",
        b"\\ud800",
        b"\n",
    ),
)
