"""Schemas of the custom operators that replays call and torch_npu does not have.

These operators' own packages register or publish them; the source is given with each.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace

import torch

#: By namespace; a blank line between two.
SCHEMAS = {
    # vllm-project/vllm-ascend, csrc/torch_binding.cpp, of 2026.
    "_C_ascend": """
        npu_add_rms_norm_bias(Tensor x1, Tensor x2, Tensor gamma, Tensor? beta=None, float epsilon=1e-6)
            -> (Tensor y, Tensor rstd, Tensor x)

        npu_lightning_indexer(Tensor query, Tensor key, Tensor weights, *,
            Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None,
            Tensor? block_table=None, str layout_query='BSND', str layout_key='BSND', int sparse_count=2048,
            int sparse_mode=3)
            -> Tensor

        npu_sparse_flash_attention(Tensor query, Tensor key, Tensor value, Tensor sparse_indices,
            float scale_value, *, Tensor? block_table=None, Tensor? actual_seq_lengths_query=None,
            Tensor? actual_seq_lengths_kv=None, Tensor? query_rope=None, Tensor? key_rope=None,
            int sparse_block_size=1, str layout_query='BSND', str layout_kv='BSND', int sparse_mode=3,
            int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807, int attention_mode=2,
            bool return_softmax_lse=False)
            -> (Tensor attention_out, Tensor softmax_max, Tensor softmax_sum)

        npu_sparse_attention_score(Tensor query, Tensor key, Tensor value, Tensor select_idx, Tensor block_table, *,
            Tensor? select_num_idx=None, Tensor? q_dequant_scale=None, Tensor? k_dequant_scale=None,
            Tensor? v_dequant_scale=None, Tensor? actual_seq_lengths=None, Tensor? actual_seq_lengths_kv=None,
            str q_input_layout="TND", str kv_input_layout="BNSD", int num_key_value_heads=1, float scale_value=1.0,
            int block_size=128, int top_k=16, int inner_precise=0) -> Tensor

        batch_matmul_transpose(Tensor tensor_a, Tensor tensor_b, Tensor(a!) tensor_c, str? format_mode=None,
            str? quant_mode=None) -> ()

        npu_causal_conv1d_custom(Tensor output, Tensor x, Tensor weight, Tensor conv_state, Tensor? bias_opt,
            Tensor? query_start_loc_opt, Tensor? cache_indices_opt, Tensor? initial_state_mode_opt,
            Tensor? num_accepted_tokens_opt, int activation_mode, int pad_slot_id, int run_mode)
            -> (Tensor output)

        npu_apply_top_k_top_p(Tensor logits, Tensor? p=None, Tensor? k=None) -> Tensor

        npu_hc_pre_v2(Tensor x, Tensor hc_fn, Tensor hc_scale, Tensor hc_base, int hc_mult, int hc_sinkhorn_iters,
            float norm_eps, float hc_eps) -> (Tensor out0, Tensor out1, Tensor out2)

        npu_hc_post(Tensor x, Tensor residual, Tensor post, Tensor comb) -> (Tensor out)

        npu_swiglu_group_quant(Tensor x, Tensor? topk_weight, Tensor? group_index, ScalarType dst_type=39,
            int quant_mode=1, int group_size=128, bool round_scale=False, bool ue8m0_scale=False,
            bool output_origin=False, int group_list_type=0, float clamp_value=0.0)
            -> (Tensor y, Tensor scale, Tensor y_origin)

        dispatch_ffn_combine(Tensor x, Tensor[] weight1, Tensor[] weight2, Tensor expert_idx,
            Tensor[] scale1, Tensor[] scale2, Tensor[] bias1, Tensor[] bias2, Tensor probs, str group,
            int max_output_size, Tensor(a!) out, Tensor(b!) expert_token_nums, Tensor? x_active_mask=None,
            float swiglu_limit=1000000.0)
            -> (Tensor out, Tensor expert_token_nums)
    """,
    # vllm-project/vllm-ascend, vllm_ascend/ops/triton/{reject_sample,rope}.py, of 2026.
    "vllm_ascend_reject_sample": """
        expand_triton(int batch_size, Tensor(a!) expanded_x, Tensor x, Tensor cu_num_tokens, Scalar replace_from,
            Scalar replace_to, int max_num_tokens) -> ()
    """,
    # flashserve/flash-linear-attention-npu, torch_custom/fla_npu/npu_custom.yaml, of 2026.
    "fla_npu": """
        chunk_kda_fwd(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, float scale, int chunk_size, *,
            str layout="BSND", Tensor? initial_state=None, bool? output_final_state=False, int[]? cu_seqlens=None,
            int[]? chunk_indices=None, bool? safe_gate=False, float? lower_bound=None,
            bool? use_gate_in_kernel=False, Tensor? A_log=None, Tensor? dt_bias=None,
            bool? disable_recompute=False, bool? return_intermediate_states=False, bool? state_v_first=False)
            -> (Tensor, Tensor?, Tensor?, Tensor, Tensor, Tensor?, Tensor?, Tensor?, Tensor?, Tensor?, Tensor?, Tensor?)
    """,
    # CANN's ops-transformer, torch_extension/npu_ops_transformer/ops/moe_distribute_{dispatch,combine}_v3.py, of 2026.
    "npu_ops_transformer": """
        npu_moe_distribute_dispatch_v3(Tensor context, Tensor x, Tensor expert_ids, int ep_world_size, int ep_rank_id,
            int moe_expert_num, int ccl_buffer_size, *, Tensor? scales=None, Tensor? x_active_mask=None,
            Tensor? expert_scales=None, Tensor? elastic_info=None, Tensor? performance_info=None,
            int tp_world_size=0, int tp_rank_id=0, int expert_shard_type=0, int shared_expert_num=1,
            int shared_expert_rank_num=0, int quant_mode=0, int global_bs=0, int expert_token_nums_type=1,
            str comm_alg="", int zero_expert_num=0, int copy_expert_num=0, int const_expert_num=0)
            -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)

        npu_moe_distribute_combine_v3(Tensor context, Tensor expand_x, Tensor expert_ids,
            Tensor assist_info_for_combine, Tensor ep_send_counts, Tensor expert_scales, int ep_world_size,
            int ep_rank_id, int moe_expert_num, int ccl_buffer_size, *, Tensor? tp_send_counts=None,
            Tensor? x_active_mask=None, Tensor? expand_scales=None, Tensor? shared_expert_x=None,
            Tensor? elastic_info=None, Tensor? ori_x=None, Tensor? const_expert_alpha_1=None,
            Tensor? const_expert_alpha_2=None, Tensor? const_expert_v=None, Tensor? performance_info=None,
            int tp_world_size=0, int tp_rank_id=0, int expert_shard_type=0, int shared_expert_num=1,
            int shared_expert_rank_num=0, int global_bs=0, int comm_quant_mode=0, str comm_alg="",
            int zero_expert_num=0, int copy_expert_num=0, int const_expert_num=0) -> Tensor
    """,
    "vllm_ascend_rope": """
        rope_forward_triton_siso(Tensor(a!) qk, Tensor? cos=None, Tensor? sin=None, Tensor? cos_sin_cache=None,
            Tensor? positions=None, int rope_dim=-1, bool is_neox_style=True) -> Tensor(a!)
    """,
    # vllm-project/vllm-ascend, vllm_ascend/ops/triton/linearnorm/split_qkv_rmsnorm_rope.py and
    # vllm_ascend/ops/{register_custom_ops,rotary_embedding}.py: as torch infers them from the annotations
    # of the functions that are registered there.
    "vllm": """
        qkv_rmsnorm_rope(Tensor input, Tensor cos_sin_cache, Tensor positions, Tensor q_weight,
            Tensor k_weight, SymInt q_hidden_size, SymInt kv_hidden_size, SymInt head_dim, float eps,
            Tensor? q_bias=None, Tensor? k_bias=None)
            -> (Tensor, Tensor, Tensor)

        muls_add(Tensor x, Tensor y, float scale) -> Tensor

        npu_rotary_embedding(Tensor positions, Tensor query, Tensor key, Tensor cos_sin_cache,
            SymInt head_size, SymInt rotary_dim, bool is_neox_style, Tensor? offsets=None)
            -> (Tensor, Tensor)
    """,
}

#: Earlier versions, by name; each is instead of the schema of its operator.
EARLIER = {
    # vllm-project/vllm-ascend, csrc/torch_binding.cpp, of early 2026.
    "without biases": """dispatch_ffn_combine(Tensor x, Tensor[] weight1, Tensor[] weight2, Tensor expert_idx,
        Tensor[] scale1, Tensor[] scale2, Tensor probs, str group, int max_output_size, Tensor(a!) out,
        Tensor(b!) expert_token_nums) -> (Tensor out, Tensor expert_token_nums)""",
    # The same, of 2025.
    "without counts": """dispatch_ffn_combine(Tensor x, Tensor[] weight1, Tensor[] weight2, Tensor expert_idx,
        Tensor[] scale1, Tensor[] scale2, Tensor probs, str group, int max_output_size, Tensor(a!) out) -> Tensor""",
}
#: Environment variable that names one of them.
EARLIER_VARIABLE = "OPATLAS_EARLIER_SCHEMA"


def register() -> None:
    """Lets torch parse the arguments of these operators; none of them computes.

    Functions that are no operators of torch take the place of their modules.
    """
    triton, ascendc = ModuleType("vllm_ascend"), ModuleType("fla_npu")
    files = {name: getattr(torch.ops, f"vllm_ascend_{name}") for name in ("reject_sample", "rope")}
    triton.ops, ascendc.ops = (
        SimpleNamespace(triton=SimpleNamespace(**files)),
        SimpleNamespace(ascendc=torch.ops.fla_npu),
    )
    sys.modules.setdefault("vllm_ascend", triton)
    sys.modules.setdefault("fla_npu", ascendc)
    earlier = EARLIER.get(os.environ.get(EARLIER_VARIABLE, ""), "")
    for namespace, schemas in SCHEMAS.items():
        library = torch.library.Library(namespace, "FRAGMENT")
        _KEPT.append(library)
        for schema in schemas.split("\n\n"):
            same = schema.split("(")[0].strip() == earlier.split("(")[0]
            library.define(" ".join((earlier if same else schema).split()))
    # The replay of a combine needs a dispatch's results: they have the shapes of torch_npu's second version.
    torch.library.impl("npu_ops_transformer::npu_moe_distribute_dispatch_v3", "Meta")(_dispatch_v3)


def _dispatch_v3(context, x, expert_ids, ep_world_size, ep_rank_id, moe_expert_num, ccl_buffer_size, **named):
    group = "", ep_world_size, ep_rank_id, moe_expert_num
    return torch.ops.npu.npu_moe_distribute_dispatch_v2(x, expert_ids, *group, **named)


#: A library that is collected takes its operators along.
_KEPT: list[torch.library.Library] = []
