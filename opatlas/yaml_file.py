"""Reads YAML that people edit, within limits of size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from opatlas.errors import OpAtlasError
from opatlas.files import read_safely

T = TypeVar("T")

#: The largest number of words, lists and mappings, counted at each use of an anchor.
_MOST_NODES = 100_000
#: A larger file is another file.
_MOST_BYTES = 1 << 20


class YamlError(Exception):
    """Text that is not YAML, or exceeds the limits. The message names the place and the reason."""


class _Loader(yaml.SafeLoader):
    """Refuses anchors that a few lines expand to millions of values."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node:
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        assert node is not None
        if not is_alias:
            inner = node.value if isinstance(node, yaml.CollectionNode) else ()
            parts = [part for pair in inner for part in (pair if isinstance(pair, tuple) else (pair,))]
            self._sizes[node] = 1 + sum(self._sizes[part] for part in parts)
        # What holds itself has no size yet.
        if self._sizes.get(node, _MOST_NODES + 1) > _MOST_NODES:
            problem = f"more than {_MOST_NODES:,} words, or a list or mapping that holds itself"
            raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
        return node


class _StrictLoader(_Loader):
    """Refuses a key that is not text, and a repeated key, of which YAML would take the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        there = set()
        # Keys of a merged mapping (`<<`) may be given again.
        for name in [name for name, _ in node.value if name.tag != "tag:yaml.org,2002:merge"]:
            key = self.construct_object(name, deep=True)
            problem = f"{key!r} is repeated" if isinstance(key, str) and key in there else ""
            if not isinstance(key, str):
                problem = f"the key {str(key)[:40]} is not text: put quotes around it"
            if problem:
                raise yaml.constructor.ConstructorError(None, None, problem, name.start_mark)
            there.add(key)
        return super().construct_mapping(node, deep)


def parse_yaml(text: bytes, *, strict: bool = False) -> Any:
    """Returns the value of YAML text.

    Args:
        strict: whether keys that are not text, and repeated keys, are refused.

    Raises:
        YamlError: the text is not UTF-8, not YAML, nested too deeply, or too large with its anchors expanded.
    """
    try:
        return yaml.load(text.decode("utf-8"), Loader=_StrictLoader if strict else _Loader)
    except Exception as error:
        # PyYAML's constructors raise any exception for a word that does not fit its form or tag (a date of month 99,
        # a number of 5,000 digits, `!!bool maybe`).
        raise YamlError(_reason(error)) from None


def read_yaml(path: Path, kind: type[T]) -> T:
    """Returns the content of a file, which repeats no key.

    Raises:
        OpAtlasError: the file cannot be read, is not YAML, or does not fit `kind`. The message names the file and the
            place in it.
    """
    try:
        return msgspec.convert(parse_yaml(read_safely(path, _MOST_BYTES), strict=True), kind)
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror})") from None
    except (YamlError, msgspec.ValidationError) as error:
        raise OpAtlasError(f"{path}: {error}") from None


def _reason(error: Exception) -> str:
    """Returns the line and the problem; PyYAML's own text has a picture of the place on several lines."""
    place, text = "", str(error)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem and error.problem_mark:
        place, text = f"line {error.problem_mark.line + 1}: ", error.problem
    return place + (" ".join(text.split()) or type(error).__name__)


def key_lines(text: bytes, under: str | None = None) -> dict[str, int]:
    """Returns the line number (from 1) of each key of YAML text that `parse_yaml` has accepted.

    Args:
        under: the top-level key whose keys are returned; None: the top-level keys.
    """
    node = yaml.compose(text.decode("utf-8"), Loader=_Loader)
    if under is not None and isinstance(node, yaml.MappingNode):
        node = next((value for key, value in node.value if key.value == under), None)
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
