"""The commands of the pages: each is run, or at least parsed by the program that it names.

The README's are run as they stand, block by block, each block in a small copy of the checkout where CAPTURE, DB,
ONE and TWO are there. Commands that this machine cannot run are in NOT_HERE, with the reason. All commands of all pages
go through the real parsers of their programs.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import doc_commands
import pytest
from captures import DECODE_RECORD, DECODE_SHAPES, launch, launched, write_capture
from doc_commands import FOREIGN, READMES, ROOT, TOOLS, Block, Command
from scratch_checkout import ScratchCheckout
from sessions import row

WORKFLOWS = sorted((ROOT / "docs" / "ci").glob("*.yml"))
PAGES = [*doc_commands.PAGES, *WORKFLOWS]

#: Commands of the README that are read and not run, by their mark, and why.
NOT_HERE: Mapping[str, str] = {
    r"^(python -m )?pip |^python\S* -m venv|^make ": "sets up an environment, from the network",
    r"--device[= ](npu|cuda|ATLAS_\w+)": "names a device that is not here",
    r"--instrument[= ](?!wall-clock)": "names an instrument of another device",
    r"--prof-path": "reads a profile of msprof",
    r"nnodes[= ]|node-rank[= ]": "takes several machines",
    r"^pytest tests|-m tests\.": "is for who changes OpAtlas",
    rf"^({'|'.join(map(re.escape, FOREIGN))}) ": "is another program",
}
#: Read before the options of a command, which win: few rows, and few samples of them.
QUICKLY = "--repeat-count=1 --cache=warm --ops=RmsNorm"
#: The same of theory rows.
FEW_ROWS = "--ops=RmsNorm --max-hbm-gb=0.51203"
#: The same of tasks.
ONE_TASK = "--repeat-count=1 --ops=tasks.softmax"
#: Groups of processes take as long as all the rest; tests/run starts them. Their messages are listed here.
COLLECTIVES = "--collect-only"
#: By the mark of the command: statuses of success, where there are others than 0.
STATUSES: Mapping[str, tuple[int, ...]] = {
    r"opatlas doctor": (0, 1),  # a requirement may be missing on this machine
    r"opatlas check": (1,),  # finds that the message in DB was not measured
}
#: Commands that would fail, and the expected finding.
PLANTED: Mapping[str, str] = {
    "pytest bench/ --repeat-cuont 3": "unrecognized arguments: --repeat-cuont",
    "pytest shapes/ --rows many": "'many': give a whole number",
    "pytest bench/test_nothing.py": "missing file: bench/test_nothing.py",
    "opatlas ingest CAPTURE --output-dir DB": "--output-dir",
    "opatlas ingest --profiling-path P --devcie X": "--devcie",
    "opatlas benhc": "opatlas has no command ['benhc']",
    "python -m opatlas.nothing": "no such module",
    "python -m tests.benchmarks.bench_merge --rwos 3": "bench_merge.py has no --rwos",
    "pip install -e '.[gpus]'": "no extra gpus",
    "pip install -c constraint.txt -e .": "missing file: constraint.txt",
    "make benhc": "No rule to make target 'benhc'",
    "frobnicate --all": "'frobnicate' is not known",
    "cd x && pytest bench/ --nonsense": "unrecognized arguments: --nonsense",
}
#: Options whose value is a file that the command is to leave.
_LEAVES = re.compile(r"--(?:output|junitxml|json|benchmark-json)[= ](\S+)")


def planted(text: str) -> Command:
    (*_, words) = doc_commands.commands_of_line(text)
    return Command("planted", 1, words, text)


def commands_of(page: Path) -> list[Command]:
    return [command for block in doc_commands.blocks_of(page) for command in block.commands]


def lines_of(block: Block) -> dict[str, str]:
    """The lines of a block, and why each is not run; "" where it is."""
    lines: dict[str, str] = {}
    for command in block.commands:
        # Of a line with several commands the first reason counts.
        lines[command.text] = lines.get(command.text) or why_not_here(command)
    alone = {command.text for command in block.commands if command.words[0] not in TOOLS}
    return {text: reason for text, reason in lines.items() if text in alone}


def why_not_here(command: Command) -> str:
    """Why a command of the README is not run; "" where it is."""
    if "self-hosted" in command.runner:
        return f"runs on a machine of its own: {command.runner}"
    text = " ".join(command.words)
    return next((reason for mark, reason in NOT_HERE.items() if re.search(mark, text)), "")


@pytest.fixture(scope="module")
def problems() -> Mapping[Command, str]:
    """Of all pages, and of the commands that are planted."""
    shown = [command for page in PAGES for command in (*commands_of(page), *doc_commands.inline_commands(page))]
    return doc_commands.problems_of([*shown, *map(planted, PLANTED)])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_programs_take_the_commands_of_a_page(page: Path, problems: Mapping[Command, str]) -> None:
    name = page.relative_to(ROOT).as_posix()
    wrong = [f"{command}\n    {problem}" for command, problem in problems.items() if command.page == name]
    assert not wrong, "\n".join(wrong)


class ReaderOfTheReadme(ScratchCheckout):
    """The files that the README's commands find there: a capture, databases, tasks, records of a serving process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        shipped = Path("database", "data", "NVIDIA_H200")
        shutil.copytree(ROOT / shipped, folder / shipped)
        shutil.copytree(ROOT / "examples", folder / "examples")
        # Of several sizes, so that each shard has some.
        norms = [norm(rows) for rows in (1, 2, 3, 5, 8, 13)]
        dtypes = ["DT_BF16" if shape else "DT_UNDEFINED" for shape in DECODE_SHAPES]
        attention = launch(type="FusedInferAttentionScore", shapes=";".join(DECODE_SHAPES), dtypes=";".join(dtypes))
        capture = write_capture(folder / "CAPTURE" / "kernel_details.csv", [*norms, attention])
        self.run(f"opatlas ingest --profiling-path {capture} --database-path DB")
        for name in ("ONE", "TWO"):
            shutil.copytree(folder / "DB", folder / name)
        message = "message_bytes,num_devices,dtype,topology_tier,Duration(us)\n1048576,2,DT_BF16,1,100.5\n"
        (folder / "DB" / "hcom_allReduce_.csv").write_text(message)
        (folder / "calls.1.jsonl").write_text(json.dumps(DECODE_RECORD) + "\n")


