"""Prints the sizes of models after each optimization, as tables of Markdown.

    python xtask/bench/sizes.py APR MODEL...

A MODEL is a folder or file, or the shape of one that is made with random weights: whisper-tiny, whisper-base, llama-1b
(22 layers of 2048 columns, 1.1 billion weights). Random weights are normal, as trained ones roughly are, but hold nothing
that compresses beyond that. Needs torch, transformers and safetensors for shapes; outputs go to a temporary folder and
are deleted one by one.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

TECHNIQUES = {
    "original (f32)": "",
    "fp16": "--precision fp16",
    "int8": "--quantize int8",
    "int4": "--quantize int4",
    "int4 + zstd": "--quantize int4 --compress=zstd",
    "int4 + prune 50 %": "--prune 0.5 --quantize int4",
    "int4 + prune 50 % + zstd": "--prune 0.5 --quantize int4 --compress=zstd",
    "prune 50 %, CSR": "--prune 0.5 --sparse csr",
    "prune 90 %, CSR": "--prune 0.9 --sparse csr",
    "q4_k_m": "--quantize q4_k_m",
}


def make(shape, folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    if shape == "llama-1b":
        model = LlamaForCausalLM(LlamaConfig(
            hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32, num_key_value_heads=4,
            vocab_size=32000))
    else:
        width, layers, heads = {"whisper-tiny": (384, 4, 6), "whisper-base": (512, 6, 8)}[shape]
        model = WhisperForConditionalGeneration(WhisperConfig(
            d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_attention_heads=heads,
            decoder_attention_heads=heads, encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, vocab_size=51865))
    model.save_pretrained(folder, max_shard_size="100GB")
    (folder / "generation_config.json").unlink(missing_ok=True)


def measure(apr, model, options, folder):
    output = folder / "out.apr"
    command = [apr, "convert", str(model), "-o", str(output), "-f", "--quiet", *options.split()]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        return run.stderr.strip().splitlines()[0]
    size = output.stat().st_size
    output.unlink()
    return size


def main():
    apr, *models = sys.argv[1:]
    for name in models:
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            model = Path(name)
            if not model.exists():
                model = folder / name
                make(name, model)
            print(f"{model.name}\n\n| technique | size | of the original |\n|---|---:|---:|", flush=True)
            first = None
            for technique, options in TECHNIQUES.items():
                size = measure(apr, model, options, folder)
                if isinstance(size, str):
                    print(f"| {technique} | {size} | |", flush=True)
                    continue
                first = first or size
                print(f"| {technique} | {size / 1e6:.1f} MB | {100 * size / first:.1f} % |", flush=True)
            print(flush=True)


if __name__ == "__main__":
    main()
