"""What a session refuses before anything runs or is written: options that contradict each other, or the machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from opatlas.plugins.settings import settings_of
from opatlas.plugins.theory import Theory
from sessions import Sessions, row, write_table

from opatlas.errors import OpAtlasError
from opatlas.run.devices import cuda, npu

pytest_plugins = ("pytester",)


@pytest.fixture(autouse=True)
def _no_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu, "npus_present", lambda: 0)
    monkeypatch.setattr(cuda, "list_gpus", lambda: ())


def refusal(pytester: pytest.Pytester, *options: str) -> str:
    """Returns why a session with some options is refused."""
    with pytest.raises((OpAtlasError, pytest.UsageError)) as caught:
        settings_of(pytester.parseconfig("-p", "opatlas.plugins", *options))
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--in-process", "--tx=popen"), "-n"),
        (("--in-process", "--case-timeout=3"), "--case-timeout"),
        (("--device=ATLAS_800_A3_752T_128G_DIE",), "NPU"),
        (("--device=NVIDIA_H200",), "GPU"),
        (("--versions=torch=1.0.0",), "--versions torch=1.0.0"),
        (("--versions=torch=1.0.0", "--database-path=data"), "--versions"),
        (("--repeat-count=0",), "'0'"),
        (("--case-timeout=nan",), "'nan'"),
        (("--shard=3/2",), "I/N"),
        (("--shard=a/b",), "I/N"),
        (("--tasks=tasks", "--suite=opinfo"), "--suite"),
        (("--models=models.yaml",), "--tasks"),
        (("--read-only", "--mixed"), "--mixed"),
        (("--ray=local", "--in-process"), "--in-process"),
        (("--ray=local", "--nnodes=2"), "--nnodes"),
        (("--ray=local", "--tx=popen"), "-n"),
        (("--ray=local", "--pdb"), "--pdb"),
        (("--prof-path=profiles",), "--device"),
        (("--prof-path=profiles", "--database-path=data", "--repeat-count=3", "--tx=popen"), "-n, --repeat-count"),
        (("--prof-path=profiles", "--database-path=data", "--update-mode=stale"), "--update-mode=stale"),
        (("-k", "Toy and"), "-k"),
        # Of the original tool.
        (("--kernel-list", "Add", "Mul"), "--ops"),
        (("--data-dir=data",), "--database-path"),
        (("--vllm-version=0.18.0",), "--versions vllm="),
        (("--dispatch-ffn-combine-ep-size=16",), "--ep-size"),
        (("--do-run",), "--co"),
        (("--implementation=no_such_library",), "no_such_library"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, tuple) else "",
)
def test_options_that_cannot_be_followed(pytester: pytest.Pytester, options: tuple[str, ...], named: str) -> None:
    assert named in refusal(pytester, *options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--target-models=qwen3-33b",), "--target-models qwen3-33b: "),
        (("--ops=MatMulV4",), "'MatMulV4' (did you mean MatMulV"),
        ((f"--database-path={__file__}",), "test_refused_options.py: "),
        (("--max-hbm-gb=0.1",), "--max-hbm-gb 0.1"),
    ],
)
def test_theory_rows_that_cannot_be_added(pytester: pytest.Pytester, options: tuple[str, ...], named: str) -> None:
    config = pytester.parseconfig("-p", "opatlas.plugins", f"--database-path={pytester.path}", *options)
    with pytest.raises((OpAtlasError, pytest.UsageError)) as caught:
        Theory(config).plan  # noqa: B018
    assert named in str(caught.value)
    assert not list(pytester.path.glob("*.csv"))


def test_a_number_of_samples_in_the_environment(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSMODELING_OP_REPLAY_REPEAT_COUNT", "many")
    assert "MSMODELING_OP_REPLAY_REPEAT_COUNT='many'" in refusal(pytester)


def test_a_database_that_is_named_as_tests(pytester: pytest.Pytester, tmp_path: Path) -> None:
    named = tmp_path / "named"
    named.mkdir()
    write_table(named / "Toy.csv", [row(1)])
    assert f"--database-path {named}" in refusal(pytester, str(named))


def test_a_cluster_that_cannot_be_joined_is_told_with_a_remedy(sessions: Sessions) -> None:
    sessions.write("Toy", [row(2)])
    refused = sessions.run("--ray=ray://head:10001")
    assert refused.code == pytest.ExitCode.USAGE_ERROR
    installed = importlib.util.find_spec("ray") is not None
    assert refused.has_line("HOST:PORT" if installed else "opatlas[ray]")
