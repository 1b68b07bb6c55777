"""Writes the traces of the known models: the calls of torch that replays make, of rows with real shapes.

`python -m tests.support.row_traces [DATABASE ...]` replaces opatlas/outer/suites/traces/models.txt. The rows are of a
step of each built-in model, those of the catalog, and those of databases that captures were ingested to. `cnt` is how
often a step, or a capture, has the call; a call of the catalog counts once. A layer of each model is run, too.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from opatlas import Prepared
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.outer.suites.case import CaseFormula, make_call
from opatlas.outer.suites.operators import find_overload, is_no_operator
from opatlas.outer.suites.texts import ABBREVIATIONS, ArgumentsText, TensorText, TorchConstant, read_arguments
from opatlas.row.columns import PROFILING_SAMPLES
from opatlas.row.errors import ReplayError
from opatlas.row.signature import signature
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.registry import replay_spec, replays_of_bench
from opatlas.run.replay import recorded_call
from opatlas.run.result_check import check
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.model_calls import model_calls
from opatlas.theory.models import ModelFacts, built_in_models
from opatlas.theory.sources import Targets
from opatlas.theory.space import FLUSH_BUFFER_BYTES, Space

PATH = Path(__file__).parents[2] / "opatlas/outer/suites/traces/models.txt"
#: Larger tensors would make a session on a CPU long.
_MOST_BYTES = 96 << 20
#: Rows of a pattern of the catalog, and calls of an operator; rows of a kernel type in a step or a capture.
_ROWS, _CALLS, _OF_TYPE = 3, 5, 6
_LAUNCHES_NOTHING = re.compile(
    r"::(new_)?empty|::_unsafe_view$|::_local_scalar_dense$|::detach$|::bernoulli_|::randn|::scalar_tensor$|::(zeros|ones|full)$"
)

Row = tuple[str, Mapping[str, str], int]


def step_rows() -> Iterator[Row]:
    """The calls of a decoding step and of a prefill of each model, on one of eight devices."""
    for model in built_in_models():
        for step in (
            {"batch": 16, "context": 2048, "phase": "decode"},
            {"batch": 1, "context": 512, "phase": "prefill"},
        ):
            for call in model_calls(model, tp=8, **step):
                yield call.kernel_type, call.cells, call.calls_per_step


def catalog_rows() -> Iterator[Row]:
    """The first rows of each pattern: shapes of the models, with sizes that vary."""
    targets = Targets(built_in_models(), tp_sizes=(8,), ep_sizes=(32,))
    for kernel in built_in_catalog().kernels.values():
        for pattern in kernel.patterns:
            forms = [form.in_nd() for form in pattern.forms]
            space = Space(kernel.kernel_type, pattern, forms, targets, _MOST_BYTES + FLUSH_BUFFER_BYTES)
            for position in space.required()[:_ROWS] if len(space) else ():
                yield kernel.kernel_type, space.row(position).cells, 1


def captured_rows(database: Database) -> Iterator[Row]:
    for kernel_type in database.kernel_types():
        table = database.read(kernel_type)
        for cells in table.rows(range(len(table))):
            yield kernel_type, cells, int(cells.get(PROFILING_SAMPLES) or 1)


def run_layer(model: ModelFacts, tokens: int) -> None:
    """Runs a layer of a model on one of eight devices: a training step with its optimizer, and the sampling of a token.

    On tensors without values. The parts of other layers (LayerNorm, GELU, biases, dropout) take turns with the model's.
    """
    half = torch.bfloat16
    heads, kv, d = model.heads // 8, max(model.kv_heads // 8, 1), model.head_dim
    width, vocab = (model.intermediate or 8 * 2048) // 8, model.vocab // 64
    sizes = {
        "table": (vocab, model.hidden),
        "qkv": ((heads + 2 * kv) * d, model.hidden),
        "o": (model.hidden, heads * d),
    }
    sizes |= {"gate": (width, model.hidden), "up": (width, model.hidden), "down": (model.hidden, width)}
    sizes |= {"up_bias": (width,), "norm": (model.hidden,), "norm_bias": (model.hidden,), "head_norm": (d,)}
    weights = {name: torch.randn(size, dtype=half, requires_grad=True) for name, size in sizes.items()}

    def rms_norm(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * gamma

    def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    positions = torch.arange(tokens)
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, d, 2) / d)
    angles = torch.outer(positions.float(), frequencies)
    cos, sin = (torch.cat([own, own], -1).to(half) for own in (angles.cos(), angles.sin()))
    x = functional.embedding(torch.zeros(1, tokens, dtype=torch.int64), weights["table"])
    qkv = functional.linear(rms_norm(x, weights["norm"]), weights["qkv"]).unflatten(-1, (-1, d)).transpose(1, 2)
    q, k, v = qkv.split([heads, kv, kv], 1)
    q, k = (rotated(rms_norm(own, weights["head_norm"]), cos, sin) for own in (q, k))
    k, v = (own.repeat_interleave(heads // kv, 1) for own in (k, v))
    fused = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    scores = torch.matmul(q, k.mT) / d**0.5
    shares = torch.softmax(scores.masked_fill(later, -torch.inf).float(), -1).to(half)
    plain = torch.matmul(functional.dropout(shares, 0.1, training=True), v)
    x = x + functional.linear(((fused + plain) * 0.5).transpose(1, 2).flatten(2), weights["o"])
    normed = functional.layer_norm(x, x.shape[-1:], weights["norm"], weights["norm_bias"])
    gate = functional.silu(functional.linear(normed, weights["gate"]))
    up = functional.gelu(functional.linear(normed, weights["up"], weights["up_bias"]), approximate="tanh")
    x = x + functional.linear(gate * torch.tanh(up) * torch.sigmoid(up), weights["down"])
    logits = functional.linear(x, weights["table"]).float()
    loss = functional.cross_entropy(logits.flatten(0, 1), torch.zeros(tokens, dtype=torch.int64))
    (loss + 1e-4 * torch.logsumexp(logits, -1).square().mean()).backward()
    optimizer = torch.optim.AdamW(weights.values(), foreach=True)
    torch.nn.utils.clip_grad_norm_(weights.values(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    with torch.no_grad():
        _sample_and_route(logits[0, -16:].detach(), x[0].detach(), model)


def _sample_and_route(logits: torch.Tensor, x: torch.Tensor, model: ModelFacts) -> None:
    """The choice of a token by top-k and top-p, the choice of experts, and the quantization of what they get."""
    ordered, order = torch.sort(logits / 0.7, descending=True)
    probabilities = ordered.softmax(-1)
    dropped = probabilities.cumsum(-1) - probabilities > 0.9
    kept = torch.empty_like(logits).scatter(-1, order, torch.where(dropped, -torch.inf, ordered))
    best = torch.argmax(kept, -1, keepdim=True)
    torch.log_softmax(kept, -1).gather(-1, best), kept.amax(-1), torch.maximum(kept, logits), torch.isnan(kept).any()
    count, chosen = (model.experts.count, model.experts.top_k) if model.experts else (64, 4)
    scores = torch.sigmoid(functional.linear(x.float(), torch.randn(count, x.shape[-1])))
    weights, experts = torch.topk(scores + torch.randn(count), chosen, sorted=False)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    hot = functional.one_hot(experts, count).sum(1)
    order = experts.flatten().argsort(stable=True)
    copies = x.index_select(0, torch.div(order, chosen, rounding_mode="floor")).float() * weights.flatten()[order, None]
    torch.zeros_like(x, dtype=torch.float32).index_add_(0, order // chosen, copies), hot.cumsum(0), hot.to(torch.int32)
    scale = x.abs().amax(-1, keepdim=True).float() / 127
    (x.float() / scale).round().clamp(-128, 127).to(torch.int8), torch.reciprocal(scale)
    cache = torch.zeros(4096, x.shape[-1], dtype=x.dtype)
    cache.index_copy_(0, torch.arange(len(x)), x), torch.stack([x, x]), x.var(-1), torch.std(x.float(), -1)


def text_of(value: Any) -> Any:
    """A value of a call as a trace has it. Raises ValueError for one that no trace has."""
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        if name not in ABBREVIATIONS:
            raise ValueError(name)
        stride = None if value.is_contiguous() else tuple(value.stride())
        return TensorText(tuple(value.shape), name, stride)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return TorchConstant(str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return "cpu"
    if isinstance(value, (list, tuple)):
        return type(value)(map(text_of, value))
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(type(value))


class Recorder(TorchDispatchMode):
    """Records the calls of operators that launch a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            operator.namespace == "aten"
            and not operator.is_view
            and not _LAUNCHES_NOTHING.search(operator._schema.name)
        ):
            with suppress(ValueError, OpAtlasError):
                named = {name: text_of(value) for name, value in (kwargs or {}).items() if name != "device"}
                text = str(ArgumentsText(tuple(map(text_of, args)), named))
                if sum(each.bytes for each in read_arguments(text).tensors()) > _MOST_BYTES:
                    raise ValueError("too large")
                self.calls.append((f"{operator._schema.name.split('::')[1]}.{operator._overloadname}", text))
        return operator(*args, **(kwargs or {}))


