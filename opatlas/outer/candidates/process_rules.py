"""Finds what a candidate does to its process, to the precision, and beside its call, from its source.

Each function yields line and detail of what it objects to; `static_rules.RULES` says what that means.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from opatlas.outer.candidates.source import CandidateSource, Finding, Function, constant_truth

_THREADS = re.compile(
    r"threading\.(?:Thread|Timer)|thread\.start_new_thread|concurrent\.futures\.\w*Executor"
    r"|multiprocessing\.(?:(?:dummy|pool|context)\.)?(?:Process|Pool|Manager|ThreadPool)|os\.fork"
    r"|torch\.multiprocessing\.(?:Process|spawn)|asyncio\.to_thread|torch\.jit\.fork"
)
_NATIVE_THREADS = re.compile(r"\bstd::(?:thread|jthread|async)\b|\bpthread_create\b|\bcudaLaunchHostFunc\b")


def thread(source: CandidateSource) -> Iterator[Finding]:
    for call, name in source.calls:
        if _THREADS.fullmatch(name):
            yield call.lineno, f"{name} starts work beside the call"
    for line, text in source.strings:
        if (match := _NATIVE_THREADS.search(text)) and "#include" in text:
            yield line + text.count("\n", 0, match.start()), f"{match[0]} starts work beside the call"


_DISPATCH = frozenset({"__torch_function__", "__torch_dispatch__"})


def tensor_subclass(source: CandidateSource) -> Iterator[Finding]:
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            names = {source.full_name(base) for base in node.bases}
            if names & {"torch.Tensor", "torch._C.TensorBase"} or any(
                name.endswith(("TorchDispatchMode", "TorchFunctionMode")) for name in names
            ):
                yield node.lineno, f"class {node.name} derives from {ast.unparse(node.bases[0])}"
        elif isinstance(node, Function) and node.name in _DISPATCH:
            yield node.lineno, f"{node.name} changes what torch's functions do"
        elif isinstance(node, ast.Attribute) and node.attr in ("_make_subclass", "_make_wrapper_subclass"):
            yield node.lineno, f"{node.attr} makes a tensor that may compute later"
        elif isinstance(node, ast.Attribute) and source.full_name(node) == "torch.Tensor.__new__":
            yield node.lineno, "torch.Tensor.__new__ makes a tensor that may compute later"


#: Settings of torch and Triton, which the guards restore.
_SETTING = re.compile(r"torch\.backends\..+|(?:torch|triton)\.(?:.*\.)?(?:config|knobs)\..+")


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


def patched_function(source: CandidateSource) -> Iterator[Finding]:
    for line, name in _changed_names(source):
        if not _SETTING.fullmatch(name):
            yield line, f"{name} is changed for the whole process"


def global_setting(source: CandidateSource) -> Iterator[Finding]:
    for line, name in _changed_names(source):
        if _SETTING.fullmatch(name):
            yield line, f"{name} is changed for the whole process"
    for call, name in source.calls:
        if re.fullmatch(r"torch\.(?:set_\w+|use_deterministic_algorithms|backends\..+|_inductor\.config\.\w+)", name):
            yield call.lineno, f"{name} changes a setting of the whole process"


_FRAMES = re.compile(
    r"inspect\.(?:stack|trace|currentframe|getouterframes|getinnerframes)|sys\.(?:_getframe|_current_frames|settrace"
    r"|setprofile|exc_info)|gc\.get_(?:objects|referrers|referents)|traceback\.(?:extract_stack|walk_stack|format_stack)"
    r"|threading\.(?:settrace|setprofile)"
)
_HARNESS = re.compile(r"(?:_pytest|pytest|conftest)(?:\..+)?|opatlas\.(?!implements|Prepared|Unsupported).+")


def looks_at_harness(source: CandidateSource) -> Iterator[Finding]:
    for call, name in source.calls:
        if _FRAMES.fullmatch(name):
            yield call.lineno, f"{name} looks at the caller, or at objects that are not the candidate's"
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and source.full_name(node) == "sys.modules":
            yield node.lineno, "sys.modules gives access to modules that are not the candidate's"
    for name in sorted(set(source.imported.values())):
        if _HARNESS.fullmatch(name):
            yield 0, f"imports {name}, a part of what measures it"


_ENDS = re.compile(r"os\.(?:_exit|abort|kill|killpg|exec\w+)|sys\.exit|exit|quit|signal\.\w+|atexit\.register")


def ends_process(source: CandidateSource) -> Iterator[Finding]:
    for call, name in source.calls:
        if _ENDS.fullmatch(name):
            yield call.lineno, f"{name} ends the process, or changes how it ends"
    for node in source.nodes:
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if source.full_name(raised) in ("SystemExit", "KeyboardInterrupt"):
                yield node.lineno, "SystemExit ends the process"


_COMPARISONS = frozenset(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__"])


def always_equal(source: CandidateSource) -> Iterator[Finding]:
    for name in _COMPARISONS & source.functions.keys():
        for function in source.functions[name]:
            if constant_truth(function.body) is not None:
                yield function.lineno, f"{name} gives the same answer for everything"


def stream(source: CandidateSource) -> Iterator[Finding]:
    for call, name in source.calls:
        if re.fullmatch(
            r"torch\.(?:cuda|npu)\.(?:Stream|ExternalStream|stream)|torch\.Stream|torch_npu\.npu\.\w*tream", name
        ):
            yield call.lineno, f"{name}: work on a stream of its own"
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("wait_stream", "record_stream"):
            yield call.lineno, f"{call.func.attr}: work on a stream of its own"
    for line, text in source.strings:
        if (match := re.search(r"\bcudaStreamCreate\w*|\bgetStreamFromPool\b", text)) and "#include" in text:
            yield line + text.count("\n", 0, match.start()), f"{match[0]}: work on a stream of its own"


_HALF_TYPES = ("torch.float16", "torch.half", "torch.bfloat16")
_NATIVE_HALF = re.compile(
    r"\b__float2half(?:_rn)?\b|\b__float2bfloat16\b|\(\s*__half\s*\)|static_cast<\s*(?:__half|half)\s*>"
)


def precision(source: CandidateSource) -> Iterator[Finding]:
    for call, name in source.calls:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        types = {source.full_name(each) for each in (*call.args, *(each.value for each in call.keywords))}
        if method in ("half", "bfloat16") and not call.args:
            yield call.lineno, f".{method}() lowers the precision"
        elif method == "to" and (
            lower := types & {*_HALF_TYPES, "triton.language.float16", "triton.language.bfloat16"}
        ):
            yield call.lineno, f".to({min(lower)}) lowers the precision"
        elif "autocast" in name:
            yield call.lineno, f"{name} lowers the precision"
        elif name == "torch.set_float32_matmul_precision":
            yield call.lineno, "torch.set_float32_matmul_precision allows TF32 or bfloat16"
    for line, name in _changed_names(source):
        if name.endswith(("allow_tf32", "allow_fp16_reduced_precision_reduction", "fp32_precision")):
            yield line, f"{name} changes the precision of products"
    for line, text in source.strings:
        if match := _NATIVE_HALF.search(text):
            yield line + text.count("\n", 0, match.start()), f"{match[0]} lowers the precision"


def cache(source: CandidateSource) -> Iterator[Finding]:
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and "cache" in node.attr.lower():
            yield node.lineno, f"{ast.unparse(node)} keeps something between calls"
        elif isinstance(node, ast.Attribute) and node.attr == "_version":
            yield node.lineno, "_version tells whether a tensor was written"
    for function in source.forward_functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Compare):
                for each in ast.walk(node):
                    if isinstance(each, ast.Call) and ast.unparse(each.func).endswith(("data_ptr", ".storage", "id")):
                        yield each.lineno, f"{ast.unparse(each)} is compared: a result may be kept for an address"


_HIDDEN = frozenset({"exec", "eval", "compile", "__import__", "importlib.import_module"})


def hidden_code(source: CandidateSource) -> Iterator[Finding]:
    for call, name in source.calls:
        if name in _HIDDEN:
            yield call.lineno, f"{name} runs code that these rules do not see"


_FILES = re.compile(
    r"open|io\.open|torch\.load|numpy\.(?:load|fromfile|memmap)|pickle\.loads?|os\.(?:listdir|walk|scandir)|os\.getenv|os\.environ\.get"
)


def outside(source: CandidateSource) -> Iterator[Finding]:
    for call, name in source.calls:
        if _FILES.fullmatch(name):
            yield call.lineno, f"{name} reads a file or the environment"
