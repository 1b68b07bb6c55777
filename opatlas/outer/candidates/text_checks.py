"""Repeats the static checks of KernelBench, which search the text of a candidate for patterns.

Names and patterns: KernelBench, src/kernelbench/kernel_static_checker.py (MIT). A pattern sees no syntax: the word
"pass" in a docstring is a finding of `code_bypass`. So these findings decide nothing here. They let counts of OpAtlas
be compared with published counts; static_rules.py looks for the same things in the syntax tree.
"""

from __future__ import annotations

import re

_TORCH_OPERATORS = (
    r"torch\.(?:mm|bmm|matmul|einsum|conv(?:_transpose)?[123]d|conv|(?:adaptive_)?(?:avg|max)_pool[123]d|relu|hardtanh|elu"
    r"|selu|leaky_relu|gelu|softsign|softplus|softmax|log_softmax|tanh|sigmoid|hardsigmoid|silu|mish|batch_norm|group_norm"
    r"|layer_norm|instance_norm|rms_norm|normalize|linear|cross_entropy|kl_div|mse_loss|huber_loss|triplet_margin_loss"
    r"|cosine_similarity|logsumexp|clamp|dropout)"
)

#: The patterns of each check of KernelBench that fits every language. precision_downgrade is for float32 tasks.
KERNELBENCH_CHECKS: dict[str, re.Pattern[str]] = {
    "code_bypass": re.compile(r"\btry\s*:|\bexcept\s*:|\bexcept\s+\w+|\bpass\b"),
    "timing_event_patch": re.compile(
        r"torch\.cuda\.(?:Event(?:\.record|\.elapsed_time)?|synchronize)\s*=|time\.(?:perf_counter|time)\s*="
    ),
    "thread_injection": re.compile(
        r"threading\.Thread\s*\(|import\s+threading|from\s+threading\s+import"
        r"|multiprocessing\.(?:Process|Pool|Manager|Queue|Pipe)|import\s+multiprocessing"
        r"|concurrent\.futures|ThreadPoolExecutor|ProcessPoolExecutor"
    ),
    "lazy_eval": re.compile(r"_make_subclass|class\s+\w+.*\((?:torch\.)?Tensor\)|torch\.Tensor\.__new__"),
    "pytorch_wrap": re.compile(
        r"torch\.nn\.(?!(?:Module|parameter|Parameter|ParameterList|ParameterDict|ModuleList|ModuleDict|init)\b)"
    ),
    "torch_computation_ops": re.compile(
        rf"\b{_TORCH_OPERATORS}(?=\s*\(|\s|$)|\bnn\.functional\.\w+"
        r"|\bF\.(?:conv|linear|relu|gelu|softmax|batch_norm|layer_norm|dropout|max_pool|avg_pool)"
    ),
    "stream_injection": re.compile(
        r"cuda\.Stream\s*\(|with\s+torch\.cuda\.stream|\.wait_stream\s*\(|\.record_stream\s*\("
    ),
    "precision_downgrade": re.compile(
        r"__float2half(?:_rn)?\s*\(|\(\s*__half\s*\)\s*[\w\->\.]+|static_cast\s*<\s*(?:__half|half)\s*>\s*\("
        r"|tl\.astype\s*\(\s*[^,]+,\s*tl\.float16\s*\)|NumericConverter\s*<\s*half_t\s*,\s*float\s*>"
        r"|LinearCombination\s*<\s*half_t|type_convert\s*<\s*half_t\s*>\s*\(|tk::half\s*\("
        r"|\.half\s*\(|\.float16\s*\(|\.to\s*\(\s*(?:dtype\s*=\s*)?torch\.(?:float16|half)\b"
    ),
}

_COMMENT = re.compile(r"(?:#|//).*")


def kernelbench_findings(source: str) -> tuple[str, ...]:
    """Returns the names of the checks of KernelBench that object to a source, in the order of KERNELBENCH_CHECKS."""
    text = _COMMENT.sub("", source)
    return tuple(name for name, pattern in KERNELBENCH_CHECKS.items() if pattern.search(text))
