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
from collections.abc import Callable, Iterator
from typing import Any

from opatlas.outer.judging.judgement import ErrorClass, Judgement

_FENCE = re.compile(r"^[ \t]*(`{3,})[ \t]*([\w+-]*)[^\n`]*$", re.MULTILINE)
_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)
_PYTHON = ("", "python", "py", "python3", "triton")
_MODEL = re.compile(r"^(?:class ModelNew\b|ModelNew\s*=)", re.MULTILINE)


def read_answer(text: str, former_source: str | None = None) -> str | Judgement:
    """Returns the source of the candidate that an answer holds, or a judgement of class `answer`.

    Of several code blocks it is the one that defines ModelNew. Thoughts between <think> and </think> are left out.

    Args:
        text: the answer.
        former_source: the code that modifications change; None for a first answer.
    """
    found = _read(_THOUGHTS.sub("", text), former_source)
    # A lone surrogate, which JSON can have, cannot be written to a file.
    return found if isinstance(found, Judgement) else found.encode("utf-8", "replace").decode("utf-8")


def _read(text: str, former_source: str | None) -> str | Judgement:
    blocks = list(_blocks(text))
    if (changes := _modifications(text, blocks)) is not None:
        return changes if isinstance(changes, Judgement) else _modified(former_source, changes)
    sources = list(dict.fromkeys(body for language, body, _ in blocks if language in _PYTHON and body.strip()))
    if not sources:
        return _refused("no_code", "the answer holds neither a code block nor modifications")
    if len(sources) > 1:
        models = [source for source in sources if _MODEL.search(source)]
        if len(models) != 1:
            return _refused(
                "several_blocks", f"{len(sources)} code blocks, of which {len(models)} define ModelNew: one has to"
            )
        sources = models
    if not all(complete for _, body, complete in blocks if body == sources[0]):
        return _refused("cut", "the code block does not end: the answer was cut")
    return sources[0]


def _refused(sub_class: str, text: str) -> Judgement:
    return Judgement(ErrorClass.ANSWER, sub_class, None, text)


def _blocks(text: str) -> Iterator[tuple[str, str, bool]]:
    """Yields language, body and completeness of the fenced blocks of a text."""
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif not fence[2] and len(fence[1]) >= len(opened[1]):
            yield opened[2].lower(), text[opened.end() + 1 : fence.start()], True
            opened = None
    if opened is not None:
        yield opened[2].lower(), text[opened.end() + 1 :], False


def _modifications(text: str, blocks: list[tuple[str, str, bool]]) -> list[tuple[str, str]] | Judgement | None:
    """Returns old and new strings of the modifications in an answer; None if it holds none."""
    places = [body for language, body, _ in blocks if language in ("json", "")]
    if not any(language in _PYTHON for language, _, _ in blocks):
        places.append(text)
    for place in places:
        if (start := re.search(r'\{\s*"', place)) is None or '"modifications"' not in place:
            continue
        try:
            content, _ = json.JSONDecoder(strict=False).raw_decode(place, start.start())
        except (ValueError, RecursionError) as error:
            return _refused("malformed", f"the modifications are no JSON: {error}")
        return _changes(content)
    return None


def _changes(content: Any) -> list[tuple[str, str]] | Judgement:
    entries = content.get("modifications") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        return _refused("malformed", 'no list {"modifications": [...]} with an entry')
    changes = []
    for at, entry in enumerate(entries, 1):
        old, new = (entry.get(key) if isinstance(entry, dict) else None for key in ("old_string", "new_string"))
        if not isinstance(old, str) or not isinstance(new, str):
            return _refused("malformed", f"modification {at}: has no text old_string and new_string")
        if not old.strip() or old == new:
            return _refused("no_change", f"modification {at}: old_string is empty, or equals new_string")
        changes.append((old, new))
    return changes


def _modified(source: str | None, changes: list[tuple[str, str]]) -> str | Judgement:
    if source is None:
        return _refused("nothing_to_modify", "the answer holds modifications, and there is no former code")
    for at, (old, new) in enumerate(changes, 1):
        places = next((found for step in _STEPS if (found := step(source, old))), [])
        if len(places) != 1:
            times = f"occurs {len(places)} times" if places else "does not occur"
            return _refused(
                "ambiguous" if places else "not_found", f"modification {at}: {times} in the code: {old[:200]!r}"
            )
        start, end = places[0]
        source = source[:start] + _indented(new, old, source[start:end]) + source[end:]
    return source


def _exact(source: str, old: str) -> list[tuple[int, int]]:
    found, at = [], source.find(old)
    while at >= 0:
        found.append((at, at + len(old)))
        at = source.find(old, at + 1)
    return found


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
    shift = len(_indentation(found)) - len(_indentation(old))
    margin = _indentation(found)
    lines = []
    for line in new.strip("\n").split("\n"):
        if shift >= 0:
            lines.append(margin[:shift] + line if line.strip() else line)
        else:
            lines.append(line[min(-shift, len(_indentation(line))) :])
    return "\n".join(lines)


def _indentation(text: str) -> str:
    """Returns the blanks before the first line that is not blank."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    return first[: len(first) - len(first.lstrip())]
