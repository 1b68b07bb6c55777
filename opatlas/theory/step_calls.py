"""One call of a step of a model: its shapes come from a pattern of the catalog and the part of a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean

from opatlas.row.attention import Sequences, keys_of
from opatlas.row.columns import INPUT_DTYPES, MESSAGE, RUNTIME_PREFIX
from opatlas.row.communication import ALL_REDUCE, Collective
from opatlas.row.slots import FP8, known_dtype
from opatlas.theory import model_step
from opatlas.theory.catalog import built_in_catalog
from opatlas.theory.model_step import ModelCall
from opatlas.theory.models import ACTIVATIONS, Linear, ModelFacts
from opatlas.theory.patterns import NZ, Form, Pattern
from opatlas.theory.sources import NOT_QUANTIZED
from opatlas.theory.space import pattern_row

#: Kernel types of one computation with equal rows; a device runs one of them.
_TWINS = (("MatMulV2", "MatMulV3", "MatMulCommon"), ("AddRmsNorm", "AddRmsNormBias"))
#: Tokens of a page of the cache, as in the catalog's patterns of caches.
_PAGE = 128
#: Patterns with keys and values in a cache: input slots 1 and 2.
_IN_CACHE = ("paged_", "latent_attention", "sparse_attention", "sparse_blocks")


@dataclass(frozen=True)
class StepCalls:
    """Makes the calls of one step of a model on one of its devices."""

    model: ModelFacts
    step: model_step.Step
    dtype: str
    nz_weights: bool
    tier: int

    @property
    def tp(self) -> int:
        return self.step.tp

    @cached_property
    def groups(self) -> list[Sequences]:
        return self.step.groups()

    @cached_property
    def decoded(self) -> list[Sequences]:
        return [group for group in self.groups if not group.is_prompt]

    @cached_property
    def prompts(self) -> list[Sequences]:
        return [group for group in self.groups if group.is_prompt]

    @cached_property
    def tokens(self) -> int:
        """The tokens of the step, with those that fill the next captured graph."""
        tokens = model_step.count_queries(self.groups)
        return self.step.graph_size(tokens) or tokens

    @cached_property
    def outputs(self) -> int:
        """The tokens whose logits are computed: the last one of each prompt, all others."""
        return model_step.count_queries(self.decoded) + sum(group.n for group in self.prompts)

    @property
    def activation(self) -> str:
        """The dtype of activations."""
        return self.dtype if self.dtype in ACTIVATIONS else "BF16"

    @property
    def quantized(self) -> bool:
        return self.dtype in model_step.QUANTIZED

    @property
    def scales(self) -> str:
        """The scales of quantized products, as the catalog's patterns name them."""
        return (self.dtype in FP8 and self.model.scales) or "per_token"

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the step by the catalog's variables, for all calls that name no others."""
        model, latent = self.model, self.model.latent
        # Tokens of the step and of its output, and pages of the cache.
        sizes = {"m": self.tokens, "b": self.outputs, "h": model.hidden, "vocab": model.vocab}
        sizes |= {"blocks": sum(group.n * -(-group.keys // _PAGE) for group in self.groups)}
        sizes |= {"q": model.heads // self.tp, "kv": model.kv_heads_on_device(self.tp), "d": model.head_dim}
        if latent is not None:
            sizes |= {"lora": latent.kv_lora_rank, "v": latent.v_head_dim}
            sizes |= {"nope": latent.qk_nope_head_dim, "rope": latent.qk_rope_head_dim}
        return sizes

    def linears(self, role: str) -> list[Linear]:
        return [linear for linear in self.model.linears(self.tp) if linear.name == role]

    def products(self, *roles: str, tokens: int = 0) -> Iterator[ModelCall]:
        """Yields the products with the model's weights of some roles."""
        for role in roles:
            for linear in self.linears(role):
                yield from self.product(linear, tokens or self.tokens)

    def product(self, linear: Linear, tokens: int, in_layers: bool = True) -> Iterator[ModelCall]:
        name, layers, calls = linear.name, *((linear.calls, 1) if in_layers else (0, linear.calls))
        kernel_type, pattern = "MatMulV2", "matmul"
        if self.quantized and name not in NOT_QUANTIZED:
            kernel_type, pattern = "QuantBatchMatmulV3", f"quant_matmul_{self.scales}"
            yield from self.quantization(name, tokens, linear.k, layers, calls)
        found = self.call(name, kernel_type, pattern, layers, calls, m=tokens, n=linear.n, k=linear.k)
        if name in self.model.biases and pattern == "matmul":
            # Where no row has a bias, the product without it answers.
            biased = self.call(name, kernel_type, "matmul_bias", layers, calls, m=tokens, n=linear.n, k=linear.k)
            found = replace(biased, instead=found)
        yield found

    def quantization(self, name: str, tokens: int, size: int, layers: int, calls: int = 1) -> Iterator[ModelCall]:
        """Yields the quantization of a product's input. With one scale, known before, the kernel before does it."""
        if self.quantized and self.scales != "per_tensor":
            by_token = ("DynamicQuant", "dynamic_quant")
            kernel = ("DynamicBlockQuant", "dynamic_block_quant") if self.scales == "blocks" else by_token
            yield self.call(f"{name}_quant", *kernel, layers, calls, m=tokens, h=size)

    def all_reduce(self, part: str, layers: int) -> Iterator[ModelCall]:
        """Yields the sum of a layer's results over the devices that share the layer."""
        if self.tp > 1:
            yield self.collective(part, ALL_REDUCE, self.tp, self.tokens * self.model.hidden, layers)

    def collective(self, part: str, collective: Collective, devices: int, elements: int, layers: int) -> ModelCall:
        known = known_dtype(self.activation)
        assert known is not None
        message = collective.message_bytes(elements * known.bytes, devices, known.bytes)
        cells = dict(zip(MESSAGE, (str(message), str(devices), f"DT_{known.name}", str(self.tier)), strict=True))
        return ModelCall(part, collective.kernel_type, cells, 1, layers)

    def call(
        self, part: str, kernel_type: str, pattern: str, layers: int = 0, calls: int = 1, **others: int
    ) -> ModelCall:
        """Returns a call by a pattern of the catalog; `others` are sizes that differ from those of the step."""
        found = _pattern(kernel_type, pattern)
        sizes = {**self.sizes, **others}
        for axis in found.axes:
            if axis.name == "blocks":
                # The pages of the cache: the least number of the catalog that holds all sequences.
                sizes["blocks"] = next((size for size in axis.grid if size >= sizes["blocks"]), sizes["blocks"])
        row = pattern_row(kernel_type, found, self.form(found.forms), sizes)
        twins = next((names for names in _TWINS if kernel_type in names), ())
        return ModelCall(
            part, kernel_type, row.cells, calls, layers, tuple(name for name in twins if name != kernel_type)
        )

    def of_sequences(
        self, part: str, kernel_type: str, pattern: str, layers: int, group: Sequence[Sequences], **others: int
    ) -> ModelCall:
        """Returns the call for sequences with equally many queries; their numbers of keys may differ."""
        keys = keys_of(group)
        found = self.call(part, kernel_type, pattern, layers, s=len(keys), t=group[0].queries, k=max(keys), **others)
        cells = dict(found.cells)
        if min(keys) != max(keys):
            cells[RUNTIME_PREFIX + "avg_seq_len"] = str(round(mean(keys)))
            if (lengths := RUNTIME_PREFIX + "actual_seq_lengths_kv_values") in cells:
                cells[lengths] = ",".join(map(str, keys))
        cached = model_step.cache_dtype(self.model, self.step, self.activation)
        if not pattern.startswith(_IN_CACHE) or cached == self.activation:
            return replace(found, cells=cells)
        dtypes = cells[INPUT_DTYPES].split(";")
        dtypes[1:3] = cached, cached
        return replace(found, cells={**cells, INPUT_DTYPES: ";".join(dtypes)}, nearest=cells)

    def form(self, forms: Sequence[Form]) -> Form:
        """Returns the form with the step's dtypes, and with weights in FRACTAL_NZ if they are stored so."""
        if self.quantized:
            own = [form for form in forms if self.dtype in (*form.input_dtypes, *form.output_dtypes)]
            other = {*model_step.QUANTIZED, *FP8}
            forms = own or [form for form in forms if not other & {*form.input_dtypes, *form.output_dtypes}] or forms
        in_nz = [form for form in forms if NZ in form.input_formats]
        form = in_nz[0] if self.nz_weights and in_nz else forms[0].in_nd()
        return form.with_activations(self.activation)


def _pattern(kernel_type: str, name: str) -> Pattern:
    return built_in_catalog().kernel(kernel_type).pattern(name)
