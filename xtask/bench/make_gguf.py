"""Writes a GGUF file of a LLaMA without a tokenizer, with f16 matrices of Gaussian values: `make_gguf.py FILE BYTES`.

A process of its own: numpy's memory must not be charged to the programs that are measured.
"""

import sys

import gguf
import numpy as np

HIDDEN, FEED_FORWARD, VOCABULARY, HEADS = 2048, 5632, 32000, 16
PER_LAYER = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FEED_FORWARD
EMBEDDINGS = 2 * VOCABULARY * HIDDEN


def main(path, size):
    layers = max(1, round((size / 2 - EMBEDDINGS) / PER_LAYER))
    generator = np.random.default_rng(0)
    values = (generator.standard_normal(1 << 24, dtype=np.float32) * 0.02).astype(np.float16)

    def matrix(rows, columns):
        start = int(generator.integers(0, len(values)))
        return np.resize(np.roll(values, start), (rows, columns))

    writer = gguf.GGUFWriter(path, "llama", use_temp_file=False)
    writer.add_block_count(layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(1)
    shapes = {"token_embd.weight": (VOCABULARY, HIDDEN), "output.weight": (VOCABULARY, HIDDEN)}
    for layer in range(layers):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{layer}.{name}.weight"] = (HIDDEN, HIDDEN)
        for name in ("ffn_gate", "ffn_up"):
            shapes[f"blk.{layer}.{name}.weight"] = (FEED_FORWARD, HIDDEN)
        shapes[f"blk.{layer}.ffn_down.weight"] = (HIDDEN, FEED_FORWARD)
    for name, shape in shapes.items():
        writer.add_tensor_info(name, shape, np.dtype(np.float16), shape[0] * shape[1] * 2)
    norms = [f"blk.{layer}.{name}.weight" for layer in range(layers) for name in ("attn_norm", "ffn_norm")]
    for name in norms + ["output_norm.weight"]:
        writer.add_tensor_info(name, (HIDDEN,), np.dtype(np.float32), HIDDEN * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for shape in shapes.values():
        writer.write_tensor_data(matrix(*shape))
    for _ in range(len(norms) + 1):
        writer.write_tensor_data(np.ones(HIDDEN, np.float32))
    writer.close()


main(sys.argv[1], int(float(sys.argv[2])))
