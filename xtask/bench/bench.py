"""Measures apr against its peers and prints the figures as a Markdown table.

Run by `cargo xtask bench`. Every comparison alternates between the two sides in the same run and quotes medians, because
machines are noisy. Wall time is the outcome, user plus system time the cost, and peak memory is the largest resident set,
all as the operating system accounts for the finished process.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import codec
import codes
import distill
import harness
import hub
import infer
import onnx_export as onnx
import onnx_open
import quantize
import tokens
from harness import GB, Run, alternate, median, ratio, run

def copy(source, target):
    """`cp` to a new file, then what makes it as durable as apr's output is; the file is gone afterwards."""
    result = run("cp", source, target)
    start = time.perf_counter()
    with open(target, "rb") as file:
        os.fsync(file.fileno())
    result.wall += time.perf_counter() - start
    target.unlink()
    return result


def convert(apr, source, target):
    """To a new file, as `cp` does; it is gone afterwards."""
    result = run(apr, "convert", source, "-o", target, "-q")
    target.unlink()
    return result


def make_model(path, size):
    """A safetensors file of f32 tensors, 64 MiB each, of Gaussian values."""
    import numpy as np  # Only here: a process is accounted the peak memory of the one it was forked from.

    rows, columns = 4096, 4096
    count = max(1, size // (rows * columns * 4))
    header = {"__metadata__": {"format": "pt"}}
    for i in range(count):
        begin = i * rows * columns * 4
        offsets = [begin, begin + rows * columns * 4]
        header[f"layers.{i:04}.weight"] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.default_rng(0)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(count):
            file.write(generator.standard_normal(rows * columns, dtype=np.float32).tobytes())


def make_sparse_safetensors(path, size):
    header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)


