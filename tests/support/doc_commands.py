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
#: Every shell has them; a line may use them in addition to a program.
TOOLS = ("cat", "cd", "cp", "cut", "echo", "env", "exit", "export", "grep", "head", "ls", "mkdir", "tail", "wc")
#: Programs of others, which no test here can say anything of.
FOREIGN = (
    *(
        ".",
        "ci/kernels.sh",
        "docker",
        "git",
        "msprof",
        "mypy",
        "npu-smi",
        "nvidia-smi",
        "pytest-benchmark",
        "ruff",
        "rsync",
        "scp",
        "ssh",
    ),
    *("source", "tar", "torchrun", "uv", "vllm"),
)
#: Arguments of pytest for the commands that run it.
_PYTEST_COMMANDS = {"bench": "bench/", "shapes": "shapes/", "collectives": "bench/test_collectives.py"}

_FENCE = re.compile(r"^(\s*)(```+)\s*(\w*)")
_ASSIGNMENT = re.compile(r"^\w+=")
_CONTROL = re.compile(r"^[();<>|&]+$")
_INLINE = re.compile(r"(?<!`)`((?:pytest|python -m (?:bench|database|tests)|opatlas)[^`]* [^`]*)`(?!`)", re.DOTALL)
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


def blocks_of(page: Path) -> list[Block]:
    """The code blocks of a page that hold commands (sh, console, yaml); of a workflow (.yml), all of its steps."""
    name, text = _name(page), page.read_text(encoding="utf-8")
    if page.suffix == ".yml":
        return [Block(name, 1, tuple(_of_workflow(name, 1, text)))]
    found = []
    for first, language, lines in fenced_blocks(text):
        numbered = list(enumerate(lines, start=first))
        if language == "sh":
            found.append(Block(name, first, tuple(_of_lines(name, numbered))))
        elif language == "console":
            typed = [(number, line.removeprefix("$ ")) for number, line in numbered if line.startswith("$ ")]
            found.append(Block(name, first, tuple(_of_lines(name, typed))))
        elif language == "yaml":
            found.append(Block(name, first, tuple(_of_workflow(name, first, "\n".join(lines)))))
    return [block for block in found if block.commands]


def inline_commands(page: Path) -> list[Command]:
    """The commands that stand in the text of a page, whole ones only."""
    lines = page.read_text(encoding="utf-8").split("\n")
    for first, _, block in fenced_blocks("\n".join(lines)):
        # As many empty lines, so that the others keep their numbers.
        lines[first - 2 : first + len(block)] = [""] * (len(block) + 2)
    text = "\n".join(lines)
    return [
        replace(command, named=True)
        for match in _INLINE.finditer(text)
        if not _ABRIDGED.search(match[1])
        for command in _of_lines(_name(page), [(text.count("\n", 0, match.start()) + 1, " ".join(match[1].split()))])
    ]


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


def problems_of(commands: Sequence[Command]) -> dict[Command, str]:
    """The mistakes of those of these commands that would fail: unknown options, missing files.

    Give all commands at once: pytest, which takes a second to start, is asked once.
    """
    of_pytest = list({words for command in commands if (words := _pytest_arguments(command.words)) is not None})
    refused = dict(zip(of_pytest, _refusals(of_pytest), strict=True))
    # Pages of two languages have the same commands.
    found = {words: _problem(words, refused) for words in {command.words for command in commands}}
    return {command: found[command.words] for command in commands if found[command.words]}


def extras() -> set[str]:
    """The optional dependencies of the package, by name."""
    table = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    return set(re.findall(r"^(\w+) = ", table, flags=re.MULTILINE))


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name


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


def _of_workflow(page: str, first: int, text: str) -> Iterator[Command]:
    """The `run:` steps of a GitHub workflow, and the scripts of a GitLab pipeline."""
    workflow = yaml.safe_load(text)
    if not isinstance(workflow, dict):
        return
    jobs = [job for job in [*workflow.get("jobs", {}).values(), *workflow.values()] if isinstance(job, dict)]
    scripts = [(str(step.get("run", "")), str(job.get("runs-on", ""))) for job in jobs for step in job.get("steps", [])]
    scripts += [(line, str(job.get("tags", ""))) for job in jobs for line in job.get("script", [])]
    shown = text.splitlines()
    for script, runner in scripts:
        lines = [
            (first + next(i for i, each in enumerate(shown) if line.strip() in each), line)
            for line in script.splitlines()
        ]
        yield from _of_lines(page, lines, runner)


def _pytest_arguments(words: Sequence[str]) -> tuple[str, ...] | None:
    """The arguments of pytest; None where another program runs."""
    match [word for word in words if word != "..."]:
        case ["pytest", *rest] | ["python", "-m", "pytest", *rest]:
            return tuple(rest)
        case ["opatlas", name, *rest] if name in _PYTEST_COMMANDS:
            return _PYTEST_COMMANDS[name], *rest
    return None


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
    match [word for word in words if word != "..."]:
        case ["opatlas", *rest] | ["python", "-m", "opatlas", *rest]:
            return _of_opatlas(rest)
        case ["pip", "install" | "wheel", *rest] | ["python", "-m", "pip", "install", *rest]:
            return _of_pip(rest)
        case ["python", "-m", "venv", *_] | ["python", "-c", _]:
            return ""
        case ["python", "-m", module, *rest]:
            path = ROOT.joinpath(*module.split("."))
            return _of_script(path / "__main__.py" if path.is_dir() else path.with_suffix(".py"), rest)
        case ["python", script, *rest]:
            return _of_script(ROOT / script, rest)
        case ["make", *rest]:
            done = subprocess.run(["make", "--dry-run", *rest], cwd=ROOT, capture_output=True, text=True, check=False)
            return done.stderr.strip() if done.returncode else ""
        case [program, *_] if program in (*TOOLS, *FOREIGN):
            return ""
    return f"{words[0]!r} is not known: teach it to tests/support/doc_commands.py, or name it in FOREIGN there"


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


def _of_script(path: Path, words: Sequence[str]) -> str:
    """Options that a script does not add to its parser, which it makes only when it is run."""
    if not path.is_file():
        return f"no such module or file: {path.relative_to(ROOT)}"
    source = path.read_text(encoding="utf-8")
    if "parse_known_args" in source or "allow_leading_hyphen" in source:
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
        is_ours = "/" in name and (ROOT / folder).is_dir() and folder not in ("", ".", "..") and "*" not in name
        if is_ours and not name.startswith("database/data/") and not (ROOT / name).exists():
            return f"missing file: {name}"
    return ""


def _of_pip(words: Sequence[str]) -> str:
    for option, name in pairwise(words):
        if option in ("-c", "-r") and not (ROOT / name).exists():
            return f"missing file: {name}"
    named = {
        extra
        for word in words
        for found in re.findall(r"^(?:\.|opatlas)\[([\w,]+)\]$", word)
        for extra in found.split(",")
    }
    unknown = named - extras()
    return f"pyproject.toml has no extra {', '.join(sorted(unknown))}" if unknown else ""
