"""How large HCCL's communication buffer must be for kernels that communicate by themselves.

Such kernels exchange tokens through the buffer of their communicator, whose size HCCL_BUFFSIZE sets in MiB when the
communicator is created. A kernel refuses a row whose tokens do not fit.
"""

from __future__ import annotations

import os

from opatlas.model.errors import MissingPrecondition

VARIABLE = "HCCL_BUFFSIZE"
#: HCCL's own, where the variable is not set.
DEFAULT_MIB = 200
#: vllm-ascend's kernel reads the variable as a 16-bit number (dispatch_ffn_combine_tiling.cpp).
MOST_MIB = 65535
_MIB = 1 << 20


def dispatch_ffn_combine_bytes(m: int, h: int, k: int, element_bytes: int) -> int:
    """Returns what DispatchFFNCombine needs for M tokens of width H that go to k experts each.

    Source: vllm-ascend, csrc/mc2/dispatch_ffn_combine/op_host/dispatch_ffn_combine_tiling.cpp: 3 M k H bytes of INT8
    and 10 MiB. The tokens lie in a third of the buffer, in rows that are 32 bytes longer (op_kernel of the same).

    Args:
        element_bytes: of a number of a token as it is sent: 1 where experts are INT8, else 2.
    """
    return 3 * m * k * (h * element_bytes + 32) + 10 * _MIB


def moe_distribute_bytes(bs: int, h: int, k: int, ranks: int, local_experts: int) -> int:
    """Returns what MoeDistributeDispatch and -Combine need for BS tokens of width H that go to k experts each.

    Source: op-plugin's pages of npu_moe_distribute_dispatch and _v2, the largest of what they ask for on A2 and on A3
    (the older and the newer kernel).
    """
    a2 = 2 * (bs * ranks * min(local_experts, k) * h * 2 + 2 * _MIB)
    a3 = 2 * (bs * 2 * (h + 128) * (ranks * local_experts + k + 1)) + 2 * _MIB
    newer_a3 = 2 * bs * (ranks * local_experts * _up_to(_up_to(2 * h, 32) + 64, 512) + (k + 1) * _up_to(2 * h, 512))
    return max(a2, a3, newer_a3)


def _up_to(size: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-size // unit) * unit


def buffer_mib(needed_bytes: int) -> int | None:
    """Returns the buffer for rows that need so many bytes, in MiB; None where HCCL's own is enough.

    It is a power of two, so that rows of many sizes share few groups: a communicator keeps its buffer.
    """
    needed = -(-needed_bytes // _MIB)
    if needed <= DEFAULT_MIB:
        return None
    return min(1 << (needed - 1).bit_length(), MOST_MIB)


def expect_buffer(needed_bytes: int) -> None:
    """Raises MissingPrecondition where HCCL_BUFFSIZE is set to less than a row needs; for rows on NPUs."""
    text = os.environ.get(VARIABLE, "")
    if text.isdecimal() and int(text) * _MIB < needed_bytes:
        needed = buffer_mib(needed_bytes) or DEFAULT_MIB
        raise MissingPrecondition(
            f"{VARIABLE} is {text} (MiB), and this row needs {-(-needed_bytes // _MIB)}: unset it, "
            f"so that each group gets what it needs, or export {VARIABLE}={needed}"
        )
