"""The wheel, installed into an environment of its own, and run in a folder that holds the user's own modules."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest
from doc_commands import blocks_of

ROOT = Path(__file__).parents[1]
OWN_KERNELS = ROOT / "docs" / "implementations.md"
#: The heading above the files and commands of a project without a checkout.
OWN_PROJECT = "## A replay in your project"
DATABASES = ROOT / "database" / "data"
SHIPPED = ("opatlas", "bench", "plugins", "shapes")
HEADER = "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats"
#: Whoever imports one of these imports the wrong thing.
USERS_MODULE = 'raise SystemExit(f"imported {__file__}")'
#: Of the extra `bench`: the base install does without these.
WITHOUT = ("torch", "pytest", "_pytest", "xdist", "hypothesis", "pytest_benchmark")
BLOCK = """
import sys
for name in {names!r}:
    sys.modules[name] = None
"""


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and a folder where a user works."""

    site_packages: Path
    python: Path
    user: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `opatlas ...` in the user's folder, as the installed script does."""
        return self.run_script("import sys; from opatlas.cli.main import main; sys.exit(main())", *arguments)

    def run_script(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # A script in bin/ has its own folder first on the path, and not the working folder, as -c has it.
        script = f"import sys; sys.path[:1] = []\n{script}"
        environment = {"HOME": str(self.user / "home"), "PATH": "/usr/bin:/bin"}
        command = [str(self.python), "-c", script, *arguments]
        return subprocess.run(command, cwd=self.user, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", "77", reason="builds the wheel without a network: pip install 'setuptools>=77'")
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SHIPPED:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(DATABASES, source / "database" / "data")
    journal = source / "database" / "data" / "NVIDIA_H200" / "nccl" / "2.28.9" / "journal"
    journal.mkdir(exist_ok=True)
    (journal / "database.lock").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, str(made)], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (found,) = made.glob("*.whl")
    return found


def install(wheel: Path, folder: Path, *, blocked: tuple[str, ...] = ()) -> Installed:
    """Unpacks the wheel next to the packages of this environment, but for the blocked ones."""
    venv.create(folder / "env", symlinks=True)
    (site_packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    with ZipFile(wheel) as archive:
        archive.extractall(site_packages)
    others = [path for path in sys.path if Path(path).name == "site-packages"]
    (site_packages / "others.pth").write_text("\n".join(others))
    if blocked:
        (site_packages / "sitecustomize.py").write_text(BLOCK.format(names=blocked))
    user = folder / "user"
    for name in ("bench", "conftest"):
        user.mkdir(exist_ok=True)
        (user / f"{name}.py").write_text(USERS_MODULE)
    for name in ("plugins", "database", "shapes"):
        (user / name).mkdir()
        (user / name / "__init__.py").write_text(USERS_MODULE)
    return Installed(site_packages, folder / "env" / "bin" / "python", user)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(wheel, tmp_path_factory.mktemp("base"), blocked=WITHOUT)


def write_rows(path: Path, *shapes: str) -> None:
    rows = "".join(f'"{shape}",FLOAT,ND,"{shape}",FLOAT,ND\n' for shape in shapes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{HEADER}\n{rows}")


def test_the_wheel_has_every_file_of_the_package_and_no_generic_names(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"opatlas"}
    expected = set()
    for folder in SHIPPED:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(ROOT).as_posix()
                expected.add(name if folder == "opatlas" else f"opatlas/{name}")
    assert {name for name in names if ".dist-info" not in name and "/database/" not in name} == expected


def test_the_wheel_has_the_databases_and_is_small(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("opatlas/database/")}
    tables = {f"opatlas/database/{path.relative_to(DATABASES)}" for path in DATABASES.rglob("*.csv")}
    assert {name for name in names if name.endswith(".csv")} == tables
    assert not [name for name in names if "/journal/" in name]
    assert wheel.stat().st_size < 6e6


def test_rows_are_replayed_in_a_folder_with_modules_of_the_users_own(installed: Installed) -> None:
    write_rows(installed.user / "rows" / "Abs.csv", "2,3")
    done = installed.run("bench", "--database-path", "rows", "--repeat-count=2", "--cache=warm")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "measured" in (installed.user / "rows" / "Abs.csv").read_text()
    assert not list(installed.site_packages.rglob(".pytest_cache"))


def test_theory_rows_go_to_the_database_in_the_users_data_folder(installed: Installed) -> None:
    done = installed.run("shapes", "--ops=Abs", "--rows=1", "--device=cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = (installed.user / "home").rglob("Abs.csv")
    assert found.is_relative_to(installed.user / "home" / ".local" / "share" / "opatlas" / "database")


@pytest.fixture(scope="module")
def project(installed: Installed) -> Path:
    """The files of the page on implementations."""
    folder = installed.user / "project"
    text = OWN_KERNELS.read_text("utf-8")
    for name, block in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(block)
    return folder


def run_in(project: Path, installed: Installed, words: Sequence[str]) -> str:
    """Runs a command of the page with few samples; returns its output."""
    programs = {
        "pytest": "import pytest; sys.exit(pytest.main())",
        "opatlas": "from opatlas.cli.main import main; sys.exit(main())",
    }
    quickly = "--repeat-count=3 --cache=warm"
    script = f"import os; os.chdir({str(project)!r}); os.environ['PYTEST_ADDOPTS'] = {quickly!r}; {programs[words[0]]}"
    done = installed.run_script(script, *words[1:])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FIRST_LINE = OWN_KERNELS.read_text("utf-8").splitlines().index(OWN_PROJECT)
COMMANDS = [
    command.words for block in blocks_of(OWN_KERNELS) for command in block.commands if command.line > FIRST_LINE
]


def test_a_kernel_and_its_rival_are_compared_in_a_project_without_a_checkout(
    project: Path, installed: Installed
) -> None:
    (command,) = (words for words in COMMANDS if words[-1] == "torch,rivals")
    printed = run_in(project, installed, command)
    assert printed.count(" AddGelu-") == 2
    (rival,) = project.glob("rows/implementations/rivals-*/AddGelu.csv")
    for path in (project / "rows" / "AddGelu.csv", rival):
        assert path.read_text().count(",measured,") == 2


@pytest.mark.slow
def test_the_other_commands_of_the_page_on_own_kernels_work_there(project: Path, installed: Installed) -> None:
    for words in COMMANDS:
        run_in(project, installed, words)
    (known,) = project.glob("known/implementations/mine-*/AddRmsNorm.csv")
    (judged,) = project.glob("judged/implementations/candidates-*/*.csv")
    assert ",measured," in known.read_text()
    assert ",measured," in judged.read_text()


@pytest.mark.parametrize("command", ["bench", "check"])
def test_without_the_extra_a_command_that_runs_pytest_names_the_extra(base: Installed, command: str) -> None:
    done = base.run(command, "rows")
    assert done.returncode == 2
    assert "opatlas[bench]" in done.stderr


def test_the_base_install_takes_captures_in_and_combines_and_shows_and_plots(base: Installed) -> None:
    (base.user / "kernel_details.csv").write_text(
        "Name,Type,OP State,Accelerator Core,Duration(us),Input Shapes,Input Data Types,Input Formats,"
        "Output Shapes,Output Data Types,Output Formats\n"
        'Add1,Add,dynamic,AI_VECTOR_CORE,2.5,"""4,8;4,8""",FLOAT;FLOAT,ND;ND,"""4,8""",FLOAT,ND\n'
    )
    commands = (
        "ingest --profiling-path kernel_details.csv --database-path one",
        "combine both one",
        "show both",
        "history both Add",
        "report both --output site",
    )
    done = base.run_script(
        f"from opatlas.cli.main import main\nfor command in {commands!r}: assert main(command.split()) == 0, command"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (base.user / "site" / "index.html").is_file()


def test_the_public_names_import_and_answer_without_the_extra(base: Installed) -> None:
    """From a database of the wheel, with the first block of docs/query.md."""
    page = (ROOT / "docs" / "query.md").read_text("utf-8")
    block = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[0]
    of_torch = {"per_element", "per_row", "pointwise", "use"}
    script = f"{block}\nfor name in {{*opatlas.__all__}} - {of_torch!r}: getattr(opatlas, name)\n"
    done = base.run_script(script)
    assert done.returncode == 0, done.stderr
    assert "torch on NVIDIA_H200" in done.stdout


def test_a_python_without_the_dependencies_gets_a_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="make bench") as raised:
        exec((ROOT / "conftest.py").read_text("utf-8"), {})
    line = str(raised.value)
    named = re.findall(r'^    "(\w+)>=', (ROOT / "pyproject.toml").read_text("utf-8").partition("\n]")[0], re.MULTILINE)
    assert named
    assert [name for name in named if name.removeprefix("py") not in line] == []
