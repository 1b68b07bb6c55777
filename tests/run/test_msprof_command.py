"""The command line of msprof and its output folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.row.errors import DeviceGone
from opatlas.run.msprof_sessions import accepts_profiles, msprof_command


def test_without_msprof_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DeviceGone, match=r"set_env\.sh"):
        msprof_command(["python"], Path("/data/0001"), "Memory")


@pytest.mark.parametrize("character", "'\"\\%><|&$;`")
def test_a_path_that_msprof_refuses_is_refused_before_it_is_started(character: str) -> None:
    folder = Path(f"/data/a{character}b")
    assert not accepts_profiles(folder)
    with pytest.raises(DeviceGone, match="TMPDIR"):
        msprof_command(["python"], folder / "0001", "Memory")


def test_a_long_path_is_refused_and_blanks_are_not() -> None:
    assert accepts_profiles(Path("/data/my databases/ATLAS_800_A3_752T_128G_DIE"))
    assert not accepts_profiles(Path("/", *["long" * 10] * 24))
