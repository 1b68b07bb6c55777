"""Calls of torch's operators as a trace of torch.profiler has them, and their rows."""

from __future__ import annotations

from typing import Any

from opatlas.capture.operator_rows import CapturedRow, Operator
from opatlas.capture.torch_operators import row_of
from opatlas.run.registry import replays_of_bench

BF16, F32, I64, I32 = "c10::BFloat16", "float", "long int", "int"


def strides_of(dims: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in dims[:0:-1]:
        strides.insert(0, strides[0] * size)
    return tuple(strides[: len(dims)])


def tensor(*dims: int, dtype: str = BF16, strides: tuple[int, ...] | None = None) -> tuple[Any, ...]:
    return dims, dtype, strides_of(dims) if strides is None else strides, ""


def weight(n: int, k: int) -> tuple[Any, ...]:
    """A weight (N, K), transposed."""
    return tensor(k, n, strides=(1, k))


def scalar(value: object) -> tuple[Any, ...]:
    return (), "Scalar", (), str(value)


def number(value: str = "double") -> tuple[Any, ...]:
    """A number as a tensor without axes, as torch passes Python's numbers."""
    return (), value, (), ""


NONE: tuple[Any, ...] = ((), "", (), "")


def listed(*dims: tuple[int, ...]) -> tuple[Any, ...]:
    return dims, "TensorList", tuple(map(strides_of, dims)), ""


def operator(name: str, *arguments: tuple[Any, ...]) -> Operator:
    return Operator(name, *(tuple(each) for each in zip(*arguments, strict=True)))


def made(name: str, *arguments: tuple[Any, ...], kernels: tuple[str, ...] = ()) -> CapturedRow:
    found = row_of(operator(name, *arguments), kernels)
    assert isinstance(found, CapturedRow), found
    return found


def expect_replay(row: CapturedRow) -> None:
    """Asserts that the replay of a kernel type makes one call of a row, with tensors that have no values."""
    import torch

    from opatlas.run.inputs.replay_row import ReplayRow

    class OnMeta(ReplayRow):
        on_npu = False

    calls: list[Any] = []
    function = replays_of_bench()[row.kernel_type]
    on_meta = OnMeta(row.kernel_type, row.cells, torch.device("meta"))
    function(row=on_meta, replay=lambda *arguments, **keywords: calls.append(arguments))
    assert len(calls) == 1


def paged() -> CapturedRow:
    """A step of three sequences as FlashAttention 3 of vLLM gets it."""
    q, pages, ends = tensor(6, 4, 16), tensor(4096, 32, 2, 16), tensor(4, dtype=I32)
    return made("_vllm_fa3_C::fwd", q, pages, pages, ends, tensor(3, dtype=I32), tensor(3, 8, dtype=I32))


def ragged() -> CapturedRow:
    """The same step as aiter of SGLang gets it, with a list of 32 pages for each of 64 sequences."""
    q, pages, ends, listed = tensor(6, 4, 16), tensor(4096, 1, 2, 16), tensor(4, dtype=I32), tensor(2048, dtype=I32)
    work, last = tensor(9, dtype="unsigned char"), tensor(64, dtype=I32)
    return made("sglang_profiler::attention_paged_attention_ragged_7", q, work, q, pages, pages, ends, listed, last)


def of_tokens() -> CapturedRow:
    q, cache, ends = tensor(6, 4, 16), tensor(4096, 2, 16), tensor(4, dtype=I32)
    return made("aiter::mha_batch_prefill", q, cache, cache, ends, ends, tensor(80, dtype=I32), scalar(4), scalar(32))
