"""Captures of decode steps in a static graph, written as the profiler writes them; any kernel can be changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from captures import COLLECTIVE, KERNEL_DETAILS, launch, write_capture, write_summary

#: A layer of Qwen3 in decode: type, core, microseconds. Its attention has nine kernels, its feed-forward five.
QWEN3_LAYER = (
    ("AddRmsNorm", "AI_VECTOR_CORE", 6.0),
    ("MatMulV2", "AI_CORE", 18.0),
    ("SplitVD", "AI_VECTOR_CORE", 3.0),
    ("RmsNorm", "AI_VECTOR_CORE", 4.0),
    ("RmsNorm", "AI_VECTOR_CORE", 4.0),
    ("RotaryMul", "AI_VECTOR_CORE", 5.0),
    ("ReshapeAndCacheNdKernel", "AI_VECTOR_CORE", 4.0),
    ("FusedInferAttentionScore", "MIX_AIC", 30.0),
    ("MatMulV2", "AI_CORE", 14.0),
    ("AddRmsNorm", "AI_VECTOR_CORE", 6.0),
    ("MatMulV2", "AI_CORE", 40.0),
    ("SwiGlu", "AI_VECTOR_CORE", 7.0),
    ("Muls", "AI_VECTOR_CORE", 3.0),
    ("MatMulV2", "AI_CORE", 22.0),
)
ATTENTION_KERNELS = 9
#: The second half of a layer with experts, in place of the last five kernels above.
EXPERTS = (
    ("AddRmsNorm", "AI_VECTOR_CORE", 6.0),
    ("MatMulV2", "AI_CORE", 10.0),
    ("MoeGatingTopK", "AI_VECTOR_CORE", 8.0),
    ("MoeDistributeDispatchV2", "MIX_AIC", 40.0),
    ("GroupedMatmul", "MIX_AIC", 60.0),
    ("SwiGlu", "AI_VECTOR_CORE", 7.0),
    ("GroupedMatmul", "MIX_AIC", 50.0),
    ("MoeDistributeCombineV2", "MIX_AIC", 40.0),
)
MOE_LAYER = (*QWEN3_LAYER[:ATTENTION_KERNELS], *EXPERTS)
HEAD = (("GatherV2", "AI_VECTOR_CORE", 4.0),)
TAIL = (("AddRmsNorm", "AI_VECTOR_CORE", 6.0), ("MatMulV2", "AI_CORE", 50.0), ("ArgMaxV2", "AI_VECTOR_CORE", 9.0))

#: The query of three sequences, and the lengths of three.
_DECODE_SHAPES = "3,32,128;99,128,128;99,128,128;;2048,2048;3;3"


@dataclass(frozen=True)
class TimelineKernel:
    """A kernel of a generated capture; `gap_us` is the idle time before it."""

    kernel_type: str
    core: str
    duration_us: float
    gap_us: float
    step: str
    stream: str = "2"
    state: str = "static"
    cells: dict[str, str] = field(default_factory=dict)

    def of(self, **changes: object) -> TimelineKernel:
        """The same kernel with other fields."""
        return replace(self, **changes)  # type: ignore[arg-type]


def decode_steps(
    layers: int = 8,
    steps: int = 3,
    *,
    layer: Sequence[tuple[str, str, float]] = QWEN3_LAYER,
    first_layers: Sequence[Sequence[tuple[str, str, float]]] = (),
    gap: Callable[[], float] | None = None,
    between_steps_us: float = 400.0,
) -> list[TimelineKernel]:
    """Steps of decode; gaps are drawn from 1 to 3 us, unless `gap` gives them."""
    draw = gap or (lambda: round(drawn.uniform(1, 3), 2))
    drawn = random.Random(7)
    kernels = []
    for step in range(steps):
        inside = [*(each for one in first_layers for each in one), *layer * layers]
        # The first normalization of a model adds no residual.
        inside[0] = ("RmsNorm", *inside[0][1:])
        for place, (kernel_type, core, us) in enumerate([*HEAD, *inside, *TAIL]):
            between = between_steps_us if step and not place else draw()
            cells = {"Input Shapes": f'"{_DECODE_SHAPES}"'} if kernel_type == "FusedInferAttentionScore" else {}
            kernels.append(TimelineKernel(kernel_type, core, us, between, str(step), cells=cells))
    return kernels


def collective(name: str, us: float, gap_us: float, step: str) -> TimelineKernel:
    """A collective, whose stream and state the profiler does not record."""
    cells = {key: cell for key, cell in COLLECTIVE.items() if key not in ("Type", "Accelerator Core")}
    return TimelineKernel(name, "COMMUNICATION", us, gap_us, step, stream="N/A", state="N/A", cells=cells)


def launches_of(kernels: Sequence[TimelineKernel]) -> list[dict[str, str]]:
    """The rows of a capture."""
    rows = []
    at_ns = 1_764_246_877_073_569_640
    for number, kernel in enumerate(kernels):
        start = at_ns + round(kernel.gap_us * 1000)
        rows.append(
            launch(
                {
                    "Step Id": kernel.step,
                    "Stream ID": kernel.stream,
                    "Name": f"{kernel.kernel_type}_{number}",
                    "Type": kernel.kernel_type,
                    "OP State": kernel.state,
                    "Accelerator Core": kernel.core,
                    "Start Time(us)": f"{start // 1000}.{start % 1000:03}\t",
                    "Duration(us)": f"{kernel.duration_us}",
                    "Wait Time(us)": f"{max(kernel.gap_us, 0) if number else 0:.3f}",
                    **kernel.cells,
                }
            )
        )
        at_ns = start + round(kernel.duration_us * 1000)
    return rows


def write_timeline(
    path: Path, kernels: Sequence[TimelineKernel], *, without: Sequence[str] = (), summary: bool = False
) -> Path:
    """Writes a kernel_details file without some columns, or an op_summary file."""
    if summary:
        return write_summary(path, launches_of(kernels))
    return write_capture(path, launches_of(kernels), [name for name in KERNEL_DETAILS if name not in without])
