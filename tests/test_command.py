"""The `opatlas` command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python
from captures import launch, write_capture
from scratch_checkout import ScratchCheckout

from opatlas.cli import main as command
from opatlas.errors import OpAtlasError, UsageError
from opatlas.installation import require_extra
from opatlas.show.output import USAGE

REPOSITORY = Path(__file__).parents[1]


def opatlas(*arguments: str, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    """The exit status and all that it prints."""
    environment = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"}
    return warm_python.run([sys.executable, "-m", "opatlas.cli.main", *arguments], cwd=cwd, env=environment)


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        # A name and a path that the system refuses.
        *(
            (words.replace("PATH", path), 1, path[:50])
            for words in ("show PATH", "combine PATH x", "history PATH Abs", "compare PATH@HEAD", "check PATH")
            for path in ("d" * 300, "a/" * 2500)
        ),
        # Misspelt options, commands and devices.
        ("query DB MatMulV2 --implementatoin torch", USAGE, "--implementation?"),
        ("compare DB --basline=x", USAGE, "--baseline?"),
        ("model --contxt 4096 DB", USAGE, "--context?"),
        ("show --nothing-like-this", USAGE, "--nothing-like-this"),
        ("benhc -x", USAGE, "bench"),
        ("query NVIDA_H200 Add 8 8", USAGE, "NVIDIA_H200?"),
        *(
            (f"{name} NVIDA_H200", USAGE, "NVIDIA_H200?")
            for name in ("show", "history", "diagnose", "compare", "report --output site", "check")
        ),
        ("show --format csv --json", USAGE, "--format"),
    ],
)
def test_wrong_usage_is_told_in_a_line(
    words: str, status: int, named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert command.main(words.split()) == status
    [line] = capsys.readouterr().err.splitlines()
    assert named in line
    assert len(line) < 700


@pytest.mark.parametrize("place", ["NVIDIA_H200", "database/data/NVIDIA_H200"])
def test_the_folder_of_a_device_means_its_newest_database_like_the_name(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert command.main(["show", place, "--json"]) == 0
    assert Path(json.loads(capsys.readouterr().out)["path"]).parts[-3:-1] == ("NVIDIA_H200", "torch")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("opatlas ")


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
    assert str(tmp_path / "no-such-folder") in done.stdout


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
    done = opatlas("bench", str(file), "--database-path", str(tmp_path), "--collect-only", "-q")
    assert done.returncode == 0, done.stdout
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
    assert "findings" in checked.stdout
