"""The implementations that a session can measure, and the marks of their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.errors import OpAtlasError
from opatlas.run.implementations.catalog import (
    default_implementation,
    every_implementation,
    find_implementations,
    installed,
    shipped,
)
from opatlas.run.implementations.directory import read_marks
from opatlas.run.kernel_facts import replays_of_bench

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


def test_a_package_has_the_kernel_types_of_all_its_files() -> None:
    sources = shipped()["flashinfer"].sources
    assert sources["RmsNorm"].module.endswith("flashinfer.norm")
    assert sources["FusedInferAttentionScore"].module.endswith("flashinfer.attention")


@pytest.mark.parametrize(("kind", "name"), [("cpu", "torch"), ("cuda", "torch"), ("npu", "torch_npu")])
def test_the_default_of_a_device(kind: str, name: str) -> None:
    assert default_implementation(kind).name == name
    assert find_implementations([], kind) == find_implementations([name], kind) == [default_implementation(kind)]


@pytest.mark.parametrize(("name", "meant"), [("rivalz", "rivals"), ("flashinfre", "flashinfer")])
def test_a_misspelt_name_is_told_from_folders_and_from_what_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rivals").mkdir()
    with pytest.raises(OpAtlasError, match=rf"^--implementation {name}: .*\b{meant}\?"):
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


def test_every_implementation_has_devices_and_a_version_or_a_remedy() -> None:
    for each in every_implementation():
        assert each.devices
        assert bool(each.version) != bool(each.missing)


def test_a_library_that_is_not_installed_has_no_version() -> None:
    assert installed(("pytest",))[0]
    version, missing = installed(("pytest", "opatlas-no-such-library"))
    assert version == ""
    assert "opatlas-no-such-library" in missing
