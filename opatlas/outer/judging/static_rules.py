"""Judges the source of a candidate by rules on its syntax tree (level L1). The candidate is not imported.

RULES is the table of all rules. A rule of class syntax, import, rule or hack fails the candidate; a note is told and
fails nothing. The classes are examined in this order, and the first finding decides.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from opatlas.outer.judging import kernel_rules, process_rules
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level
from opatlas.outer.judging.source import CandidateSource, Finding, StaticRule

_CHINESE = re.compile(r"[\u4e00-\u9fff]{3,}")
#: Tokens of code. From Python 3.12 on the text of an f-string is a token of its own, and no code.
_CODE = frozenset({tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.ERRORTOKEN})


def _stray_chinese_text(text: str) -> Iterator[Finding]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in _CODE and (match := _CHINESE.search(token.string)):
                yield token.start[0], f"{match[0]!r} stands in the code"
    except (tokenize.TokenError, SyntaxError):
        # The text behind this place cannot be split into tokens; syntax_error tells so.
        return


_ORDER = (ErrorClass.SYNTAX, ErrorClass.IMPORT, ErrorClass.RULE, ErrorClass.HACK, None)


def _unparsed(name: str, error_class: ErrorClass, finds: str) -> StaticRule:
    """Returns a rule that `static_findings` applies itself."""
    return StaticRule(name, "AKG", error_class, finds, lambda source: ())


_EMPTY = _unparsed("empty_code", ErrorClass.SYNTAX, "a file without a statement")
_CHINESE_TEXT = _unparsed(
    "stray_chinese_text", ErrorClass.SYNTAX, "three or more Chinese characters in code, outside of strings"
)
_SYNTAX = _unparsed("syntax_error", ErrorClass.SYNTAX, "a text that Python cannot parse or compile")
_MISSING = _unparsed("missing_module", ErrorClass.IMPORT, "a module imported at the top that is not installed")
_ON_TREES = [
    each for module in (kernel_rules, process_rules) for each in vars(module).values() if isinstance(each, StaticRule)
]
#: All rules, in the order in which they are examined.
RULES = (
    _EMPTY,
    _CHINESE_TEXT,
    _SYNTAX,
    _MISSING,
    *sorted(_ON_TREES, key=lambda rule: _ORDER.index(rule.error_class)),
)


def is_installed(module: str) -> bool:
    """Returns whether a top-level module can be imported here. The module is not imported."""
    try:
        return find_spec(module) is not None
    except (ValueError, ImportError):
        return False


def static_findings(
    source: str,
    path: Path,
    *,
    language: str = "",
    installed: Callable[[str], bool] = is_installed,
    helpers: Collection[str] = (),
) -> list[tuple[StaticRule, Finding]]:
    """Returns the findings of all rules, in the order of RULES. The first one with an error class decides.

    Args:
        source: the text of the candidate.
        path: its file. Modules beside it can be imported.
        language: "triton" or "cuda" if the candidate has to be written in it. "": what its imports and kernels say.
        installed: tells whether a top-level module can be imported.
        helpers: further modules that can be imported.
    """
    broken = [(_CHINESE_TEXT, found) for found in _stray_chinese_text(source)]
    try:
        parsed = CandidateSource.parse(source, path.name)
    except SyntaxError as error:
        return [*broken, (_SYNTAX, (error.lineno or 0, error.msg))]
    if all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in parsed.tree.body):
        return [(_EMPTY, (0, "the file holds no statement"))]
    beside = {each.stem for each in path.parent.glob("*.py")} if path.parent.is_dir() else set()
    findings = broken + [
        (_MISSING, (line, f"module {module} is not installed"))
        for line, module in _top_level_imports(parsed.tree.body)
        if module not in beside and module not in helpers and not installed(module)
    ]
    has_helpers = any(full.partition(".")[0] in beside | set(helpers) for full in parsed.imported.values())
    for rule in RULES:
        if rule.language and rule.language != (language or parsed.language):
            continue
        if rule.name in ("no_triton_kernel", "no_cuda_kernel") and has_helpers:
            # The kernels may be in a helper.
            continue
        if rule.name == "no_cuda_kernel" and not language:
            # A candidate that nobody asked to hold a kernel may call a library from C++.
            continue
        findings += [(rule, found) for found in sorted(rule.check(parsed))]
    return findings


def _top_level_imports(body: Iterable[ast.stmt]) -> Iterator[tuple[int, str]]:
    """Yields line and top-level name of the modules that the import of the candidate needs.

    Imports in functions, in `try` and behind `if` are left out, since the candidate may do without.
    """
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.lineno, node.module.partition(".")[0]
        elif isinstance(node, ast.ClassDef | ast.With):
            yield from _top_level_imports(node.body)


def static_check(
    source: str,
    path: Path,
    *,
    language: str = "",
    installed: Callable[[str], bool] = is_installed,
    helpers: Collection[str] = (),
) -> Judgement | None:
    """Returns the judgement of a candidate that fails a rule, with its notes; None if no rule fails it.

    The arguments are those of `static_findings`.
    """
    findings = static_findings(source, path, language=language, installed=installed, helpers=helpers)
    failed = [(rule, found) for rule, found in findings if rule.error_class]
    if not failed:
        return None
    rule, (line, detail) = min(failed, key=lambda each: _ORDER.index(each[0].error_class))
    assert rule.error_class is not None
    at = f"{path.name}:{line}" if line else path.name
    return Judgement(rule.error_class, rule.name, Level.ANSWER, f"{at}: {detail}", notes=_notes(findings))


def static_notes(source: str, path: Path) -> tuple[str, ...]:
    """Returns the notes of a candidate: the first finding of each rule that fails nothing."""
    return _notes(static_findings(source, path))


def _notes(findings: Iterable[tuple[StaticRule, Finding]]) -> tuple[str, ...]:
    notes: dict[str, str] = {}
    for rule, (line, detail) in findings:
        if rule.error_class is None:
            notes.setdefault(rule.name, f"{rule.name}: {f'line {line}: ' if line else ''}{detail}")
    return tuple(notes.values())
