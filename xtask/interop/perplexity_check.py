"""llama-perplexity judges `apr validate --quality --text`: `perplexity_check.py APR PROGRAMS`, the binary and a folder.

llama.cpp computes in single precision here: its cache and its flash attention round to half precision by default. Its
kernels of quantized weights round activations to 8 bits, which `apr` does not; so quantized weights are compared twice,
dequantized as well. It keeps the base's probabilities in 16 bits, none below e^-16 of the largest: what it prints as the
perplexity of the base in a comparison is that of these, and isn't compared.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "fixtures/tiny-llama"
SUMS = ROOT / "fixtures/quality/sums.txt"
STORIES = ROOT / "../shared/data/derived/stories260K_F16.gguf"
EXACTLY = ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", "2"]
# As they are printed, and the way to them in the report.
FIGURES = [
    ("Mean    KLD", ["kl_divergence", "mean"], 1.0), ("Mean    Δp", ["probability_change", "mean"], 100.0),
    ("RMS Δp", ["probability_rms"], 100.0), ("Same top p", ["same_top"], 100.0),
]
failures = []


def check(condition, what):
    print(("ok    " if condition else "WRONG ") + what, flush=True)
    if not condition:
        failures.append(what)


def apr(*arguments):
    return subprocess.run([APR, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def llama(*arguments):
    line = [PROGRAMS / "bin/llama-perplexity", *map(str, arguments), *EXACTLY]
    last = "Same top p:" if "--kl-divergence" in line else "Final estimate"
    # It may end before its log is written.
    for _ in range(9):
        done = subprocess.run(line, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if last in done.stdout:
            return done.stdout
    sys.exit(f"llama-perplexity printed no '{last}': {done.stdout}")


def printed(text, title):
    """A figure with its error."""
    found = re.search(rf"{re.escape(title)}\s*[:=]\s*(-?[\d.]+)\s*(?:±|\+/-)\s*([\d.]+)", text)
    return float(found[1]), float(found[2])


def compare(folder, name, base, text, context, tolerance, coarse=()):
    window = ["-f", text, "-c", context]
    probabilities = folder / "base.kld"
    expected, error = printed(llama("-m", base, *window, "--kl-divergence-base", probabilities), "Final estimate: PPL")
    quality = ["--quality", "--text", text, "--context", context, "--json"]
    found = json.loads(apr("validate", base, *quality))["perplexity"]
    check(abs(found["value"] - expected) <= tolerance, f"{name}: perplexity {found['value']:.5f}, llama.cpp {expected}")
    check(abs(found["error"] - error) <= 2e-3 * error, f"{name}: its error {found['error']:.5f}, llama.cpp {error}")

    for quantization in ["q8_0", "q4_0", "q4_1", "q5_1"]:
        other, floats = folder / f"{name}-{quantization}.gguf", folder / f"{name}-{quantization}-f32.gguf"
        apr("quantize", base, "--type", quantization, "-q", "-o", other)
        apr("convert", other, "--dequantize", "f32", "-q", "-o", floats)
        report = json.loads(apr("validate", base, other, *quality))
        told = llama("-m", floats, *window, "--kl-divergence", "--kl-divergence-base", probabilities)
        for title, place, unit in FIGURES:
            value = report
            for key in place:
                value = value[key]
            (expected, error), found = printed(told, title), value["value"] * unit
            near = abs(found - expected) <= 0.005 * abs(expected) + max(0.1 * error, 5e-4 * unit / 100)
            what = " ".join(title.split())
            check(near, f"{name} as {quantization}, dequantized: {what} {found:.6f}, llama.cpp {expected}")

        # What rounded activations add is less than this where weights have few bits.
        if quantization in coarse:
            told = llama("-m", other, *window, "--kl-divergence", "--kl-divergence-base", probabilities)
            found, (expected, _) = report["kl_divergence"]["mean"]["value"], printed(told, "Mean    KLD")
            near = abs(found - expected) <= 0.03 * expected
            check(near, f"{name} as {quantization}: Mean KLD {found:.6f}, llama.cpp {expected}")


def adapter(folder, base, text, context):
    """llama.cpp adds an adapter that apr converted, and finds what it finds of the model into which apr merged it."""
    peft = folder / "adapter"
    peft.mkdir()
    modules = {"q_proj": (128, 128), "v_proj": (64, 128), "down_proj": (128, 256)}
    draw = numpy.random.default_rng(5)
    tensors = {}
    for layer in range(2):
        for module, (rows, columns) in modules.items():
            part = "mlp" if module == "down_proj" else "self_attn"
            name = f"base_model.model.model.layers.{layer}.{part}.{module}"
            tensors[f"{name}.lora_A.weight"] = 0.05 * draw.standard_normal((4, columns), dtype=numpy.float32)
            tensors[f"{name}.lora_B.weight"] = 0.05 * draw.standard_normal((rows, 4), dtype=numpy.float32)
    save_file(tensors, peft / "adapter_model.safetensors")
    config = dict(peft_type="LORA", r=4, lora_alpha=8, target_modules=sorted(modules), task_type="CAUSAL_LM")
    (peft / "adapter_config.json").write_text(json.dumps(config))

    converted, merged = folder / "adapter.gguf", folder / "merged.gguf"
    apr("lora", "convert", peft, "--base", base, "-q", "-o", converted)
    apr("merge", base, "--lora", peft, "-q", "-o", merged)
    window = ["-f", text, "-c", context]
    title = "Final estimate: PPL"
    before, _ = printed(llama("-m", base, *window), title)
    found, _ = printed(llama("-m", base, "--lora", converted, *window), title)
    expected, _ = printed(llama("-m", merged, *window), title)
    check(abs(found - expected) <= 1e-4 * expected, f"adapter: perplexity {found} with it, {expected} merged into the model")
    check(abs(found - before) > 0.01 * before, f"adapter: it changes the perplexity, which is {before} without it")


def written(folder, model):
    """Stories of a model, for a text that it finds likely."""
    tell = ["run", model, "--prompt", "Once upon a time", "--max-tokens", 400, "--temperature", 1, "-q"]
    text = "\n".join(apr(*tell, "--seed", seed) for seed in range(1, 9))
    path = folder / "stories.txt"
    path.write_text(text, encoding="utf-8")
    return path


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny = folder / "tiny.gguf"
        apr("quantize", TINY, "--type", "fp32", "-q", "-o", tiny)
        # A perplexity of two thousand: single precision has no third decimal.
        compare(folder, "tiny-llama", tiny, SUMS, 9, 0.02)
        adapter(folder, tiny, SUMS, 9)
        if STORIES.exists():
            stories = folder / "stories.gguf"
            apr("quantize", STORIES, "--type", "fp32", "-q", "-o", stories)
            compare(folder, "stories260K", stories, written(folder, stories), 128, 0.0005, ("q4_0", "q4_1"))
    sys.exit(f"{len(failures)} differ" if failures else 0)


if __name__ == "__main__":
    APR, PROGRAMS = sys.argv[1], Path(sys.argv[2])
    main()
