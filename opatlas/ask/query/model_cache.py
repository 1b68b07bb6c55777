"""Fitted models on disk: by a hash of the rows and of how they are fitted, so that a changed CSV has another file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import platformdirs

from opatlas.data.csv_files import write_bytes
from opatlas.errors import OpAtlasError
from opatlas.files import read_safely

Arrays = Mapping[str, npt.NDArray[np.float64]]
#: To be raised with every change of features or fits.
_VERSION = 5
_LARGEST_BYTES = 1 << 28


def model_key(*parts: object) -> str:
    """Returns the name of a model: a hash of the data that it is fitted to."""
    digest = blake2b(repr(_VERSION).encode(), digest_size=16)
    for part in parts:
        digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
        digest.update(b"|")
    return digest.hexdigest()


def load(key: str) -> Arrays | None:
    """Returns a stored fit; None if there is none that can be read."""
    try:
        with np.load(io.BytesIO(read_safely(_path(key), _LARGEST_BYTES)), allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError, BadZipFile, OpAtlasError):
        return None


def store(key: str, arrays: Arrays) -> None:
    """Stores a fit. Where the user's cache cannot be written, it is fitted again next time."""
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    with suppress(OpAtlasError):
        write_bytes(_path(key), content.getvalue())


def folder() -> Path:
    """Returns the folder of the fits, in the user's cache."""
    return platformdirs.user_cache_path("opatlas", appauthor=False) / "query"


def _path(key: str) -> Path:
    return folder() / f"{key}.npz"
