"""Reads the code out of a model's answer (level L0): a code block, or modifications of the former code.

Modifications are a JSON object, in a block or by itself:

{"modifications": [{"old_string": "BLOCK = 1024", "new_string": "BLOCK = 256"}]}

Further keys, such as a reason, are allowed. Modifications are applied one after the other, each to the result of the
one before. Where `old_string` is looked for, in this order: exactly; line by line without leading and trailing blanks;
line by line with runs of blanks as one. These are the first three steps of AKG (op/utils/diff_utils.py, CodeMatcher);
its fuzzy step is left out. A string that occurs never or more than once is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from opatlas.outer.judging.judgement import ErrorClass, Judgement

_FENCE = re.compile(r"^[ \t]*(`{3,})[ \t]*([\w+-]*)[^\n`]*$", re.MULTILINE)
_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)
_PYTHON = ("", "python", "py", "python3", "triton")
_MODEL = re.compile(r"^(?:class ModelNew\b|ModelNew\s*=)", re.MULTILINE)


class _Modification(msgspec.Struct):
    old_string: str
    new_string: str


class _Modifications(msgspec.Struct):
    modifications: list[_Modification]


class _Block(NamedTuple):
    """A fenced block of an answer; one that does not end was cut."""

    language: str
    body: str
    ends: bool


class _Refused(Exception):
    """The answer holds no code that can be judged: the sub-class, and why."""


def read_answer(text: str, former_source: str | None = None) -> str | Judgement:
    """Returns the source of the candidate that an answer holds, or a judgement of class `answer`.

    Of several code blocks it is the one that defines ModelNew. Thoughts between <think> and </think> are left out.

    Args:
        text: the answer.
        former_source: the code that modifications change; None for a first answer.
    """
    text = _THOUGHTS.sub("", text)
    blocks = list(_blocks(text))
    try:
        changes = _modifications(text, blocks)
        found = _code(blocks) if changes is None else _modified(former_source, changes)
    except _Refused as error:
        sub_class, why = error.args
        return Judgement(ErrorClass.ANSWER, sub_class, None, why)
    # A lone surrogate, which JSON can have, cannot be written to a file.
    return found.encode("utf-8", "replace").decode("utf-8")


def _blocks(text: str) -> Iterator[_Block]:
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence[2] and len(fence[1]) >= len(opened[1]):
            yield _Block(opened[2].lower(), text[opened.end() + 1 : fence.start()], True)
            opened = None
    if opened is not None:
        yield _Block(opened[2].lower(), text[opened.end() + 1 :], False)


def _code(blocks: Sequence[_Block]) -> str:
    sources = {block.body: block.ends for block in blocks if block.language in _PYTHON and block.body.strip()}
    if not sources:
        raise _Refused("no_code", "the answer holds neither a code block nor modifications")
    if len(sources) > 1:
        models = [source for source in sources if _MODEL.search(source)]
        if len(models) != 1:
            why = f"{len(sources)} code blocks, of which {len(models)} define ModelNew: one has to"
            raise _Refused("several_blocks", why)
        sources = {models[0]: sources[models[0]]}
    [(source, ends)] = sources.items()
    if not ends:
        raise _Refused("cut", "the code block does not end: the answer was cut")
    return source


def _modifications(text: str, blocks: Sequence[_Block]) -> list[_Modification] | None:
    """Returns the modifications in an answer; None if it holds none."""
    places = [block.body for block in blocks if block.language in ("json", "")]
    if not any(block.language in _PYTHON for block in blocks):
        places.append(text)
    for place in places:
        start = re.search(r'\{\s*"', place)
        if start is None or '"modifications"' not in place:
            continue
        try:
            content, _ = json.JSONDecoder(strict=False).raw_decode(place, start.start())
            changes = msgspec.convert(content, _Modifications).modifications
        except (ValueError, RecursionError) as error:
            raise _Refused("malformed", f"the modifications cannot be read: {error}") from None
        if not changes:
            raise _Refused("malformed", "the list of modifications is empty")
        for number, change in enumerate(changes, 1):
            if not change.old_string.strip() or change.old_string == change.new_string:
                raise _Refused("no_change", f"modification {number}: old_string is empty, or equals new_string")
        return changes
    return None


def _modified(source: str | None, changes: Sequence[_Modification]) -> str:
    if source is None:
        raise _Refused("nothing_to_modify", "the answer holds modifications, and there is no former code")
    for number, change in enumerate(changes, 1):
        old = change.old_string
        places = next((found for step in _STEPS if (found := step(source, old))), [])
        if len(places) != 1:
            times = f"occurs {len(places)} times" if places else "does not occur"
            why = f"modification {number}: {times} in the code: {old[:200]!r}"
            raise _Refused("ambiguous" if places else "not_found", why)
        start, end = places[0]
        source = source[:start] + _indented(change.new_string, old, source[start:end]) + source[end:]
    return source


def _exact(source: str, old: str) -> list[tuple[int, int]]:
    found = (match.start() for match in re.finditer(f"(?={re.escape(old)})", source))
    return [(at, at + len(old)) for at in found]


def _by_lines(normal: Callable[[str], str]) -> Callable[[str, str], list[tuple[int, int]]]:
    """Returns a step that compares lines in a normal form. Blank lines around the string do not count."""

    def places(source: str, old: str) -> list[tuple[int, int]]:
        wanted = [normal(line) for line in old.strip("\n").split("\n")]
        lines = source.split("\n")
        normals = [normal(line) for line in lines]
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line) + 1)
        return [
            (starts[at], starts[at + len(wanted)] - 1)
            for at in range(len(lines) - len(wanted) + 1)
            if normals[at : at + len(wanted)] == wanted
        ]

    return places


_STEPS = (_exact, _by_lines(str.strip), _by_lines(lambda line: " ".join(line.split())))


def _indented(new: str, old: str, found: str) -> str:
    """Returns the new string with the indentation of the code that it replaces."""
    if found == old:
        return new
    margin, own = _indentation(found), _indentation(old)
    shift = len(margin) - len(own)
    lines = new.strip("\n").split("\n")
    if shift >= 0:
        return "\n".join(margin[:shift] + line if line.strip() else line for line in lines)
    return "\n".join(line[min(-shift, len(_indentation(line))) :] for line in lines)


def _indentation(text: str) -> str:
    """Returns the blanks before the first line that is not blank."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    return first[: len(first) - len(first.lstrip())]
