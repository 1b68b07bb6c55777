"""`opatlas implementations --new`: a template takes what the replay passes, and computes what torch does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from replaying import cells_of
from sample_rows import ROWS

from opatlas.cli.main import main
from opatlas.run.implementations.directory import read_directory
from opatlas.run.kernel_call import flat_tensors
from opatlas.run.kernel_facts import replays_of_bench
from opatlas.run.kernel_template import arguments_of_replay, template
from opatlas.run.registry import replay_spec


def of_one_device() -> list[str]:
    specs = {name: replay_spec(function) for name, function in replays_of_bench().items()}
    return [name for name, spec in specs.items() if spec is not None and spec.group is None]


@pytest.mark.parametrize("kernel_type", of_one_device())
def test_a_template_computes_what_the_torch_function_does(kernel_type: str, tmp_path: Path) -> None:
    cells = cells_of(ROWS[kernel_type][0])
    path = tmp_path / "kernel.py"
    path.write_text(template(tmp_path, kernel_type, cells))
    (found,) = read_directory(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), path, "exec"), names)
    kernel = names[found.sources[kernel_type].function]
    passed, again = (arguments_of_replay(replays_of_bench()[kernel_type], kernel_type, cells) for _ in range(2))
    with torch.no_grad():
        results = flat_tensors(kernel(*passed.positional, **passed.keywords))
        expected = flat_tensors(again.function(*again.positional, **again.keywords))
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_templates_are_written_and_replace_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    arguments = ["implementations", "--new", str(folder), "--ops"]
    assert main([*arguments, "Add,SwiGlu"]) == 0
    assert set(read_directory(folder)[0].sources) == {"Add", "SwiGlu"}
    (folder / "Add.py").write_text("# mine")
    assert main([*arguments, "Mul,Add"]) == 1
    assert (folder / "Add.py").read_text() == "# mine"
    assert not (folder / "Mul.py").exists()
    assert "Add.py" in capsys.readouterr().err


@pytest.mark.parametrize("ops", ["AddRmsNrom", "DispatchFFNCombine"])
def test_a_kernel_type_without_arguments_is_refused(ops: str, tmp_path: Path) -> None:
    assert main(["implementations", "--new", str(tmp_path / "mine"), "--ops", ops]) == 1
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--new", "DIR"],
        ["--ops", "Add"],
        ["torch", "--new", "DIR", "--ops", "Add"],
        ["--new", "DIR", "--ops", "Add", "--suite", "opinfo"],
        ["--database-path", "DIR"],
    ],
    ids=" ".join,
)
def test_an_option_without_an_effect_is_refused(arguments: list[str]) -> None:
    assert main(["implementations", *arguments]) == 2
