"""The layers of a step, built from the calls of a model: each call reads what an earlier one wrote.

A call is that of a row of its kernel type, made by the replay of that type. What it reads of the layer is what an
earlier call wrote (`_LINKS`); its weights and caches are its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from opatlas.row.communication import BY_KERNEL_TYPE
from opatlas.row.errors import Unsupported, WrongResult
from opatlas.row.location import public_version
from opatlas.run.devices.device import Device
from opatlas.run.implementation import KernelSource, load_kernel
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.kernel_call import KernelCall, OperatorMode, flat_tensors, is_free
from opatlas.run.message import step_message
from opatlas.run.registry import replay_spec, replays_of_bench
from opatlas.run.replay import RecordedCall, recorded_call
from opatlas.run.result_check import Checked, check
from opatlas.theory.model_step import ModelCall

#: What the first arguments of a part's call read, and what its results are: names of values of a layer; "" for none.
_LINKS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    **dict.fromkeys(("attention_norm", "ffn_norm"), (("out", "residual"), ("x", "", "residual"))),
    **dict.fromkeys(("attention_all_reduce", "ffn_all_reduce", "experts_all_reduce"), (("out",), ("out",))),
    "qkv": (("x",), ("qkv",)),
    **dict.fromkeys(("q_kv_a", "kv_a"), (("x",), ("latents",))),
    "query_norm": (("query",), ("query",)),
    "key_norm": (("key",), ("key",)),
    "q_b": (("query",), ("q_b",)),
    "q": (("x",), ("q_b",)),
    "rope": (("query", "key"), ("query", "key")),
    "latent_rope": (("query_rope",), ("query_rope",)),
    "cache": (("key", "value", "key_cache", "value_cache"), ("key_cache", "value_cache")),
    "latent_cache": (("latent", "", "", "", "", "rope_cache", "latent_cache"), ("rope_cache", "latent_cache")),
    "query_absorb": (("query_nope",), ("absorbed",)),
    "attention": (("query", "key", "value"), ("attended",)),
    "paged_attention": (("query", "key_cache", "value_cache"), ("attended",)),
    "latent_attention": (("absorbed", "latent_cache", "latent_cache"), ("attended",)),
    "value_up": (("attended",), ("attended",)),
    "o_proj": (("attended",), ("out",)),
    "gate_up": (("x",), ("gate_up",)),
    "act": (("gate_up",), ("act",)),
    "down": (("act",), ("out",)),
    "router": (("x",), ("logits",)),
    "gating": (("logits",), ("shares", "experts")),
    "permute": (("x", "experts"), ("rows", "positions")),
    "experts_gate_up": (("rows",), ("gate_up",)),
    "experts_act": (("gate_up",), ("act",)),
    "experts_down": (("act",), ("rows",)),
    "unpermute": (("rows", "positions", "shares"), ("out",)),
    "shared_gate_up": (("x",), ("shared",)),
    "shared_act": (("shared",), ("shared",)),
    "shared_down": (("shared",), ("shared",)),
    "experts_add": (("out", "shared"), ("out",)),
}
#: Kernel types whose calls have the links of another name: latent attention has other parts of the same names.
_OF_TYPES = {
    "InterleaveRope": "latent_rope",
    "KvRmsNormRopeCache": "latent_cache",
    **dict.fromkeys(("RINGMLAPrefillBF16Kernel", "SparseFlashAttention"), "other_attention"),
}
#: Values that are columns of another one: its name, and the end that they stand at.
_COLUMNS = {"query": ("qkv", "latents"), "key": ("qkv",), "value": ("qkv",), "latent": ("latents",)}
#: Values that last from layer to layer.
_LASTING = ("out", "residual")
#: Kernel types whose weight is the second argument.
_PRODUCTS = ("MatMul", "BatchMatMul", "TransposeBatchMatMul", "QuantBatchMatmul", "GroupedMatmul")
_REAL = (torch.float32, torch.bfloat16, torch.float16)
#: The most elements of a result that are compared after the measurement.
_COMPARED = 4096
#: Operators that allocate a result that something else writes.
_ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


class _Values(dict[str, torch.Tensor]):
    """The values of a layer by name."""

    def view(self, name: str, like: torch.Tensor) -> torch.Tensor | None:
        """Returns a value in the shape of `like`, without a copy; None if there is none of that dtype and size."""
        value = self.get(name)
        if name in ("query_rope", "query_nope") and value is None and "q_b" in self:
            # Of each head the last or the first numbers; of some tokens alone none.
            heads, rest = divmod(like.numel(), len(self["q_b"]) * like.shape[-1])
            if rest or not heads:
                return None
            by_head: torch.Tensor = self["q_b"].unflatten(-1, (heads, -1))
            if name == "query_nope":
                return by_head[..., : like.shape[-1]].transpose(0, 1)
            return by_head[..., -like.shape[-1] :].view(like.shape)
        packed = next((self[of] for of in _COLUMNS.get(name, ()) if of in self), None)
        if value is None and packed is not None:
            width, total = like.numel() // len(packed), packed.shape[-1]
            start = {"query": 0, "key": total - 2 * width}.get(name, total - width)
            value = packed[:, start : start + width]
        if value is None or value.dtype != like.dtype or value.numel() < like.numel():
            return None
        if name == "absorbed":
            value = value.transpose(0, 1)
        try:
            # Of a cache the first pages.
            return (
                value.view(like.shape)
                if value.numel() == like.numel()
                else value.view(-1, *like.shape[1:])[: len(like)]
            )
        except RuntimeError:
            return None


class _Placed(OperatorMode):
    """Lets the operators of a call write their results where those of its first call lie, which other calls read.

    Without it each launch writes into new memory. Operators without such a form are left as they are.
    """

    def __init__(self, *, is_torch: bool) -> None:
        """`is_torch` says that the call launches nothing besides operators of torch."""
        super().__init__()
        self._is_torch, self._number, self._working = is_torch, 0, 0
        #: Of the first call, what allocated the memory at an address.
        self._made: dict[int, tuple[int, Any, torch.Tensor]] | None = {}
        self._places: dict[int, tuple[Any, torch.Tensor]] = {}
        #: The whole call, where it is one operator that has a place.
        self._direct: Callable[[], object] | None = None

    def make(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        allocates = operator.overloadpacket.__name__ in _ALLOCATIONS
        if is_free(operator) and not allocates:
            # Some views are made in the first call only.
            return operator(*arguments, **keywords)
        number, self._number = self._number, self._number + 1
        self._working += not allocates
        if number in self._places:
            form, place = self._places[number]
            if form is None:
                return place
            self._direct = partial(form, *arguments, **keywords, out=place)
            return self._direct()
        found = operator(*arguments, **keywords)
        is_made = isinstance(found, torch.Tensor) and not operator._schema.returns[0].alias_info
        if is_made and self._made is not None:
            self._made[found.untyped_storage().data_ptr()] = number, operator, found
        return found

    def keep(self, results: Sequence[torch.Tensor]) -> None:
        """Ends the first call: from now on its results stay where they are."""
        by_address, self._made = self._made or {}, None
        for result in results:
            number, operator, made = by_address.get(result.untyped_storage().data_ptr(), (-1, None, result))
            allocates = operator is not None and operator.overloadpacket.__name__ in _ALLOCATIONS
            if operator is not None and (allocates or with_out(operator)):
                self._places[number] = (None if allocates else with_out(operator)), made

    def again(self, call: Callable[[], object]) -> None:
        """Makes a call that `launch` has made, with nothing between that an engine would not have."""
        if self._direct is not None and self._is_torch and self._working == 1:
            self._direct()
        else:
            self.launch(call)

    def launch(self, call: Callable[[], object]) -> None:
        """Makes the call."""
        self._number, self._working = 0, 0
        if self._places:
            with self:
                call()
        else:
            call()


def with_out(operator: Any) -> Any:
    """Returns the form of an operator of torch that writes its result into an argument; None if it has none."""
    if operator.overloadpacket.__name__ == "_to_copy":
        return lambda source, *, out, **how: out.copy_(source)
    own = [(each.name, str(each.type)) for each in operator._schema.arguments]
    for name in operator.overloadpacket.overloads():
        form = getattr(operator.overloadpacket, name)
        given = [(each.name, str(each.type)) for each in form._schema.arguments if not each.is_out]
        if given == own and len(form._schema.arguments) == len(own) + 1:
            return form
    return None


@dataclass(eq=False)
class StepCall:
    """A call of a built layer; `launch` makes it, after the calls before it.

    Outside of the step it takes `alone_us`, measured on the first call of the same part and shapes.
    The part "" has no counterpart in a step: it copies a result to where a call that changes it reads it.
    """

    part: str
    call: KernelCall
    launch: Callable[[], object]
    reference: Sequence[torch.Tensor] = ()
    is_compared: bool = True
    alone_us: float = math.nan

    def sample(self) -> list[torch.Tensor]:
        """Returns some elements of each result of real numbers, as they are now; of a result with a copy none."""
        results = self.call.results() if self.is_compared else ()
        real = [each for each in results if each is not None and each.is_floating_point()]
        return [each.flatten()[:: max(1, each.numel() // _COMPARED)].float() for each in real]


class BuiltLayers:
    """The calls of some layers, each made once and checked.

    Attributes:
        calls: in the order of their launches.
        checked: the comparison of each call with its formula.
        ran: names and versions of the implementations that ran.
        notes: what differs from a step.
    """

    def __init__(
        self,
        device: Device,
        stack: Mapping[str, Sequence[KernelSource]],
        measure_alone: Callable[[KernelCall], float],
        is_routed: bool,
    ) -> None:
        """
        Args:
            stack: the functions of kernel types that the default does not run; the first that takes a row runs it.
            measure_alone: measures a call outside of the step.
            is_routed: whether experts have the rows that the gating gives them; else all have equally many.
        """
        self.calls: list[StepCall] = []
        #: What `measure_alone` returned for the first call of each part and signature.
        self._alone_us: dict[tuple[str, str], float] = {}
        self.checked: list[Checked] = []
        self.ran: dict[str, None] = {}
        self.notes: dict[str, None] = {}
        self._device, self._stack, self._measure_alone, self._is_routed = device, stack, measure_alone, is_routed
        self._values = _Values()
        #: Tensors that a pass begins with, and their values.
        self._given: list[tuple[torch.Tensor, torch.Tensor]] = []
        #: Calls whose results lie elsewhere at each launch, and which result it is, by the address that others read.
        self._loose: dict[int, tuple[StepCall, int]] = {}

    def add(self, layer: Sequence[ModelCall]) -> None:
        """Adds a layer. Raises Unsupported if a call has no replay, and WrongResult."""
        for known in set(self._values) - set(_LASTING):
            del self._values[known]
        for call in layer:
            self._build(call)

    def run(self, before_each: Callable[[], object] = lambda: None) -> None:
        """Makes all calls once, and `before_each` before each of them and at the end."""
        for tensor, value in self._given:
            tensor.copy_(value)
        for each in self.calls:
            before_each()
            each.launch()
        before_each()

    def _build(self, call: ModelCall) -> None:
        """Makes a call for the first time, checks it, and adds it; the first of a part is measured alone."""
        row = ReplayRow(call.kernel_type, call.cells, self._device.torch_device)
        recorded, npu = self._recorded(call, row)
        writes = self._link(call, recorded)
        if call.kernel_type.startswith(_PRODUCTS):
            _bound_results(recorded)
        own, placed = self._first_call(call.part, self._stack.get(call.kernel_type, ()), npu, recorded)
        computed = recorded.results_of(own.kept_results(), own.inputs)
        arguments, keywords = own.originals()
        try:
            self.checked.append(check(recorded.expected, arguments, keywords, computed, row.seed))
        except WrongResult as error:
            # Rows have no two logits alike; a step has, and then another expert is right, too.
            if call.part != "gating":
                raise WrongResult(f"{call.part}: {error}") from None
            self.notes[f"not checked: {error}"] = None
        if not self.calls:
            # It reads what the last call of the layer before would have written.
            self._given = [(each, each.clone()) for each in arguments[:2] if isinstance(each, torch.Tensor)]
        if (key := (call.part, call.signature())) not in self._alone_us:
            self._alone_us[key] = self._measure_alone(own)
        own.restore()
        placed.launch(own.launch)
        places = [each.data_ptr() for each in own.returned()]
        if self.calls:
            self._given += self._states(own, placed)
        own.restore()
        placed.launch(own.launch)
        own.forget()
        self._renew([recorded.arguments[at] for at in recorded.changed["mutates"] if isinstance(at, int)])
        self._renew(own.prepared.changes if own.prepared is not None else ())
        built = StepCall(call.part, own, lambda: placed.again(own.launch), alone_us=self._alone_us[key])
        self.calls.append(built)
        for number, (place, latest) in enumerate(zip(places, own.returned(), strict=True)):
            if latest.data_ptr() != place:
                self.notes[f"what reads {call.part} reads it from elsewhere"] = None
                self._loose[latest.untyped_storage().data_ptr()] = built, number
        for name, result in zip(writes, own.results(), strict=False):
            if name and result is not None:
                self._values[name] = result

    def _states(self, own: KernelCall, placed: _Placed) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns what a call reads and changes that no other call of the layer writes, and its values before.

        The latest call began with these values. A cache is none: to write the same tokens again changes nothing.
        """
        of_layer = {each.untyped_storage().data_ptr() for each in self._values.values()}
        changed = [each for each in own.changed() if each[0].untyped_storage().data_ptr() not in of_layer]
        if not changed:
            return []
        first = [each.clone() for each in flat_tensors(own.results())]
        placed.launch(own.launch)
        return [] if all(map(torch.equal, first, flat_tensors(own.results()))) else changed

    def _recorded(self, call: ModelCall, row: ReplayRow) -> tuple[RecordedCall, str | None]:
        """Returns the call as its replay makes it, and the name of the call that an NPU makes. Raises Unsupported."""
        if call.kernel_type in BY_KERNEL_TYPE:
            return step_message(call.kernel_type, call.cells, self._device.torch_device), None
        function = replays_of_bench().get(call.kernel_type)
        spec = replay_spec(function)
        if function is None or spec is None:
            raise Unsupported(f"{call.part}: {call.kernel_type} has no replay")
        return recorded_call(function, row), spec.npu

    def _renew(self, changed: Sequence[Any]) -> None:
        """Lets tensors that a call changes, and whose maker writes elsewhere at each launch, be copied behind it."""
        for tensor in flat_tensors(changed):
            maker, number = self._loose.pop(tensor.untyped_storage().data_ptr(), (None, 0))
            if maker is not None:
                result = maker.call.returned()[number]
                copy = partial(_copy, maker.call, number, result)
                self.calls.insert(self.calls.index(maker) + 1, StepCall("", maker.call, copy, is_compared=False))
                maker.is_compared = False

    def _link(self, call: ModelCall, recorded: RecordedCall) -> Sequence[str]:
        """Lets a call read what others of the layer wrote; returns the names of its results."""
        keywords, values = recorded.keywords, self._values
        part = _OF_TYPES.get(call.kernel_type, call.part.removesuffix("_quant"))
        if part in ("attention", "window_attention"):
            pages = "latent_" if keywords.get("query_rope") is not None else "paged_"
            part = f"{pages if keywords.get('block_table') is not None else ''}attention"
        reads, writes = _LINKS.get(part, ((), ()))
        named = {"query_rope": "query_rope", "key_rope": "rope_cache"}
        if call.part.endswith("_quant"):
            writes = ("quantized", "scales")
        elif "quantized" in values and reads:
            reads, named = ("quantized",), {"pertoken_scale": "scales", "per_token_scale": "scales"}
        places: list[tuple[Any, int | str, str]] = [(recorded.arguments, at, name) for at, name in enumerate(reads)]
        places += [(keywords, key, name) for key, name in named.items() if keywords.get(key) is not None]
        views: dict[int, torch.Tensor | None] = {}
        for holder, at, name in places:
            given = holder[at]
            (like,) = flat_tensors(given)
            # One tensor that is keys and values stays one.
            view = views[id(given)] = views[id(given)] if id(given) in views else values.view(name, like)
            if view is not None:
                holder[at] = [view] if isinstance(given, list) else view
            elif name and self.calls and name not in writes:
                self.notes[f"{call.part} reads no {name} of the layer"] = None
        values.pop("quantized", None)
        if call.part == "gating" and "bias" in keywords:
            # Tokens choose by their logits alone.
            keywords["bias"].zero_()
        if "group_list" in keywords and "experts" in values and self._is_routed:
            (rows,) = flat_tensors(recorded.arguments[0])
            keywords["group_list"] = _group_ends(values["experts"], len(rows), keywords["group_list"])
        return writes

    def _first_call(
        self, part: str, sources: Sequence[KernelSource], npu: str | None, recorded: RecordedCall
    ) -> tuple[KernelCall, _Placed]:
        """Calls the kernel of the first implementation that takes the row, or the default one."""
        source = next(iter(sources), None)
        impl, name = recorded.impl, source.implementation if source else f"torch {public_version(torch.__version__)}"
        kernel = load_kernel(source, impl) if source else self._device.kernel(impl, npu)
        placed = _Placed(is_torch=source is None)
        own = KernelCall(
            kernel, recorded.arguments, recorded.keywords, **recorded.changed, may_lack_results=source is not None
        )
        try:
            own.start()
            if own.prepared is None:
                own.restore()
            # What restores arguments is no part of the call.
            with placed:
                (own.launch if own.prepared is None else own.first_prepared)()
        except Unsupported as error:
            if source is None:
                raise
            left = sources[1:]
            self.notes[f"{part} by {left[0].implementation if left else 'torch'}: {error}"] = None
            return self._first_call(part, left, npu, recorded)
        self.ran[name] = None
        placed.keep(own.returned())
        return own, placed


