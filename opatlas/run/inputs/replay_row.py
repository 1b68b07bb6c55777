"""Makes the tensors of a call from the slots of a row."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from opatlas.row.columns import EXPERT_LOAD, INPUT_DTYPES, INPUT_FORMATS, INPUT_SHAPES, WITH_LOAD
from opatlas.row.signature import signature
from opatlas.row.slots import FOUR_BITS, Slot
from opatlas.run.devices.device import kind_named
from opatlas.run.inputs import shape_rules
from opatlas.run.inputs.experts import load_shares, used_experts
from opatlas.run.inputs.row_slots import RowSlots, is_blocked

#: The second operand of an elementwise kernel whose row has one tensor. A capture does not record scalars, and no
#: duration depends on this one.
SCALAR = 2

#: Numbers of formats in aclFormat.
_ACL_FORMATS = {"NCHW": 0, "ND": 2, "NC1HWC0": 3, "FRACTAL_Z": 4, "FRACTAL_NZ": 29}

#: torch draws no random numbers in FP8: so many are drawn at once in BF16, then rounded.
FP8_PIECE = 1 << 26
#: The draws of the rows of experts, of which one counts.
_DRAWS = 8

_UNSIGNED = (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


class ReplayRow(RowSlots):
    """A row of the database, on the device that replays it.

    The tensors are made on the device, from a seed that depends on the row only: the same row has the same values.
    """

    def __init__(self, kernel_type: str, cells: Mapping[str, str], device: torch.device, rank: int = 0) -> None:
        """`rank` is the rank in a group; each rank has different values. See `for_rank`."""
        super().__init__(kernel_type, cells)
        self.device = device
        # From the signature: a row keeps its seed when it gets a duration.
        text = f"{kernel_type}|{signature(kernel_type, cells)}" + (f"|{rank}" if rank else "")
        seed = hashlib.blake2b(text.encode(), digest_size=7).digest()
        self.seed = int.from_bytes(seed, "little")
        # Device "meta", on which tests prove NPU calls, has no values and no generator.
        self._generator = None if device.type == "meta" else torch.Generator(device=device).manual_seed(self.seed)

    def for_rank(self, rank: int) -> ReplayRow:
        """Returns the row with the values of a rank of the group; the same on every rank."""
        return ReplayRow(self.kernel_type, self.cells, self.device, rank)

    @property
    def expert_load(self) -> str:
        """Returns how tokens choose experts, by the column Expert Load; "" if all experts are chosen equally often."""
        return self.cells.get(EXPERT_LOAD, "").strip() if self.kernel_type in WITH_LOAD else ""

    @property
    def on_npu(self) -> bool:
        """Returns whether the NPU call is made: on an NPU, and on "meta", where tests prove the call."""
        return self.device.type == "meta" or kind_named(self.device.type).is_native

    def call_of(self, npu: str, impl: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the call that a replay makes before the timed kernel: the NPU call on an NPU, else `impl`.

        Raises:
            Unsupported, MissingPrecondition: the NPU call does not exist.
        """
        if not self.on_npu:
            return impl
        from opatlas.run.devices.npu_operators import load_npu_call

        return load_npu_call(npu)

    def inputs(self, low: float = -1.0, high: float = 1.0) -> list[torch.Tensor]:
        """Returns random tensors for all input slots except absent slots; see `tensor`."""
        return [self.tensor(i, low, high) for i, slot in enumerate(self.input_slots) if not slot.absent]

    def tensor(
        self, slot: int, low: float = -1.0, high: float = 1.0, *, shape: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        """Returns a random tensor for an input slot; an empty shape with a dtype gives a tensor without axes.

        Real numbers are uniform in [low, high). Integers are uniform in 1 ... 8, so that they can be divisors and
        exponents. Booleans are true or false with equal odds.

        Args:
            shape: default: the shape of the slot, which may be that of a blocked layout.
        """
        torch_dtype = self.input_dtype(slot)
        return self._random(self.shape(slot) if shape is None else shape, torch_dtype, low, high)

    def integers(self, slot: int, low: int, high: int) -> torch.Tensor:
        """Returns whole numbers in low ... high, in the dtype of the input slot.

        Unsigned dtypes start at 0. Booleans are true or false with equal odds.
        """
        torch_dtype = self.input_dtype(slot)
        if torch_dtype is torch.bool:
            return self.tensor(slot)
        return self._integers(self.shape(slot), torch_dtype, max(low, 0) if torch_dtype in _UNSIGNED else low, high + 1)

    def number(self, slot: int, low: float = -1.0, high: float = 1.0) -> float:
        """Returns a Python number for a scalar argument of a call, in the range of `tensor`."""
        torch_dtype = self.input_dtype(slot)
        self.expect_scalar(slot)
        # Drawn on the host, because reading a tensor would wait for the device.
        drawn = random.Random(self.seed)
        if torch_dtype.is_floating_point:
            return drawn.uniform(low, high)
        return drawn.random() < 0.5 if torch_dtype is torch.bool else drawn.randint(1, 8)

    def only_input(self, low: float = -1.0, high: float = 1.0) -> torch.Tensor:
        """Returns `tensor` of slot 0. Refuses a row with more slots."""
        self.expect_inputs(1)
        return self.tensor(0, low, high)

    def operands(
        self, first: tuple[Any, Any] = (-1.0, 1.0), second: tuple[Any, Any] = (-1.0, 1.0), *, whole: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | int]:
        """Returns both operands of an elementwise kernel, from these ranges; SCALAR for an absent second operand.

        Refuses a row that does not have one or two tensors, and shapes that do not broadcast to the output.

        Args:
            whole: whether they are whole numbers; see `integers`.
        """
        self.expect_inputs(1, 2)
        self.expect_broadcast()
        draw = self.integers if whole else self.tensor
        return draw(0, *first), draw(1, *second) if len(self.input_slots) == 2 else SCALAR

    def destination(self, slot: int = 0) -> torch.Tensor:
        """Returns zeros in the shape and dtype of an output slot, for a kernel that writes into a tensor."""
        return torch.zeros(self.output_shape(slot), dtype=self.output_dtype(slot), device=self.device)

    def matrices(self, slot: int, *, rank: int | None = None, largest: int | None = None) -> torch.Tensor:
        """Returns a random tensor of two axes or more, whose last two axes are a matrix.

        A FRACTAL_NZ slot (..., a, b, c, d) gives the matrices (..., b * c, a * d) of the plain layout. On an NPU the
        matrices are in FRACTAL_NZ.

        Args:
            rank: number of axes; a slot with two more axes is FRACTAL_NZ even without a format. None: any number of
                axes; only the format identifies FRACTAL_NZ.
            largest: the values are in -largest ... largest, integers in an integer dtype; default: those of `tensor`.
        """
        stored = self.input_slot(slot)
        blocked = is_blocked(stored, rank)
        found = f"slot {slot} has {len(stored.shape)} axes"
        problem = f"{found} and the format {stored.format}, but a matrix with so many axes has the format FRACTAL_NZ"
        fits = not blocked or stored.format in ("", "FRACTAL_NZ")
        self.expect(fits, INPUT_FORMATS, problem, "correct its format or its shape")
        axes = len(stored.shape) - 2 if blocked else len(stored.shape)
        wanted = f"{rank} axes, or {rank + 2} in the format FRACTAL_NZ" if rank else "2 axes or more"
        fits = axes >= 2 and rank in (None, axes)
        self.expect(fits, INPUT_SHAPES, f"{found} instead of {wanted}", "correct its shape")
        if largest is None:
            values = self.tensor(slot)
        elif self.input_dtype(slot).is_floating_point:
            values = self.tensor(slot, -largest, largest)
        else:
            values = self.integers(slot, -largest, largest)
        return self.in_format("FRACTAL_NZ", shape_rules.nz_matrix(values)) if blocked else values

    def data(self, slot: int) -> torch.Tensor:
        """Returns numbers of few bits, whose scales are in another slot.

        Those of four bits are packed along the last axis: eight INT4 in an INT32, two FLOAT4_E2M1 in a UINT8.
        """
        dtype = self.input_slot(slot).dtype
        if dtype not in FOUR_BITS:
            return self.matrices(slot, largest=shape_rules.LARGEST)
        *leading, last = self.shape(slot)
        carrier = self.torch_dtype(Slot((), FOUR_BITS[dtype], ""), INPUT_DTYPES)
        whole = 2 * carrier.itemsize
        self.expect(last % whole == 0, INPUT_SHAPES, f"the last axis of slot {slot} must be a multiple of {whole}")
        return self._integers((*leading, last // 2), torch.uint8, 0, 256).view(carrier)

    def in_format(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor in a format of NPUs; unchanged on other devices."""
        if not self.on_npu:
            return tensor
        import torch_npu

        return torch_npu.npu_format_cast(tensor, _ACL_FORMATS[name])

    def numbers(self, slot: int, values: Sequence[int]) -> torch.Tensor:
        """Returns these numbers in the dtype of the input slot: lengths of sequences, for instance."""
        return torch.tensor(values, dtype=self.input_dtype(slot)).to(self.device)

    def indices(
        self,
        slot: int,
        below: int,
        *,
        distinct: bool = False,
        along: int | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> torch.Tensor:
        """Returns legal indices for an input slot: whole numbers in 0 ... below - 1.

        Args:
            distinct: whether all indices differ.
            along: axis along which all indices differ.
            shape: default: the shape of the slot.
        """
        shape = self.shape(slot) if shape is None else shape
        torch_dtype = self.index_dtype(slot)
        problem = f"slot {slot} indexes a dimension of size {below}"
        self.expect(below >= 1, INPUT_SHAPES, problem, "correct the source's shape")
        if not distinct and along is None:
            return self._integers(shape, torch_dtype, 0, below)
        count = math.prod(shape) if along is None else shape[along]
        problem = f"slot {slot} holds {count} distinct indices below {below}"
        self.expect(count <= below, INPUT_SHAPES, problem, "correct one of the two shapes")
        if along is None:
            return self._sample((count,), 0, below).to(torch_dtype).reshape(shape)
        return self._sample(shape, along, below).to(torch_dtype)

    def upper_triangle(self, shape: tuple[int, ...], dtype: str, value: float = 1) -> torch.Tensor:
        """Returns a causal mask: `value` above the diagonal, 0 elsewhere; `dtype` as profilers name it."""
        torch_dtype = self.torch_dtype(Slot((), dtype, ""), INPUT_DTYPES)
        upper = torch.ones(shape, dtype=torch.bool, device=self.device).triu_(1)
        return torch.zeros(shape, dtype=torch_dtype, device=self.device).masked_fill_(upper, value)

    def block_table(self, shape: tuple[int, int], used: Sequence[int], blocks: int) -> torch.Tensor:
        """Returns the table of a paged cache: the numbers of the blocks of each sequence, in order.

        Row i begins with `used[i]` random numbers below `blocks`, which are distinct unless the rows need more blocks
        than `blocks`. The rest of a row is 0, and kernels do not read the rest.
        """
        table = torch.zeros(shape, dtype=torch.int32)
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(self.seed)).to(torch.int32)
        first = 0
        for line, count in zip(table, used, strict=True):
            line[:count] = order[torch.arange(first, first + count) % blocks]
            first += count
        return table.to(self.device)

    def lengths(self, lengths: Sequence[int] | Sequence[Sequence[int]], *, host: bool) -> torch.Tensor:
        """Returns lengths as calls take them, int32: on the host, or on the device of the row."""
        return torch.tensor(lengths, dtype=torch.int32, device="cpu" if host else self.device)

    def spread_positions(self, shape: tuple[int, ...], seen: Sequence[int]) -> torch.Tensor:
        """Returns the positions that each query reads, int32 and ascending, below `seen[i]` for query i.

        The positions are at even distances, from a random first one on. `shape` is (queries, ..., count); -1 fills the
        end of a line where a query sees fewer than `count` tokens.
        """
        count, generator = shape[-1], torch.Generator().manual_seed(self.seed)
        drawn = torch.rand((*shape[:-1], 1), dtype=torch.float64, generator=generator)
        visible = torch.tensor(seen, dtype=torch.int64).reshape(-1, *[1] * (len(shape) - 1))
        position = torch.arange(count)
        spread = ((position + drawn) * visible / count).floor().to(torch.int64)
        few = torch.where(position < visible, position, -1)
        return torch.where(visible > count, spread.minimum(visible - 1), few).to(torch.int32).to(self.device)

    def group_list(self, slot: int, total: int) -> torch.Tensor:
        """Returns the end of each group of rows, for a grouped product of `total` rows.

        The groups are balanced, or those of the Expert Load. By `random` each row takes any expert, by `power law 1.2`
        the n-th most frequent expert with odds of n^-1.2; which one that is, is drawn too. Of several draws that one
        counts in which nearly as many experts have rows as on average: few rows take as long as the weights they read.
        """
        groups, load = math.prod(self.shape(slot)), self.expert_load
        ends = torch.arange(1, groups + 1, device=self.device) * total // max(groups, 1)
        if load:
            shares = load_shares(load, groups, total)
            problem = (
                f"{load!r} is not random, power law 1.2, or the numbers of rows of {groups} experts, {total} in all"
            )
            self.expect(shares is not None, EXPERT_LOAD, problem, "correct the cell")
            odds, generator = torch.tensor(shares, dtype=torch.float64), torch.Generator().manual_seed(self.seed)
            sizes = (odds * total).round().long()
            if not load[0].isdecimal():
                odds, used = odds[torch.randperm(groups, generator=generator)], used_experts(shares or (), total)
                drawn = torch.multinomial(odds.expand(_DRAWS, -1), max(total, 1), replacement=True, generator=generator)
                draws = [each[:total].bincount(minlength=groups) for each in drawn]
                sizes = min(draws, key=lambda each: abs(int(each.count_nonzero()) - used))
            ends = sizes.cumsum(0).to(self.device)
        return ends.to(self.index_dtype(slot)).reshape(self.shape(slot))

    def expert_ids(self, slot: int, experts: int, rank: int = 0) -> torch.Tensor:
        """Returns the experts of each token of a rank, (T,) or (T, k), distinct for a token.

        All are chosen equally often by all ranks together, or drawn by the Expert Load, as `group_list` is. Which
        experts are frequent is the same for all ranks.
        """
        shape, load, drawn = self.shape(slot), self.expert_load, self.for_rank(rank)
        fits = len(shape) in (1, 2) and shape[1:] <= (experts,)
        problem = f"slot {slot} (experts of each token) needs one or two axes, and up to {experts} experts for a token"
        self.expect(fits, INPUT_SHAPES, problem, "correct its shape")
        if load:
            shares = load_shares(load, experts, 0)
            problem = "tokens choose at random or by a power law, such as power law 1.2"
            self.expect(shares is not None and min(shares) > 0, EXPERT_LOAD, problem, "correct the cell")
            order = torch.randperm(experts, generator=torch.Generator().manual_seed(self.seed))
            odds = torch.tensor(shares, dtype=torch.float64)[order].expand(shape[0], -1)
            generator = torch.Generator().manual_seed(drawn.seed)
            ids = odds.multinomial(math.prod(shape[1:]), generator=generator).reshape(shape).to(self.device)
            return ids.to(self.index_dtype(slot))
        # Token t takes the k experts from t k on, after those of lower ranks; the order of the tokens is random.
        first = rank * math.prod(shape)
        ids = torch.arange(first, first + math.prod(shape), device=self.device).reshape(shape) % experts
        order = torch.randperm(shape[0], generator=drawn._generator, device=self.device)
        return ids[order].to(self.index_dtype(slot))

    def ones(self, *shape: int) -> torch.Tensor:
        """Returns ones in float32, for a scale that the row lacks."""
        return torch.ones(shape, device=self.device)

    def filled(self, shape: tuple[int, ...], dtype: str, value: float) -> torch.Tensor:
        """Returns a tensor of one value; `dtype` as profilers name it."""
        torch_dtype = self.torch_dtype(Slot((), dtype, ""), INPUT_DTYPES)
        return torch.full(shape, value, dtype=torch_dtype, device=self.device)

    def scale(self, slot: int, low: float, high: float) -> torch.Tensor:
        """Returns `tensor`; for an INT64 or UINT64 slot real numbers as npu_trans_quant_param packs them, in INT64.

        These are the upper 19 bits of a float32, and bit 46 (aclnnTransQuantParamV2). The calls take INT64 only.
        """
        if self.input_dtype(slot) not in (torch.int64, torch.uint64):
            return self.tensor(slot, low, high)
        return self._bits(slot, low, high) | 1 << 46

    def float_bits(self, slot: int, low: float, high: float) -> torch.Tensor:
        """Returns `tensor`; for an INT64 slot float32 bits, as vllm-ascend's scale_from_float_to_int64 makes them.

        The 13 lowest bits are 0, because the matrix unit of an NPU reads 19 bits of a scale (aclnnTransQuantParamV2).
        """
        return self._bits(slot, low, high) if self.input_dtype(slot) is torch.int64 else self.tensor(slot, low, high)

    def _bits(self, slot: int, low: float, high: float) -> torch.Tensor:
        real = self._random(self.shape(slot), torch.float32, low, high)
        return real.view(torch.int32).to(torch.int64) & 0xFFFFE000

    def _random(self, shape: tuple[int, ...], dtype: torch.dtype, low: float, high: float) -> torch.Tensor:
        if dtype.is_floating_point and dtype.itemsize == 1:
            rounded = torch.empty(shape, dtype=dtype, device=self.device)
            for piece in rounded.view(-1).split(FP8_PIECE):
                piece.copy_(self._random(piece.shape, torch.bfloat16, low, high))
            return rounded
        if dtype.is_floating_point:
            return torch.empty(shape, dtype=dtype, device=self.device).uniform_(low, high, generator=self._generator)
        if dtype is torch.bool:
            return torch.rand(shape, generator=self._generator, device=self.device) < 0.5
        return self._integers(shape, dtype, 1, 9)

    def _sample(self, shape: tuple[int, ...], axis: int, below: int) -> torch.Tensor:
        """Returns indices below `below`, in random order, all different along an axis.

        The range is cut into as many stretches as the axis is long, and one index is drawn from each: memory and
        time grow with the sample, not with the range.
        """
        count = max(shape[axis], 1)
        ends = torch.arange(count + 1, device=self.device) * below // count
        column = [1] * len(shape)
        column[axis] = -1
        first, size = (numbers[: shape[axis]].view(column) for numbers in (ends, ends.diff()))
        drawn = torch.rand(shape, generator=self._generator, device=self.device)
        # The product may be rounded up to `size`.
        chosen = first + torch.minimum((drawn * size).long(), size - 1)
        order = torch.rand(shape, generator=self._generator, device=self.device).argsort(axis)
        return chosen.gather(axis, order)

    def _integers(self, shape: tuple[int, ...], dtype: torch.dtype, low: int, high: int) -> torch.Tensor:
        # randint has no kernel for the wider unsigned types.
        drawn = torch.int64 if dtype in (torch.uint16, torch.uint32, torch.uint64) else dtype
        values = torch.randint(low, high, shape, dtype=drawn, device=self.device, generator=self._generator)
        return values.to(dtype)
