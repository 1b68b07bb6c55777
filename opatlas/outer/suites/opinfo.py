"""The samples of torch's OpInfo: each call of one operator of aten is a case that can be made again.

OpInfo lists the functions of torch with samples of their arguments: small tensors, sizes of 0, numbers, strides, broad-
casts. A sample counts where the function calls a single operator of aten; the arguments of that call are the case.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
import types
import unittest
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import torch

from opatlas.outer.suites import operators as aten
from opatlas.outer.suites.texts import OPINFO, ArgumentsText, CaseRow, case_row
from opatlas.run.kernel_call import OperatorMode, flat_tensors

#: Cases of an operator for each dtype: spread over the samples of OpInfo, which has up to 1,440 of one.
MOST_CASES: Mapping[str, int] = {"float32": 12, "bfloat16": 12, "int64": 4, "bool": 4}
#: Further cases with tensors of size 0, and with infinities and NaN.
_MOST_EMPTY, _MOST_NOT_FINITE = 2, 2
#: Samples of an operator of which the in-place and the out variant are cases, too.
_MOST_VARIANTS = 2
#: Kinds of devices whose dtypes OpInfo knows; for others those of CUDA are taken.
_KNOWN_DEVICES = ("cpu", "cuda")
#: Samples of infinities and NaN that are drawn for an elementwise function.
_EXTREME = 4


@dataclass(frozen=True, eq=False)
class _Sample:
    """A sample whose function calls one operator."""

    call: aten.Call
    text: ArgumentsText
    opinfo: str
    number: int
    results: Sequence[torch.Tensor] = ()


class _Recorder(OperatorMode):
    """Records the operators that a function calls, the first one with copies of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.first: aten.Call | None = None
        self.result: Any = None

    def make(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        self.count += 1
        call = aten.Call(operator, tuple(arguments), dict(keywords))
        if self.count == 1:
            try:
                self.first = call.cloned()
            except (RuntimeError, aten.NoText):
                # A sparse tensor. The sample is left out, since its arguments have no text.
                self.first = None
        return call()


@lru_cache(maxsize=1)
def opinfos() -> Mapping[str, Any]:
    """Returns torch's OpInfos by name. The import takes three seconds."""
    # torch's tests forbid changes to torch's flags. A session in this process still opens its device.
    with _expecttest(), patch.object(torch.backends, "disable_global_flags"):
        from torch.testing._internal.common_methods_invocations import op_db
    found: dict[str, Any] = {}
    for each in op_db:
        found.setdefault(each.full_name, each)
    return found


@contextmanager
def _expecttest() -> Iterator[None]:
    """Lets torch's tests be imported without the package expecttest, whose test case theirs inherit from."""
    name = "expecttest"
    try:
        __import__(name)
    except ModuleNotFoundError:
        stand_in = types.ModuleType(name)
        vars(stand_in)["TestCase"] = unittest.TestCase
        sys.modules[name] = stand_in
        try:
            yield
        finally:
            del sys.modules[name]
    else:
        yield


@lru_cache(maxsize=4)
def _samples(opinfo: str, dtype_name: str) -> Sequence[Any]:
    """Returns the samples of an OpInfo on the CPU, from a seed of its name: those of OpInfo, then extreme values."""
    info, dtype = opinfos()[opinfo], getattr(torch, dtype_name)
    seed = int.from_bytes(hashlib.blake2b(f"{opinfo} {dtype}".encode(), digest_size=4).digest(), "little")
    with _outside_of_tests():
        torch.manual_seed(seed)
        return [*info.sample_inputs("cpu", dtype, requires_grad=False), *_extreme(info, dtype)]


@contextmanager
def _outside_of_tests() -> Iterator[None]:
    """Lets OpInfo draw samples for no test, with seeds of the CPU alone.

    For each iterator OpInfo looks for a test among the callers, with their sources: a tenth of a second. It seeds torch
    for each sample, which keeps a traceback for each device that is not open.
    """
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    with (
        patch.object(torch, "manual_seed", torch.default_generator.manual_seed),
        patch.object(common_utils, "extract_test_fn", lambda: None),
        patch.object(core, "extract_test_fn", lambda: None),
    ):
        yield


def _extreme(info: Any, dtype: torch.dtype) -> Iterable[Any]:
    """Returns samples with infinities and NaN of an elementwise function of one or two tensors."""
    if not dtype.is_floating_point:
        return []
    from torch.testing._internal.opinfo import core

    if isinstance(info, core.UnaryUfuncInfo):
        made = core.generate_elementwise_unary_extremal_value_tensors(info, device="cpu", dtype=dtype)
    elif isinstance(info, core.BinaryUfuncInfo):
        made = core.generate_elementwise_binary_extremal_value_tensors(info, device="cpu", dtype=dtype)
    else:
        return []
    return itertools.islice(made, _EXTREME)


def recorded(opinfo: str, dtype: str, number: int) -> aten.Call | None:
    """Returns the call of the single operator that a sample's function calls; None if it calls none, or several.

    Raises:
        KeyError, IndexError: this torch has no such OpInfo or sample.
    """
    return _recorded(opinfos()[opinfo], _samples(opinfo, dtype)[number])


def _recorded(info: Any, sample: Any) -> aten.Call | None:
    recorder = _Recorder()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with recorder:
            info.op(sample.input, *sample.args, **sample.kwargs)
    return recorder.first if recorder.count == 1 else None


def list_cases(device_kind: str, operators: Sequence[str] = ()) -> Iterator[CaseRow]:
    """Yields the cases of operators.

    Args:
        device_kind: a device ("cuda"), whose dtypes count as OpInfo knows them; the samples are made on the CPU.
        operators: the only operators ("add.Tensor"), with their variants; empty: all.
    """
    known = device_kind if device_kind in _KNOWN_DEVICES else "cuda"
    overloads = list(filter(None, map(aten.find_overload, operators)))
    wanted = {aten.name_of(aten.functional_of(each) or each) for each in overloads}
    infos = opinfos()
    if operators:
        infos = {name: info for name, info in infos.items() if _may_call(name, info, known, wanted)}
    for dtype, most in MOST_CASES.items():
        by_operator: dict[str, list[_Sample]] = defaultdict(list)
        for name, info in infos.items():
            if getattr(torch, dtype) in info.supported_dtypes(known):
                for sample in _recordable(name, dtype):
                    by_operator[aten.name_of(sample.call.overload)].append(sample)
        for operator in sorted(by_operator.keys() & wanted if operators else by_operator):
            chosen = map(_checked, _chosen(by_operator[operator], most))
            yield from _cases_of(operator, dtype, [each for each in chosen if each is not None])


#: Samples of an OpInfo that tell the families of the operators that it calls; others are for more axes.
_FIRST = 8
#: OpInfos of which later samples, or those of other dtypes, call other families.
_UNCLEAR = ("isfinite", "masked.")


def _may_call(name: str, info: Any, device: str, operators: Collection[str]) -> bool:
    """Returns whether an OpInfo may call one of these operators, from a few of its samples."""
    supported = info.supported_dtypes(device)
    dtype = next((found for each in MOST_CASES if (found := getattr(torch, each)) in supported), None)
    families, called = set(map(_family, operators)), set[str]()
    if dtype is None or name.startswith(_UNCLEAR):
        return dtype is not None
    # OpInfo's samples and functions may raise anything.
    with suppress(Exception), _outside_of_tests():
        for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), _FIRST):
            with suppress(Exception):
                called |= {
                    _family(aten.name_of(call.overload)) for call in [_recorded(info, sample)] if call is not None
                }
    return any(wanted.startswith(family) for wanted in families for family in called)


