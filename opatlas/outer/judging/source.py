"""The syntax tree of a candidate, with imported names resolved. The candidate is not imported."""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

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
        self,
        text: str,
        name: str = "candidate",
        asked: str = "",
        helpers: frozenset[str] = frozenset(),
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
        found: dict[str, list[Function]] = {}
        for node in self.nodes:
            if isinstance(node, Function):
                found.setdefault(node.name, []).append(node)
        return found

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
