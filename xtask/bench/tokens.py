"""Tokens a second against llama.cpp: `apr bench` beside llama_decode, for each type of weights on one thread and on two.

The programs take turns, and the best run of each counts: whatever else the machine does can only make a run slower. The
model is a random LLaMA of 135 million weights, 12 layers of 1024 columns with 16 heads, 4 of keys, without a tokenizer.
"""

import json
import subprocess
import sys
from pathlib import Path

PROMPT, GENERATED = 128, 32
TYPES = ["f16", "bf16", "q8_0", "q6_k", "q4_k_m", "q4_0"]
# What is asked for of decoding, where anything is.
TARGETS = {"f16": 0.9, "bf16": 0.9, "q8_0": 0.9, "q4_k_m": 0.9}

MAKE = """
import sys
import gguf
import numpy as np
hidden, feed_forward, layers, heads, groups, vocabulary = 1024, 2816, 12, 16, 4, 259
generator = np.random.default_rng(0)
writer = gguf.GGUFWriter(sys.argv[1], "llama")
writer.add_block_count(layers)
writer.add_context_length(2048)
writer.add_embedding_length(hidden)
writer.add_feed_forward_length(feed_forward)
writer.add_head_count(heads)
writer.add_head_count_kv(groups)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_rope_dimension_count(hidden // heads)
writer.add_vocab_size(vocabulary)
writer.add_tokenizer_model("no_vocab")
writer.add_file_type(1)
def matrix(name, rows, columns):
    values = generator.standard_normal((rows, columns), dtype=np.float32) * 0.02
    writer.add_tensor(name, values.astype(np.float16))
def norm(name):
    writer.add_tensor(name, np.ones(hidden, np.float32))
matrix("token_embd.weight", vocabulary, hidden)
for layer in range(layers):
    block = f"blk.{layer}."
    norm(block + "attn_norm.weight")
    matrix(block + "attn_q.weight", hidden, hidden)
    matrix(block + "attn_k.weight", hidden * groups // heads, hidden)
    matrix(block + "attn_v.weight", hidden * groups // heads, hidden)
    matrix(block + "attn_output.weight", hidden, hidden)
    norm(block + "ffn_norm.weight")
    matrix(block + "ffn_gate.weight", feed_forward, hidden)
    matrix(block + "ffn_up.weight", feed_forward, hidden)
    matrix(block + "ffn_down.weight", hidden, feed_forward)
norm("output_norm.weight")
matrix("output.weight", vocabulary, hidden)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
"""

# What llama-bench does: a batch of tokens, then tokens one by one, from an empty cache each.
PEER = """
import json, sys, time
import llama_cpp
quiet = llama_cpp.llama_log_callback(lambda *_: None)
llama_cpp.llama_log_set(quiet, None)
path, (threads, prompt, generated, runs) = sys.argv[1], map(int, sys.argv[2:])
llama_cpp.llama_backend_init()
model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
settings = llama_cpp.llama_context_default_params()
settings.n_ctx, settings.n_threads, settings.n_threads_batch = 1024, threads, threads
context = llama_cpp.llama_init_from_model(model, settings)
def seconds(batches):
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    start = time.perf_counter()
    for tokens in batches:
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(tokens))):
            sys.exit("llama_decode failed")
        llama_cpp.llama_synchronize(context)
    return time.perf_counter() - start
whole, single = [list(range(3, 3 + prompt))], [[3 + number] for number in range(generated)]
seconds(whole)
print(json.dumps([prompt / min(seconds(whole) for _ in range(runs)), generated / min(seconds(single) for _ in range(runs))]))
"""


def ours(apr, model, threads, runs, words=()):
    """Tokens a second of the prompt and of what follows, best run each."""
    command = [apr, "bench", model, "-p", PROMPT, "-n", GENERATED, "-t", threads, "-r", runs, "--json", *words]
    printed = subprocess.run([str(word) for word in command], check=True, capture_output=True).stdout
    return [max(row["samples"]) for row in json.loads(printed)["results"]]


def peer(python, model, threads, runs):
    command = [python, "-c", PEER, model, threads, PROMPT, GENERATED, runs]
    printed = subprocess.run([str(word) for word in command], check=True, capture_output=True).stdout
    return json.loads(printed)


def best(rounds, *sides):
    """The highest rates of each side, which take turns."""
    found = [[side() for side in sides] for _ in range(rounds)]
    return [[max(round_[side][what] for round_ in found) for what in (0, 1)] for side in range(len(sides))]


def bench(apr, python, folder, rounds, rows):
    folder = Path(folder) / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "f16.gguf"
    subprocess.run([python, "-c", MAKE, source], check=True)
    for dtype in TYPES:
        model = folder / f"{dtype}.gguf"
        if not model.exists():
            subprocess.run([apr, "quantize", source, "--type", dtype, "-o", model, "-q"], check=True)
        one = None
        for threads in (1, 2):
            sides = best(rounds, lambda: ours(apr, model, threads, 4), lambda: peer(python, model, threads, 4))
            (prefill, decode), (their_prefill, their_decode) = sides
            detail = f"{decode:.0f} against {their_decode:.0f} tokens/s"
            if threads == 1 and dtype in TARGETS:
                detail += f"; target {TARGETS[dtype]}"
            if one:
                detail += f"; {decode / one[0]:.2f} times one thread's, llama.cpp {their_decode / one[1]:.2f}; target 1.6"
            of = f"weights in {dtype}, {threads} thread{'s' * (threads > 1)}"
            rows.append((f"decode, {of}", f"{decode / their_decode:.2f} times llama.cpp's speed", detail))
            detail = f"{prefill:.0f} against {their_prefill:.0f} tokens/s; target 1.0"
            rows.append((f"prefill, {of}", f"{prefill / their_prefill:.2f} times llama.cpp's speed", detail))
            one = decode, their_decode
        if dtype == "q4_k_m":
            exact, fast = best(rounds, lambda: ours(apr, model, 1, 4, ["--exact"]), lambda: ours(apr, model, 1, 4))
            detail = f"{exact[1]:.0f} against {fast[1]:.0f} tokens/s; target 0.35"
            rows.append((f"decode, weights in {dtype}, --exact", f"{exact[1] / fast[1]:.2f} of fast", detail))
        if model != source:
            model.unlink()
    source.unlink()


if __name__ == "__main__":
    found = []
    bench(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), found)
    print("\n".join(f"| {' | '.join(row)} |" for row in found))
