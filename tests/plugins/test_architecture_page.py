"""docs/architecture.md quotes the way of a row, and lists the hooks whose order matters."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from opatlas.plugins import replay_session

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_the_page_quotes_the_steps_of_a_session() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert (replay_session.__doc__ or "").strip() in page


def test_the_page_lists_the_hooks_that_have_an_order() -> None:
    ordered = set()
    for file in Path(replay_session.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
            name = owner.name if isinstance(owner, ast.ClassDef) else file.name
            for hook in owner.body:
                decorators = map(ast.unparse, hook.decorator_list) if isinstance(hook, ast.FunctionDef) else ()
                for place in re.findall(r"try(first|last)=True", " ".join(decorators)):
                    ordered.add((hook.name, name, place))
    rows = re.findall(
        r"^\| `(pytest_\w+)` \| (`.*?`) \| (first|last)\b", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert ordered == {(hook, who, place) for hook, names, place in rows for who in re.findall(r"`(.*?)`", names)}
