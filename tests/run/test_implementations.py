"""The implementations that a session can measure: those that ship, folders of a user, marks and templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from replaying import cells_of
from sample_rows import ROWS

from opatlas.cli.main import main
from opatlas.errors import OpAtlasError
from opatlas.run.implementation import Implementation
from opatlas.run.implementation_catalog import (
    find_implementations,
    named_implementations,
    read_directory,
    read_marks,
    shipped,
)
from opatlas.run.kernel_call import flat_tensors
from opatlas.run.kernel_template import arguments_of_replay, template
from opatlas.run.registry import replay_spec, replays_of_bench

ONE = '@implements("RmsNorm")\ndef norm(x): ...\n'


def test_marks_are_read_and_nothing_is_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        '"""About it.\n\nMore."""\nDISTRIBUTIONS = ("a", "b")\nDEVICES = ["cuda"]\nraise SystemExit\n'
        f'{ONE}def wrap(f): ...\nadd = implements("Add", "AddAiCore")(library.add)\nother = add(1)(2)\n'
    )
    marks = read_marks(path)
    assert marks.functions == {"RmsNorm": "norm", "Add": "add", "AddAiCore": "add"}
    assert (marks.about, marks.distributions, marks.devices) == ("About it.", ("a", "b"), ("cuda",))
    assert marks.public == ("norm", "wrap")
    assert marks.wraps


@pytest.mark.parametrize(
    "text",
    [
        "DEVICES = KINDS\n",
        "DISTRIBUTIONS = (name,)\n",
        "@implements(*names)\ndef f(): ...\n",
        "f = implements(NAME)(g)\n",
        "\0",
        "def f(:\n",
    ],
)
def test_a_file_whose_marks_are_not_written_out_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(OpAtlasError) as refused:
        read_marks(path)
    assert str(path) in str(refused.value)


def test_every_mark_is_of_a_kernel_type_with_a_replay() -> None:
    known = set(replays_of_bench())
    assert [name for name, each in shipped().items() if not known.issuperset(each.sources)] == []


@pytest.mark.parametrize(("kind", "name"), [("cpu", "torch"), ("cuda", "torch"), ("npu", "torch_npu")])
def test_the_default_of_a_device(kind: str, name: str) -> None:
    assert find_implementations([], kind) == find_implementations([name], kind)
    assert [each.name for each in find_implementations([], kind)] == [name]


@pytest.mark.parametrize(("name", "meant"), [("rivalz", "rivals"), ("flashinfre", "flashinfer")])
def test_a_misspelt_name_is_told_from_folders_and_from_what_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rivals").mkdir()
    with pytest.raises(OpAtlasError, match=rf"^{name}: .*\b{meant}\?"):
        find_implementations([name], "cpu")


def test_all_are_those_that_are_installed_and_fit_the_device() -> None:
    found = find_implementations(["all"], "cpu")
    assert found[0].is_default
    assert {each.name for each in found[1:]} == {
        name for name, each in shipped().items() if not each.missing and (not each.devices or "cpu" in each.devices)
    }


@pytest.mark.parametrize(("name", "kind"), [("flashinfr", "cuda"), ("flashinfer", "cpu"), ("torch_npu", "cuda")])
def test_a_name_that_the_device_has_not_is_refused(name: str, kind: str) -> None:
    with pytest.raises(OpAtlasError):
        find_implementations([name], kind)


KERNEL = "def kernel(*arguments):\n    return None\n"


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def only(found: list[Implementation]) -> Implementation:
    (implementation,) = found
    return implementation


@pytest.mark.parametrize(
    ("name", "text", "kernels"),
    [
        ("Add.py", KERNEL, {"Add": "kernel"}),
        ("Add.py", "def fast(a, b): ...\ndef _helper(): ...\n", {"Add": "fast"}),
        ("Add.py", "def helper(): ...\ndef kernel(a, b): ...\n", {"Add": "kernel"}),
        (
            "norms.py",
            '@implements("RmsNorm", "LayerNormV4")\ndef norm(x): ...\n',
            {"RmsNorm": "norm", "LayerNormV4": "norm"},
        ),
        ("Add.py", '@opatlas.implements("Mul")\ndef norm(x): ...\n', {"Mul": "norm"}),
        (
            "relu__default/relu__default_implementation.py",
            "def relu__default_kernel_impl(x): ...\n",
            {"relu__default": "relu__default_kernel_impl"},
        ),
    ],
)
def test_layouts(tmp_path: Path, name: str, text: str, kernels: dict[str, str]) -> None:
    found = only(read_directory(write(tmp_path / "mine", {name: text})))
    assert {kernel_type: source.function for kernel_type, source in found.sources.items()} == kernels
    assert found.name == "mine"
    assert {Path(source.path) for source in found.sources.values()} == {tmp_path / "mine" / name}


def test_the_file_of_an_operator_may_begin_with_an_underscore(tmp_path: Path) -> None:
    text = "def _softmax__default_kernel_impl(x, dim, half): ...\n"
    files = {"_softmax__default/_softmax__default_implementation_v1.py": text, "_softmax__default/_other.py": text}
    found = only(read_directory(write(tmp_path / "mine", files)))
    assert set(found.sources) == {"_softmax__default"}


def test_candidates_are_implementations_of_their_own(tmp_path: Path) -> None:
    overload = "def add__Tensor_kernel_impl(x, y): ...\n"
    files = {
        "Add/fast.py": KERNEL,
        "Add/small.py": KERNEL,
        "SwiGlu/fast.py": KERNEL,
        "mul__Tensor/mul__Tensor_implementation_v1.py": overload.replace("add", "mul"),
        "RmsNorm.py": KERNEL,
    }
    found = {each.name: set(each.sources) for each in read_directory(write(tmp_path / "mine", files))}
    assert found == {
        "mine": {"RmsNorm"},
        "mine-fast": {"Add", "SwiGlu"},
        "mine-small": {"Add"},
        "mine-v1": {"mul__Tensor"},
    }


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("Mul.py", "def one(): ...\ndef two(): ...\n", set()),
        ("Mul.py", "def kernel(:\n", set()),
        ("notes.py", "VALUE = 1\n", set()),
        # The rows of an operator fail, so that they count.
        ("add__Tensor/add__Tensor_implementation_v1.py", KERNEL, {"add__Tensor"}),
        ("add__Tensor/add__Tensor_implementation_v1.py", "(" * 10_000, {"add__Tensor"}),
    ],
)
def test_a_file_without_its_kernel_has_its_reason(tmp_path: Path, name: str, text: str, kept: set[str]) -> None:
    found = read_directory(write(tmp_path / "mine", {"Add.py": KERNEL, name: text}))
    assert {kernel_type for each in found for kernel_type in each.sources} == {"Add", *kept}
    (note,) = found[0].notes
    assert note.startswith(str(tmp_path / "mine" / name))


def test_hidden_and_private_files_are_no_kernels(tmp_path: Path) -> None:
    files = {"Add.py": KERNEL, "_common.py": KERNEL, ".old.py": KERNEL, "__pycache__/Mul.py": KERNEL, "readme.md": "x"}
    found = only(read_directory(write(tmp_path / "mine", files)))
    assert set(found.sources) == {"Add"}
    assert not found.notes


@pytest.mark.parametrize(
    "files",
    [
        {"readme.md": "nothing"},
        {"Add.py": "def kernel(:\n"},
        {"Add.py": KERNEL, "sums.py": '@implements("Add")\ndef add(): ...\n'},
        {"sums.py": '@implements("Add")\ndef a(): ...\n@implements("Add")\ndef b(): ...\n'},
        {"sums.py": "@implements(NAME)\ndef a(): ...\n"},
    ],
    ids=["nothing", "syntax", "two files", "twice in a file", "no string"],
)
def test_an_unusable_folder_is_refused_with_its_path(tmp_path: Path, files: dict[str, str]) -> None:
    folder = write(tmp_path / "mine", files)
    with pytest.raises(OpAtlasError) as refused:
        read_directory(folder)
    assert str(folder) in str(refused.value)


def test_the_version_is_that_of_the_content(tmp_path: Path) -> None:
    first = only(read_directory(write(tmp_path / "mine", {"Add.py": KERNEL}))).version
    assert only(read_directory(write(tmp_path / "copy" / "mine", {"Add.py": KERNEL}))).version == first
    assert only(read_directory(write(tmp_path / "mine", {"readme.md": "more"}))).version == first
    changed = only(read_directory(write(tmp_path / "mine", {"Add.py": f"{KERNEL}# faster\n"})))
    assert changed.version != first
    assert changed.label == f"mine {changed.version}"
    assert len(changed.version) == len(first) == 8


@pytest.mark.parametrize("helper", ["_common.py", "csrc/add.cu", "Add/_tiles.py", "tuned.json"])
def test_a_helper_is_part_of_each_version_and_a_kernel_of_its_own(tmp_path: Path, helper: str) -> None:
    folder = write(tmp_path / "mine", {"Add.py": KERNEL, "Add/fast.py": KERNEL, helper: "1"})
    mine, fast = read_directory(folder)
    write(folder, {helper: "2"})
    assert all(now.version != then.version for now, then in zip(read_directory(folder), (mine, fast), strict=True))
    write(folder, {helper: "1", "Add/fast.py": f"{KERNEL}# faster\n"})
    mine_now, fast_now = read_directory(folder)
    assert mine_now.version == mine.version
    assert fast_now.version != fast.version


@pytest.mark.parametrize("other", ["__pycache__/a.py", "build/a.o", ".cache/a.py", "runs/1.json", "plot.png"])
def test_outputs_and_databases_in_a_folder_are_no_part_of_its_version(tmp_path: Path, other: str) -> None:
    folder = write(tmp_path / "mine", {"Add/fast.py": KERNEL})
    version = only(read_directory(folder)).version
    assert only(read_directory(write(folder, {other: "1"}))).version == version


@pytest.mark.parametrize("name", ["torch", "torch_npu", "flashinfer", "all"])
def test_a_folder_with_the_name_of_an_implementation_is_refused(tmp_path: Path, name: str) -> None:
    folder = str(write(tmp_path / name, {"Add.py": KERNEL}))
    with pytest.raises(OpAtlasError):
        find_implementations([folder], "cpu")
    with pytest.raises(OpAtlasError):
        named_implementations(folder)


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
        results = flat_tensors(kernel(*passed.arguments, **passed.keywords))
        expected = flat_tensors(again.impl(*again.arguments, **again.keywords))
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
    [["--new", "DIR"], ["--ops", "Add"], ["torch", "--new", "DIR", "--ops", "Add"], ["--database-path", "DIR"]],
    ids=" ".join,
)
def test_an_option_without_an_effect_is_refused(arguments: list[str]) -> None:
    assert main(["implementations", *arguments]) == 2
