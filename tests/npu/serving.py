"""Runs in the environment of torch_npu: makes attention calls as a serving process does, on tensors without values.

python serving.py RECORDS
"""

from __future__ import annotations

import sys

from opatlas.capture.attention_recorder import record_attention


def main(records: str) -> None:
    # Before torch_npu is there, as a plugin of vLLM may be.
    with record_attention(records) as recorder:
        import torch
        import torch_npu

        assert recorder.recording

        def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device="meta")

        mask = tensor(2048, 2048, dtype=torch.int8)
        paged = {"block_table": tensor(3, 4, dtype=torch.int32), "input_layout": "TND", "block_size": 16}
        layer = (tensor(7, 4, 16), tensor(12, 16, 32), tensor(12, 16, 32))
        for kv_lengths in ([40, 9, 2], [40, 9, 2], [17, 33, 64]):
            torch_npu.npu_fused_infer_attention_score(
                *layer,
                atten_mask=mask,
                actual_seq_lengths=[2, 6, 7],
                actual_seq_lengths_kv=kv_lengths,
                num_heads=4,
                num_key_value_heads=2,
                scale=0.25,
                sparse_mode=3,
                **paged,
            )
        torch_npu.npu_fused_infer_attention_score_v2(
            tensor(23, 4, 16),
            tensor(31, 1, 16),
            tensor(31, 1, 16),
            actual_seq_qlen=[5, 23],
            actual_seq_kvlen=[11, 31],
            num_query_heads=4,
            num_key_value_heads=1,
            softmax_scale=0.25,
            input_layout="TND",
        )
        # As a graph updates the lengths of a call that it holds. It has no meta kernel.
        out = torch_npu.npu_fused_infer_attention_score.out
        with torch.library._scoped_library("npu", "IMPL") as library:
            library.impl("npu_fused_infer_attention_score.out", lambda *_, out, **__: tuple(out), "Meta")
            out(
                tensor(3, 4, 1, 32),
                tensor(7, 1, 16, 32),
                tensor(7, 1, 16, 32),
                query_rope=tensor(3, 4, 1, 8),
                key_rope=tensor(7, 1, 16, 8),
                actual_seq_lengths_kv=[20, 1, 16],
                num_heads=4,
                num_key_value_heads=1,
                scale=0.25,
                input_layout="BNSD_NBSD",
                block_table=tensor(3, 6, dtype=torch.int32),
                block_size=16,
                out=[tensor(4, 3, 1, 32), tensor(1)],
            )
    assert torch_npu.npu_fused_infer_attention_score._op.__class__.__name__ == "builtin_function_or_method"


if __name__ == "__main__":
    main(*sys.argv[1:])
