"""Judges the source of a candidate by rules on its syntax tree (level L1). The candidate is not imported.

A rule of class syntax or rule fails the candidate; a note fails nothing. The classes are examined in this order, and
the first finding decides. Many rules are AKG's and KernelBench's. What a candidate does when it runs is no matter of
rules.
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from opatlas.grouping import grouped
from opatlas.outer.judging.judgement import TORCH_WORKS, ErrorClass, Judgement, Level

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
    if source.error is None and source.is_empty:
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
    text: str, path: Path, *, language: str = "", helpers: Collection[str] = ()
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


Function = ast.FunctionDef | ast.AsyncFunctionDef

#: A kernel of CUDA or HIP in a string of the candidate.
_NATIVE_KERNEL = re.compile(r"__global__\s")
#: Its name. The return type may have qualifiers before and behind.
_NATIVE_NAME = re.compile(
    r"__global__\s+(?:(?:static|inline|__forceinline__|extern|\"C\"|__launch_bounds__\s*\([^)]*\))\s+)*"
    r"void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\("
)
_NATIVE_BUILD = re.compile(r"\b(?:load_inline|cpp_extension|CUDAExtension|RawKernel|RawModule|nvrtc)\b")
_DECORATORS_OF_TRITON = frozenset({"jit", "autotune", "heuristics"})


class CandidateSource:
    """The source of a candidate.

    Attributes:
        tree: its syntax tree, without the blocks that never run here: those of `if __name__ == "__main__"`, of
            `if TYPE_CHECKING` and of a constant that is false. Without a statement where there is an error.
        asked: the language that the candidate has to be written in; "" for any.
        helpers: modules that it can import besides installed ones.
        error: why the text is not Python, or Python cannot compile it ("'return' outside function").
    """

    def __init__(
        self, text: str, name: str = "candidate", asked: str = "", helpers: frozenset[str] = frozenset()
    ) -> None:
        self.asked, self.helpers = asked, helpers
        self.tree = ast.Module([], [])
        self.error: SyntaxError | None = None
        try:
            # An odd escape in a string of CUDA is no matter for the user's terminal.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(whole := ast.parse(text, name), name, "exec", dont_inherit=True)
                self.tree.body = list(_run_on_import(whole.body))
        except SyntaxError as error:
            self.error = error
        except (ValueError, RecursionError, MemoryError) as error:
            self.error = SyntaxError(f"{type(error).__name__}: {error}")

    @property
    def is_empty(self) -> bool:
        """Whether it holds no statement but texts; also where there is an error."""
        return all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in self.tree.body)

    @property
    def uses_helpers(self) -> bool:
        """Whether it imports a helper, which may hold its kernels."""
        return any(full.partition(".")[0] in self.helpers for full in self.imported.values())

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def imported(self) -> dict[str, str]:
        """The full names behind the imported names: {"F": "torch.nn.functional"}. Relative imports are left out."""
        names: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    names[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        return names

    def full_name(self, node: ast.AST) -> str:
        """Returns the full name of an imported or built-in thing ("torch.cuda.synchronize"); "" for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        root = self.imported.get(node.id) or (node.id if hasattr(builtins, node.id) else "")
        return ".".join([root, *reversed(parts)]) if root else ""

    @cached_property
    def calls(self) -> tuple[tuple[ast.Call, str], ...]:
        """All calls, with the full names of the called functions."""
        return tuple((node, self.full_name(node.func)) for node in self.nodes if isinstance(node, ast.Call))

    @cached_property
    def functions(self) -> dict[str, list[Function]]:
        """All functions and methods by name."""
        return grouped((node.name, node) for node in self.nodes if isinstance(node, Function))

    @cached_property
    def triton_kernels(self) -> dict[str, Function]:
        """The functions with a decorator of Triton."""
        return {
            name: function
            for name, functions in self.functions.items()
            for function in functions
            if any(self._is_of_triton(decorator) for decorator in function.decorator_list)
        }

    def _is_of_triton(self, decorator: ast.expr) -> bool:
        name = self.full_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
        return name.startswith("triton.") and name.rpartition(".")[2] in _DECORATORS_OF_TRITON

    @cached_property
    def strings(self) -> tuple[tuple[int, str], ...]:
        """Line and text of the strings; docstrings are left out."""
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = {
            id(node.body[0].value)
            for node in self.nodes
            if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
        }
        return tuple(
            (node.lineno, node.value)
            for node in self.nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        )

    @cached_property
    def native_kernels(self) -> tuple[tuple[int, str], ...]:
        """Line and text of the strings that hold a kernel of CUDA or HIP."""
        return tuple(each for each in self.strings if _NATIVE_KERNEL.search(each[1]))

    def own_kernels(self, helpers: Iterable[str] = ()) -> frozenset[str]:
        """Returns the names of the kernels in Triton, in strings, and in the texts of helper files (.cu, .cpp)."""
        texts = (*(text for _, text in self.native_kernels), *helpers)
        return frozenset(self.triton_kernels) | {name for text in texts for name in _NATIVE_NAME.findall(text)}

    @cached_property
    def language(self) -> str:
        """The language of the kernels: "triton", "cuda", or "torch" without a kernel."""
        if self.triton_kernels or any(name.partition(".")[0] == "triton" for name in self.imported.values()):
            return "triton"
        if self.native_kernels or _NATIVE_BUILD.search(" ".join(self.imported.values())):
            return "cuda"
        return "torch"

    @cached_property
    def model(self) -> ast.ClassDef | None:
        """The class ModelNew."""
        classes = [node for node in self.nodes if isinstance(node, ast.ClassDef) and node.name == "ModelNew"]
        return classes[-1] if classes else None

    @cached_property
    def forward_functions(self) -> tuple[Function, ...]:
        """The functions that a call of the candidate reaches by their names, kernels of Triton left out.

        The call starts at `forward` or `__call__` of ModelNew; at every function without ModelNew.
        """
        if self.model is None:
            start = [function for functions in self.functions.values() for function in functions]
        else:
            start = [each for each in self.model.body if isinstance(each, Function) and each.name in _ENTRIES]
        reached: dict[int, Function] = {}
        while start:
            function = start.pop()
            if id(function) in reached or function.name in self.triton_kernels:
                continue
            reached[id(function)] = function
            for name in _named_functions(function):
                start += self.functions.get(name, ())
        return tuple(reached.values())


_ENTRIES = ("forward", "__call__")
#: Tests that are false where a candidate is imported.
_FALSE_HERE = frozenset({"__name__ == '__main__'", "'__main__' == __name__", "TYPE_CHECKING", "False", "0"})


def _run_on_import(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements at the top of a source that an import runs."""
    for statement in body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) in _FALSE_HERE:
            yield from _run_on_import(statement.orelse)
        else:
            yield statement


def _named_functions(function: Function) -> Iterator[str]:
    """Yields the names of plain functions and of methods of `self` that a function mentions."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            yield node.attr
        elif isinstance(node, ast.Attribute) and node.attr == "apply":
            # torch.autograd.Function: Kernel.apply(x) runs Kernel.forward.
            yield "forward"