def _bound_results(recorded: RecordedCall) -> None:
    """Divides the weights of a product, or their scales, by the size of its results, and leaves out its bias.

    Without it values grow from layer to layer, and a query of size 40 attends to one key alone, which a kernel that
    multiplies in FP8 does not find. With the same large bias all tokens choose the same experts. A bias that a library
    adds in a kernel of its own goes; one that is part of the product becomes 0. Some kernels take scales in another
    form at their first call, so it comes before.
    """
    (x, *_), weights = flat_tensors(recorded.arguments[0]), flat_tensors(recorded.arguments[1])
    recorded.keywords.pop("bias", None)
    for bias in flat_tensors(recorded.arguments[2:] if weights[0].dtype in _REAL else ()):
        bias.zero_()
    divided, factors = list(weights), [x, weights[0]]
    if weights[0].dtype not in _REAL:
        named = [recorded.keywords.get(name) for name in ("scale", "pertoken_scale", "per_token_scale")]
        scales = [each for each in flat_tensors([*recorded.arguments[2:3], named]) if each.dtype in _REAL]
        divided, factors = scales[:1], [*factors, *scales]
    size = x.shape[-1] ** 0.5 * math.prod(_root_mean_square(each) for each in factors)
    for each in divided:
        each.div_(max(size, 1e-6))


def _root_mean_square(values: torch.Tensor) -> float:
    return float(values.float().norm()) / math.sqrt(values.numel())


def _group_ends(chosen: torch.Tensor, rows: int, like: torch.Tensor) -> torch.Tensor:
    """Returns where the rows of each expert of a device end, if tokens choose experts as `chosen` has them.

    A device has some of all experts, and `rows` of the rows of them, also of other devices' tokens. Each choice stands
    for one of its experts, in turn if there are fewer choices than rows.
    """
    own = (chosen.flatten() % len(like)).repeat(-(-rows // chosen.numel()))[:rows]
    return torch.bincount(own, minlength=len(like)).cumsum(0).to(like.dtype)


def _copy(maker: KernelCall, number: int, place: torch.Tensor) -> None:
    place.copy_(maker.returned()[number])
