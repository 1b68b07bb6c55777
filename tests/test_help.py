"""The `--help` of every entry point: each option has its default, and means the same everywhere."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import warm_python
from declared_options import command_options, count, pytest_parser, shown
from doc_commands import ROOT
from opatlas.plugins import options

from opatlas.cli.main import all_commands, main
from opatlas.options import Scope, given

#: A new option needs a reason that is as good as those of the others (python tests/support/declared_options.py).
MOST_OPTIONS = 110
#: `pytest bench/`, with those of collectives; and any other command.
MOST_OF_REPLAYS, MOST_OF_A_COMMAND = 33, 10


def test_options_stay_few() -> None:
    assert count() <= MOST_OPTIONS
    of_shapes = {each.name for each in options.THEORY_ROWS}
    of_replays = [action for action in shown(pytest_parser()) if not of_shapes.intersection(action.option_strings)]
    assert len(of_replays) <= MOST_OF_REPLAYS
    assert max(map(len, command_options().values())) <= MOST_OF_A_COMMAND


def test_every_option_of_pytest_has_its_default() -> None:
    helps = {action.option_strings[-1]: action.help or "" for action in shown(pytest_parser()) if not action.required}
    assert [name for name, text in helps.items() if "default: " not in text] == []


def test_every_option_of_a_command_has_a_help() -> None:
    assert [(name, option) for name, known in command_options().items() for option in known if not known[option]] == []


@pytest.mark.parametrize("name", [name for name, command in all_commands().items() if command.function])
def test_the_help_of_a_command_has_its_exit_statuses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    statuses = capsys.readouterr().out.partition("Exit status:")[2]
    assert {"0", "1", "2"} <= set(re.findall(r"\b\d\b", statuses))


def test_options_refused_without_effect_are_known_by_their_default() -> None:
    real = {name: (action.dest, action.default) for action in shown(pytest_parser()) for name in action.option_strings}
    declared = (*options.OPTIONS, *options.THEORY_ROWS)
    assert {option.name: (option.dest, option.default) for option in declared} == real


@pytest.mark.parametrize(
    ("scope", "without_effect"),
    [
        (Scope.KERNELS, {"--grid-shape", "--num-devices", "--rows"}),
        (Scope.PROFILES, {"--repeat-count", "--instrument", "--in-process", "--num-devices", "--rows"}),
        (Scope.COLLECTIVES, {"--where", "--in-process", "--prof-path", "--ep-size", "--rows"}),
        (Scope.THEORY, {"--shard", "--repeat-count", "--mixed", "--num-devices", "--prof-path"}),
    ],
)
def test_each_kind_of_session_has_options_without_an_effect(scope: Scope, without_effect: set[str]) -> None:
    outside = {option.name for option in options.outside((*options.OPTIONS, *options.THEORY_ROWS), scope)}
    assert without_effect <= outside
    assert outside.isdisjoint({"--database-path", "--device", "--versions", "--ops", "--read-only"})


def collect(folder: Path, *arguments: str, added: str = "") -> tuple[int, str]:
    """Returns the exit code and the output of pytest in the checkout, which collects for a database in `folder`."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", f"--database-path={folder}", *arguments]
    done = warm_python.run(words, cwd=ROOT, env={**os.environ, "PYTEST_ADDOPTS": added})
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (("shapes/", "--repeat-count=3", "--shard=1/2"), "--shard, --repeat-count"),
        (("bench/", "--rows=5", "--seed=3"), "--rows, --seed"),
        (("bench/", "--num-devices=2"), "--num-devices"),
        (("bench/", "--versions=torch=2.9.0"), "--versions"),
        (("shapes/", "--versions=torch=2.9.0"), "--versions"),
    ],
)
def test_an_option_without_an_effect_is_refused(arguments: tuple[str, ...], refused: str, tmp_path: Path) -> None:
    code, output = collect(tmp_path, *arguments)
    assert code == pytest.ExitCode.USAGE_ERROR, output
    assert f"leave out {refused}" in output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--target-models", ","], "--target-models: ','"),
        (["--ops="], "--ops: ''"),
        (["--instrument=cupti:Memory"], "--instrument: 'cupti:Memory'"),
        (["--instrument=msprof:Memroy"], "--instrument: 'Memroy' (did you mean Memory"),
    ],
)
def test_a_value_that_is_none_is_refused(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pytest_parser().parse_args(arguments)
    message = capsys.readouterr().err
    assert arguments[0].partition("=")[0] in message
    assert named in message


def test_fail_fast_is_another_name_of_x() -> None:
    assert pytest_parser().parse_args(["--fail-fast"]).maxfail == 1


@pytest.mark.parametrize(
    ("place", "added"),
    [
        ("shapes/", "--repeat-count=3 --shard=1/2 --versions=torch=2.9.0"),
        ("bench/", "--rows=5 --num-devices=2 --versions=cann=8.5"),
        ("bench/test_collectives.py", "--in-process --where=M<5"),
    ],
)
def test_an_option_of_the_configuration_is_ignored_where_it_has_no_effect(
    place: str, added: str, tmp_path: Path
) -> None:
    code, output = collect(tmp_path, "--device=cpu", place, added=added)
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), output


def test_only_words_of_the_command_line_count_as_given() -> None:
    arguments = ["bench/", "--repeat-count=3", "--cache", "warm", "--", "--time-limit=4"]
    assert given(arguments, options.MEASURING) == ["--repeat-count", "--cache"]
