"""A user's folder of kernels: its layouts, its candidates, its version, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.errors import OpAtlasError
from opatlas.run.implementations.catalog import find_implementations, named_implementations
from opatlas.run.implementations.directory import read_directory
from opatlas.run.implementations.implementation import Implementation

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


def test_one_file_is_an_implementation(tmp_path: Path) -> None:
    path = write(tmp_path, {"norms.py": '@implements("RmsNorm")\ndef norm(x): ...\n'}) / "norms.py"
    assert only(read_directory(path)).name == "norms"


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
