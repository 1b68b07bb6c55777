"""Replays of poolings and their gradients; `opatlas.run.inputs.images` finds their windows."""

from __future__ import annotations

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import images
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("MaxPoolWithArgmaxV1", "MaxPoolWithArgmaxV1AiCore", npu="torch.ops.aten.max_pool2d_with_indices")
def test_max_pool(row, replay):
    """Finds the kernel size in output 1, a mask (N, C1, positions of the kernel, blocks of 16 results plus one, 16).

    torch returns indices in place of the mask. No formula exists for the mask, so it is not checked.
    """
    row.expect_inputs(1)
    output, mask = images.output_slot(row, like=0), row.output_shape(1)
    source, result = images.map_shape(row, images.input_slot(row, 0)), images.map_shape(row, output)
    windows = _windows(row, source, result, mask, OUTPUT_SHAPES, "output slot 1")
    replay(
        impl.max_pool2d,
        images.distinct_map(row, 0, source),
        windows.kernel,
        windows.stride,
        windows.padding,
        (1, 1),
        False,
        output_slots=[None] if row.device.type == "npu" else [None, None],
        expected=formulas.max_pool2d,
    )


@replays(
    "MaxPoolGradWithArgmaxV1", "MaxPoolGradWithArgmaxV1AiCore", npu="torch.ops.aten.max_pool2d_with_indices_backward"
)
def test_max_pool_gradient(row, replay):
    """Reads the slots pooled feature map, gradient of the result, mask (see `test_max_pool`)."""
    row.expect_inputs(3)
    source, result = (images.map_shape(row, images.input_slot(row, slot)) for slot in (0, 1))
    gradient = images.map_shape(row, images.output_slot(row, like=0))
    row.expect(gradient == source, OUTPUT_SHAPES, "the gradient must have the shape of slot 0")
    windows = _windows(row, source, result, row.shape(2), INPUT_SHAPES, "slot 2")
    x = images.distinct_map(row, 0, source)
    arguments = (windows.kernel, windows.stride, windows.padding, (1, 1), False)
    replay(
        impl.max_pool2d_backward,
        images.feature_map(row, 1, result),
        x,
        *arguments,
        impl.max_pool2d(x, *arguments)[1],
        output_slots=[None],
        expected=formulas.max_pool2d_backward,
    )


@replays("AdaptiveAvgPool3d", "AdaptiveAvgPool3dAiCore", npu="torch.ops.aten._adaptive_avg_pool3d")
def test_adaptive_average_pool(row, replay):
    """Reads a slot and an output with the channels last, (N, D, H, W, C)."""
    row.expect_inputs(1)
    source, result = row.shape(0), row.output_shape()
    if images.layout(row.input_slots[0]) not in ("", "ND", "NDHWC"):
        raise Unsupported(f"{row.kernel_type} is replayed with channels last, in the formats ND and NDHWC")
    row.expect(
        len(source) == len(result) == 5 and (source[0], source[4]) == (result[0], result[4]),
        OUTPUT_SHAPES,
        f"no pooling along three axes leads from {source} to the output",
    )
    images.output_slot(row, like=0)
    replay(
        impl.adaptive_average_pool3d,
        row.tensor(0).permute(0, 4, 1, 2, 3),
        result[1:4],
        output_slots=[None],
        expected=formulas.adaptive_average_pool3d,
    )


@replays("AdaptiveAvgPool3dGrad", "AdaptiveAvgPool3dGradAiCore", npu="torch.ops.aten._adaptive_avg_pool3d_backward")
def test_adaptive_average_pool_gradient(row, replay):
    """Reads the slots gradient (OD, OH, OW, N C), pooled volume (N, C, D, H, W). Output: (D, H, W, N C)."""
    row.expect_inputs(2)
    gradient, source = row.shape(0), row.shape(1)
    row.expect(
        len(source) == 5 and len(gradient) == 4 and gradient[3] == source[0] * source[1],
        INPUT_SHAPES,
        "slot 0 must have the shape (OD, OH, OW, N C), and slot 1 the shape (N, C, D, H, W)",
    )
    images.output_slot(row, like=0)
    wanted = (*source[2:], gradient[3])
    row.expect(row.output_shape() == wanted, OUTPUT_SHAPES, f"the gradient of {source} must have the shape {wanted}")
    replay(
        impl.adaptive_average_pool3d_backward,
        row.tensor(0).permute(3, 0, 1, 2).reshape(*source[:2], *gradient[:3]),
        row.tensor(1),
        output_slots=[None],
        expected=formulas.adaptive_average_pool3d_backward,
    )


def _windows(row, source, result, mask, column, name):
    """Returns the windows of a pooling from `source` to `result`, both (N, C, H, W), with a `mask` of this shape."""
    n, c, *size = source
    area = mask[2] if len(mask) > 2 else 0
    sixteens = images.block_count(result[2] * result[3], 16) + 1
    row.expect(
        result[:2] == (n, c) and mask[:1] == (n,) and mask[-2:] == (sixteens, 16),
        column,
        f"{name} is {mask}, but the mask from {source} to {result} is (N, C1, positions of the kernel, {sixteens}, 16)",
    )
    windows = images.find_windows(size, result[2:], images.kernel_sizes(area))
    if windows is None:
        raise row.refuse(
            column, f"no kernel of {area} positions pools {source} to {result}", "correct one of the shapes"
        )
    if max(windows.kernel) > images.DISTINCT:
        raise Unsupported(f"kernels of more than {images.DISTINCT} positions a side are not replayed")
    windows.assume_in(row)
    return windows
