"""Durations of OpAtlas against timing loops that are written with torch alone, on the same GPU in the same process.

    python -m tests.benchmarks.outside_loops

The loops share nothing with the engine: neither its tensors, nor its calls, nor its instruments. Three are run on each
of twenty calls, all before OpAtlas measures any:

- events, as in triton's do_bench: a buffer of several caches is cleared before each call, events are right around it;
- held, as in nvbench's cold measurement: the same behind a kernel that holds the stream until all is queued, so that
  no event waits for the host;
- graph, as in nvbench's batches: calls back to back in a CUDA graph, on copies of the tensors that exceed the cache.

Events add some microseconds to a call, and a graph the gaps between calls. A ratio is OpAtlas' median to the loop's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.space import pattern_row
from tests.benchmarks.children import run_benchmark

#: A call, and the tensors that it holds.
Call = Callable[[], object]
LOOPS = ("events", "held", "graph")
_SAMPLES, _WARM_UP = 30, 5
#: Some 200 us at 1.5 to 2 GHz: longer than the host needs for an event, a call and an event.
_HOLD_CYCLES = 400_000
_CALLS_OF_GRAPH, _REPLAYS, _MOST_COPIES = 32, 10, 64


def _random(*shape: int, device: str) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=device)


def _product(device: str, m: int, n: int, k: int) -> Call:
    a, weight = _random(m, k, device=device), _random(n, k, device=device)
    return lambda: functional.linear(a, weight)


def _attention(device: str, s: int, k: int, q: int, kv: int, d: int) -> Call:
    """Tokens before heads in memory, as in a packed batch. FlashAttention-2 is what OpAtlas calls for such rows."""
    query, keys, values = (_random(s, k, heads, d, device=device).transpose(1, 2) for heads in (q, kv, kv))

    def call() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return functional.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)

    return call


def _grouped(device: str, m: int, e: int, w: int, h: int) -> Call:
    rows, weights = _random(m, h, device=device), _random(e, h, 2 * w, device=device)
    ends = torch.linspace(m / e, m, e, device=device).to(torch.int32)
    grouped = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    return lambda: grouped(rows, weights, offs=ends)


def _add(device: str, m: int, h: int) -> Call:
    a, b = _random(m, h, device=device), _random(m, h, device=device)
    return lambda: a + b


def _rms_norm(device: str, m: int, h: int) -> Call:
    x, gamma = _random(m, h, device=device), _random(h, device=device)
    return lambda: functional.rms_norm(x, (h,), gamma, 1e-6)


def _softmax(device: str, b: int, vocab: int) -> Call:
    logits = _random(b, vocab, device=device).float()
    return lambda: logits.softmax(dim=-1)


def _gather(device: str, m: int, vocab: int, h: int) -> Call:
    table, tokens = _random(vocab, h, device=device), torch.randint(vocab, (m,), device=device)
    return lambda: functional.embedding(tokens, table)


@dataclass(frozen=True)
class ComparedCall:
    """A call that both sides time.

    Attributes:
        kernel_type, pattern, sizes: the row of OpAtlas, by a pattern of the catalog.
        make: makes a call of torch with tensors of its own, for a device and the sizes.
    """

    family: str
    kernel_type: str
    pattern: str
    make: Callable[..., Call]
    sizes: Mapping[str, int]

    def cells(self) -> dict[str, str]:
        """Returns the cells of the row."""
        patterns = built_in_catalog().kernel(self.kernel_type).patterns
        pattern = next(each for each in patterns if each.name == self.pattern)
        return dict(pattern_row(self.kernel_type, pattern, pattern.forms[0].in_nd(), self.sizes).cells)

    def __str__(self) -> str:
        return f"{self.kernel_type} {', '.join(f'{name} {size}' for name, size in self.sizes.items())}"


#: Weights of Qwen3-32B (tp 4), DeepSeek-V3 and Llama-3-70B (tp 4), decoding to prefill.
_PRODUCTS = [
    *((m, 2560, 5120) for m in (16, 256, 4096)),
    *((m, 12800, 5120) for m in (1, 64, 1024)),
    *((m, 7168, 2048) for m in (128, 2048)),
    *((m, 8192, 7168) for m in (512, 8192)),
]
CALLS = (
    *(ComparedCall("products", "MatMulV2", "matmul", _product, {"m": m, "n": n, "k": k}) for m, n, k in _PRODUCTS),
    *(
        ComparedCall(
            "attention",
            "FusedInferAttentionScore",
            "packed_attention",
            _attention,
            {"s": s, "k": k, "q": q, "kv": kv, "d": 128},
        )
        for s, k, q, kv in ((1, 2048, 16, 2), (8, 1024, 16, 2), (1, 8192, 64, 8), (4, 4096, 8, 1))
    ),
    *(
        ComparedCall("grouped products", "GroupedMatmul", "grouped_gate_up", _grouped, sizes)
        for sizes in ({"m": 256, "e": 16, "w": 768, "h": 2048}, {"m": 8192, "e": 32, "w": 2048, "h": 7168})
    ),
    ComparedCall("others", "Add", "binary", _add, {"m": 8192, "h": 5120}),
    ComparedCall("others", "RmsNorm", "rms_norm", _rms_norm, {"m": 4096, "h": 7168}),
    ComparedCall("others", "SoftmaxV2", "unary_logits", _softmax, {"b": 128, "vocab": 151936}),
    ComparedCall("others", "GatherV2", "gather", _gather, {"m": 8192, "vocab": 37984, "h": 5120}),
)


class Loops:
    """The three loops on a GPU. Durations are medians in microseconds."""

    def __init__(self) -> None:
        self._cache = torch.cuda.get_device_properties(0).L2_cache_size
        self._cleared = torch.empty(5 * self._cache, dtype=torch.int8, device="cuda")

    def durations(self, compared: ComparedCall) -> dict[str, float]:
        """Times a call by each loop."""
        before = torch.cuda.memory_allocated()
        call = compared.make("cuda", **compared.sizes)
        copies = -(-2 * self._cache // (torch.cuda.memory_allocated() - before))
        for _ in range(_WARM_UP):
            call()
        found = {"events": self._events(call, hold=False), "held": self._events(call, hold=True)}
        others = (compared.make("cuda", **compared.sizes) for _ in range(min(copies, _MOST_COPIES) - 1))
        return {**found, "graph": self._graph([call, *others])}

    def _events(self, call: Call, *, hold: bool) -> float:
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(_SAMPLES)]
        for start, stop in pairs:
            self._cleared.zero_()
            if hold:
                torch.cuda.synchronize()
                torch.cuda._sleep(_HOLD_CYCLES)
            start.record()
            call()
            stop.record()
        torch.cuda.synchronize()
        return median(float(start.elapsed_time(stop)) * 1000 for start, stop in pairs)

    def _graph(self, calls: Sequence[Call]) -> float:
        count = max(_CALLS_OF_GRAPH, len(calls))
        # What a library sets up at its first call must not be captured.
        for call in calls:
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(count):
                calls[i % len(calls)]()
        samples = []
        for _ in range(_REPLAYS + 1):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            stop.record()
            torch.cuda.synchronize()
            samples.append(float(start.elapsed_time(stop)) * 1000 / count)
        # The first replay also uploads the graph.
        return median(samples[1:])


def opatlas_durations(calls: Sequence[ComparedCall], device: str = "cuda") -> Iterator[float]:
    """Yields the median of each call as a session measures it: cold, by the device's own instrument."""
    from opatlas.run.devices.device import available_devices
    from opatlas.run.instruments.instrument import MeasureSettings
    from opatlas.run.job import Job
    from opatlas.run.registry import replays_of_bench
    from opatlas.run.runner import Runner

    runner = Runner(available_devices(device)[0], MeasureSettings(repeat_count=_SAMPLES))
    for compared in calls:
        function = replays_of_bench()[compared.kernel_type]
        job = Job(function.__module__, "", function.__name__, compared.kernel_type, compared.cells(), timeout_s=60)
        outcome = runner.run(job)
        if outcome.measurement is None:
            raise SystemExit(f"{compared}: {outcome.status}: {outcome.reason}")
        yield median(outcome.measurement.samples_us)


