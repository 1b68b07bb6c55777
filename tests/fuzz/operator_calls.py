"""Traces of operators: files of `pytest bench/ --suite PATH`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.outer.suites.texts import read_arguments, read_traces

from .target import Target, expect

_SHIPPED = Path(__file__).parents[2] / "opatlas" / "outer" / "suites" / "traces" / "decoder.txt"
_CALLS = b"""\
Operator: aten.add.Tensor
cnt: 156, ((T([1, 512, 768], f16), T([1, 512, 768], f16, stride=(1, 1, 512))), {'alpha': 2})
Operator: aten._index_put_impl_.default
cnt: 0, ((T([8], f32), [T([2], i64), None], T([], f32), True), {'dtype': torch.bool, 'device': 'cuda'})
cnt: 3, ((T([2], b8), -inf, (1, -2.5e-3)), {})
"""


def _seeds() -> Iterator[bytes]:
    yield _CALLS
    yield _SHIPPED.read_bytes()


def _check(data: bytes, folder: Path) -> None:
    path = folder / "calls.txt"
    path.write_bytes(data)
    try:
        calls = read_traces(path)
    except OpAtlasError as error:
        expect(str(path) in str(error), f"no place: {error}")
        return
    for call in calls:
        expect(call.count >= 0, f"a negative count: {call}")
        again = read_arguments(str(call.arguments))
        expect(str(again) == str(call.arguments), f"other arguments when read again: {call}")
        expect(all(each.bytes >= 0 for each in again.tensors()), f"a tensor of negative size: {call}")


OPERATOR_CALLS = Target(
    "operator-calls",
    "traces of operators: the same arguments again, and nothing evaluated",
    _seeds,
    _check,
    (b"Operator:", b"cnt:", b"T(", b"stride=", b"__import__", b"torch.", b"inf", b"nan", b"{}", b"((", b"9" * 30),
)
