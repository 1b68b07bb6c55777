"""The shell commands that Markdown pages show, and whether the programs that they name would take them."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from cyclopts import CycloptsError, MissingArgumentError

from opatlas.cli.app import make_app
from opatlas.cli.main import all_commands

ROOT = Path(__file__).parents[2]
READMES = sorted(ROOT.glob("README*.md"))
DOCS = sorted((ROOT / "docs").rglob("*.md"))
#: The pages for people and coding agents.
PAGES = [
    *READMES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "database" / "README.md",
    ROOT / "examples" / "README.md",
    *DOCS,
    *sorted((ROOT / ".agents").rglob("*.md")),
]
#: How the fence of a block says that its lines are commands; without it, its first line decides.
SHELL = ("sh", "bash", "shell", "console")
#: Every shell has them; a line may use them in addition to a program.
TOOLS = (
    *("cat", "cd", "column", "cp", "cut", "echo", "env", "exit", "export", "grep", "head", "ls", "mkdir", "rm", "tail"),
    "wc",
)
#: Programs of others, which no test here can say anything of.
FOREIGN = (
    *(".", "apt-get", "conda", "curl", "docker", "git", "less", "msprof", "mypy", "npu-smi", "nvidia-smi", "rsync"),
    *("pytest-benchmark", "ruff", "scp", "source", "ssh", "sudo", "tar", "torchrun", "unzip", "uv", "vllm", "wget"),
)
PROGRAMS = ("pytest", "python", "python3", "opatlas", "pip", "make", *TOOLS, *FOREIGN)

_FENCE = re.compile(r"^(\s*)(```+)\s*(\w*)")
#: A command and not a picture of processes, whose words stand apart or have lines between them.
_COMMAND = re.compile(
    rf"^(?:\$ )?(?:\w+=\S* )*(?:{'|'.join(map(re.escape, PROGRAMS))})(?:$| (?! |\())[^─│┌└]*$", re.ASCII
)
_ASSIGNMENT = re.compile(r"^\w+=")
_CONTROL = re.compile(r"^[();<>|&]+$")
_INLINE = re.compile(r"(?<!`)`((?:pytest|python -m (?:bench|database|tests)|opatlas)[^`]* [^`]*)`(?!`)", re.DOTALL)
_INCOMPLETE = re.compile(r"arguments are required|expected (?:one|at least one) argument")
#: Says that a reader is to fill something in.
_ABRIDGED = re.compile(r"\.\.\.|[{\[]|\b[A-Z]/[A-Z]\b")


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        page, line: its place; the page by its path in the checkout.
        words: the program and its arguments, environment left out.
        text: as written there, continued lines joined.
        runner: of a step of a CI workflow, the labels of the machine that it is to run on.
        named: it is in a sentence, which may name a command without its arguments.
    """

    page: str
    line: int
    words: tuple[str, ...]
    text: str
    runner: str = ""
    named: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Block:
    """The commands of one code block, as a reader types them in."""

    page: str
    line: int
    commands: tuple[Command, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class UnreadableBlock(ValueError):
    """A code block that holds commands among other things."""


def blocks_of(page: Path) -> list[Block]:
    """The code blocks of a page that hold commands; of a workflow (.yml), all of its steps. Raises UnreadableBlock."""
    found = []
    name = _name(page)
    if page.suffix == ".yml":
        return [Block(name, 1, tuple(_of_workflow(name, 1, page.read_text(encoding="utf-8"))))]
    for first, language, lines in fenced_blocks(page.read_text(encoding="utf-8")):
        if language in ("yaml", "yml"):
            commands = list(_of_workflow(name, first, "\n".join(lines)))
        elif language in SHELL or (not language and _is_shell(name, first, lines)):
            typed = [line.startswith("$ ") for line in lines]
            # With prompts, a line without one is output.
            numbered = [
                (first + i, line.removeprefix("$ ")) for i, line in enumerate(lines) if typed[i] or not any(typed)
            ]
            commands = list(_of_lines(name, numbered))
        elif language == "groovy":
            commands = list(_of_lines(name, list(_of_jenkinsfile(first, lines))))
        else:
            continue
        if commands:
            found.append(Block(name, first, tuple(commands)))
    return found


def inline_commands(page: Path) -> list[Command]:
    """The commands that stand in the text of a page, whole ones only."""
    text = page.read_text(encoding="utf-8")
    for first, _, lines in fenced_blocks(text):
        # As many empty lines, so that the others keep their numbers.
        text = _blank(text, first, len(lines))
    found = []
    for match in _INLINE.finditer(text):
        if not _ABRIDGED.search(match[1]):
            line = text.count("\n", 0, match.start()) + 1
            commands = _of_lines(_name(page), [(line, " ".join(match[1].split()))])
            found += [replace(command, named=True) for command in commands]
    return found


def problems_of(commands: Sequence[Command]) -> dict[Command, str]:
    """The mistakes of those of these commands that would fail: unknown options, missing files.

    Give all commands at once: pytest, which takes a second to start, is asked once.
    """
    of_pytest = {arguments: "" for command in commands if (arguments := _pytest_arguments(command.words)) is not None}
    refused = dict(zip(of_pytest, _refusals(list(of_pytest)), strict=True))
    return {
        command: problem
        for command in commands
        if (problem := _problem(command.words, refused)) and not (command.named and _INCOMPLETE.search(problem))
    }


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


def fenced_blocks(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Number of the first line, language and lines of each fenced code block."""
    fence, indent, language, first, lines = "", "", "", 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        found = _FENCE.match(line)
        if not fence and found:
            indent, fence, language = found.groups()
            first, lines = number + 1, []
        elif fence and found and found[2] == fence and not found[3]:
            yield first, language, lines
            fence = ""
        elif fence:
            lines.append(line.removeprefix(indent))
    assert not fence, f"the code block from line {first} on has no end"


def _blank(text: str, first: int, count: int) -> str:
    lines = text.split("\n")
    lines[first - 2 : first + count] = [""] * (count + 2)
    return "\n".join(lines)


def _is_shell(page: str, first: int, lines: Sequence[str]) -> bool:
    commands = [i for i, line in enumerate(lines) if _COMMAND.match(line)]
    begin = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0)
    if commands and begin not in commands:
        raise UnreadableBlock(
            f"{page}:{first + commands[0]}: a command in a code block whose first line is none: "
            f"write ```sh where all are commands, ```console with `$ ` before each, or ```text where none is"
        )
    return bool(commands)


def _of_lines(page: str, lines: Sequence[tuple[int, str]], runner: str = "") -> Iterator[Command]:
    pending, began = "", 0
    for number, line in lines:
        began = began if pending else number
        if line.endswith("\\"):
            pending += line[:-1].rstrip() + " "
            continue
        text, pending = pending + line.strip(), ""
        for words in commands_of_line(text):
            yield Command(page, began, words, text, runner)


#: The commands that run pytest, and the files that they run.
_PYTEST_COMMANDS = {
    "bench": ("bench/",),
    "shapes": ("shapes/",),
    "collectives": ("bench/test_collectives.py",),
}


def commands_of_line(text: str) -> Iterator[tuple[str, ...]]:
    """The simple commands of a line of shell, in order; targets of redirections left out."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    words, redirected = list[str](), False
    for word in (*lexer, ";"):
        if _CONTROL.match(word):
            redirected = "<" in word or ">" in word
            if not redirected:
                if words:
                    yield tuple(words)
                words = []
        elif redirected:
            redirected = False
        elif words or not _ASSIGNMENT.match(word):
            words.append(word)


def _of_workflow(page: str, first: int, text: str) -> Iterator[Command]:
    """The `run:` steps of a GitHub workflow, and the scripts of a GitLab pipeline."""
    workflow = yaml.safe_load(text)
    if not isinstance(workflow, dict):
        return
    scripts = [
        (str(step.get("run", "")), str(job.get("runs-on", "")))
        for job in workflow.get("jobs", {}).values()
        for step in job.get("steps", [])
    ]
    for job in workflow.values():
        if isinstance(job, dict) and isinstance(job.get("script"), list):
            scripts += [(line, str(job.get("tags", ""))) for line in job["script"]]
    shown = text.splitlines()
    for script, runner in scripts:
        lines = [
            (first + next(i for i, each in enumerate(shown) if line.strip() in each), line)
            for line in script.splitlines()
        ]
        yield from _of_lines(page, lines, runner)


def _of_jenkinsfile(first: int, lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The lines of the scripts between triple quotes, and their numbers."""
    within = False
    for number, line in enumerate(lines, start=first):
        if "'''" in line:
            within = not within
        elif within:
            yield number, line


def _pytest_arguments(words: Sequence[str]) -> tuple[str, ...] | None:
    """The arguments of pytest; None where another program runs."""
    words = [word for word in words if word != "..."]
    if words[0] == "opatlas" and len(words) > 1 and words[1] in _PYTEST_COMMANDS:
        words = ["pytest", *_PYTEST_COMMANDS[words[1]], *words[2:]]
    if words[0] in ("python", "python3") and words[1:3] == ["-m", "pytest"]:
        words = words[2:]
    return tuple(words[1:]) if words[0] == "pytest" else None


def _refusals(arguments: Sequence[Sequence[str]]) -> list[str]:
    """For each list of arguments the objection of pytest; nothing is collected."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.accepted_by_pytest"],
        cwd=ROOT,
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    refusals: list[str] = json.loads(done.stdout)
    return refusals


def _problem(words: tuple[str, ...], refused: Mapping[tuple[str, ...], str]) -> str:
    arguments = _pytest_arguments(words)
    if arguments is not None:
        return refused[arguments] or _missing(arguments)
    program, *rest = [word for word in words if word != "..."]
    if program == "opatlas":
        return _of_opatlas(rest)
    if program in ("python", "python3"):
        return _of_python(rest)
    if program == "pip":
        return _of_pip(rest)
    if program == "make":
        return _of_make(rest)
    if program in (*TOOLS, *FOREIGN):
        return ""
    return f"{program!r} is not known: teach it to tests/support/doc_commands.py, or name it in FOREIGN there"


def _of_opatlas(words: Sequence[str]) -> str:
    """For every command but those that run pytest."""
    if words in (["--help"], ["--version"]):
        return ""
    if not words or words[0] not in all_commands():
        return f"opatlas has no command {words[:1]}; there are {', '.join(all_commands())}"
    if all_commands()[words[0]].tests or "--help" in words:
        return ""
    app = make_app(all_commands(), words[0])
    try:
        _, bound, _ = app.meta.parse_args(words, exit_on_error=False, print_error=False)
        app.parse_args(bound.args, exit_on_error=False, print_error=False)
    except MissingArgumentError:
        # A sentence may name a command, or its options, alone.
        return ""
    except CycloptsError as error:
        return str(error)
    return _missing(words[1:])


def _of_python(words: Sequence[str]) -> str:
    match words:
        case ["-m", "opatlas", *rest]:
            return _of_opatlas(rest)
        case ["-m", "pip", *rest]:
            return _of_pip(rest)
        case ["-m", "venv", *_] | ["-c", _] | ["--version"]:
            return ""
        case ["-m", module, *rest] if (path := ROOT.joinpath(*module.split(".")).with_suffix(".py")).exists():
            return _unknown_to_source(path, rest)
        case ["-m", module, *rest] if (path := ROOT.joinpath(*module.split("."), "__main__.py")).exists():
            return _unknown_to_source(path, rest)
        case [script, *rest] if (ROOT / script).is_file():
            return _unknown_to_source(ROOT / script, rest)
    return f"python {shlex.join(words)}: no such module or file in the checkout"


def _unknown_to_source(path: Path, words: Sequence[str]) -> str:
    """Options that a script does not add to its parser, which it makes only when it is run."""
    source = path.read_text(encoding="utf-8")
    if "parse_known_args" in source:
        # It hands unknown arguments to another program.
        return ""
    nodes = list(ast.walk(ast.parse(source)))
    added = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    # A parameter of a typed command is an option.
    added |= {f"--{node.arg.replace('_', '-')}" for node in nodes if isinstance(node, ast.arg)}
    unknown = [option for word in words if word.startswith("--") and (option := word.partition("=")[0]) not in added]
    return f"{path.relative_to(ROOT)} has no {', '.join(unknown)}" if unknown else ""


def _missing(words: Sequence[str]) -> str:
    """Files of the checkout that are named and are not there. A database of another machine may be missing."""
    for word in words:
        name = word.partition("::")[0].rpartition("=")[2]
        folder = name.partition("/")[0]
        if "/" in name and (ROOT / folder).is_dir() and folder not in ("", ".", "..") and "*" not in name:
            kept = not name.startswith("database/data/")
            if kept and not (ROOT / name).exists():
                return f"missing file: {name}"
    return ""


def _of_pip(words: Sequence[str]) -> str:
    if words[:1] != ["install"]:
        return ""
    for option, name in pairwise(words):
        if option in ("-c", "-r") and not (ROOT / name).exists():
            return f"missing file: {name}"
    for word in words:
        for extra in re.findall(r"^(?:\.|opatlas)\[([\w,]+)\]$", word):
            unknown = set(extra.split(",")) - extras()
            if unknown:
                return f"pyproject.toml has no extra {', '.join(sorted(unknown))}"
    return ""


def extras() -> set[str]:
    """The optional dependencies of the package, by name."""
    table = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    return set(re.findall(r"^(\w+) = ", table, flags=re.MULTILINE))


def _of_make(words: Sequence[str]) -> str:
    """The objection of make to its targets; it does nothing but read its rules."""
    done: Any = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""
