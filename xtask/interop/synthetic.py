"""Small GGUF files of LLaMA's and Qwen2-MoE's shapes, of Gaussian f16 values, for comparing quantizers."""

import gguf
import numpy as np


def write_llama(path, layers=3, hidden=256, feed_forward=512, vocabulary=96, heads=4, kv_heads=4, experts=0, tied=False,
                shared=0):
    """With `shared`, the width of an expert that every token takes, the model is a Qwen2-MoE."""
    generator = np.random.default_rng(7)

    def matrix(*shape):
        return (generator.standard_normal(shape, dtype=np.float32) * 0.05).astype(np.float16)

    writer = gguf.GGUFWriter(path, "qwen2moe" if shared else "llama")
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    writer.add_file_type(1)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    if shared:
        writer.add_expert_feed_forward_length(feed_forward)
        writer.add_expert_shared_feed_forward_length(shared)
    writer.add_tensor("token_embd.weight", matrix(vocabulary, hidden))
    for layer in range(layers):
        def add(name, *shape):
            writer.add_tensor(f"blk.{layer}.{name}.weight", matrix(*shape))

        kv = hidden * kv_heads // heads
        add("attn_q", hidden, hidden)
        add("attn_k", kv, hidden)
        add("attn_v", kv, hidden)
        add("attn_output", hidden, hidden)
        stack = (experts,) if experts else ()
        suffix = "_exps" if experts else ""
        add("ffn_gate" + suffix, *stack, feed_forward, hidden)
        add("ffn_up" + suffix, *stack, feed_forward, hidden)
        add("ffn_down" + suffix, *stack, hidden, feed_forward)
        if shared:
            # The gate of the shared expert is a matrix of one row.
            writer.add_tensor(f"blk.{layer}.ffn_gate_inp_shexp.weight", matrix(1, hidden).astype(np.float32))
            add("ffn_gate_shexp", shared, hidden)
            add("ffn_up_shexp", shared, hidden)
            add("ffn_down_shexp", hidden, shared)
            for name in ["attn_q", "attn_k", "attn_v"]:
                writer.add_tensor(f"blk.{layer}.{name}.bias", np.zeros(hidden, np.float32))
        norms = ["attn_norm", "ffn_norm"]
        if experts:
            writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", matrix(experts, hidden).astype(np.float32))
        for name in norms:
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(hidden, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    if not tied:
        writer.add_tensor("output.weight", matrix(vocabulary, hidden))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