def table(calls: Sequence[ComparedCall], ours: Sequence[float], loops: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Yields the durations and ratios of each call, then the ratios of each family, as tables of Markdown."""
    ratios = [{name: us / of_loop[name] for name in LOOPS} for us, of_loop in zip(ours, loops, strict=True)]
    yield f"| call | OpAtlas us | {' | '.join(f'{name} us' for name in LOOPS)} | {' | '.join(LOOPS)} |"
    yield "| --- |" + " --- |" * (1 + 2 * len(LOOPS))
    for compared, us, of_loop, of_call in zip(calls, ours, loops, ratios, strict=True):
        cells = [f"{us:.1f}", *(f"{of_loop[name]:.1f}" for name in LOOPS), *(f"{of_call[name]:.2f}" for name in LOOPS)]
        yield f"| {compared} | {' | '.join(cells)} |"
    yield ""
    yield f"| ratios of | calls | {' | '.join(f'{name}: median (least to most)' for name in LOOPS)} |"
    yield "| --- | --- |" + " --- |" * len(LOOPS)
    for family in dict.fromkeys(compared.family for compared in calls):
        own = [of_call for compared, of_call in zip(calls, ratios, strict=True) if compared.family == family]
        cells = []
        for name in LOOPS:
            values = [of_call[name] for of_call in own]
            cells.append(f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        yield f"| {family} | {len(own)} | {' | '.join(cells)} |"


def main() -> int:
    """Returns 2 without a GPU."""
    if not torch.cuda.is_available():
        print("no GPU is here that torch can use", file=sys.stderr)
        return 2
    timer = Loops()
    loops = []
    for compared in CALLS:
        loops.append(timer.durations(compared))
        torch.cuda.empty_cache()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print("\n".join(table(CALLS, list(opatlas_durations(CALLS)), loops)))
    return 0


if __name__ == "__main__":
    run_benchmark(main)
