"""The `opatlas` command."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from captures import launch, write_capture
from scratch_checkout import ScratchCheckout

from opatlas.cli import main as command
from opatlas.cli.main import all_commands
from opatlas.errors import OpAtlasError, UsageError
from opatlas.installation import require_extra
from opatlas.show.output import USAGE

REPOSITORY = Path(__file__).parents[1]


def opatlas(*arguments: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opatlas.cli.main", *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("words", [["--help"], []])
def test_help_names_every_command_with_its_purpose(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, known in all_commands().items():
        assert f"{name} " in shown
        assert known.about.split()[0] in shown


@pytest.mark.parametrize("path", ["d" * 300, "a/" * 2500], ids=["name", "path"])
@pytest.mark.parametrize(
    "words",
    [
        "show PATH",
        "combine PATH x",
        "query PATH Abs 4",
        "history PATH Abs",
        "compare PATH x",
        "compare PATH@HEAD",
        "check PATH",
    ],
)
def test_a_path_that_the_system_refuses_is_an_error_of_one_line(
    words: str, path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert command.main(words.replace("PATH", path).split()) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert path[:50] in line
    assert len(line) < 300


def test_a_session_refuses_an_unusable_path_as_wrong_usage() -> None:
    done = opatlas("bench", "--implementation", "d" * 300, "-q", "-p", "no:cacheprovider")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--implementation" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("query", "DB", "MatMulV2", "--implementatoin", "torch"), "--implementation"),
        (("compare", "DB", "--basline=x"), "--baseline"),
        (("model", "--contxt", "4096", "DB"), "--context"),
        (("show", "--nothing-like-this"), None),
    ],
)
def test_a_misspelt_option_gets_a_suggestion(
    arguments: tuple[str, ...], meant: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == USAGE
    [said] = capsys.readouterr().err.splitlines()
    assert next(word.partition("=")[0] for word in arguments if word.startswith("--")) in said
    assert meant is None or f"{meant}?" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "NVIDA_H200"),
        ("query", "NVIDA_H200", "Add", "8", "8"),
        ("history", "NVIDA_H200", "Add"),
        ("diagnose", "NVIDA_H200"),
        ("compare", "NVIDA_H200"),
        ("report", "NVIDA_H200", "--output", "site"),
        ("check", "NVIDA_H200"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_suggests_the_name_of_a_misspelt_device(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == USAGE
    assert "NVIDIA_H200?" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["NVIDIA_H200", "database/data/NVIDIA_H200"])
def test_the_folder_of_a_device_means_its_newest_database_like_the_name(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert command.main(["show", place, "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["path"]).parts[-3:-1] == ("NVIDIA_H200", "torch")


def test_two_formats_of_the_output_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["show", "--format", "csv", "--json"]) == USAGE
    assert "--format" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("opatlas ")


def test_an_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["benhc", "-x"]) == USAGE
    [line] = capsys.readouterr().err.splitlines()
    assert re.search(r"'benhc' .*\bbench\b", line)


@pytest.mark.parametrize(
    ("name", "there", "elsewhere"),
    [
        ("bench", {"--update-mode", "--cache", "--ep-size", "--strict,"}, {"--rows", "--bytes-grid"}),
        ("collectives", {"--database-path", "--bytes-grid", "--cache", "--strict,"}, {"--rows"}),
        ("shapes", {"--rows", "--target-models", "--database-path"}, {"--update-mode", "--cache", "--bytes-grid"}),
    ],
)
def test_the_help_of_commands_that_run_pytest_has_their_options(
    name: str, there: set[str], elsewhere: set[str]
) -> None:
    done = opatlas(name, "--help")
    assert done.returncode == 0, done.stderr
    words = set(done.stdout.split())
    assert there <= words
    assert not words & {*elsewhere, "--ignore-glob", "--numprocesses", "--benchmark-autosave"}
    assert "pytest --help" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("raised", "status"), [(KeyboardInterrupt(), 130), (OpAtlasError("no"), 1), (UsageError("no"), 2)]
)
def test_a_command_that_ends_early_shows_no_traceback(
    raised: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_session(*_: object) -> int:
        raise raised

    monkeypatch.setattr(command, "run_session", run_session)
    assert command.main(["bench"]) == status
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_exit_status_of_pytest_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run_session", lambda name, tests, about, arguments: len(arguments))
    assert command.main(["bench", "-k", "Add"]) == 2


def test_a_file_that_an_option_names_is_not_a_test_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("")
    assert command.test_files(["--tasks", str(mine), "-k", "Add"]) == []
    assert command.test_files([f"{mine}::test_it", "--tasks", str(mine)]) == [mine]


def test_bench_runs_pytest_where_the_user_is(tmp_path: Path) -> None:
    """Relative paths are the user's; configuration and plugins are the checkout's."""
    done = opatlas("bench", "--collect-only", "-q", "--database-path", "no-such-folder", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert done.returncode != 0
    assert str(tmp_path / "no-such-folder") in done.stdout + done.stderr


def test_a_command_whose_extra_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "absent_module", None)
    with pytest.raises(OpAtlasError, match=r"opatlas\[bench\]"):
        require_extra("bench", "`opatlas bench`", "absent_module")


def test_it_does_without_torch() -> None:
    script = (
        "import sys\n"
        "from opatlas.cli.main import main\n"
        "for words in (['--help'], ['--version'], *([name, '--help'] for name in ('bench', 'ingest', 'doctor'))):\n"
        "    assert main(words) == 0\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, check=True)


def test_a_file_of_the_checkout_is_all_that_runs(tmp_path: Path) -> None:
    file = REPOSITORY / "bench" / "test_norm.py"
    done = opatlas("bench", str(file), "--database-path", str(tmp_path), "--repeat-count=1", "--cache=warm", "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RmsNorm" in done.stdout
    assert "MatMul" not in done.stdout


def test_a_replay_that_cannot_be_imported_is_named_and_costs_no_command(tmp_path: Path) -> None:
    checkout = ScratchCheckout(tmp_path / "checkout")
    (checkout.folder / "bench" / "test_mine.py").write_text("def broken(:\n")
    capture = tmp_path / "kernel_details.csv"
    write_capture(capture, [launch(type="Mine"), launch(type="Add")])
    made = checkout.run(f"opatlas ingest --profiling-path {capture} --database-path {tmp_path}/DB")
    assert made.returncode == 0, made.stdout
    assert sorted(path.stem for path in (tmp_path / "DB").glob("*.csv")) == ["Add", "Mine"]
    checked = checkout.run(f"opatlas check {tmp_path}/DB")
    for output in (made.stdout, checked.stdout):
        assert "Traceback" not in output
        assert str(checkout.folder / "bench" / "test_mine.py") in output.replace("\n", "")
    assert " passed" in checked.stdout
