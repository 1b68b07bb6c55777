"""Rules on a source: what a candidate does to its process, to the precision, and beside its call."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from opatlas.outer.judging.judgement import ErrorClass
from opatlas.outer.judging.source import CandidateSource, Finding, Function, constant_truth, rule

_THREADS = re.compile(
    r"threading\.(?:Thread|Timer)|thread\.start_new_thread|concurrent\.futures\.\w*Executor"
    r"|multiprocessing\.(?:(?:dummy|pool|context)\.)?(?:Process|Pool|Manager|ThreadPool)|os\.fork"
    r"|torch\.multiprocessing\.(?:Process|spawn)|asyncio\.to_thread|torch\.jit\.fork"
)
_NATIVE_THREADS = re.compile(r"\bstd::(?:thread|jthread|async)\b|\bpthread_create\b|\bcudaLaunchHostFunc\b")
_DISPATCH = frozenset({"__torch_function__", "__torch_dispatch__"})
#: Settings of torch and Triton, which the guards restore.
_SETTING = re.compile(r"torch\.backends\..+|(?:torch|triton)\.(?:.*\.)?(?:config|knobs)\..+")
_COMPARISONS = frozenset(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__"])
_ENDS = re.compile(r"os\.(?:_exit|abort|kill|killpg|exec\w+)|sys\.exit|exit|quit|signal\.\w+|atexit\.register")
_FRAMES = re.compile(
    r"inspect\.(?:stack|trace|currentframe|getouterframes|getinnerframes)|sys\.(?:_getframe|_current_frames|settrace"
    r"|setprofile|exc_info)|gc\.get_(?:objects|referrers|referents)|traceback\.(?:extract_stack|walk_stack|format_stack)"
    r"|threading\.(?:settrace|setprofile)"
)
_HARNESS = re.compile(r"(?:_pytest|pytest|conftest)(?:\..+)?|opatlas\.(?!implements|Prepared|Unsupported).+")
_HALF_TYPES = frozenset(
    {"torch.float16", "torch.half", "torch.bfloat16", "triton.language.float16", "triton.language.bfloat16"}
)
_NATIVE_HALF = re.compile(
    r"\b__float2half(?:_rn)?\b|\b__float2bfloat16\b|\(\s*__half\s*\)|static_cast<\s*(?:__half|half)\s*>"
)


def _called(source: CandidateSource, names: re.Pattern[str], what: str) -> Iterator[Finding]:
    return ((call.lineno, f"{name} {what}") for call, name in source.calls if names.fullmatch(name))


def _in_strings(source: CandidateSource, code: re.Pattern[str], what: str, having: str = "") -> Iterator[Finding]:
    """Yields the first place that a pattern fits in each string, such as a source of CUDA."""
    for line, text in source.strings:
        if (match := code.search(text)) and having in text:
            yield line + text.count("\n", 0, match.start()), f"{match[0]} {what}"


def _changed_names(source: CandidateSource) -> Iterator[tuple[int, str]]:
    """Yields line and full name of the attributes of imported modules that the candidate sets or deletes."""
    for node in source.nodes:
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            inner = node.value if isinstance(node, ast.Subscript) else node
            if isinstance(node, ast.Subscript) and isinstance(inner, ast.Call):
                name = source.full_name(inner.func)
                if name in ("globals", "locals"):
                    continue
                name = source.full_name(inner.args[0]) if name == "vars" and inner.args else ""
            else:
                name = source.full_name(inner)
            if name and not name.startswith("os.environ"):
                yield node.lineno, name
    for call, name in source.calls:
        if name in ("setattr", "delattr") and len(call.args) >= 2 and (target := source.full_name(call.args[0])):
            attribute = call.args[1]
            yield call.lineno, f"{target}.{str(attribute.value) if isinstance(attribute, ast.Constant) else '...'}"
        elif name.startswith("unittest.mock.patch") or name == "importlib.reload":
            yield call.lineno, name


@rule(ErrorClass.HACK, "KernelBench, hack 7")
def thread(source: CandidateSource) -> Iterator[Finding]:
    """starts a thread or a process"""
    yield from _called(source, _THREADS, "starts work beside the call")
    yield from _in_strings(source, _NATIVE_THREADS, "starts work beside the call", "#include")


@rule(ErrorClass.HACK, "KernelBench, hack 8")
def tensor_subclass(source: CandidateSource) -> Iterator[Finding]:
    """a subclass of Tensor, or a dispatch mode"""
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            names = {source.full_name(base) for base in node.bases}
            if names & {"torch.Tensor", "torch._C.TensorBase"} or any(
                name.endswith(("TorchDispatchMode", "TorchFunctionMode")) for name in names
            ):
                yield node.lineno, f"class {node.name} derives from {ast.unparse(node.bases[0])}"
        elif isinstance(node, Function) and node.name in _DISPATCH:
            yield node.lineno, f"{node.name} changes what torch's functions do"
        elif isinstance(node, ast.Attribute) and (
            node.attr in ("_make_subclass", "_make_wrapper_subclass")
            or source.full_name(node) == "torch.Tensor.__new__"
        ):
            yield node.lineno, f"{node.attr} makes a tensor that may compute later"


@rule(ErrorClass.HACK, "KernelBench, hacks 9, 10")
def patched_function(source: CandidateSource) -> Iterator[Finding]:
    """sets or deletes an attribute of an imported module or of a built-in type; settings excepted"""
    for line, name in _changed_names(source):
        if not _SETTING.fullmatch(name):
            yield line, f"{name} is changed for the whole process"


@rule(ErrorClass.HACK, "hack 10")
def always_equal(source: CandidateSource) -> Iterator[Finding]:
    """a comparison that returns a constant"""
    for name in _COMPARISONS & source.functions.keys():
        for function in source.functions[name]:
            if constant_truth(function.body) is not None:
                yield function.lineno, f"{name} gives the same answer for everything"


@rule(ErrorClass.HACK, "hack 11")
def ends_process(source: CandidateSource) -> Iterator[Finding]:
    """os._exit, sys.exit, signal handlers, atexit"""
    yield from _called(source, _ENDS, "ends the process, or changes how it ends")
    for node in source.nodes:
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if source.full_name(raised) in ("SystemExit", "KeyboardInterrupt"):
                yield node.lineno, "SystemExit ends the process"


@rule(ErrorClass.HACK, "hacks 20, 21")
def looks_at_harness(source: CandidateSource) -> Iterator[Finding]:
    """frames of callers, gc.get_objects, sys.modules, imports of pytest or of OpAtlas' inside"""
    yield from _called(source, _FRAMES, "looks at the caller, or at objects that are not the candidate's")
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and source.full_name(node) == "sys.modules":
            yield node.lineno, "sys.modules gives access to modules that are not the candidate's"
    for name in sorted(set(source.imported.values())):
        if _HARNESS.fullmatch(name):
            yield 0, f"imports {name}, a part of what measures it"


@rule(None, "KernelBench, hack 22")
def precision(source: CandidateSource) -> Iterator[Finding]:
    """float16, bfloat16, TF32, autocast"""
    for call, name in source.calls:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        types = {source.full_name(each) for each in (*call.args, *(each.value for each in call.keywords))}
        if method in ("half", "bfloat16") and not call.args:
            yield call.lineno, f".{method}() lowers the precision"
        elif method == "to" and (lower := types & _HALF_TYPES):
            yield call.lineno, f".to({min(lower)}) lowers the precision"
        elif "autocast" in name:
            yield call.lineno, f"{name} lowers the precision"
        elif name == "torch.set_float32_matmul_precision":
            yield call.lineno, "torch.set_float32_matmul_precision allows TF32 or bfloat16"
    for line, name in _changed_names(source):
        if name.endswith(("allow_tf32", "allow_fp16_reduced_precision_reduction", "fp32_precision")):
            yield line, f"{name} changes the precision of products"
    yield from _in_strings(source, _NATIVE_HALF, "lowers the precision")
