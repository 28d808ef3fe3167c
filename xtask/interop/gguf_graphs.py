"""Compares what apr computes of GGUF files with what transformers computes of the folders that they were made from.

A tiny model of each family that llama.cpp has is written as GGUF, and computed in four ways:

- `apr run` on the file itself, beside transformers on the folder;
- onnxruntime on what `apr export --format onnx` makes of the file, with keys and values of earlier tokens, as graphs.py
  does it with the folder;
- transformers on the folder that `apr export` makes of the file again;
- `apr run` on the file quantized to q8_0, and to q4_k where the widths are multiples of 256, beside transformers on the
  folder that the blocks are decoded to: rounding may choose other experts, so that the first folder is no measure.

No conversion may say that llama.cpp computes otherwise, except where a case names what it says.

    python gguf_graphs.py APR [case ...]

Needs what graphs.py needs.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

import graphs
from graph_cases import CASES

# Cases of graphs.py, and what is changed in them: what llama.cpp computes otherwise, and widths for q4_k.
OPEN = dict(sliding_window=None)
WIDE = dict(hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2)
ONE_GROUP = dict(n_group=1, topk_group=1, topk_method="greedy")
ALIKE = {
    "llama": WIDE, "llama_llama3": {}, "llama_yarn": {}, "mistral": OPEN, "qwen2": {}, "qwen3": {}, "gemma": {},
    "gemma2": dict(query_pre_attn_scalar=48), "phi": {}, "phi3": OPEN, "phi3_longrope": {}, "gpt2": {}, "gpt_neox": {},
    "gemma3": dict(query_pre_attn_scalar=48, num_hidden_layers=7, sliding_window_pattern=6), "granite": {},
    "smollm3": dict(no_rope_layer_interval=4, num_hidden_layers=5), "cohere": {}, "cohere2": {}, "olmo2": {}, "olmo3": {},
    "stablelm": {}, "glm4": {}, "starcoder2": OPEN, "falcon": {}, "bloom": {}, "exaone4": {}, "exaone4_full": {},
    "mixtral": WIDE, "qwen2_moe": dict(mlp_only_layers=None, norm_topk_prob=False),
    "qwen3_moe": WIDE | dict(decoder_sparse_step=1, norm_topk_prob=True, head_dim=64, moe_intermediate_size=256),
    "gpt_oss": {}, "olmoe": dict(clip_qkv=None, norm_topk_prob=False), "deepseek_v2": ONE_GROUP,
    "deepseek_v2_lite": ONE_GROUP, "deepseek_v3": {}, "bert": {}, "roberta": {}, "distilbert": {}, "modernbert": {},
    "mamba": {}, "mamba2": {}, "falcon_mamba": dict(mixer_rms_eps=1e-5), "jamba": {},
    "falcon_h1": {}, "qwen3_next": {}, "qwen3_5": {}, "qwen3_5_moe": {}, "granitemoe": {}, "granitemoeshared": {},
    "granitemoehybrid": {}, "granitemoehybrid_dense": dict(position_embedding_type=None), "internlm3": {},
    "iquestcoder": {},
    "lfm2": dict(conv_bias=False), "lfm2_moe": {}, "ernie4_5_moe": dict(moe_layer_end_index=-1), "hunyuan_v1_moe": {},
    "glm4_moe_lite": {}, "minicpm3": {}, "gemma4": {}, "gemma4_moe": {}, "granite_swa": {}, "glm": dict(rms_norm_eps=1e-6), "eurobert": {}, "exaone_moe": {}, "jais2": {}, "solar_open": {},
    "hy_v3": {}, "granitemoe_swa": dict(layer_rope_theta=None),
    "afmoe": dict(layer_types=["sliding_attention"] * 3 + ["full_attention"]), "gpt_bigcode": {},
    "nomic_bert": {}, "t5_encoder": dict(num_decoder_layers=3, relative_attention_max_distance=128),
}
# The file has no key for the rounding of the ramp, and apr restores the released model's.
SAID = {"gpt_oss": "'truncate' of rotary positions"}
# Families whose positions are slopes.
WITHOUT_POSITIONS = ("bloom",)


def convert(apr, *arguments):
    done = subprocess.run([apr, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return done.stderr


def loaded(name, folder):
    kind = getattr(transformers, name)
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def restored(apr, file, model, *options):
    """The model of the folder that a file leads back to."""
    folder = file.with_suffix("")
    convert(apr, "export", file, "-o", folder, *options)
    # Without a tokenizer, a file names no padding, and the class's own may lie beyond a tiny vocabulary.
    graphs.change_config(folder, dict(pad_token_id=model.config.pad_token_id))
    return loaded(json.loads((folder / "config.json").read_text())["architectures"][0], folder)


def feeds_of(case, test, model):
    """Texts in a batch, with padding on the side that models of this kind have it."""
    if test != "decoder":
        tokens, mask = graphs.right_padded(model, [5, 9, 2])
        feeds = dict(input_ids=tokens, attention_mask=mask)
        has_types = getattr(model.config, "type_vocab_size", 0) > 1
        return feeds | dict(token_type_ids=torch.zeros_like(tokens)) if has_types else feeds
    tokens, mask = graphs.left_padded(model, 3, 11, [0, 4, 1])
    feeds = dict(input_ids=tokens, attention_mask=mask)
    return feeds if case in WITHOUT_POSITIONS else feeds | dict(position_ids=graphs.positions_of(mask))


def run(apr, file, feeds):
    arrays = file.with_suffix(".npz")
    np.savez(arrays, **{name: value.numpy() for name, value in feeds.items()})
    done = subprocess.run([apr, "run", file, "-i", arrays, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    output = json.loads(done.stdout)["outputs"][0]
    return np.array(output["values"], np.float32).reshape(output["shape"])


def computed(model, feeds):
    with torch.no_grad():
        return model(**feeds)[0]


def of_texts(outputs, feeds):
    """What comes out at tokens that are no padding. RoBERTa has a position for padding, and llama.cpp none."""
    return outputs[feeds["attention_mask"].bool().numpy()]


def compared(apr, case, worst):
    test, name, settings = CASES[case]
    CASES[case] = test, name, settings | ALIKE[case]
    with contextlib.ExitStack() as stack:
        out = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder, file = out / "model", out / "whole.gguf"
        graphs.made(case, folder)
        model = loaded(name, folder)
        said = convert(apr, "export", folder, "-o", file)
        lines = [line for line in said.splitlines() if "will differ" in line]
        expected = SAID.get(case)
        assert all(expected and expected in line for line in lines), lines

        feeds = feeds_of(case, test, model)

        def add(where, ours, theirs):
            worst.add(where, of_texts(ours, feeds), of_texts(theirs, feeds))

        theirs = computed(model, feeds)
        add("apr run", run(apr, file, feeds), theirs)
        if case == "roberta":
            add("ONNX", graphs.sessions(apr, file)["model"](feeds)["last_hidden_state"], theirs)
        else:
            graphs.TESTS[test](model, apr, file, worst)
        add("restored", computed(restored(apr, file, model), feeds).numpy(), theirs)
        for kind in ("q8_0", "q4_k") if model.config.hidden_size % 256 == 0 else ("q8_0",):
            blocks = out / f"{kind}.gguf"
            convert(apr, "export", folder, "-o", blocks, "--quantize", kind)
            decoded = restored(apr, blocks, model, "--dequantize", "f32")
            add(kind, run(apr, blocks, feeds), computed(decoded, feeds))


def main():
    apr, *wanted = sys.argv[1:]
    failed = []
    for case in wanted or ALIKE:
        worst = graphs.Worst()
        try:
            compared(apr, case, worst)
            verdict = "ok" if worst.error <= graphs.TOLERANCE else "WRONG"
            print(f"{case:24} {verdict:6} {worst.error:.2e} ({worst.where})", flush=True)
        except Exception as error:
            verdict = "FAILED"
            print(f"{case:24} FAILED {type(error).__name__}: {error}"[:1500], flush=True)
        if verdict != "ok":
            failed.append(case)
    if failed:
        sys.exit(f"{len(failed)} of the cases: {', '.join(failed)}")


if __name__ == "__main__":
    main()