def _family(operator: str) -> str:
    """Returns the name of an operator without its overload and numbers of axes: `max_pool` of `max_pool2d.default`."""
    return re.sub(r"\d+d?", "", operator.partition(".")[0]).strip("_")


def _recordable(opinfo: str, dtype: str) -> Iterator[_Sample]:
    """Yields the samples of an OpInfo that call one operator, without their results."""
    try:
        count = len(_samples(opinfo, dtype))
    except Exception:
        # OpInfo's own samples of a dtype may need what this machine lacks, such as LAPACK.
        return
    for number in range(count):
        try:
            call = recorded(opinfo, dtype, number)
        except Exception:
            # A sample that torch refuses.
            continue
        if call is not None and not aten.is_no_operator(call.overload):
            with suppress(aten.NoText):
                yield _Sample(call, aten.text_of(call), opinfo, number)


def _checked(sample: _Sample) -> _Sample | None:
    """Returns a sample with its results; None where these differ each time, or an argument changes unannounced."""
    try:
        made = sample.call.cloned()
        first, again = made.results(), sample.call.cloned().results()
        for each in first:
            aten.text_of_tensor(each)
        is_same = len(first) == len(again) and all(map(_equal, first, again)) and _is_kept(sample.call, made)
    except Exception:
        # Results without a text, or of a dtype that torch cannot compare.
        return None
    return replace(sample, results=first) if first and is_same else None


