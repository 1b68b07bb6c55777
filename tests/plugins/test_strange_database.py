"""Real sessions on a database that a stranger made: nothing outside of it changes, and no code of its folder runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sessions import FOLDER, QUICKLY, ROOT, Sessions, row

#: What the `pytest` command does: the working folder is not on sys.path.
_PYTEST = "import sys; del sys.path[0]; import pytest; sys.exit(pytest.main())"
#: Modules that pytest, the keeper, the device process, ranks and xdist's workers import, and those of ours.
_MODULES = (
    *("resource", "torch", "traceback", "signal", "ctypes", "faulthandler", "multiprocessing", "runpy", "msgspec"),
    *("bench", "database", "plugins", "shapes", "conftest", "sitecustomize", "usercustomize", "execnet", "filelock"),
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
        [sys.executable, "-c", _PYTEST, "-p", "opatlas_pytest", "-p", "no:cacheprovider", *arguments, *QUICKLY],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("options", [(), ("-n", "1"), ("--in-process",)], ids=["one", "xdist", "in-process"])
def test_no_module_of_the_database_is_imported_where_one_stands_in_it(
    sessions: Sessions, options: tuple[str, ...]
) -> None:
    sessions.write("Toy", [row(1), row(2)])
    ran = _strange_modules(sessions.database)
    done = _pytest(sessions, sessions.database, sessions.folder, "--database-path", ".", *options)
    assert _imported(ran) == []
    assert done.returncode == 0, done.stdout
    assert "2 rows collected = 2 measured" in done.stdout


def test_no_module_of_the_working_folder_is_imported(sessions: Sessions, tmp_path: Path) -> None:
    sessions.write("Toy", [row(1)])
    here = tmp_path / "a project of the user"
    here.mkdir()
    ran = _strange_modules(here)
    (here / "pytest.ini").unlink()
    done = _pytest(sessions, here, sessions.folder / "test_toys.py", "--database-path", sessions.database)
    assert _imported(ran) == []
    assert done.returncode == 0, done.stdout


def test_a_configuration_of_pytest_in_a_database_is_refused(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    ran = _strange_modules(sessions.database)
    (sessions.folder / "pytest.ini").unlink()
    done = _pytest(sessions, sessions.folder, "--database-path", sessions.database, sessions.folder)
    assert _imported(ran) == []
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert str(sessions.database / "pytest.ini") in done.stdout


def test_the_doctor_imports_nothing_of_the_working_folder(tmp_path: Path) -> None:
    ran = _strange_modules(tmp_path)
    script = "import sys; del sys.path[0]; from bench.__main__ import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", script, "doctor", "--database-path", ".", "--device", "none"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert _imported(ran) == []
    assert "RuntimeError" not in done.stdout, done.stdout
