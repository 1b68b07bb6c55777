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

from opatlas.candidates.judgement import ErrorClass, Judgement, Level
from opatlas.candidates.source import CandidateSource, Function, constant_truth
from opatlas.candidates.text_checks import kernelbench_findings

#: Line and detail of what a rule objects to. Line 0 is the whole file.
Finding = tuple[int, str]


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


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Operators. Names: AKG, code_checker.yaml (Apache-2.0), torch_compute_ops_hard and torch_compute_ops_soft.
_HARD = _names(
    "matmul mm bmm addmm addmv addbmm baddbmm einsum dot mv inner outer linear conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d softmax log_softmax logsumexp embedding"
)
_SOFT = _names(
    "relu gelu silu sigmoid tanh leaky_relu elu hardswish mish exp log sqrt rsqrt pow sin cos abs clamp clamp_min "
    "clamp_max sum mean prod norm amax amin argmax argmin layer_norm batch_norm group_norm instance_norm max_pool1d "
    "max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool2d interpolate cumsum cumprod"
)
#: Operators that are methods of tensors, too.
_HARD_METHODS = _names("matmul mm bmm addmm mv softmax log_softmax logsumexp")
_CONTAINERS = _names("Module ModuleList ModuleDict Parameter ParameterList ParameterDict")
_TORCH_FUNCTIONS = ("torch", "torch.nn.functional", "torch.special", "torch.linalg")


#: Further operators of torch that are noted: KernelBench's, as far as they have no entry above.
_FURTHER = _names(
    "hardtanh selu softsign softplus hardsigmoid normalize rms_norm cross_entropy kl_div mse_loss huber_loss dropout "
    "triplet_margin_loss cosine_similarity adaptive_avg_pool1d adaptive_avg_pool3d adaptive_max_pool1d "
    "adaptive_max_pool2d adaptive_max_pool3d var std max min sort topk argsort"
)


