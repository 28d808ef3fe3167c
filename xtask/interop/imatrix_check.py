"""llama-imatrix judges `apr imatrix`: `imatrix_check.py APR PROGRAMS [case ...]`, the binary and a folder.

Both measure the same text with the same model: tiny-llama, and a tiny model of each kind of layer that llama.cpp has, with
random weights and tiny-llama's tokenizer. apr measures the folder and the GGUF file. Names, shapes and counts have to be the
same, and sums within a thousandth of the largest of their weight. llama.cpp computes in single precision: its cache and its
flash attention round to half precision by default.

Needs what graphs.py needs, and the package gguf.
"""

import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import graphs
import numpy as np
from gguf_graphs import ALIKE
from graph_cases import CASES, rope

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "fixtures/tiny-llama"
TOKENIZER = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]
EXACTLY = ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", "2"]
WINDOW = 32
KINDS = ["llama", "qwen2", "gemma2", "gpt2", "falcon", "gpt_neox", "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss",
         "deepseek_v2"]
# llama.cpp rounds the ramp of rotary positions. Files can't say so, and apr takes a file for the released model's, where it
# is not rounded.
ROUNDED = {"gpt_oss": rope("yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0,
                           truncate=True)}
# What llama.cpp has in another form: keys and values of DeepSeek are made from latent ones within attention.
OPEN = ("attn_k_b", "attn_v_b", "attn_kv_b")
TOLERANCE = 1e-3
failures = []


def check(condition, what):
    print(("ok    " if condition else "WRONG ") + what, flush=True)
    if not condition:
        failures.append(what)


def apr(*arguments):
    subprocess.run([APR, *map(str, arguments)], check=True, capture_output=True, text=True)


def read(path):
    return {tensor.name: tensor.data.astype(np.float64) for tensor in gguf.GGUFReader(path).tensors}


def compare(name, folder, out, text):
    model = out / "model.gguf"
    apr("quantize", folder, "--type", "fp32", "-q", "-f", "-o", model)
    theirs = out / "theirs.gguf"
    line = [PROGRAMS / "bin/llama-imatrix", "-m", model, "-f", text, "-o", theirs, "-c", WINDOW, "-b", WINDOW, "--no-ppl"]
    subprocess.run([*map(str, line), *EXACTLY], check=True, capture_output=True)
    expected = {name: values for name, values in read(theirs).items() if not any(part in name for part in OPEN)}
    for source in [folder] if name in ROUNDED else [folder, model]:
        ours = out / "ours.gguf"
        apr("imatrix", source, "--text", text, "--context", WINDOW, "-f", "-o", ours)
        found = {name: values for name, values in read(ours).items() if not any(part in name for part in OPEN)}
        what = f"{name}, {'folder' if source == folder else 'GGUF'}"
        missing = sorted(set(found) ^ set(expected))
        shapes = [key for key in expected if key in found and found[key].shape != expected[key].shape]
        check(not missing and not shapes, f"{what}: {len(expected)} tensors {missing[:4] + shapes[:4] or 'alike'}")
        worst, where = 0.0, ""
        for key in expected:
            if key in found and key not in shapes:
                error = np.abs(found[key] - expected[key]).max() / max(np.abs(expected[key]).max(), 1e-30)
                worst, where = max((worst, where), (error, key))
        check(worst <= TOLERANCE, f"{what}: sums within {worst:.1e} {where if worst > TOLERANCE else ''}")


def main(wanted):
    random.seed(3)
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        text = out / "sums.txt"
        sums = [(random.randint(1, 99), random.randint(1, 99)) for _ in range(200)]
        text.write_text(" ".join(f"{a}+{b}={a + b}" for a, b in sums), encoding="utf-8")
        if not wanted:
            compare("tiny-llama", TINY, out, text)
        for case in wanted or KINDS:
            test, model, settings = CASES[case]
            CASES[case] = test, model, settings | ALIKE[case] | ROUNDED.get(case, {})
            folder = out / case
            graphs.made(case, folder)
            for file in TOKENIZER:
                shutil.copy(TINY / file, folder / file)
            try:
                compare(case, folder, out, text)
            except subprocess.CalledProcessError as error:
                check(False, f"{case}: {error.stderr if isinstance(error.stderr, str) else error}")
    sys.exit(f"{len(failures)} differ" if failures else 0)


if __name__ == "__main__":
    APR, PROGRAMS, *cases = sys.argv[1:]
    PROGRAMS = Path(PROGRAMS)
    main(cases)
