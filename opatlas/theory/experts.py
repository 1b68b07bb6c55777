"""Mixtures of experts: routing, grouped products, and whole layers in one kernel.

Their sizes hang together through the number of experts on a device, which expert parallelism divides:
as many tokens arrive as are routed to these experts, evenly.
"""

from __future__ import annotations

from typing import Any

from opatlas.model.schema import EP_SIZE
from opatlas.theory.expression import parse

_EXPERTS = {"from": "experts", "generic": {"e": [8, 64], "w": [1024], "h": [2048], "top": [8], "ep": [1]}}
_ROUTER = {"from": "router", "generic": {"e": [64, 256], "top": [8], "h": [2048]}}


def _grouped(m: str, k: str, n: str, *, quantized: bool) -> dict[str, Any]:
    """x (M, K), weights (E, K, N), and of the other slots: 3 a scale of the weights, 7 where groups end, 8 one of x."""
    scales = [["e", n], None, None, None, ["e"], [m]] if quantized else [None, None, None, None, ["e"], None]
    form = (
        "INT8;INT8;;FLOAT;;;;INT64;FLOAT | ND;FRACTAL_NZ;;ND;;;;ND;ND -> BF16"
        if quantized
        else "BF16;BF16;;;;;;INT64; -> BF16"
    )
    return {
        "axes": {"m": "tokens", "experts": _EXPERTS},
        "inputs": [[m, k], ["e", k, n], None, *scales],
        "outputs": [[m, n]],
        "forms": [form],
    }


#: The kernel computes the gate's activation and quantizes the result again.
GROUPED_SWIGLU_QUANTIZED = {
    "axes": {"m": "tokens", "experts": _EXPERTS},
    "inputs": [["m", "h"], ["e", "h", "2 * w"], ["e", "2 * w"], ["m"], ["e"]],
    "outputs": [["m", "w"], ["m"]],
    "forms": ["INT8;INT8;FLOAT;FLOAT;INT64 | ND;FRACTAL_NZ;ND;ND;ND -> INT8;FLOAT"],
}

#: Conditions on the shapes of DispatchFFNCombine beyond those that its slots imply. What a probe of the
#: kernel finds on a device is in the device's database (opatlas/theory/plan.py).
DISPATCH_FFN_COMBINE_CONDITIONS: list[str] = ["top <= e * ep"]


def _dispatch(*, quantized: bool) -> dict[str, Any]:
    """x, both weights, each token's experts (of all devices), two scales, and the experts' weights."""
    form = (
        "BF16;INT8;INT8;INT32;FLOAT;FLOAT;FLOAT | ND;FRACTAL_NZ;FRACTAL_NZ;ND;ND;ND;ND -> BF16;INT32"
        if quantized
        else "BF16;BF16;BF16;INT32;FLOAT;FLOAT;FLOAT -> BF16;INT32"
    )
    return {
        "axes": {"m": "tokens", "experts": _EXPERTS},
        "where": DISPATCH_FFN_COMBINE_CONDITIONS,
        "inputs": [
            ["m", "h"],
            ["e", "h", "2 * w"],
            ["e", "w", "h"],
            ["m", "top"],
            ["e", "2 * w"],
            ["e", "h"],
            ["m", "top"],
        ],
        "outputs": [["m", "h"], ["e"]],
        "forms": [form],
        "cells": {EP_SIZE: parse("ep")},
    }


MOE_GATING = {
    "axes": {"m": "tokens", "router": _ROUTER},
    "inputs": [["m", "e"], ["e"]],
    "outputs": [["m", "top"], ["m", "top"], ["m", "e"]],
    "forms": ["BF16;BF16 -> BF16;INT32;FLOAT"],
}
MOE_PERMUTE = {
    "axes": {"m": "tokens", "router": _ROUTER},
    "inputs": [["m", "h"], ["m", "top"]],
    "outputs": [["m * top", "h"], ["m * top"]],
    "forms": ["BF16;INT32 -> BF16;INT32"],
}
MOE_UNPERMUTE = {
    "axes": {"m": "tokens", "router": _ROUTER},
    "inputs": [["m * top", "h"], ["m * top"], ["m", "top"]],
    "outputs": [["m", "h"]],
    "forms": ["BF16;INT32;BF16 -> BF16"],
}

PATTERNS: dict[str, dict[str, Any]] = {
    "grouped_gate_up": _grouped("m", "h", "2 * w", quantized=False),
    "grouped_down": _grouped("m", "w", "h", quantized=False),
    "grouped_gate_up_quantized": _grouped("m", "h", "2 * w", quantized=True),
    "grouped_down_quantized": _grouped("m", "w", "h", quantized=True),
    "grouped_swiglu_quantized": GROUPED_SWIGLU_QUANTIZED,
    "dispatch_ffn_combine": _dispatch(quantized=False),
    "dispatch_ffn_combine_quantized": _dispatch(quantized=True),
    "moe_gating": MOE_GATING,
    "moe_permute": MOE_PERMUTE,
    "moe_unpermute": MOE_UNPERMUTE,
}