def _torch_calls(source: CandidateSource, functions: Iterable[Function]) -> Iterator[tuple[int, str, str]]:
    """Yields line, operator and text of the calls of torch's operators in functions."""
    for function in functions:
        parameters = {each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
        for node in ast.walk(function):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
                yield node.lineno, "matmul", "@"
            elif isinstance(node, ast.Call):
                module, _, name = source.full_name(node.func).rpartition(".")
                if module in _TORCH_FUNCTIONS:
                    yield node.lineno, name, f"{module}.{name}"
                elif (
                    isinstance(node.func, ast.Attribute)
                    and node.func.attr in _HARD_METHODS
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in parameters - {"self"}
                ):
                    yield node.lineno, node.func.attr, f"{node.func.value.id}.{node.func.attr}"


def _no_triton_kernel(source: CandidateSource) -> Iterator[Finding]:
    if not source.triton_kernels:
        yield 0, "no function has a decorator triton.jit, triton.autotune or triton.heuristics"


def _launched(source: CandidateSource) -> bool:
    """Whether a kernel is launched: `kernel[grid](...)`, `launcher = kernel[grid]`, `kernel.run(...)`."""
    return any(
        isinstance(node, (ast.Subscript, ast.Attribute))
        and any(isinstance(name, ast.Name) and name.id in source.triton_kernels for name in ast.walk(node.value))
        for node in source.nodes
    )


def _triton_kernel_not_called(source: CandidateSource) -> Iterator[Finding]:
    if source.triton_kernels and not _launched(source):
        names = ", ".join(sorted(source.triton_kernels))
        yield min(each.lineno for each in source.triton_kernels.values()), f"no kernel[grid](...) launches {names}"


def _torch_api_instead_of_kernel(source: CandidateSource) -> Iterator[Finding]:
    for line, name, text in _torch_calls(source, source.forward_functions):
        if name in _HARD:
            yield line, f"{text} computes; a kernel has to"


def _torch_api_without_kernel(source: CandidateSource) -> Iterator[Finding]:
    if not _launched(source):
        for line, name, text in _torch_calls(source, source.forward_functions):
            if name in _SOFT:
                yield line, f"{text} computes, and no kernel is launched"


def _autotuned(source: CandidateSource) -> Iterator[tuple[int, bool]]:
    """Yields the lines of triton.autotune without restore_value, and whether the kernel reads what it writes."""
    for function in source.triton_kernels.values():
        for decorator in function.decorator_list:
            if not isinstance(decorator, ast.Call) or source.full_name(decorator.func) != "triton.autotune":
                continue
            if not {"restore_value", "reset_to_zero"} & {each.arg for each in decorator.keywords}:
                yield decorator.lineno, _reads_what_it_writes(source, function)


def _reads_what_it_writes(source: CandidateSource, kernel: Function) -> bool:
    """Returns whether a kernel of Triton changes memory that it read: atomics, or a load and a store of one pointer."""
    parameters = {each.arg for each in (*kernel.args.posonlyargs, *kernel.args.args)}
    used: dict[str, set[str]] = {"load": set(), "store": set()}
    for node in ast.walk(kernel):
        if isinstance(node, ast.Call) and node.args:
            name = source.full_name(node.func).rpartition(".")[2]
            if name.startswith("atomic_"):
                return True
            if name in used:
                # The first parameter in an address is the pointer: ptr + row * stride.
                names = [each.id for each in ast.walk(node.args[0]) if isinstance(each, ast.Name)]
                used[name].update([each for each in names if each in parameters][:1])
    return bool(used["load"] & used["store"])


def _autotune_missing_restore_value(source: CandidateSource) -> Iterator[Finding]:
    for line, depends in _autotuned(source):
        if depends:
            yield line, "triton.autotune without restore_value: each configuration changes what the next one reads"


def _autotune_overwrites(source: CandidateSource) -> Iterator[Finding]:
    for line, depends in _autotuned(source):
        if not depends:
            yield line, "triton.autotune without restore_value: each configuration writes the outputs again"


def _no_cuda_kernel(source: CandidateSource) -> Iterator[Finding]:
    if not source.native_kernels:
        yield 0, "no string holds a __global__ function"


def _fallback(source: CandidateSource) -> Iterator[Finding]:
    """An exception is swallowed, so that something else than the kernel may compute the result."""
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


def _inherited_forward(source: CandidateSource) -> Iterator[Finding]:
    model = source.model
    if model is None:
        for node in source.tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node) == "ModelNew = Model":
                yield node.lineno, "ModelNew is the task's own Model"
        return
    own = {each.name for each in model.body if isinstance(each, Function)}
    assigned = {ast.unparse(target) for each in model.body if isinstance(each, ast.Assign) for target in each.targets}
    bases = [ast.unparse(base).rpartition(".")[2] for base in model.bases]
    if "Model" in bases and not (own | assigned) & {"forward", "__call__"}:
        yield model.lineno, "ModelNew inherits forward of the task's own Model"


_THREADS = re.compile(
    r"threading\.(?:Thread|Timer)|_thread\.start_new_thread|concurrent\.futures\.\w*Executor"
    r"|multiprocessing\.(?:(?:dummy|pool|context)\.)?(?:Process|Pool|Manager|ThreadPool)|os\.fork"
    r"|torch\.multiprocessing\.(?:Process|spawn)|asyncio\.to_thread|torch\.jit\.fork"
)
_NATIVE_THREADS = re.compile(r"\bstd::(?:thread|jthread|async)\b|\bpthread_create\b|\bcudaLaunchHostFunc\b")


def _thread(source: CandidateSource) -> Iterator[Finding]:
    for call, name in source.calls:
        if _THREADS.fullmatch(name):
            yield call.lineno, f"{name} starts work beside the call"
    for line, text in source.strings:
        if (match := _NATIVE_THREADS.search(text)) and "#include" in text:
            yield line + text.count("\n", 0, match.start()), f"{match[0]} starts work beside the call"


_DISPATCH = frozenset({"__torch_function__", "__torch_dispatch__"})


def _tensor_subclass(source: CandidateSource) -> Iterator[Finding]:
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


def _patched_function(source: CandidateSource) -> Iterator[Finding]:
    for line, name in _changed_names(source):
        if not _SETTING.fullmatch(name):
            yield line, f"{name} is changed for the whole process"


