"""Quantization against llama.cpp: kernels against ggml's, whole files against `llama_model_quantize`."""

import json
import statistics
import subprocess

# llama.cpp's numbers of file types and ggml's of tensor types.
FILE_TYPES = {"q8_0": 7, "q4_0": 2, "q4_k_m": 15, "q6_k": 18}
KERNELS = {"q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q2_k": 10, "q3_k": 11, "q4_k": 12, "q5_k": 13, "q6_k": 14}

# One thread each: seconds for the same rows, through ggml's own entry points.
GGML = """
import ctypes, json, sys, time
import numpy as np
import llama_cpp
from pathlib import Path
library = next((Path(llama_cpp.__file__).parent / "lib").glob("*ggml-base*"))
ggml = ctypes.CDLL(str(library))
ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
ggml.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
for number in json.loads(sys.argv[1]):
    getattr(ggml, "ggml_quantize_init")(ctypes.c_int(number))
rows, columns = 256, 4096
values = (np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32) * 0.02)
out = np.zeros(values.nbytes, np.uint8)
result = {}
for number in json.loads(sys.argv[1]):
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        ggml.ggml_quantize_chunk(number, values.ctypes.data, out.ctypes.data, 0, rows, columns, None)
        best = min(best, time.perf_counter() - start)
    result[number] = values.nbytes / best / 1e9
print(json.dumps(result))
"""

# `llama-quantize` is this call with a command line around it.
LLAMA_QUANTIZE = """
import ctypes, sys
import llama_cpp
quiet = llama_cpp.llama_log_callback(lambda *_: None)
llama_cpp.llama_log_set(quiet, None)
parameters = llama_cpp.llama_model_quantize_default_params()
parameters.nthread = int(sys.argv[4])
parameters.ftype = int(sys.argv[3])
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(parameters)))
"""

# What users of gguf-py do to look at a file.
GGUF_OPEN = "import gguf, sys; print(len(gguf.GGUFReader(sys.argv[1]).tensors))"


def bench_kernels(block_speed, python, runs, rows):
    """GB/s of f32 input on one thread, in turn."""
    ours, ggml = {name: [] for name in KERNELS}, {name: [] for name in KERNELS}
    for _ in range(runs):
        output = subprocess.run([block_speed, "--json"], check=True, capture_output=True).stdout
        speeds = json.loads(output)
        output = subprocess.run([python, "-c", GGML, json.dumps(list(KERNELS.values()))], check=True, capture_output=True)
        peers = json.loads(output.stdout)
        for name, number in KERNELS.items():
            ours[name].append(speeds["quantize"][name])
            ggml[name].append(peers[str(number)])
    for name in KERNELS:
        ratio = statistics.median(a / b for a, b in zip(ours[name], ggml[name]))
        mine, theirs = statistics.median(ours[name]), statistics.median(ggml[name])
        back = speeds["dequantize"][name]
        rows.append((f"quantize rows to {name}, 1 thread", f"{ratio:.1f} times ggml's speed",
                     f"{mine:.2f} GB/s of f32 against {theirs:.3f}; dequantize {back:.1f} GB/s"))


def bench_files(harness, apr, python, folder, size, runs, rows):
    """Whole files, f16 in, equal threads."""
    source = folder / "model-f16.gguf"
    subprocess.run([python, harness.HERE / "make_gguf.py", source, str(size)], check=True)
    size = source.stat().st_size
    ours, theirs = folder / "ours.gguf", folder / "theirs.gguf"

    def apr_quantize(name, threads):
        result = harness.run(apr, "quantize", source, "--type", name, "-o", ours, "--threads", threads, "-q")
        ours.unlink()
        return result

    def llama_quantize(name, threads):
        result = harness.run(python, "-c", LLAMA_QUANTIZE, source, theirs, FILE_TYPES[name], threads)
        theirs.unlink()
        return result

    for name in FILE_TYPES:
        for threads in (1, 2):
            count = 1 if name.startswith("q4_k") or name.startswith("q6") else runs
            a, b = harness.alternate(count, lambda: apr_quantize(name, threads), lambda: llama_quantize(name, threads))
            rows.append((
                f"quantize a file of {size / harness.GB:.1f} GB of f16 to {name}, {threads} thread{'s' * (threads > 1)}",
                f"{harness.ratio(b, a):.1f} times llama_model_quantize's speed",
                harness.against(a, b),
            ))
    opened, peer = harness.alternate(
        runs,
        lambda: harness.run(apr, "inspect", source),
        lambda: harness.run(python, "-c", GGUF_OPEN, source),
    )
    rows.append(("open a GGUF file and list it", f"{harness.ratio(peer, opened):.0f} times gguf-py's speed",
                 harness.against(opened, peer)))
    source.unlink()
