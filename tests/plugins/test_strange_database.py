"""Real sessions on a database that a stranger made: nothing outside of it changes, and no code of its folder runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from sessions import FOLDER, QUICKLY, ROOT, Finished, Sessions, row

#: What the `pytest` command does: the working folder is not on sys.path.
_PYTEST = "import sys; del sys.path[0]; import pytest; sys.exit(pytest.main())"
#: Modules that pytest, the keeper, the device process, ranks and xdist's workers import, and those of ours.
_MODULES = (
    *("resource", "torch", "traceback", "signal", "ctypes", "faulthandler", "multiprocessing", "runpy", "msgspec"),
    *(
        "bench",
        "database",
        "opatlas",
        "plugins",
        "shapes",
        "conftest",
        "sitecustomize",
        "usercustomize",
        "execnet",
        "filelock",
    ),
)


def _strange_modules(folder: Path) -> Path:
    """Puts modules into a folder that leave word when they are imported; tells where."""
    ran = folder.parent / f"{folder.name}.ran"
    for name in _MODULES:
        (folder / f"{name}.py").write_text(
            f"import os\nos.close(os.open({str(ran)!r} + '.' + __name__, os.O_CREAT))\n"
            "raise RuntimeError('imported from the folder of a stranger')\n"
        )
    (folder / "pytest.ini").write_text("[pytest]\n")
    return ran


def _imported(ran: Path) -> list[str]:
    return sorted(path.name for path in ran.parent.glob(f"{ran.name}.*"))


def _pytest(sessions: Sessions, cwd: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), FOLDER: str(sessions.folder), "TMPDIR": str(sessions.temporary)}
    return subprocess.run(
        [sys.executable, "-c", _PYTEST, "-p", "opatlas", "-p", "no:cacheprovider", *arguments, *QUICKLY],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_no_module_of_the_database_is_imported_where_one_stands_in_it(sessions: Sessions) -> None:
    """By pytest, a worker of xdist, and its device process; nor is a conftest.py in a folder of kernels."""
    sessions.write("Toy", [row(1), row(2)])
    ran = _strange_modules(sessions.database)
    kernels = sessions.folder / "mine"
    kernels.mkdir()
    (kernels / "Toy.py").write_text("def kernel(x, y):\n    return x + y\n")
    own = kernels.with_suffix(".ran")
    (kernels / "conftest.py").write_text(f"open({str(own)!r}, 'w').close()\n")
    given = ("--database-path", ".", "--implementation", "../mine", "-n", "1")
    done = _pytest(sessions, sessions.database, sessions.folder / "test_toys.py", *given)
    assert _imported(ran) == []
    assert not own.exists()
    assert done.returncode == 0, done.stdout
    assert Finished(done.returncode, done.stdout).ledger() == {"measured": 2}


def test_a_configuration_of_pytest_in_a_database_is_refused(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    ran = _strange_modules(sessions.database)
    (sessions.folder / "pytest.ini").unlink()
    done = _pytest(sessions, sessions.folder, "--database-path", sessions.database, sessions.folder)
    assert _imported(ran) == []
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert str(sessions.database / "pytest.ini") in done.stdout


_HOME_FILES = {"secret.txt": "the secret of the user", "bashrc": "alias ls=ls", "below/table.csv": "a,b\n1,2\n"}
RUN = "20261121T163006-1f0c9a"
_ESCAPES = "\x1b]0;owned\x07\x1b[31m\x9b1m\u202ered"


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the user, in which nothing has changed when the test ends."""
    folder = tmp_path_factory.mktemp("home")
    for name, text in _HOME_FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    before = _snapshot(folder)
    yield folder
    assert _snapshot(folder) == before


def _snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in (folder, *folder.rglob("*"))
    }


def _link(sessions: Sessions, name: str, target: Path | str) -> Path:
    path = sessions.database / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)
    return path


def _expect_harmless(done: Finished) -> None:
    assert not any(secret in done.output for secret in ("the secret", "alias ls"))
    assert "Traceback" not in done.output
    assert _raw(done.output) == set()


def _raw(text: str) -> set[str]:
    """Control characters, but for ends of lines and tabs, which a terminal obeys."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n\t"}


@pytest.mark.parametrize("name", ["runs", "journal/session.json"])
def test_a_link_out_of_the_database_ends_the_session_before_a_row(sessions: Sessions, home: Path, name: str) -> None:
    path = sessions.write("Toy", [row(1)])
    before = path.read_bytes()
    link = _link(sessions, name, home / "bashrc" if name.endswith(".json") else home)
    done = sessions.run_in_process()
    _expect_harmless(done)
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert str(link) in done.output
    assert link.is_symlink()
    assert path.read_bytes() == before


def test_files_that_lead_elsewhere_cost_themselves_and_no_other_row(sessions: Sessions, home: Path) -> None:
    sessions.write("Toy", [row(1), row(2)])
    strange = [
        _link(sessions, "OtherToy.csv", home / "below/table.csv"),
        _link(sessions, "Moody.csv", "Moody.csv"),
        _link(sessions, f"journal/{RUN}.jsonl", home / "secret.txt"),
        _link(sessions, f"runs/{RUN}.json", home / "secret.txt"),
        _link(sessions, "reports/mine.csv", home / "secret.txt"),
        sessions.database / "Pipe.csv",
        sessions.database / "journal" / "pipe.jsonl",
    ]
    for path in strange[-2:]:
        os.mkfifo(path)
    done = sessions.run_in_process()
    _expect_harmless(done)
    assert done.code == pytest.ExitCode.TESTS_FAILED
    assert done.ledger() == {"measured": 2}
    for path in strange:
        assert path.is_symlink() or path.is_fifo()
        assert path.parent.name in ("runs", "reports") or str(path) in done.output
    assert set(sessions.statuses("Toy").values()) == {"measured"}


def test_control_characters_of_a_database_reach_neither_the_terminal_nor_the_reports(sessions: Sessions) -> None:
    bad = {**row(1), "Input Shapes": f"1;{_ESCAPES}", "OP State": _ESCAPES}
    failed = {**row(2), "Status": "failed", "Reason": f"because {_ESCAPES}", "Run ID": _ESCAPES}
    columns = {**dict.fromkeys([*bad, *failed], ""), f"Averag Duration(us){_ESCAPES}": _ESCAPES}
    sessions.write("Toy", [{**columns, **each} for each in (bad, failed, row(3))])
    sessions.write("OtherToy", [row(1)]).rename(sessions.database / f"Strange{_ESCAPES}.csv")
    sessions.write("OtherToy", [{f"No{_ESCAPES}": _ESCAPES}])
    (sessions.database / "SHIPPED.txt").write_text(f"a machine {_ESCAPES}")
    journal = sessions.database / "journal"
    journal.mkdir()
    holder = {"run_id": _ESCAPES, "command": _ESCAPES, "pid": 1, "host": _ESCAPES, "since": 0.0}
    (journal / "session.json").write_text(json.dumps(holder))
    (journal / f"strange{_ESCAPES}.jsonl").write_text(_ESCAPES)
    done = sessions.run_in_process("-rA", "-v", f"--junitxml={sessions.folder / 'junit.xml'}")
    _expect_harmless(done)
    assert "\\x1b" in done.output
    assert sessions.statuses("Toy")[3] == "measured"
    written = [sessions.folder / "junit.xml", *(sessions.database / "reports").rglob("*.*")]
    assert len(written) > 1
    for path in written:
        assert _raw(path.read_text()) == set(), path