def _is_kept(before: aten.Call, after: aten.Call) -> bool:
    """Returns whether a call has changed no argument but those that its schema names."""
    written, now = before.written(), after.places()
    return all(
        all(map(_equal, flat_tensors(value), flat_tensors(now[place])))
        for place, value in before.places().items()
        if place not in written
    )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def _chosen(samples: Sequence[_Sample], most: int) -> list[_Sample]:
    """Returns at most `most` samples with different arguments, and some of size 0 and with infinities and NaN."""
    different = {str(each.text): each for each in reversed(samples) if _is_finite(each)}
    plain = list(reversed(different.values()))
    extreme = [each for each in samples if not _is_finite(each)]
    empty = [each for each in plain if _is_empty(each)]
    filled = [each for each in plain if not _is_empty(each)]
    return [*_spread(filled, most), *_spread(empty, _MOST_EMPTY), *_spread(extreme, _MOST_NOT_FINITE)]


def _is_finite(sample: _Sample) -> bool:
    return all(bool(each.isfinite().all()) for each in sample.call.tensors())


def _is_empty(sample: _Sample) -> bool:
    return any(each.numel() == 0 for each in sample.call.tensors())


def _spread(samples: Sequence[_Sample], most: int) -> list[_Sample]:
    """Returns `most` samples at equal distances, the first one included."""
    if len(samples) <= most:
        return list(samples)
    return [samples[number * len(samples) // most] for number in range(most)]


def _cases_of(operator: str, dtype: str, samples: Sequence[_Sample]) -> Iterator[CaseRow]:
    for sample in samples:
        yield _case(operator, "", dtype, sample, sample.call, sample.results)
    overload = aten.find_overload(operator)
    if overload is None or any(sample.call.written() for sample in samples):
        return
    for variant in aten.variants_of(overload):
        made = (_variant(variant, operator, dtype, sample) for sample in samples)
        yield from itertools.islice(filter(None, made), _MOST_VARIANTS)


def _variant(variant: torch._ops.OpOverload, operator: str, dtype: str, sample: _Sample) -> CaseRow | None:
    """Returns the case of a variant; None if torch refuses an in-place call with a larger result, or resizes `self`."""
    try:
        call = variant_call(variant, sample.call, sample.results)
        made = call.cloned()
        results = made.results()
    except Exception:
        # Any kernel of torch may refuse.
        return None
    is_resized = any(each.shape != before.shape for each, before in zip(made.tensors(), call.tensors(), strict=True))
    same = [aten.text_of_tensor(each) for each in results] == [aten.text_of_tensor(each) for each in sample.results]
    return _case(aten.name_of(variant), operator, dtype, sample, call, results) if same and not is_resized else None


def variant_call(variant: torch._ops.OpOverload, call: aten.Call, results: Sequence[torch.Tensor]) -> aten.Call:
    """Returns the call of an in-place or out variant with the arguments of a functional call.

    An out variant writes into tensors like these results, filled with NaN or ones.
    """
    names = aten.out_names(variant)
    outs = [torch.full_like(each, torch.nan if each.is_floating_point() else 1) for each in results if names]
    return aten.Call(variant, call.positional, {**call.keywords, **dict(zip(names, outs, strict=True))})


def _case(
    operator: str, functional: str, dtype: str, sample: _Sample, call: aten.Call, results: Sequence[torch.Tensor]
) -> CaseRow:
    name = f"{OPINFO}/{sample.opinfo}/{dtype}/{sample.number}"
    return case_row(
        operator, functional, name, str(aten.text_of(call)), aten.slots_of(call.tensors()), aten.slots_of(results)
    )
