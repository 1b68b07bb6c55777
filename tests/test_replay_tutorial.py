"""docs/tutorials/write-a-replay.md does what it says: its blocks, put into a copy of the checkout, and its commands."""

from __future__ import annotations

import csv
import re
import shutil

import pytest
from doc_commands import ROOT, blocks_of
from scratch_checkout import ScratchCheckout

from opatlas.engine import kernel_facts as found_by_tests

PAGE = ROOT / "docs" / "tutorials" / "write-a-replay.md"
TRANSLATION = PAGE.with_suffix(".zh-CN.md")
_BLOCK = re.compile(r"^```(python|yaml|csv)\n(?:# (\S+\.\w+)(?:, ([^\n]*))?\n)?(.*?)^```$", re.DOTALL | re.MULTILINE)
#: What the fields of a block's first line say of where it goes, after the file: a line that it follows.
_AFTER = {
    "in ROWS": "ROWS: dict",
    "in MISTAKES": "MISTAKES = {",
    "in CONTRADICTIONS": "CONTRADICTIONS = [",
    "among its imports": "import torch\n",
    "under kernels": "kernels:\n",
}


def put(text: str, where: str, block: str) -> str:
    """A file with a block of the page in its place."""
    if where in _AFTER:
        begin = text.index(_AFTER[where])
        end = text.index("\n", begin) + 1
        return text[:end] + block + text[end:]
    if where:
        (name,) = re.findall(r'with "(\w+)" in its __all__', where)
        text = text.replace("__all__ = [", f'__all__ = ["{name}", ', 1)
    return f"{text}\n\n{block}"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> ScratchCheckout:
    """With the kernel that the page adds."""
    scratch = ScratchCheckout(tmp_path_factory.mktemp("kernel") / "checkout", tests=True)
    (scratch.folder / "docs").mkdir()
    for name in ("README.md", "docs/kernels.md"):
        shutil.copy(ROOT / name, scratch.folder / name)
    blocks = _BLOCK.findall(PAGE.read_text("utf-8"))
    assert [language for language, *_ in blocks] == ["csv", *["python"] * 7, "yaml"]
    for language, name, where, block in blocks:
        if language == "csv":
            (scratch.folder / "DB").mkdir()
            (scratch.folder / "DB" / "Gelu.csv").write_text(block)
        else:
            path = scratch.folder / name
            path.write_text(put(path.read_text("utf-8"), where, block))
    return scratch


@pytest.mark.slow
def test_the_commands_of_the_page_take_a_row_to_the_coverage_table(checkout: ScratchCheckout) -> None:
    done = []
    for command in (command for block in blocks_of(PAGE) for command in block.commands):
        if command.text == "pytest tests/npu/test_npu_calls.py --write-npu-proofs":
            # It installs torch_npu: what it would write is written here.
            proofs = checkout.folder / "bench" / "kernels" / "npu_proofs.json"
            gelu = {"call": "torch.nn.functional.gelu", "proof": "torch", "references": ["gelu"]}
            found_by_tests.write(proofs, {**found_by_tests.read(proofs), "Gelu": gelu})
        else:
            done.append(checkout.run(command.text))
    bench, tests, theory, kernels, written, compared = done
    assert "1 measured + 1 invalid" in bench.stdout
    with open(checkout.folder / "DB" / "Gelu.csv", newline="") as file:
        first, second, *theory_rows = csv.DictReader(file)
    assert (first["Status"], first["MicroBench Samples"]) == ("measured", "3")
    assert float(first["Average Duration(us)"]) > 0
    assert second["Status"] == "invalid"
    assert "column 'Input Shapes'" in second["Status Reason"]
    assert tests.returncode == 0, tests.stdout
    # That there are rows, two of them, and the NPU's call; three wrong results on either side, and none; a mistake;
    # two refusals: 14, and 13 of FastGelu, which `-k Gelu` finds too.
    assert " 27 passed" in tests.stdout
    assert theory.returncode == 0, theory.stdout
    assert len(theory_rows) == 20
    assert re.search(r"^Gelu +activation\s+torch\.nn\.functional\.gelu\s+not yet\s", kernels.stdout, re.MULTILINE)
    assert written.returncode == 0, written.stdout
    assert "| Gelu | activation |" in (checkout.folder / "docs" / "kernels.md").read_text("utf-8")
    assert re.search(r"^\| activation \|.* Gelu, ", (checkout.folder / "README.md").read_text("utf-8"), re.MULTILINE)
    assert compared.returncode == 0, compared.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "right", "wrong", "told"),
    [
        (
            "tests/bench/sample_rows.py",
            '"Gelu": (',
            '"Gelo": (',
            "no test replays Gelu: add rows to tests/bench/sample_rows*.py",
        ),
        (
            "bench/test_activation.py",
            "torch.nn.functional.gelu",
            "torch.nn.functional.gelo",
            "torch.nn.functional.gelo is not there",
        ),
    ],
    ids=["without rows", "a call that is not there"],
)
def test_what_is_left_out_or_misspelt_is_told(
    checkout: ScratchCheckout, name: str, right: str, wrong: str, told: str
) -> None:
    path = checkout.folder / name
    text = path.read_text("utf-8")
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong))
    try:
        done = checkout.run("pytest tests/bench/test_replays.py -k Gelu")
    finally:
        path.write_text(text)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert told in done.stdout
    assert "[Gelu]" in done.stdout


def test_a_kernel_takes_less_than_fifteen_lines() -> None:
    blocks = [block for language, name, _, block in _BLOCK.findall(PAGE.read_text("utf-8")) if name.startswith("bench")]
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert 0 < len(lines) < 15


def test_the_translation_has_the_same_code_and_commands() -> None:
    fenced = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
    blocks = fenced.findall(PAGE.read_text("utf-8"))
    assert len(blocks) > 10
    assert fenced.findall(TRANSLATION.read_text("utf-8")) == blocks
