"""`opatlas implementations`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import as_json, run
from kernel_pages import IMPLEMENTATIONS, ROOT, implementations_page

from opatlas.cli.main import main


@pytest.mark.parametrize("name", ["flashinfer", "torch", "torch_compile"])
def test_an_implementation_lists_its_kernel_types(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = as_json(capsys, "implementations", name)["implementations"]
    assert found["name"] == name
    _, out, _ = run(capsys, "implementations", name)
    shown = {line.split()[0] for line in out.splitlines() if line}
    assert {each["kernel_type"] for each in found["kernel_types"]} <= shown


def test_a_folder_of_ones_own_shows_what_was_read_and_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    (folder / "Add").mkdir(parents=True)
    for name in ("AddRmsNrom.py", "Add/fast.py"):
        (folder / name).write_text("def kernel(x): ...\n")
    (folder / "notes.py").write_text("")
    assert main(["implementations", str(folder)]) == 0
    output = capsys.readouterr().out
    assert "mine-fast" in output
    assert "Add/fast.py:kernel" in output
    assert "notes.py" in output
    assert "AddRmsNorm" in output


def test_the_page_has_the_present_table() -> None:
    page = ROOT / IMPLEMENTATIONS
    assert page.read_text(encoding="utf-8") == implementations_page(), "run `python -m tests.support.kernel_pages`"


def test_it_does_not_wait_for_torch() -> None:
    code = "import sys; from opatlas.cli.main import main; main(['implementations']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
