"""Rows of convolutions and poolings: blocked layouts as captures hold them, and plain ones."""

ROWS: dict[str, tuple[str, ...]] = {
    "Conv2D": (
        "3,2,9,11,8;18,3,16,8;40 | FLOAT;FLOAT;FLOAT | NC1HWC0;FRACTAL_Z;NCHW -> 3,5,9,11,8 | FLOAT",
        "2,1,23,23,8;121,1,16,8;16 | FLOAT;FLOAT;FLOAT | NC1HWC0;FRACTAL_Z;NCHW -> 2,2,5,5,8 | FLOAT",
        "2,1,8,8,16;9,1,16,16;13 | FLOAT16;FLOAT16;FLOAT16 | NC1HWC0;FRACTAL_Z;NCHW -> 2,1,4,4,16 | FLOAT16",
        "2,1,8,8,16;9,1,16,16;13 | DT_BF16;DT_BF16;FLOAT | NC1HWC0;FRACTAL_Z;NCHW -> 2,1,4,4,16 | DT_BF16",
        "2,1,8,7,8;3,1,16,8 | FLOAT;FLOAT | NC1HWC0;FRACTAL_Z -> 2,2,8,5,8 | FLOAT",
        "2,3,14,14;6,3,7,7 | FLOAT;FLOAT | NCHW;NCHW -> 2,6,7,7 | FLOAT",
        "2,6,9,9;4,3,3,3;4 | FLOAT;FLOAT;FLOAT | NCHW;NCHW;ND -> 2,4,9,9 | FLOAT",
        "2,6,9,9;4,6,1,1 | FLOAT;FLOAT -> 2,4,5,5 | FLOAT",
    ),
    "Conv2DBackpropFilter": (
        "2,1,5,7,8;4;2,3,5,7,8 | FLOAT;INT32;FLOAT | NC1HWC0;NCHW;NC1HWC0 -> 9,2,16,8 | FLOAT | FRACTAL_Z",
        "2,1,23,23,8;4;2,2,5,5,8 | FLOAT;INT32;FLOAT | NC1HWC0;NCHW;NC1HWC0 -> 121,1,16,8 | FLOAT | FRACTAL_Z",
        "2,6,9,9;4;2,4,5,5 | DT_BF16;INT32;DT_BF16 | NCHW;ND;NCHW -> 4,3,3,3 | DT_BF16",
    ),
    "Conv2DBackpropInput": (
        "4;9,2,16,8;2,3,5,7,8 | INT32;FLOAT;FLOAT | NCHW;FRACTAL_Z;NC1HWC0 -> 2,1,5,7,8 | FLOAT",
        "4;25,1,16,8;1,1,5,5,8 | INT32;FLOAT;FLOAT | NCHW;FRACTAL_Z;NC1HWC0 -> 1,1,9,9,8 | FLOAT",
        "4;4,3,3,3;2,4,5,5 | INT32;FLOAT16;FLOAT16 | ND;NCHW;NCHW -> 2,6,9,9 | FLOAT16",
    ),
    "MaxPoolWithArgmaxV1": (
        "2,1,9,11,16 | FLOAT | NC1HWC0:1 -> 2,1,4,5,16;2,1,9,3,16 | FLOAT;UINT16 | NC1HWC0:1;NC1HWC0:1",
        "2,2,8,8,16 | DT_BF16 | NC1HWC0 -> 2,2,4,4,16;2,2,4,2,16 | DT_BF16;UINT16 | NC1HWC0;NC1HWC0",
        "2,1,8,8,16 | FLOAT16 | NC1HWC0 -> 2,1,4,4,16;2,1,9,2,16 | FLOAT16;UINT16 | NC1HWC0;NC1HWC0",
        "2,5,7,7 | FLOAT | NCHW -> 2,5,7,7;2,5,9,5,16 | FLOAT;UINT16 | NCHW;NCHW",
    ),
    "MaxPoolGradWithArgmaxV1": (
        "2,1,9,11,16;2,1,4,5,16;2,16,9,9,3,16 | FLOAT;FLOAT;UINT16 | NC1HWC0:1 -> 2,1,9,11,16 | FLOAT | NC1HWC0:1",
        "2,2,8,8,16;2,2,4,4,16;2,2,4,2,16 | DT_BF16;DT_BF16;UINT16 -> 2,2,8,8,16 | DT_BF16",
        "1,5,7,7;1,5,7,7;1,5,9,5,16 | FLOAT;FLOAT;UINT16 | NCHW;NCHW;NCHW -> 1,5,7,7 | FLOAT",
    ),
    "AdaptiveAvgPool3d": (
        "3,1,6,8,17 | FLOAT | FORMAT_ND -> 3,1,6,8,17 | FLOAT",
        "2,5,7,11,3 | FLOAT -> 2,2,3,4,3 | FLOAT",
        "2,1,3,4,9 | DT_BF16 | NDHWC -> 2,1,5,2,9 | DT_BF16",
    ),
    "AdaptiveAvgPool3dGrad": (
        "1,6,8,51;3,17,1,6,8 | FLOAT;FLOAT | NCHW;FORMAT_ND -> 1,6,8,51 | FLOAT | NCHW",
        "2,3,4,6;2,3,5,7,11 | FLOAT;FLOAT -> 5,7,11,6 | FLOAT",
    ),
}
