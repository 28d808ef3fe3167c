"""Runs of models against ONNX Runtime on the same graph, on one thread each.

Each side's process loads a model, runs it once, and then times runs one by one. The processes take turns for some rounds,
and the least time of each side counts: whatever else the machine does can only make a run slower. The models are random, of
the shapes of MiniLM-L6, of Whisper tiny and of a small LLaMA.
"""

import os
import subprocess
import sys
from pathlib import Path

MAKE = """
import sys, torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, WhisperConfig, WhisperModel
torch.manual_seed(0)
folder = sys.argv[1]
BertModel(BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)).save_pretrained(
    folder + "/minilm")
LlamaForCausalLM(LlamaConfig(hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=8,
    intermediate_size=1536, vocab_size=32000)).save_pretrained(folder + "/llama")
WhisperModel(WhisperConfig(d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6,
    decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536)).save_pretrained(folder + "/whisper")
"""

# The same inputs as `run_speed` makes.
PEER = """
import sys, time, numpy as np, onnxruntime
path, runs, threads, *shapes = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = int(threads), 1
session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
feeds = {}
for pattern, shape in (argument.split("=") for argument in shapes):
    shape = [int(size) for size in shape.split("x")]
    for value in session.get_inputs():
        if value.name == pattern or pattern.endswith("*") and value.name.startswith(pattern[:-1]):
            places = np.arange(int(np.prod(shape)))
            is_float = "float" in value.type
            values = places * 7919 % 1009 / np.float32(1009) - np.float32(0.5) if is_float else places * 0 + 1
            feeds[value.name] = values.astype(np.float32 if is_float else np.int64).reshape(shape)
session.run(None, feeds)
least = float("inf")
for _ in range(int(runs)):
    start = time.perf_counter()
    session.run(None, feeds)
    least = min(least, time.perf_counter() - start)
print(least * 1e3, "ms")
"""

TEXT = ["attention_mask=1x128", "input_ids=1x128"]
PREFILL = [*TEXT, "position_ids=1x128"]
DECODE = ["input_ids=1x1", "attention_mask=1x128", "position_ids=1x1", "past*=1x8x127x64"]
# Name, model, graph of the peer, inputs, words for `run_speed`, runs, target.
JOBS = [
    ("MiniLM, 128 tokens", "minilm", "minilm.onnx", [*TEXT, "token_type_ids=1x128"], [], 50, 1.5),
    ("Whisper tiny's encoder, 30 s", "whisper", "whisper-onnx/encoder_model.onnx", ["input_features=1x80x3000"], [], 8, 1.5),
    ("LLaMA 8 x 512, prefill 128", "llama", "llama.onnx", PREFILL, [], 20, 1.5),
    ("the same, one token after 127", "llama", "llama-past.onnx", DECODE, ["past"], 80, 1.3),
]


def least_of_runs(command):
    """Milliseconds of a process's fastest run, and its peak memory in MiB."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {process.returncode}")
    return float(printed.split()[0]), usage.ru_maxrss / 1024


def in_turn(rounds, *commands):
    """The least time of each command, and the first one's peak memory."""
    found = [[least_of_runs(command) for command in commands] for _ in range(rounds)]
    times = [min(row[at][0] for row in found) for at in range(len(commands))]
    return times, max(row[0][1] for row in found)


def python_of_graphs():
    return os.environ.get("APR_GRAPH_PYTHON", "target/reference/graphs/bin/python")


def make_models(apr, folder):
    subprocess.run([python_of_graphs(), "-c", MAKE, folder], check=True, capture_output=True)
    for model, output, options in [("minilm", "minilm.onnx", []), ("llama", "llama.onnx", []),
                                   ("llama", "llama-past.onnx", ["--with-past"]),
                                   ("whisper", "whisper-onnx", ["--format", "onnx"])]:
        subprocess.run([apr, "convert", folder / model, "-o", folder / output, "-q", *options], check=True)
    for dtype in ["f16", "bf16"]:
        subprocess.run([apr, "convert", folder / "llama", "-o", folder / f"llama-{dtype}.apr", "--precision", dtype, "-q"],
                       check=True)
    for scheme in ["q8_0", "q4_k"]:
        command = [apr, "quantize", folder / "llama", "--type", scheme, "-o", folder / f"llama-{scheme}.apr", "-q"]
        subprocess.run(command, check=True)


def bench(apr, run_speed, folder, count, rows):
    folder = Path(folder) / "infer"
    folder.mkdir(parents=True, exist_ok=True)
    make_models(apr, folder)

    def ours(model, runs, inputs, words=(), threads=1):
        return [run_speed, folder / model, runs, threads, *words, *inputs]

    def peer(model, runs, inputs, threads=1):
        return [python_of_graphs(), "-c", PEER, folder / model, runs, threads, *inputs]

    for name, model, onnx, inputs, words, runs, target in JOBS:
        (mine, theirs), peak = in_turn(count, ours(model, runs, inputs, words), peer(onnx, runs, inputs))
        detail = f"{mine:.1f} ms against {theirs:.1f} ms; peak {peak:.0f} MiB; target {target}"
        rows.append((f"run {name}, 1 thread", f"{mine / theirs:.2f} times ONNX Runtime's time", detail))
    for dtype in ["f16", "bf16", "q8_0", "q4_k"]:
        sides = [ours(f"llama-{dtype}.apr", 20, PREFILL), ours("llama", 20, PREFILL)]
        (mine, plain), peak = in_turn(count, *sides)
        detail = f"{mine:.1f} ms against {plain:.1f} ms; peak {peak:.0f} MiB; target 1.1"
        rows.append((f"prefill with weights in {dtype}", f"{mine / plain:.2f} times the time with f32", detail))
    _, model, _, inputs, _, runs, _ = JOBS[0]
    (tapped, plain), _ = in_turn(count, ours(model, runs, inputs, ["taps"]), ours(model, runs, inputs))
    detail = f"{tapped:.1f} ms against {plain:.1f} ms; target 1.15"
    rows.append(("MiniLM with statistics of every value", f"{tapped / plain:.2f} times the time without", detail))
    one_and_two = [side for threads in (1, 2) for side in (
        ours("llama", 20, PREFILL, (), threads), peer("llama.onnx", 20, PREFILL, threads))]
    (one, one_of_peer, two, two_of_peer), _ = in_turn(count, *one_and_two)
    detail = f"{two:.1f} ms; ONNX Runtime {one_of_peer / two_of_peer:.2f} times, {two_of_peer:.1f} ms; target 1.8"
    rows.append(("LLaMA's prefill on two threads", f"{one / two:.2f} times the speed of one", detail))


if __name__ == "__main__":
    found = []
    bench(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), found)
    print("\n".join(f"| {' | '.join(row)} |" for row in found))
