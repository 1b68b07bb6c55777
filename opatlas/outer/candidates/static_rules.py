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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from opatlas.outer.candidates import kernel_rules, process_rules
from opatlas.outer.candidates.judgement import ErrorClass, Judgement, Level
from opatlas.outer.candidates.source import CandidateSource, Finding
from opatlas.outer.candidates.text_checks import kernelbench_findings


@dataclass(frozen=True)
class StaticRule:
    """A rule on the source of a candidate.

    Attributes:
        name: the sub-class of the judgement.
        source: who uses the rule ("AKG", "KernelBench"), or a row of the list of known hacks ("hack 9").
        error_class: the class of the judgement; None for a note.
        finds: what the rule finds, for docs/candidates.md and for people.
        check: yields the findings; None for rules on a source that cannot be parsed.
        language: the language whose kernels the rule is for; "" for all.
    """

    name: str
    source: str
    error_class: ErrorClass | None
    finds: str
    check: Callable[[CandidateSource], Iterable[Finding]] | None
    language: str = ""


def _kernelbench(source: CandidateSource) -> Iterator[Finding]:
    if found := kernelbench_findings(source.text):
        yield 0, f"KernelBench's text checks find {', '.join(found)}"


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


_SYNTAX, _IMPORT, _RULE, _HACK = ErrorClass.SYNTAX, ErrorClass.IMPORT, ErrorClass.RULE, ErrorClass.HACK

#: All rules, in the order in which they are examined.
RULES = (
    StaticRule("empty_code", "AKG", _SYNTAX, "a file without a statement", None),
    StaticRule(
        "stray_chinese_text", "AKG", _SYNTAX, "three or more Chinese characters in code, outside of strings", None
    ),
    StaticRule("syntax_error", "AKG", _SYNTAX, "a text that Python cannot parse or compile", None),
    StaticRule("missing_module", "AKG", _IMPORT, "a module imported at the top that is not installed", None),
    StaticRule(
        "no_triton_kernel",
        "AKG",
        _RULE,
        "no function with a decorator of Triton",
        kernel_rules.no_triton_kernel,
        "triton",
    ),
    StaticRule(
        "triton_kernel_not_called",
        "AKG",
        _RULE,
        "no kernel is launched",
        kernel_rules.triton_kernel_not_called,
        "triton",
    ),
    StaticRule(
        "torch_api_instead_of_kernel",
        "AKG",
        _RULE,
        "`forward` calls matmul, einsum, linear, conv, softmax, embedding or their like of torch",
        kernel_rules.torch_api_instead_of_kernel,
        "triton",
    ),
    StaticRule(
        "torch_api_without_kernel",
        "AKG",
        _RULE,
        "`forward` calls a simpler operator of torch, and no kernel is launched",
        kernel_rules.torch_api_without_kernel,
        "triton",
    ),
    StaticRule(
        "autotune_missing_restore_value",
        "AKG",
        _RULE,
        "triton.autotune without restore_value, of a kernel that reads what it writes",
        kernel_rules.autotune_missing_restore_value,
        "triton",
    ),
    StaticRule("no_cuda_kernel", "KernelBench", _RULE, "no `__global__` function", kernel_rules.no_cuda_kernel, "cuda"),
    StaticRule(
        "fallback", "KernelBench, hack 26", _RULE, "an exception handler that does not raise", kernel_rules.fallback
    ),
    StaticRule(
        "inherited_forward",
        "KernelBench, hack 27",
        _RULE,
        "ModelNew is or inherits the task's Model",
        kernel_rules.inherited_forward,
    ),
    StaticRule("thread", "KernelBench, hack 7", _HACK, "starts a thread or a process", process_rules.thread),
    StaticRule(
        "tensor_subclass",
        "KernelBench, hack 8",
        _HACK,
        "a subclass of Tensor, or a dispatch mode",
        process_rules.tensor_subclass,
    ),
    StaticRule(
        "patched_function",
        "KernelBench, hacks 9, 10",
        _HACK,
        "sets or deletes an attribute of an imported module or of a built-in type; settings excepted",
        process_rules.patched_function,
    ),
    StaticRule("always_equal", "hack 10", _HACK, "a comparison that returns a constant", process_rules.always_equal),
    StaticRule(
        "ends_process", "hack 11", _HACK, "os._exit, sys.exit, signal handlers, atexit", process_rules.ends_process
    ),
    StaticRule(
        "looks_at_harness",
        "hacks 20, 21",
        _HACK,
        "frames of callers, gc.get_objects, sys.modules, imports of pytest or of OpAtlas' inside",
        process_rules.looks_at_harness,
    ),
    StaticRule("no_kernel", "hack 24", None, "neither a kernel of Triton nor of CUDA", kernel_rules.no_kernel),
    StaticRule(
        "torch_operator",
        "KernelBench, hack 24",
        None,
        "a function calls an operator of torch",
        kernel_rules.torch_operator,
    ),
    StaticRule("torch_layer", "KernelBench, hack 24", None, "makes a layer of torch.nn", kernel_rules.torch_layer),
    StaticRule("stream", "KernelBench, hack 6", None, "work on a stream of its own", process_rules.stream),
    StaticRule("precision", "KernelBench, hack 22", None, "float16, bfloat16, TF32, autocast", process_rules.precision),
    StaticRule("global_setting", "hack 23", None, "sets a setting of torch or Triton", process_rules.global_setting),
    StaticRule(
        "cache", "hacks 12 to 16", None, "keeps something between calls, compares addresses", process_rules.cache
    ),
    StaticRule(
        "compiled_or_captured",
        "hacks 31, 33",
        None,
        "torch.compile, torch.jit, CUDA graphs",
        kernel_rules.compiled_or_captured,
    ),
    StaticRule("hidden_code", "hack 20", None, "exec, eval, import by name", process_rules.hidden_code),
    StaticRule("outside", "hack 21", None, "reads files or the environment", process_rules.outside),
    StaticRule(
        "autotune_overwrites",
        "AKG",
        None,
        "triton.autotune without restore_value, of any other kernel; AKG fails it",
        kernel_rules.autotune_overwrites,
        "triton",
    ),
    StaticRule("kernelbench", "KernelBench", None, "the names of KernelBench's text checks that object", _kernelbench),
)

_BY_NAME = {rule.name: rule for rule in RULES}


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
    broken = [(_BY_NAME["stray_chinese_text"], found) for found in _stray_chinese_text(source)]
    try:
        parsed = CandidateSource.parse(source, path.name)
    except SyntaxError as error:
        return [*broken, (_BY_NAME["syntax_error"], (error.lineno or 0, error.msg))]
    if all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in parsed.tree.body):
        return [(_BY_NAME["empty_code"], (0, "the file holds no statement"))]
    beside = {each.stem for each in path.parent.glob("*.py")} if path.parent.is_dir() else set()
    findings = broken + [
        (_BY_NAME["missing_module"], (line, f"module {module} is not installed"))
        for line, module in _top_level_imports(parsed.tree.body)
        if module not in beside and module not in helpers and not installed(module)
    ]
    has_helpers = any(full.partition(".")[0] in beside | set(helpers) for full in parsed.imported.values())
    for rule in RULES:
        if rule.check is None or (rule.language and rule.language != (language or parsed.language)):
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
    order = (_SYNTAX, _IMPORT, _RULE, _HACK)
    failed = [(rule, found) for rule, found in findings if rule.error_class]
    if not failed:
        return None
    rule, (line, detail) = min(failed, key=lambda each: order.index(each[0].error_class or _HACK))
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
