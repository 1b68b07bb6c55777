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
MOST_OPTIONS = 100
#: `pytest bench/`, with those of collectives; and any other command.
MOST_OF_REPLAYS, MOST_OF_A_COMMAND = 34, 14
#: Words of the help of commands that run pytest, and words that it has not.
OF_SESSIONS = {
    "bench": ({"--update-mode", "--cache", "--ep-size", "--strict,"}, {"--rows", "--bytes-grid"}),
    "collectives": ({"--database-path", "--bytes-grid", "--cache", "--strict,"}, {"--rows"}),
    "shapes": ({"--rows", "--target-models", "--database-path"}, {"--update-mode", "--cache", "--bytes-grid"}),
}
#: The option and the default of each line of the tables of docs/bench.md.
LINES = dict(
    re.findall(r"^\| `(--[a-z-]+)` \| .* \| ([^|]+) \|$", (ROOT / "docs" / "bench.md").read_text("utf-8"), re.MULTILINE)
)


def test_options_stay_few() -> None:
    assert count() <= MOST_OPTIONS
    of_shapes = {each.name for each in options.THEORY_ROWS}
    of_replays = [action for action in shown(pytest_parser()) if not of_shapes.intersection(action.option_strings)]
    assert len(of_replays) <= MOST_OF_REPLAYS
    assert max(map(len, command_options().values())) <= MOST_OF_A_COMMAND


def test_every_option_has_a_help_and_its_default_which_the_page_has_too() -> None:
    assert [(name, option) for name, known in command_options().items() for option in known if not known[option]] == []
    helps = {
        action.option_strings[-1]: "default: required" if action.required else (action.help or "") % vars(action)
        for action in shown(pytest_parser())
    }
    assert [name for name, text in helps.items() if "default: " not in text] == []
    assert LINES.keys() == helps.keys()

    def numbers(text: str) -> set[str]:
        return set(re.findall(r"\d+", text))

    of_help = {option: numbers(text.partition("(default: ")[2]) for option, text in helps.items()}
    assert [option for option, text in LINES.items() if not numbers(text) <= of_help[option]] == []


@pytest.mark.parametrize("name", ["", *all_commands()])
def test_the_help_fits_80_columns_and_tells_what_there_is(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([name, "--help"] if name else []) == 0
    text = capsys.readouterr().out
    words = set(text.split())
    assert [line for line in text.splitlines() if len(line) > 80] == []
    if not name:
        assert all({known, command.about.split()[0]} <= words for known, command in all_commands().items())
    elif name in OF_SESSIONS:
        there, elsewhere = OF_SESSIONS[name]
        assert there <= words
        assert not words & {*elsewhere, "--ignore-glob", "--numprocesses", "--benchmark-autosave"}
        assert "pytest --help" in " ".join(text.split())
    else:
        assert {"0", "1", "2"} <= set(re.findall(r"\b\d\b", text.partition("Exit status:")[2]))


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


@pytest.mark.parametrize(
    ("words", "of_configuration", "refused"),
    [
        ("shapes/ --repeat-count=3 --shard=1/2", "", "--shard, --repeat-count"),
        ("bench/ --rows=5 --seed=3", "", "--rows, --seed"),
        ("bench/ --versions=torch=2.9.0", "", "--versions"),
        # Those of the configuration are ignored where they have no effect.
        ("--device=cpu shapes/", "--repeat-count=3 --shard=1/2 --versions=torch=2.9.0", ""),
        ("--device=cpu bench/", "--rows=5 --num-devices=2 --versions=cann=8.5", ""),
    ],
)
def test_an_option_without_an_effect_is_refused(
    words: str, of_configuration: str, refused: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", f"--database-path={tmp_path}", *words.split()]
    done = warm_python.run(command, cwd=ROOT, env={**os.environ, "PYTEST_ADDOPTS": of_configuration})
    if refused:
        assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
        assert f"leave out {refused}" in done.stdout
    else:
        assert done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("--target-models=,", "--target-models: ','"),
        ("--ops=", "--ops: ''"),
        ("--instrument=cupti:Memory", "--instrument: 'cupti:Memory'"),
        ("--instrument=msprof:Memroy", "--instrument: 'Memroy' (did you mean Memory"),
    ],
)
def test_a_value_that_is_none_is_refused(argument: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pytest_parser().parse_args([argument])
    assert named in capsys.readouterr().err


def test_fail_fast_is_another_name_of_x() -> None:
    assert pytest_parser().parse_args(["--fail-fast"]).maxfail == 1


def test_only_words_of_the_command_line_count_as_given() -> None:
    arguments = ["bench/", "--repeat-count=3", "--cache", "warm", "--", "--case-timeout=4"]
    assert given(arguments, options.MEASURING) == ["--repeat-count", "--cache"]
