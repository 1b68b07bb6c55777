"""docs/tutorials/write-a-replay.md works: its blocks, put into a copy of the checkout, and its commands."""

from __future__ import annotations

import csv
import re
import shutil

import pytest
from doc_commands import ROOT, blocks_of
from scratch_checkout import ScratchCheckout

PAGE = ROOT / "docs" / "tutorials" / "write-a-replay.md"
_BLOCK = re.compile(r"^```(python|yaml|csv)\n(?:# (\S+\.\w+)(?:, ([^\n]*))?\n)?(.*?)^```$", re.DOTALL | re.MULTILINE)
#: The line that a block follows, by the text behind the file in its first line; without it the block ends the file.
_AFTER = {"in MISTAKES": "MISTAKES: list", "under kernels": "kernels:\n"}
#: The size of a new kernel at most, in addition to its line in the catalog.
MOST_LINES, MOST_FILES = 8, 2
INSTALLS_TORCH_NPU = "pytest tests/npu/test_npu_calls.py --write-npu-proofs"


def put(text: str, where: str, block: str) -> str:
    """A file with a block of the page in its place."""
    if not where:
        return f"{text}\n\n{block}"
    begin = text.index(_AFTER[where])
    end = text.index("\n", begin) + 1
    return text[:end] + block + text[end:]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> ScratchCheckout:
    """With the kernel that the page adds."""
    scratch = ScratchCheckout(tmp_path_factory.mktemp("kernel") / "checkout", tests=True)
    (scratch.folder / "docs").mkdir()
    for name in ("docs/kernels.md", "docs/implementations.md"):
        shutil.copy(ROOT / name, scratch.folder / name)
    blocks = _BLOCK.findall(PAGE.read_text("utf-8"))
    assert [language for language, *_ in blocks] == ["csv", "python", "python", "yaml", "python"]
    for language, name, where, block in blocks:
        if language == "csv":
            (scratch.folder / "DB").mkdir()
            (scratch.folder / "DB" / "Mish.csv").write_text(block)
        else:
            path = scratch.folder / name
            text = path.read_text("utf-8")
            own, others = (set(re.findall(r"^def (\w+)", each, re.MULTILINE)) for each in (block, text))
            assert not own & others
            path.write_text(put(text, where, block))
    return scratch


@pytest.mark.slow
def test_the_commands_of_the_page_take_a_row_to_the_coverage_table(checkout: ScratchCheckout) -> None:
    commands = [command.text for block in blocks_of(PAGE) for command in block.commands]
    bench, theory, tests, kernels, written, compared = (
        checkout.run(command) for command in commands if command != INSTALLS_TORCH_NPU
    )
    assert "1 measured + 1 invalid" in bench.stdout
    with open(checkout.folder / "DB" / "Mish.csv", newline="") as file:
        first, second, *theory_rows = csv.DictReader(file)
    assert (first["Status"], first["MicroBench Samples"]) == ("measured", "3")
    assert float(first["Average Duration(us)"]) > 0
    assert second["Status"] == "invalid"
    assert "column 'Input Shapes'" in second["Status Reason"]
    assert tests.returncode == 0, tests.stdout
    assert theory.returncode == 0, theory.stdout
    assert len(theory_rows) == 20
    assert re.search(r"^Mish +elementwise\s+torch\.nn\.functional\.mish\s+torch\s", kernels.stdout, re.MULTILINE)
    assert written.returncode == 0, written.stdout
    page = (checkout.folder / "docs" / "kernels.md").read_text("utf-8")
    assert "| Mish | torch.nn.functional.mish |" in page
    assert compared.returncode == 0, compared.stdout


def test_a_kernel_takes_few_lines_in_two_files() -> None:
    blocks = _BLOCK.findall(PAGE.read_text("utf-8"))
    code = {name: block for _, name, _, block in blocks if name.startswith("bench/")}
    assert 0 < len(code) <= MOST_FILES
    assert sum(bool(line.strip()) for block in code.values() for line in block.splitlines()) <= MOST_LINES