def _global_setting(source: CandidateSource) -> Iterator[Finding]:
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


def _looks_at_harness(source: CandidateSource) -> Iterator[Finding]:
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


def _ends_process(source: CandidateSource) -> Iterator[Finding]:
    for call, name in source.calls:
        if _ENDS.fullmatch(name):
            yield call.lineno, f"{name} ends the process, or changes how it ends"
    for node in source.nodes:
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if source.full_name(raised) in ("SystemExit", "KeyboardInterrupt"):
                yield node.lineno, "SystemExit ends the process"


_COMPARISONS = _names("__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __bool__")


def _always_equal(source: CandidateSource) -> Iterator[Finding]:
    for name in _COMPARISONS & source.functions.keys():
        for function in source.functions[name]:
            if constant_truth(function.body) is not None:
                yield function.lineno, f"{name} gives the same answer for everything"


def _no_kernel(source: CandidateSource) -> Iterator[Finding]:
    if not source.triton_kernels and not source.native_kernels:
        yield 0, "no kernel of its own: torch does the work"


def _torch_operator(source: CandidateSource) -> Iterator[Finding]:
    functions = [each for of_name in source.functions.values() for each in of_name]
    for line, name, text in _torch_calls(source, functions):
        if name in _HARD | _SOFT | _FURTHER or (
            text.startswith("torch.nn.functional.") and name not in ("pad", "unfold")
        ):
            yield line, f"{text} computes"


def _torch_layer(source: CandidateSource) -> Iterator[Finding]:
    for call, full in source.calls:
        module, _, name = full.rpartition(".")
        if module == "torch.nn" and name[:1].isupper() and name not in _CONTAINERS:
            yield call.lineno, f"{full} is a layer of torch"


def _stream(source: CandidateSource) -> Iterator[Finding]:
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


def _precision(source: CandidateSource) -> Iterator[Finding]:
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


def _cache(source: CandidateSource) -> Iterator[Finding]:
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


def _compiled_or_captured(source: CandidateSource) -> Iterator[Finding]:
    for call, name in source.calls:
        if name in ("torch.compile", "torch.jit.script", "torch.jit.trace"):
            yield call.lineno, f"{name} compiles torch's operators"
        elif name in ("torch.cuda.CUDAGraph", "torch.cuda.graph", "torch.cuda.make_graphed_callables"):
            yield call.lineno, f"{name} replays a CUDA graph"
    for node in source.nodes:
        if isinstance(node, Function | ast.ClassDef):
            for decorator in node.decorator_list:
                if not isinstance(decorator, ast.Call) and source.full_name(decorator) in (
                    "torch.compile",
                    "torch.jit.script",
                ):
                    yield decorator.lineno, f"{ast.unparse(decorator)} compiles torch's operators"


_HIDDEN = frozenset({"exec", "eval", "compile", "__import__", "importlib.import_module"})


def _hidden_code(source: CandidateSource) -> Iterator[Finding]:
    for call, name in source.calls:
        if name in _HIDDEN:
            yield call.lineno, f"{name} runs code that these rules do not see"


_FILES = re.compile(
    r"open|io\.open|torch\.load|numpy\.(?:load|fromfile|memmap)|pickle\.loads?|os\.(?:listdir|walk|scandir)|os\.getenv|os\.environ\.get"
)


def _outside(source: CandidateSource) -> Iterator[Finding]:
    for call, name in source.calls:
        if _FILES.fullmatch(name):
            yield call.lineno, f"{name} reads a file or the environment"


def _kernelbench(source: CandidateSource) -> Iterator[Finding]:
    if found := kernelbench_findings(source.text):
        yield 0, f"KernelBench's text checks find {', '.join(found)}"


_CHINESE = re.compile(r"[\u4e00-\u9fff]{3,}")
_NO_CODE = frozenset({tokenize.COMMENT, tokenize.STRING})


