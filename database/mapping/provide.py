"""Gives a database of an NPU its op_mapping.yaml, so that a simulator can find the rows.

The file comes from the nearest version folder that has one, or else is the table of OpAtlas, `default.yaml`. A file
that is there is left alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from database.errors import OpAtlasError
from database.layout import Place, communication_reference, npu_folder_of
from database.mapping.entries import MAPPING, REFERENCE, parse_mapping, read_text
from database.store import write_text
from database.versions import CANN, TORCH, VLLM
from database.yaml_file import NotYaml

_DEFAULT = Path(__file__).with_name("default.yaml")
#: The first line of a copy begins so.
_COPY = "# A copy of "
#: The software whose version says most about which kernels run comes first.
_NEARNESS = (VLLM, CANN, TORCH)
_VERSION_KEYS = {"version": VLLM, "cann_version": CANN, "pytorch_version": TORCH}


@dataclass(frozen=True)
class Provided:
    """An op_mapping.yaml that was written.

    Attributes:
        path: of the file.
        source: the file that was copied; None where the table of OpAtlas was written.
    """

    path: Path
    source: Path | None

    def __str__(self) -> str:
        origin = f"a copy of {self.source}" if self.source is not None else "OpAtlas' table"
        return f"wrote {self.path.name} ({origin}), by which a simulator finds the rows"


def provide_mapping(database: Path, *, is_npu: bool = False, sources: Sequence[Path] = ()) -> Provided | None:
    """Writes the op_mapping.yaml of a database that has none; call it with the lock of the database held.

    Args:
        database: a folder of {KernelType}.csv files.
        is_npu: whether its rows are of an NPU, where its place does not tell.
        sources: databases whose file is taken first.

    Returns:
        What was written; None where there is a file, or the rows are not of an NPU.

    Raises:
        OpAtlasError: the file cannot be written.
    """
    path = database / MAPPING
    place = npu_folder_of(database)
    candidates = [*(source / MAPPING for source in sources), *(_neighbours(database) if place else ())]
    candidates = [candidate for candidate in candidates if candidate.is_file()]
    has_mapping = path.exists() or path.is_symlink()
    if has_mapping or not (place or is_npu or any(source / MAPPING in candidates for source in sources)):
        return None
    settings = _settings(database)
    for source in candidates:
        text = _copied(source, settings)
        if text is not None:
            told = f"{_COPY}{os.path.relpath(source, database)}: notes and thresholds are of that version.\n"
            write_text(path, told + re.sub(rf"\A{_COPY}.*\n", "", text))
            return Provided(path, source)
    write_text(path, _with_settings(_DEFAULT.read_text(encoding="utf-8"), settings))
    return Provided(path, None)


def _settings(database: Path) -> Mapping[str, str]:
    """What the place of a database says of it, by top-level key; nothing where the place says nothing."""
    place = npu_folder_of(database)
    if place is None:
        return {}
    device, versions = place
    return {
        **{key: versions[component.name] for key, component in _VERSION_KEYS.items()},
        "device": device,
        REFERENCE: communication_reference(database, versions[CANN.name]),
    }


def _neighbours(database: Path) -> Iterator[Path]:
    """The mappings of other version folders below the same root, those of the same device and near versions first."""
    here = database.resolve()
    stack = here.parent
    found = []
    for path in stack.parent.parent.glob(f"*/{stack.name}/*/{MAPPING}"):
        place = npu_folder_of(path.parent)
        if place is not None and path.parent != here:
            found.append((place[0] != stack.parent.name, _distance(npu_folder_of(here), place), path))
    for _, _, path in sorted(found):
        yield path


def _distance(one: Place | None, other: Place | None) -> Sequence[Sequence[int]]:
    """The differences of the numbers of two places' versions, one list for each piece of software."""
    ours, theirs = (place[1] if place is not None else {} for place in (one, other))
    pairs = [(_numbers(ours.get(each.name, "")), _numbers(theirs.get(each.name, ""))) for each in _NEARNESS]
    return [[abs(a - b) for a, b in zip_longest(*pair, fillvalue=0)] for pair in pairs]


def _numbers(version: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", version)]


def _copied(source: Path, settings: Mapping[str, str]) -> str | None:
    """The text of a mapping, for another place; None where the file is no mapping that can be read."""
    try:
        text = read_text(source)
        copy = _with_settings(text, settings)
        there = parse_mapping(copy.encode()).settings
    except (OpAtlasError, NotYaml):
        return None
    return copy if {key: there[key] for key in (*settings, REFERENCE) if key in there} == settings else None


def _with_settings(text: str, settings: Mapping[str, str]) -> str:
    """A mapping whose top-level keys say what `settings` says; without settings it refers to no other folder.

    What the table of OpAtlas leaves open goes, too.
    """
    for key, value in settings.items():
        line = f"{key}: {json.dumps(value)}"
        text, count = re.subn(rf"^{key}:.*$", line.replace("\\", r"\\"), text, flags=re.MULTILINE)
        text = text if count else f"{line}\n{text}"
    return text if settings else re.sub(rf"^({REFERENCE}:.*|\w+: \"\")\n", "", text, flags=re.MULTILINE)
