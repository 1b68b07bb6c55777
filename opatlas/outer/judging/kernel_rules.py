"""Rules on a source: whether a kernel computes the results. They are AKG's and KernelBench's."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from opatlas.outer.judging.judgement import ErrorClass
from opatlas.outer.judging.source import CandidateSource, Finding, Function, rule


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


@rule(ErrorClass.RULE, "AKG", "triton")
def no_triton_kernel(source: CandidateSource) -> Iterator[Finding]:
    """no function with a decorator of Triton"""
    if not source.triton_kernels:
        yield 0, "no function has a decorator triton.jit, triton.autotune or triton.heuristics"


def _launched(source: CandidateSource) -> bool:
    """Whether a kernel is launched: `kernel[grid](...)`, `launcher = kernel[grid]`, `kernel.run(...)`."""
    return any(
        isinstance(node, (ast.Subscript, ast.Attribute))
        and any(isinstance(name, ast.Name) and name.id in source.triton_kernels for name in ast.walk(node.value))
        for node in source.nodes
    )


@rule(ErrorClass.RULE, "AKG", "triton")
def triton_kernel_not_called(source: CandidateSource) -> Iterator[Finding]:
    """no kernel is launched"""
    if source.triton_kernels and not _launched(source):
        names = ", ".join(sorted(source.triton_kernels))
        yield min(each.lineno for each in source.triton_kernels.values()), f"no kernel[grid](...) launches {names}"


@rule(ErrorClass.RULE, "AKG", "triton")
def torch_api_instead_of_kernel(source: CandidateSource) -> Iterator[Finding]:
    """`forward` calls matmul, einsum, linear, conv, softmax, embedding or their like of torch"""
    for line, name, text in _torch_calls(source, source.forward_functions):
        if name in _HARD:
            yield line, f"{text} computes; a kernel has to"


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


@rule(ErrorClass.RULE, "AKG", "triton")
def autotune_missing_restore_value(source: CandidateSource) -> Iterator[Finding]:
    """triton.autotune without restore_value, of a kernel that reads what it writes"""
    for function in source.triton_kernels.values():
        for decorator in function.decorator_list:
            if (
                isinstance(decorator, ast.Call)
                and source.full_name(decorator.func) == "triton.autotune"
                and not {"restore_value", "reset_to_zero"} & {each.arg for each in decorator.keywords}
                and _reads_what_it_writes(source, function)
            ):
                yield (
                    decorator.lineno,
                    "triton.autotune without restore_value: each configuration changes what the next one reads",
                )


@rule(ErrorClass.RULE, "KernelBench", "cuda")
def no_cuda_kernel(source: CandidateSource) -> Iterator[Finding]:
    """no `__global__` function"""
    if not source.native_kernels:
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


@rule(ErrorClass.RULE, "KernelBench, hack 27")
def inherited_forward(source: CandidateSource) -> Iterator[Finding]:
    """ModelNew is or inherits the task's Model"""
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


@rule(None, "hack 24")
def no_kernel(source: CandidateSource) -> Iterator[Finding]:
    """neither a kernel of Triton nor of CUDA"""
    if not source.triton_kernels and not source.native_kernels:
        yield 0, "no kernel of its own: torch does the work"


@rule(None, "KernelBench, hack 24")
def torch_operator(source: CandidateSource) -> Iterator[Finding]:
    """a function calls an operator of torch, or makes a layer of torch.nn"""
    functions = [each for of_name in source.functions.values() for each in of_name]
    for line, name, text in _torch_calls(source, functions):
        if name in _HARD | _SOFT | _FURTHER or (
            text.startswith("torch.nn.functional.") and name not in ("pad", "unfold")
        ):
            yield line, f"{text} computes"
    for call, full in source.calls:
        module, _, name = full.rpartition(".")
        if module == "torch.nn" and name[:1].isupper() and name not in _CONTAINERS:
            yield call.lineno, f"{full} is a layer of torch"
