from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def fits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of fitted models of all tests: a model is stored by a hash of its rows."""
    return tmp_path_factory.mktemp("fits")


@pytest.fixture(autouse=True)
def common_cache(fits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps fitted models out of the user's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(fits))


@pytest.fixture
def own_cache(tmp_path: Path, common_cache: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of fitted models of one test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder
