"""Finds out whether a candidate has changed files of OpAtlas, of its task or of itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

import opatlas
from opatlas.candidates.judgement import ErrorClass
from opatlas.candidates.rejection import CandidateRejected

#: What decides about a row. Data and pages are left out.
_SUFFIXES = frozenset({".py", ".ini", ".json", ".yaml"})


class PackageFiles:
    """The files of OpAtlas' package, and of a row, as they are when this object is made."""

    def __init__(self, further: Iterable[Path] = ()) -> None:
        """`further` are files of the task and of the candidate."""
        self._further = tuple(further)
        self._before = self._read()

    def expect_same(self) -> None:
        """Raises CandidateRejected if a file was changed, removed or added."""
        after = self._read()
        changed = [path for path in {**self._before, **after} if self._before.get(path) != after.get(path)]
        if changed:
            raise CandidateRejected(
                ErrorClass.HACK,
                "edited-files",
                f"{changed[0]} was changed while the candidate ran: restore it, and run the session again",
            )

    def _read(self) -> Mapping[Path, bytes]:
        roots = [Path(root) for root in opatlas.__path__]
        own = (roots[0], *(root / folder for root in roots for folder in ("bench", "plugins", "shapes")))
        paths = (path for root in own if root.is_dir() for path in root.rglob("*") if path.suffix in _SUFFIXES)
        return {path: _digest(path) for path in (*paths, *self._further)}


def _digest(path: Path) -> bytes:
    try:
        return sha256(path.read_bytes()).digest()
    except OSError:
        return b""
