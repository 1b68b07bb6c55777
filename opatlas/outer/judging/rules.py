"""Judges the source of a candidate by rules on its syntax tree (level L1). The candidate is not imported.

A rule of class syntax or rule fails the candidate; a note fails nothing. The classes are examined in this order, and
the first finding decides. Many rules are AKG's and KernelBench's. What a candidate does when it runs is no matter of
rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opatlas.outer.judging.judgement import TORCH_WORKS, ErrorClass, Judgement, Level
from opatlas.outer.judging.source import CandidateSource

#: Line and detail of what a rule objects to. Line 0 is the whole file.
Finding = tuple[int, str]


@dataclass(frozen=True)
class StaticRule:
    """A rule on the source of a candidate.

    Attributes:
        name: the sub-class of the judgement.
        source: who uses the rule ("AKG", "KernelBench"), or a row of the list of known hacks ("hack 9").
        error_class: the class of the judgement; None for a note.
        finds: what the rule finds, for docs/candidates.md.
        check: yields the findings.
        language: the language whose kernels the rule is for; "" for all.
    """

    name: str
    source: str
    error_class: ErrorClass | None
    finds: str
    check: Callable[[CandidateSource], Iterable[Finding]]
    language: str = ""


#: All rules, in the order in which they are defined.
_DEFINED: list[StaticRule] = []


def rule(
    error_class: ErrorClass | None, source: str, language: str = ""
) -> Callable[[Callable[[CandidateSource], Iterable[Finding]]], StaticRule]:
    """Makes a function the rule of its name, whose docstring says what the rule finds."""

    def made(check: Callable[[CandidateSource], Iterable[Finding]]) -> StaticRule:
        _DEFINED.append(StaticRule(check.__name__, source, error_class, check.__doc__ or "", check, language))
        return _DEFINED[-1]

    return made


@rule(ErrorClass.SYNTAX, "AKG")
def empty_code(source: CandidateSource) -> Iterator[Finding]:
    """a file without a statement"""
    body = source.tree.body
    if source.error is None and all(
        isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in body
    ):
        yield 0, "the file holds no statement"


@rule(ErrorClass.SYNTAX, "AKG")
def syntax_error(source: CandidateSource) -> Iterable[Finding]:
    """a text that Python cannot parse or compile"""
    return () if source.error is None else [(source.error.lineno or 0, source.error.msg)]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Operators that a kernel has to compute itself. Names: AKG, code_checker.yaml (Apache-2.0), torch_compute_ops_hard.
_HARD = _names(
    "matmul mm bmm addmm addmv addbmm baddbmm einsum dot mv inner outer linear conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d softmax log_softmax logsumexp embedding"
)
#: Those of them that are methods of tensors, too.
_HARD_METHODS = _names("matmul mm bmm addmm mv softmax log_softmax logsumexp")
_TORCH_FUNCTIONS = ("torch", "torch.nn.functional", "torch.special", "torch.linalg")


@rule(ErrorClass.RULE, "AKG", "triton")
def no_triton_kernel(source: CandidateSource) -> Iterator[Finding]:
    """no function with a decorator of Triton"""
    if not source.triton_kernels and not source.uses_helpers:
        yield 0, "no function has a decorator triton.jit, triton.autotune or triton.heuristics"


@rule(ErrorClass.RULE, "AKG", "triton")
def triton_kernel_not_called(source: CandidateSource) -> Iterator[Finding]:
    """no kernel is launched"""
    # kernel[grid](...), launcher = kernel[grid], kernel.run(...)
    is_launched = any(
        isinstance(node, (ast.Subscript, ast.Attribute))
        and any(isinstance(name, ast.Name) and name.id in source.triton_kernels for name in ast.walk(node.value))
        for node in source.nodes
    )
    if source.triton_kernels and not is_launched:
        names = ", ".join(sorted(source.triton_kernels))
        yield min(each.lineno for each in source.triton_kernels.values()), f"no kernel[grid](...) launches {names}"


@rule(ErrorClass.RULE, "AKG", "triton")
def torch_api_instead_of_kernel(source: CandidateSource) -> Iterator[Finding]:
    """`forward` calls matmul, einsum, linear, conv, softmax, embedding or their like of torch"""
    for function in source.forward_functions:
        parameters = {each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
        for node in ast.walk(function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                yield node.lineno, "@ computes; a kernel has to"
            elif isinstance(node, ast.Call):
                full = source.full_name(node.func)
                module, _, name = full.rpartition(".")
                if not full and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                    # A method of a tensor that the function is called with.
                    module, name = node.func.value.id, node.func.attr
                    is_hard = module in parameters - {"self"} and name in _HARD_METHODS
                else:
                    is_hard = module in _TORCH_FUNCTIONS and name in _HARD
                if is_hard:
                    yield node.lineno, f"{module}.{name} computes; a kernel has to"


@rule(ErrorClass.RULE, "KernelBench", "cuda")
def no_cuda_kernel(source: CandidateSource) -> Iterator[Finding]:
    """no `__global__` function"""
    # A candidate that nobody asked to hold a kernel may call a library from C++.
    if source.asked and not source.native_kernels and not source.uses_helpers:
        yield 0, "no string holds a __global__ function"


@rule(ErrorClass.RULE, "KernelBench, hack 26")
def fallback(source: CandidateSource) -> Iterator[Finding]:
    """an exception handler that does not raise"""
    guarded_imports = {
        id(node)
        for node in source.nodes
        if isinstance(node, ast.Try) and all(isinstance(each, (ast.Import, ast.ImportFrom)) for each in node.body)
    }
    for node in source.nodes:
        if isinstance(node, ast.Try | getattr(ast, "TryStar", ast.Try)) and id(node) not in guarded_imports:
            for handler in node.handlers:
                if not any(isinstance(each, ast.Raise) for each in ast.walk(handler)):
                    yield handler.lineno, "an exception handler does not raise: another code may compute the result"
    for call, name in source.calls:
        if name == "contextlib.suppress":
            yield call.lineno, "contextlib.suppress hides an exception: another code may compute the result"


@rule(None, "hack 24")
def no_kernel(source: CandidateSource) -> Iterator[Finding]:
    """neither a kernel of Triton nor of CUDA, nor what compiles or loads code; in torch: a call of the operator"""
    if source.asked == "torch":
        operators = {name.partition("__")[0].strip("_") for name in source.functions if name.endswith(_IMPLEMENTS)}
        for call, full in source.calls:
            names = {*full.split("."), call.func.attr if isinstance(call.func, ast.Attribute) else ""}
            if operators & names:
                yield call.lineno, f"calls the operator itself: {TORCH_WORKS}"
        return
    compiles = any(_COMPILERS.match(name) for name in source.imported.values())
    if not (source.triton_kernels or source.native_kernels or source.uses_helpers or compiles):
        yield 0, f"no kernel of its own: {TORCH_WORKS}"


#: How the name of a function ends that implements an operator.
_IMPLEMENTS = "_kernel_impl"
_COMPILERS = re.compile(r"torch\.utils\.cpp_extension|(?:numba|ctypes|cffi|cupy|cutlass|tilelang|warp|jax)\b")


_ORDER = (ErrorClass.SYNTAX, ErrorClass.RULE, None)
#: All rules, in the order in which they are examined.
RULES = sorted(_DEFINED, key=lambda each: _ORDER.index(each.error_class))
#: The number of rules of class syntax, which come first.
_OF_TEXT = sum(each.error_class is ErrorClass.SYNTAX for each in RULES)


def judge_source(
    text: str,
    path: Path,
    *,
    language: str = "",
    helpers: Collection[str] = (),
) -> tuple[Judgement | None, tuple[str, ...]]:
    """Returns the judgement of a candidate that fails a rule, else None; and its notes, one of a rule at most.

    Args:
        text: the source.
        path: its file. Modules beside it can be imported.
        language: "triton", "cuda" or "torch" if the candidate has to be written in it. "": what its imports and kernels
            say.
        helpers: further modules that can be imported.
    """
    beside = {each.stem for each in path.parent.glob("*.py")} if path.parent.is_dir() else set()
    source = CandidateSource(text, path.name, language, frozenset({*beside, *helpers}))
    failed: tuple[ErrorClass, str, str] | None = None
    notes: list[str] = []
    for each in RULES if source.error is None else RULES[:_OF_TEXT]:
        if each.language not in ("", language or source.language):
            continue
        for line, detail in sorted(each.check(source))[:1]:
            if each.error_class is None:
                notes.append(f"{each.name}: {f'line {line}: ' if line else ''}{detail}")
            elif failed is None:
                failed = each.error_class, each.name, f"{path.name}{f':{line}' if line else ''}: {detail}"
    if failed is None:
        return None, tuple(notes)
    error_class, name, text = failed
    return Judgement(error_class, name, Level.ANSWER, text, notes=tuple(notes)), tuple(notes)
