"""The code in a model's answer: blocks, modifications, and what is refused."""

from __future__ import annotations

import json

import pytest

from opatlas.outer.generation.prompt import read_answer
from opatlas.outer.judging.judgement import ErrorClass, Judgement

FORMER = "class ModelNew:\n    def f(self):\n        x = 1\n        y = 2\n        return  x + y\n\n\nx = 1\n"


def answer(*changes: tuple[str, str]) -> str:
    return json.dumps({"modifications": [{"old_string": old, "new_string": new, "reason": ""} for old, new in changes]})


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```python\nuse()\n```\nand\n```python\nclass ModelNew: ...\n```", "class ModelNew: ...\n"),
        ("```python\nx = 1\n```\nagain\n```python\nx = 1\n```", "x = 1\n"),
        ("```text\nno code\n```\n```py\nx = 1\n```", "x = 1\n"),
        ("<think>```python\nwrong\n```</think>```python\nx = 1\n```", "x = 1\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
    ],
)
def test_the_code_block_of_an_answer(text: str, source: str) -> None:
    assert read_answer(text) == source


@pytest.mark.parametrize(
    "form", ["{}", "```json\n{}\n```", "The error is:\n```\n{}\n```", "Change this: {} and run it."]
)
def test_modifications_are_found(form: str) -> None:
    changed = read_answer(form.format(answer(("y = 2", "y = 3"))), FORMER)
    assert changed == FORMER.replace("y = 2", "y = 3")


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        ("        y = 2", "        y = 3\n        z = 4", "        y = 2\n", "        y = 3\n        z = 4\n"),
        # Without the indentation of the code, which the new lines get.
        ("x = 1\ny = 2", "x = 5\nif x:\n    y = 6", "x = 1\n        y = 2", "x = 5\n        if x:\n            y = 6"),
        ("            y = 2  ", "            y = 6", "        y = 2\n", "        y = 6\n"),
        ("\nreturn x +  y\n", "return x", "        return  x + y\n", "        return x\n"),
    ],
)
def test_three_steps_find_a_string(old: str, new: str, before: str, after: str) -> None:
    assert read_answer(answer((old, new)), FORMER) == FORMER.replace(before, after, 1)


def test_a_modification_sees_those_before_it() -> None:
    assert read_answer(answer(("y = 2", "y = 7"), ("y = 7", "y = 8")), FORMER) == FORMER.replace("y = 2", "y = 8")


@pytest.mark.parametrize(
    ("text", "sub_class"),
    [
        ("I cannot do that.", "no_code"),
        ("", "no_code"),
        ("```python\n\n```", "no_code"),
        ("```python\nx = 1\n```\n```python\ny = 1\n```", "several_blocks"),
        ("```python\nclass ModelNew: 1\n```\n```python\nclass ModelNew: 2\n```", "several_blocks"),
        ("```python\nclass ModelNew:\n    def f(", "cut"),
        ('{"modifications": [{"old_string": "y', "malformed"),
        ('{"modifications": []}', "malformed"),
        ('{"modifications": [{"old_string": "y"}]}', "malformed"),
        (answer(("y = 2", "y = 2")), "no_change"),
        (answer((" ", "y = 2")), "no_change"),
        (answer(("q = 2", "q = 3")), "not_found"),
        (answer(("x = 1", "x = 2")), "ambiguous"),
        (answer(("y = 2", "y = 3"), ("y = 2", "y = 4")), "not_found"),
    ],
)
def test_what_is_refused(text: str, sub_class: str) -> None:
    refused = read_answer(text, FORMER)
    assert isinstance(refused, Judgement)
    assert (refused.error_class, refused.sub_class, refused.level) == (ErrorClass.ANSWER, sub_class, None)
    assert refused.text


def test_the_source_can_be_written_to_a_file() -> None:
    changed = read_answer('{"modifications": [{"old_string": "y = 2", "new_string": "y = \'\\ud800\'"}]}', FORMER)
    assert isinstance(changed, str)
    assert b"y = '?'" in changed.encode("utf-8")


def test_a_first_answer_cannot_modify() -> None:
    refused = read_answer(answer(("y = 2", "y = 3")))
    assert isinstance(refused, Judgement)
    assert refused.sub_class == "nothing_to_modify"
