"""What `--help` says of every entry point: each option has its default, and means the same wherever it stands."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from doc_commands import ROOT
from opatlas.plugins import options, theory

from opatlas.cli.main import parser as bench_parser
from opatlas.cli.main import parser as database_parser
from opatlas.collectives import options as collectives
from opatlas.engine import expert_parallel
from opatlas.engine.group_spec import NODE_OPTIONS
from opatlas.options import Option, Scope, given

#: Options that are another thing for another command, and what tells.
OF_THEIR_OWN = {
    "--format": "of a weight's layout, or of a plot's file",
    "--ops": "which kernel types to run, or to plot",
    "--output": "a table, a plot, or a folder of plots",
    "--weights": "their dtype, or their shapes",
}


class PytestParser:
    """Takes options as pytest's parser does, into one of argparse that can be looked into."""

    def __init__(self) -> None:
        self.parser = argparse.ArgumentParser(prog="pytest")
        self._groups: dict[str, Any] = {}

    def getgroup(self, name: str, description: str) -> Any:
        if name not in self._groups:
            group: Any = self.parser.add_argument_group(name, description)
            group.addoption = group.add_argument
            self._groups[name] = group
        return self._groups[name]


@cache
def of_pytest() -> argparse.ArgumentParser:
    """The options that OpAtlas adds to pytest's."""
    parser: Any = PytestParser()
    for adds in (options.pytest_addoption, theory.pytest_addoption):
        adds(parser)
    return parser.parser


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def entry_points() -> list[argparse.ArgumentParser]:
    return [of_pytest(), *commands(bench_parser()), *commands(database_parser())]


def optional(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options that a help text shows, but for --help itself."""
    shown = (action for action in parser._actions if action.help is not argparse.SUPPRESS)
    return [action for action in shown if action.option_strings and "--help" not in action.option_strings]


@pytest.mark.parametrize("parser", entry_points(), ids=lambda parser: parser.prog)
def test_every_option_says_what_it_is_without_being_given(parser: argparse.ArgumentParser) -> None:
    silent = [
        action.option_strings[-1]
        for action in optional(parser)
        if not action.required and "default: " not in (action.help or "")
    ]
    # The same as -x, which has pytest's default.
    assert [name for name in silent if name != "--fail-fast"] == []


@pytest.mark.parametrize("parser", entry_points(), ids=lambda parser: parser.prog)
def test_descriptions_and_help_are_alike(parser: argparse.ArgumentParser) -> None:
    if parser.prog != "pytest":
        first = (parser.description or "").split()[0]
        # "Joins databases", as docstrings have it, and not "Join databases".
        assert first[0].isupper()
        assert first.endswith("s"), parser.description
    for action in optional(parser):
        text = action.help or ""
        assert text[0].islower() or not text[0].isalpha() or text.split()[0].isupper(), (action.option_strings, text)
        assert not text.rstrip(")").endswith("."), action.option_strings


def test_an_option_takes_the_same_wherever_it_stands() -> None:
    forms: dict[str, dict[str, object]] = {}
    for parser in entry_points():
        for action in optional(parser):
            for name in action.option_strings:
                forms.setdefault(name, {})[parser.prog] = (action.metavar, action.nargs)
    differ = {name: of for name, of in forms.items() if len(set(of.values())) > 1 and name not in OF_THEIR_OWN}
    assert differ == {}


def test_what_is_refused_where_it_does_nothing_is_known_by_its_default() -> None:
    real = {name: (action.dest, action.default) for action in optional(of_pytest()) for name in action.option_strings}
    assert {
        name: (option.dest, option.default) for option in (*options.OPTIONS, *theory.OPTIONS) for name in option.names
    } == real


@pytest.mark.parametrize(
    ("declared", "scope", "others"),
    [
        (options.DATABASE, Scope.FINDS_DATABASE, {"--database-path", "--device", "--mixed", "--read-only"}),
        (options.ROWS, Scope.REPLAYS, {"--ops", "--fail-fast"}),
        (options.MEASURING, Scope.RUNNING, {"--prof-path"}),
        (NODE_OPTIONS, Scope.RUNNING, set()),
        (expert_parallel.OPTIONS, Scope.RUNNING, {"--ep-size"}),
        (expert_parallel.OPTIONS, Scope.KERNELS, set()),
        (collectives.OPTIONS, Scope.COLLECTIVES, set()),
        (theory.OPTIONS, Scope.THEORY, set()),
    ],
)
def test_options_are_refused_where_all_of_their_group_are(
    declared: Sequence[Option], scope: Scope, others: set[str]
) -> None:
    assert {option.name for option in declared if scope not in option.scope} == others


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("shapes/", "--repeat-count=3", "--shard=1/2"),
            "`pytest shapes/` runs no row: leave out --shard, --repeat-count",
        ),
        (("bench/", "--rows=5", "--plan-only"), "added by `pytest shapes/`: leave out --rows, --plan-only"),
        (
            ("bench/", "--device=cpu", "--aic-metrics=Memory", "--msprof-rows=5"),
            "replayed on cpu 0, which is no NPU: leave out --aic-metrics, --msprof-rows",
        ),
        *(
            (
                (place, "--torch-version=2.9.0", "--cann-version=8.5"),
                "--database-path names the folder, whatever the versions: leave out --torch-version, --cann-version",
            )
            for place in ("bench/", "bench/test_collectives.py", "shapes/")
        ),
        (("shapes/", "--target-models", ","), "argument --target-models: ',': give a name, or several with commas"),
        (("bench/", "--ops="), "argument --ops: '': give a name, or several with commas"),
        (("bench/", "--num-devices=2"), "only bench/test_collectives.py measures collectives: leave out --num-devices"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", f"--database-path={tmp_path}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert message in done.stderr


@pytest.mark.parametrize(
    ("place", "added"),
    [
        ("shapes/", "--repeat-count=3 --shard=1/2 --torch-version=2.9.0"),
        ("bench/", "--rows=5 --num-devices=2 --msprof-rows=5 --cann-version=8.5"),
        ("bench/test_collectives.py", "--in-process --status=failed"),
    ],
)
def test_an_option_that_pytest_is_always_given_has_no_effect_where_it_would_do_nothing(
    place: str, added: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "--device=cpu", f"--database-path={tmp_path}", place],
        cwd=ROOT,
        env={**os.environ, "PYTEST_ADDOPTS": added},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), done.stderr


def test_only_words_of_the_command_line_count_as_given() -> None:
    arguments = ["bench/", "--repeat-count=3", "--cache", "warm", "--", "--threads=4"]
    assert given(arguments, options.MEASURING, Scope.RUNNING) == ["--repeat-count", "--cache"]