def calls_of(kernel_type: str, cells: Mapping[str, str]) -> list[tuple[str, str]]:
    """The calls of torch that the replay of a row makes on a CPU; none for a row that it refuses, and of groups."""
    function = replays_of_bench().get(kernel_type)
    if function is None or replay_spec(function).group is not None:
        return []
    recorder, row = Recorder(), ReplayRow(kernel_type, cells, torch.device("cpu"))
    with suppress(ReplayError):
        if row.bytes() <= _MOST_BYTES:
            call = recorded_call(function, row)
            with recorder:
                result = call.impl(*call.arguments, **call.keywords)
                if isinstance(result, Prepared):
                    result.call()
    return recorder.calls


def is_right(overload: str, text: str) -> bool:
    """Whether torch's operator passes the case of a call: one whose values matter may not."""
    operator = find_overload(overload)
    if operator is None or is_no_operator(operator):
        return False
    try:
        call = make_call(operator, read_arguments(text), torch.device("cpu"), 0)
        results = call.cloned().results()
        formula = CaseFormula(operator, lambda _: None, [each.dtype for each in results])
        check(formula, call.positional, dict(call.keywords), results, 0)
    except Exception as error:
        print(f"left out: {overload} {text[:100]}: {type(error).__name__} {str(error)[:100]}", file=sys.stderr)
        return False
    return any(each.numel() for each in results)


