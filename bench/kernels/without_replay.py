"""Kernel types of captures and databases that are not replayed, and why: their rows stay as they are.

Does not import torch.
"""

from __future__ import annotations

_COLLECTIVE = "a collective of several devices, whose row records no shapes"
_RANDOM = "what it draws is random, so that no reference can tell whether it is right"
_OWN_KERNEL = "a user's own kernel, whose name and shapes do not tell what it computes"
_MLA = "what it fuses before latent attention depends on quantization modes that its row does not record"

#: Why, by kernel type: one sentence without its full stop, to follow the name.
WITHOUT_REPLAY: dict[str, str] = {
    "0": "the profiler did not resolve the kernel's type, and recorded no shapes",
    "DSAGenBitMask": _RANDOM,
    "DSARandomNormal": _RANDOM,
    "DSAStatelessGenBitMask": _RANDOM,
    "MemSet": "other kernels bring it along to clear their outputs, and its row records no shapes",
    "_narrow_copy_flat_kernel": _OWN_KERNEL,
    "hcom_allGather_": _COLLECTIVE,
    "hcom_allReduce_": _COLLECTIVE,
    "hcom_batchSendRecv_": _COLLECTIVE,
    "hcom_broadcast_": _COLLECTIVE,
    "hcom_reduceScatter_": _COLLECTIVE,
    "main_kernel": _OWN_KERNEL,
    "matmul_bias_activation_kernel": _OWN_KERNEL,
    "mla_preprocess_0_mix_aic": _MLA,
    "mla_preprocess": _MLA,
}