def norm(rows: int) -> dict[str, str]:
    """A launch of RmsNorm, which the small options of the README's sessions run."""
    slots = {"Output Shapes": f"{rows},64;{rows},1", "Output Data Types": "FLOAT;FLOAT", "Output Formats": "ND;ND"}
    return launched("RmsNorm", 3.5, {**row(4), "Input Shapes": f"{rows},64;64", **slots})


def options_for(text: str) -> str:
    """The options that make a session of the README small."""
    if "collectives" in text:
        return COLLECTIVES
    if "--tasks" in text:
        return ONE_TASK
    return FEW_ROWS if "shapes" in text else QUICKLY


def readme_blocks() -> list[Block]:
    """Those that have a line to run here; of blocks with the same lines the first."""
    blocks: dict[tuple[str, ...], Block] = {}
    pages = [ROOT / "README.md", *WORKFLOWS]
    for block in [block for page in pages for block in doc_commands.blocks_of(page)]:
        texts = tuple(text for text, reason in lines_of(block).items() if not reason)
        if texts:
            blocks.setdefault(texts, block)
    return list(blocks.values())


@pytest.mark.slow
@pytest.mark.parametrize("block", readme_blocks(), ids=str)
def test_commands_of_the_readme_do_their_work(block: Block, tmp_path: Path) -> None:
    scratch = ReaderOfTheReadme(tmp_path / "checkout")
    for text, reason in lines_of(block).items():
        if reason:
            continue
        done = scratch.run(text, options=options_for(text))
        allowed = next((codes for mark, codes in STATUSES.items() if re.search(mark, text)), (0,))
        assert done.returncode in allowed, (
            f"{block}: {text}\nexit status {done.returncode}: mend the command, give its requirements in "
            f"ReaderOfTheReadme, or name it in NOT_HERE\n{done.stdout}"
        )
        for name in _LEAVES.findall(text):
            assert (scratch.folder / name).stat().st_size, f"{block}: {text}\nleft no {name}\n{done.stdout}"


def test_the_readme_has_commands_that_run_here() -> None:
    """Reasons not to run one must not swallow them all."""
    commands = commands_of(ROOT / "README.md")
    ran = [command for command in commands if not why_not_here(command)]
    assert len(ran) > 5
    assert any("bench/" in command.words for command in ran)
    assert any("ingest" in command.words for command in ran)


def test_translations_of_the_readme_show_the_same_commands() -> None:
    shown = [command.words for command in commands_of(ROOT / "README.md")]
    for page in READMES:
        assert [command.words for command in commands_of(page)] == shown, page.name


@pytest.mark.parametrize("text", PLANTED)
def test_a_command_that_would_fail_is_noticed(text: str, problems: Mapping[Command, str]) -> None:
    assert PLANTED[text] in problems[planted(text)]


@pytest.mark.parametrize("page", doc_commands.PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_its_language(page: Path) -> None:
    languages = {language for _, language, _ in doc_commands.fenced_blocks(page.read_text("utf-8"))}
    assert languages <= {"sh", "console", "text", "python", "yaml", "groovy", "csv", "json", "ini"}


def test_commands_are_found_in_the_blocks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\npytest bench/ \\\n    -k Add   # some\nopatlas ingest > out.txt && opatlas bench\n```\n"
        "```text\npytest bench/\n```\n"
        "```console\n$ A=1 pytest shapes/\n3 passed\n```\n"
        "```yaml\njobs:\n  bench:\n    runs-on: [self-hosted, npu]\n    steps:\n      - uses: actions/checkout@v4\n"
        "      - run: |\n          pip install -e .\n          pytest bench/ -x\n```\n"
        "```yaml\nmeasure:\n  script:\n    - pytest bench/ --strict\n```\n"
    )
    assert [(command.line, " ".join(command.words)) for command in commands_of(page)] == [
        (2, "pytest bench/ -k Add"),
        (4, "opatlas ingest"),
        (4, "opatlas bench"),
        (10, "pytest shapes/"),
        (20, "pip install -e ."),
        (21, "pytest bench/ -x"),
        (26, "pytest bench/ --strict"),
    ]
    assert "npu" in commands_of(page)[-2].runner