def main(databases: list[Database]) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    captured = [row for database in databases for row in captured_rows(database)]
    for source in (list(step_rows()), captured, list(catalog_rows())):
        found: dict[tuple[str, str], Row] = {}
        for row in source:
            kernel_type, cells, count = row
            key = kernel_type, signature(kernel_type, cells)
            found[key] = (kernel_type, cells, count + (found[key][2] if key in found else 0))
        tried = Counter[str]()
        for kernel_type, cells, count in sorted(found.values(), key=lambda row: -row[2]):
            tried[kernel_type] += 1
            for overload, text in calls_of(kernel_type, cells) if tried[kernel_type] <= _OF_TYPE else ():
                counts[overload][text] += count
    for model in built_in_models():
        recorder = Recorder()
        with FakeTensorMode(), recorder:
            run_layer(model, 512)
        for overload, text in recorder.calls:
            counts[overload][text] += model.layers
    write(counts)


def write(counts: Mapping[str, Counter[str]]) -> None:
    lines, operators = [], 0
    for overload, calls in sorted(counts.items()):
        right = [(text, count) for text, count in calls.most_common(2 * _CALLS) if is_right(overload, text)][:_CALLS]
        operators += bool(right)
        lines += [f"Operator: aten.{overload}"] * bool(right) + [f"cnt: {count}, {text}" for text, count in right]
    PATH.write_text("\n".join(lines) + "\n")
    print(f"{PATH}: {operators} operators, {len(lines) - operators} calls")


if __name__ == "__main__":
    main([Database(Path(argument)) for argument in sys.argv[1:]])