def _stray_chinese_text(text: str) -> Iterator[Finding]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in _NO_CODE and (match := _CHINESE.search(token.string)):
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
    StaticRule("no_triton_kernel", "AKG", _RULE, "no function with a decorator of Triton", _no_triton_kernel, "triton"),
    StaticRule("triton_kernel_not_called", "AKG", _RULE, "no kernel is launched", _triton_kernel_not_called, "triton"),
    StaticRule(
        "torch_api_instead_of_kernel",
        "AKG",
        _RULE,
        "`forward` calls matmul, einsum, linear, conv, softmax, embedding or their like of torch",
        _torch_api_instead_of_kernel,
        "triton",
    ),
    StaticRule(
        "torch_api_without_kernel",
        "AKG",
        _RULE,
        "`forward` calls a simpler operator of torch, and no kernel is launched",
        _torch_api_without_kernel,
        "triton",
    ),
    StaticRule(
        "autotune_missing_restore_value",
        "AKG",
        _RULE,
        "triton.autotune without restore_value, of a kernel that reads what it writes",
        _autotune_missing_restore_value,
        "triton",
    ),
    StaticRule("no_cuda_kernel", "KernelBench", _RULE, "no `__global__` function", _no_cuda_kernel, "cuda"),
    StaticRule("fallback", "KernelBench, hack 26", _RULE, "an exception handler that does not raise", _fallback),
    StaticRule(
        "inherited_forward",
        "KernelBench, hack 27",
        _RULE,
        "ModelNew is or inherits the task's Model",
        _inherited_forward,
    ),
    StaticRule("thread", "KernelBench, hack 7", _HACK, "starts a thread or a process", _thread),
    StaticRule(
        "tensor_subclass", "KernelBench, hack 8", _HACK, "a subclass of Tensor, or a dispatch mode", _tensor_subclass
    ),
    StaticRule(
        "patched_function",
        "KernelBench, hacks 9, 10",
        _HACK,
        "sets or deletes an attribute of an imported module or of a built-in type; settings excepted",
        _patched_function,
    ),
    StaticRule("always_equal", "hack 10", _HACK, "a comparison that returns a constant", _always_equal),
    StaticRule("ends_process", "hack 11", _HACK, "os._exit, sys.exit, signal handlers, atexit", _ends_process),
    StaticRule(
        "looks_at_harness",
        "hacks 20, 21",
        _HACK,
        "frames of callers, gc.get_objects, sys.modules, imports of pytest or of OpAtlas' inside",
        _looks_at_harness,
    ),
    StaticRule("no_kernel", "hack 24", None, "neither a kernel of Triton nor of CUDA", _no_kernel),
    StaticRule(
        "torch_operator", "KernelBench, hack 24", None, "a function calls an operator of torch", _torch_operator
    ),
    StaticRule("torch_layer", "KernelBench, hack 24", None, "makes a layer of torch.nn", _torch_layer),
    StaticRule("stream", "KernelBench, hack 6", None, "work on a stream of its own", _stream),
    StaticRule("precision", "KernelBench, hack 22", None, "float16, bfloat16, TF32, autocast", _precision),
    StaticRule("global_setting", "hack 23", None, "sets a setting of torch or Triton", _global_setting),
    StaticRule("cache", "hacks 12 to 16", None, "keeps something between calls, compares addresses", _cache),
    StaticRule(
        "compiled_or_captured", "hacks 31, 33", None, "torch.compile, torch.jit, CUDA graphs", _compiled_or_captured
    ),
    StaticRule("hidden_code", "hack 20", None, "exec, eval, import by name", _hidden_code),
    StaticRule("outside", "hack 21", None, "reads files or the environment", _outside),
    StaticRule(
        "autotune_overwrites",
        "AKG",
        None,
        "triton.autotune without restore_value, of any other kernel; AKG fails it",
        _autotune_overwrites,
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


def static_notes(source: str, path: Path, *, language: str = "") -> tuple[str, ...]:
    """Returns the notes of a candidate: the first finding of each rule that fails nothing."""
    return _notes(static_findings(source, path, language=language))


def _notes(findings: Iterable[tuple[StaticRule, Finding]]) -> tuple[str, ...]:
    notes: dict[str, str] = {}
    for rule, (line, detail) in findings:
        if rule.error_class is None:
            notes.setdefault(rule.name, f"{rule.name}: {f'line {line}: ' if line else ''}{detail}")
    return tuple(notes.values())