def make_sparse_apr(path, size):
    """APR2 with one tensor of zeros that takes no space on disk; `size` is a multiple of 64."""
    metadata = json.dumps({"apr_version": "2.0.0", "model_type": "none", "architecture": {}}).encode()
    index = struct.pack("<IIH", 1, 0, 6) + b"weight" + struct.pack("<BBQQQQI", 7, 1, size, 0, size, 0, 0)
    front = 32 + len(metadata) + len(index)
    data = -(-front // 64) * 64
    header = struct.pack("<4sHHIIIIII", b"APR2", 2, 0, 2, 32, len(metadata), 32 + len(metadata), len(index), data)
    with open(path, "wb") as file:
        file.write(header + metadata + index)
        file.seek(data + size)
        file.write(struct.pack("<I4sQ", zlib.crc32(b""), b"2RPA", data + size + 16))


def bench_convert(apr, folder, size, runs, rows):
    source, packed, back, copied = (folder / name for name in ("m.safetensors", "m.apr", "b.safetensors", "c"))
    subprocess.run([sys.executable, __file__, "--make", source, str(size)], check=True)
    label = f"{size / GB:.0f} GB"
    forth = alternate(runs, lambda: copy(source, copied), lambda: convert(apr, source, packed))
    run(apr, "convert", source, "-o", packed, "-q")
    return_ = alternate(runs, lambda: copy(packed, copied), lambda: convert(apr, packed, back))
    for name, (peer, ours) in (("safetensors -> apr", forth), ("apr -> safetensors", return_)):
        rows.append((f"{name}, {label}", f"{ratio(peer, ours):.2f} of `cp`'s speed",
                     f"{median(ours, 'wall'):.2f} s against {median(peer, 'wall'):.2f} s; "
                     f"CPU {median(ours, 'cpu'):.2f} s against {median(peer, 'cpu'):.2f} s; "
                     f"peak {median(ours, 'peak'):.0f} MiB"))
    one, two = alternate(runs, lambda: run(apr, "validate", packed, "-q", "--threads", 1),
                         lambda: run(apr, "validate", packed, "-q", "--threads", 2))
    length = packed.stat().st_size / GB
    rows.append((f"`validate` (CRC, digests, statistics), {label}, 1 thread",
                 f"{length / median(one, 'wall'):.2f} GB/s, {length / median(one, 'cpu'):.2f} GB a CPU second",
                 f"peak {median(one, 'peak'):.0f} MiB"))
    rows.append((f"the same, 2 threads", f"{length / median(two, 'wall'):.2f} GB/s, "
                 f"{ratio(one, two):.2f} times one thread", f"peak {median(two, 'peak'):.0f} MiB"))
    run(apr, "convert", packed, "-o", back, "-q")
    subprocess.run(["cmp", source, back], check=True)
    for path in (packed, back):
        path.unlink()
    return source


PYTHON_READ_ALL = """
import sys, time
from safetensors import safe_open
start = time.perf_counter()
bytes = 0
with safe_open(sys.argv[1], "numpy") as file:
    for name in file.keys():
        bytes += file.get_tensor(name).nbytes
print(time.perf_counter() - start, bytes)
"""


def bench_read(read_all, python, source, runs, rows):
    def seconds(*command):
        out = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout
        return Run(float(out.split()[0]), 0, 0)

    peer, ours = alternate(runs, lambda: seconds(python, "-c", PYTHON_READ_ALL, source),
                           lambda: seconds(read_all, source))
    length = source.stat().st_size / GB
    rows.append((f"open and read all tensors, {length:.0f} GB, 1 thread",
                 f"{ratio(peer, ours):.2f} times Python safetensors' speed",
                 f"{length / median(ours, 'wall'):.2f} GB/s against {length / median(peer, 'wall'):.2f} GB/s"))


def make_folder(folder, size, dtype="BF16"):
    """A Hugging Face folder of a LLaMA with weights of healthy values, BF16 or F32, and a configuration that fits."""
    import numpy as np

    width = 2 if dtype == "BF16" else 4

    hidden, intermediate, vocab = 2048, 5632, 32000
    layer = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden // 4, hidden),
        "self_attn.v_proj": (hidden // 4, hidden), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (intermediate, hidden), "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
    }
    per_layer = width * sum(int(np.prod(shape)) for shape in layer.values())
    layers = max(1, (size - 2 * width * vocab * hidden) // per_layer)
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for i in range(layers):
        shapes.update({f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()})
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        end = offset + width * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            values = np.ones(shape, np.float32) if len(shape) == 1 else (
                0.03 * generator.standard_normal(shape, dtype=np.float32))
            narrow = (values.view(np.uint32) >> 16).astype(np.uint16) if width == 2 else values
            file.write(narrow.tobytes())
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "vocab_size": vocab,
        "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": 32,
        "num_key_value_heads": 8, "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")


MAKE_PT = """
import sys, json, torch
from collections import OrderedDict
path, size = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
state = OrderedDict((f"layers.{i}.weight", torch.randn(4096, 4096) * 0.03) for i in range(max(1, size // (1 << 26))))
torch.save(state, path)
"""

LOAD_PT = """
import sys, torch
print(len(torch.load(sys.argv[1], map_location="cpu")))
"""

# Loading this file would run a command; building it does not.
MAKE_BAD_PT = """
import sys, os, torch
class Payload:
    def __reduce__(self):
        return (os.system, ("true",))
size = int(sys.argv[2])
torch.save({"payload": Payload(), "weight": torch.zeros(size // 4)}, sys.argv[1])
"""


def torch_python():
    """A Python that has torch, or None."""
    for python in filter(None, [os.environ.get("APR_TORCH_PYTHON"), "/usr/bin/python3", sys.executable]):
        found = subprocess.run([python, "-c", "import torch"], capture_output=True)
        if found.returncode == 0:
            return python
    return None


def bench_import(apr, folder, size, runs, rows):
    source = folder / "hf"
    source.mkdir()
    subprocess.run([sys.executable, __file__, "--make-folder", source, str(size)], check=True)
    packed, copied = folder / "m.apr", folder / "c"

    def ours():
        result = run(apr, "import", source, "-o", packed, "-q")
        packed.unlink()
        return result

    peer, ours = alternate(runs, lambda: copy(source / "model.safetensors", copied), ours)
    rows.append((f"`import` of a bf16 LLaMA folder, {size / GB:.0f} GB, every tensor judged",
                 f"{ratio(peer, ours):.2f} of `cp`'s speed",
                 f"{median(ours, 'wall'):.2f} s against {median(peer, 'wall'):.2f} s; "
                 f"CPU {median(ours, 'cpu'):.2f} s against {median(peer, 'cpu'):.2f} s; "
                 f"peak {median(ours, 'peak'):.0f} MiB"))
    for path in source.iterdir():
        path.unlink()
    source.rmdir()


def bench_export(apr, folder, size, runs, rows, candidates):
    for dtype in ("BF16", "F32"):
        source = folder / "exported"
        source.mkdir()
        subprocess.run([sys.executable, __file__, "--make-folder", source, str(size), dtype], check=True)
        onnx.bench(harness, copy, apr, source, dtype, folder, runs, rows)
        if dtype == "F32":
            onnx_open.bench(harness, apr, source, folder, runs, rows, candidates)
        for path in source.iterdir():
            path.unlink()
        source.rmdir()


def bench_pytorch(apr, folder, python, size, runs, rows):
    source, packed = folder / "m.pt", folder / "m.apr"
    subprocess.run([python, "-c", MAKE_PT, source, str(size)], check=True)

    def ours():
        result = run(apr, "import", source, "-o", packed, "-q")
        packed.unlink()
        return result

    peer, ours = alternate(runs, lambda: run(python, "-c", LOAD_PT, source), ours)
    rows.append((f"`import` of a .pt, {size / GB:.0f} GB, against `torch.load`, which writes nothing",
                 f"{ratio(peer, ours):.2f} times its speed",
                 f"{median(ours, 'wall'):.2f} s against {median(peer, 'wall'):.2f} s; "
                 f"CPU {median(ours, 'cpu'):.2f} s against {median(peer, 'cpu'):.2f} s; "
                 f"peak {median(ours, 'peak'):.0f} MiB against {median(peer, 'peak'):.0f} MiB"))
    source.unlink()


def bench_scan(apr, folder, python, size, runs, rows):
    source = folder / "bad.pt"
    subprocess.run([python, "-c", MAKE_BAD_PT, source, str(size)], check=True)
    ours_only = lambda: run(apr, "validate", source, "-q", expect=5)
    scanner = Path(sys.executable).parent / "picklescan"
    if scanner.exists():
        peer, ours = alternate(runs, lambda: run(scanner, "--path", source, expect=1), ours_only)
        against = f"against picklescan's {1000 * median(peer, 'wall'):.0f} ms; {ratio(peer, ours):.0f} times its speed"
    else:
        (ours,) = alternate(runs, ours_only)
        against = "picklescan is not installed"
    rows.append((f"`validate` refuses a malicious .pt, {size / GB:.0f} GB", f"{1000 * median(ours, 'wall'):.1f} ms",
                 f"{against}; peak {median(ours, 'peak'):.0f} MiB"))
    source.unlink()


def bench_inspect(apr, folder, runs, rows):
    for name, make in (("s.safetensors", make_sparse_safetensors), ("s.apr", make_sparse_apr)):
        path = folder / name
        make(path, 100 * GB // 64 * 64)
        (ours,) = alternate(3 * runs, lambda: run(apr, "inspect", path, "-q"))
        rows.append((f"`inspect`, sparse 100 GB {name[2:]}", f"{1000 * median(ours, 'wall'):.1f} ms",
                     f"peak {median(ours, 'peak'):.1f} MiB"))
        path.unlink()


def main():
    if sys.argv[1:2] == ["--make"]:
        make_model(sys.argv[2], int(sys.argv[3]))
        return
    if sys.argv[1:2] == ["--make-folder"]:
        make_folder(Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--apr", required=True, type=Path)
    parser.add_argument("--read-all", required=True, type=Path)
    parser.add_argument("--python", required=True, type=Path)
    parser.add_argument("--dir", required=True, type=Path, help="an empty folder with room for three times the largest size")
    parser.add_argument("--gb", type=float, nargs="*", default=[1, 4])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--block-speed", required=True, type=Path)
    parser.add_argument("--codec-speed", required=True, type=Path)
    parser.add_argument("--hub", required=True, type=Path, help="the test hub, a program")
    parser.add_argument("--large-graph", required=True, type=Path)
    parser.add_argument("--minilm", required=True, type=Path, help="a safetensors file of real weights, where there is one")
    parser.add_argument("--run-speed", type=Path, help="the example run_speed of apr-cli")
    parser.add_argument("--only", choices=["all", "quantize", "codes", "codec", "export", "hub", "infer", "distill"], default="all")
    args = parser.parse_args()

    rows = []
    if args.only == "all":
        bench_files(args, rows)
    if args.only == "export":
        bench_graphs(args, rows)
    if args.only in ("all", "quantize"):
        quantize.bench_kernels(args.block_speed, args.python, args.runs, rows)
        quantize.bench_files(harness, args.apr, args.python, args.dir, int(max(args.gb) * GB), args.runs, rows)
    if args.only in ("all", "codes"):
        codes.bench(args.apr, args.dir, int(min(args.gb) * GB), make_codes_model, args.runs, rows)
    if args.only in ("all", "codec"):
        bench_codec(args, rows)
    if args.only in ("all", "hub"):
        hub.bench(args.apr, args.hub, args.python, args.dir, int(min(args.gb) * GB / 2), args.runs, hub.RATE, rows)
    if args.only in ("all", "infer"):
        infer.bench(args.apr, args.run_speed, args.dir, args.runs, rows)
        tokens.bench(args.apr, args.python, args.dir, args.runs, rows)
    if args.only in ("all", "distill"):
        distill.bench(args.apr, rows)

    print("| job | result | detail |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def make_codes_model(folder, size):
    """A LLaMA in bf16, in a process of its own: one is accounted the peak memory of what it was forked from."""
    subprocess.run([sys.executable, __file__, "--make-folder", folder, str(size)], check=True)


def bench_files(args, rows):
    """Everything but quantization and compression."""
    for number, size in enumerate(args.gb):
        source = bench_convert(args.apr, args.dir, int(size * GB), args.runs, rows)
        if number == 0:
            bench_read(args.read_all, args.python, source, args.runs, rows)
        source.unlink()
    bench_inspect(args.apr, args.dir, args.runs, rows)
    bench_import(args.apr, args.dir, int(max(args.gb) * GB), args.runs, rows)
    bench_graphs(args, rows)
    python = torch_python()
    if python is None:
        print("no Python with torch (APR_TORCH_PYTHON): .pt files are not measured", file=sys.stderr)
    else:
        bench_pytorch(args.apr, args.dir, python, int(max(args.gb) / 2 * GB), args.runs, rows)
        bench_scan(args.apr, args.dir, python, int(max(args.gb) / 4 * GB), args.runs, rows)


def bench_graphs(args, rows):
    """What models compute."""
    bench_export(args.apr, args.dir, int(min(args.gb) * GB), args.runs, rows, [args.python, torch_python()])
    onnx_open.bench_graph(args.large_graph, rows)


def bench_codec(args, rows):
    """Compression and encryption."""
    candidates = filter(None, [os.environ.get("APR_ZIPNN_PYTHON"), torch_python(), args.python])
    codec.bench_kernels(args.codec_speed, codec.peer_python(candidates), args.minilm, args.dir, args.runs, rows)
    folder = args.dir / "llama"
    folder.mkdir()
    subprocess.run([sys.executable, __file__, "--make-folder", folder, str(int(max(args.gb) * GB))], check=True)
    codec.bench_files(harness, copy, args.apr, folder / "model.safetensors", args.dir, args.runs, rows)


if __name__ == "__main__":
    main()
