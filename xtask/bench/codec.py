"""Lossless compression against zipnn: kernels on one core, whole files against `cp`."""

import json
import statistics
import struct
import subprocess
import sys
from pathlib import Path

# Of zipnn, bytes of a dtype it knows; its own defaults, one thread, the best of as many passes as fit a second.
ZIPNN = """
import json, sys, time
import zipnn
raw, dtype = open(sys.argv[1], "rb").read(), sys.argv[2]
peer = zipnn.ZipNN(bytearray_dtype=dtype, threads=1)
def best(work):
    fastest, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < 1:
        start = time.perf_counter()
        result = work()
        fastest = min(fastest, time.perf_counter() - start)
    return len(raw) / fastest / 1e9, result
encode, packed = best(lambda: peer.compress(bytearray(raw)))
decode, unpacked = best(lambda: peer.decompress(packed))
assert bytes(unpacked) == raw
print(json.dumps({"ratio": len(packed) / len(raw), "encode": encode, "decode": decode}))
"""

GAUSSIAN = ["bf16", "f32", "f16", "i8_row", "q8_0", "q4_0"]
PEER_DTYPES = {"bf16": "bfloat16", "f32": "float32", "f16": "float16"}


def peer_python(candidates):
    """A Python that has zipnn, or None."""
    for python in candidates:
        if subprocess.run([python, "-c", "import zipnn"], capture_output=True).returncode == 0:
            return python
    return None


def weights(model, width, path):
    """The f32 tensors of a safetensors file one after the other, as f32 or rounded to the nearest bf16."""
    import numpy as np  # Only here: a process is accounted the peak memory of the one it was forked from.

    data = Path(model).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    entries = [e for name, e in json.loads(data[8 : 8 + length]).items() if name != "__metadata__" and e["dtype"] == "F32"]
    ranges = [entry["data_offsets"] for entry in entries]
    words = np.concatenate([np.frombuffer(data[8 + length + start : 8 + length + end], "<u4") for start, end in ranges])
    if width == 2:
        words = ((words.astype(np.uint64) + 0x7FFF + ((words >> 16) & 1)) >> 16).astype("<u2")
    Path(path).write_bytes(words.tobytes())


def bench_kernels(codec_speed, python, model, folder, runs, rows):
    """GB/s of raw bytes on one thread, in turn."""
    raw = folder / "tensor.raw"
    cases = [(f"Gaussian {dtype}", dtype, ["--mib", "8", "--save", raw]) for dtype in GAUSSIAN]
    for dtype, width in [("bf16", 2), ("f32", 4)] if model.exists() else []:
        path = folder / f"weights.{dtype}"
        subprocess.run([sys.executable, __file__, model, str(width), path], check=True)
        cases.append((f"MiniLM's weights in {dtype}", dtype, ["--file", path]))
    for title, dtype, arguments in cases:
        ours, peers = [], []
        for _ in range(runs):
            command = [codec_speed, dtype, "--codec", "auto", "--json", *arguments]
            output = subprocess.run([str(word) for word in command], check=True, capture_output=True).stdout
            ours.append(json.loads(output)["codings"][0])
            if python and dtype in PEER_DTYPES:
                command = [python, "-W", "ignore", "-c", ZIPNN, str(arguments[-1]), PEER_DTYPES[dtype]]
                peers.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
        middle = lambda sides, field: statistics.median(side[field] for side in sides)
        result = f"{100 * middle(ours, 'ratio'):.2f} % of raw"
        detail = f"encode {middle(ours, 'encode_gbps'):.2f} GB/s, decode {middle(ours, 'decode_gbps'):.2f} GB/s"
        if peers:
            result += f" (zipnn {100 * middle(peers, 'ratio'):.2f} %)"
            detail += f" (zipnn {middle(peers, 'encode'):.2f}, {middle(peers, 'decode'):.2f})"
        rows.append((f"`--compress` of {title}, 1 thread", result, detail))
    if python is None:
        print("no Python with zipnn (APR_ZIPNN_PYTHON): it is not compared with", file=sys.stderr)


def bench_files(harness, copy, apr, source, folder, runs, rows):
    """A whole model, compressed and back, and with encryption, against `cp` of it."""
    size = source.stat().st_size
    plain, packed, sealed = folder / "plain.apr", folder / "packed.apr", folder / "sealed.apr"
    password = folder / "password"
    password.write_text("a password\n")
    jobs = [
        ("plain", plain, ["convert", source, "-o", plain]),
        ("`--compress`", packed, ["convert", source, "-o", packed, "--compress"]),
        ("back to plain", folder / "back.apr", ["convert", packed, "-o", folder / "back.apr", "--compress", "none"]),
        ("`encrypt`", sealed, ["encrypt", plain, "-o", sealed, "--password", "--password-file", password]),
        ("`decrypt`", folder / "open.apr", ["decrypt", sealed, "-o", folder / "open.apr", "--password-file", password]),
    ]
    for title, target, command in jobs:
        def ours():
            return harness.run(apr, *command, "-qf")

        peer, mine = harness.alternate(runs, lambda: copy(source, folder / "copy"), ours)
        took = target.stat().st_size / size
        rows.append((f"{title}, {size / harness.GB:.0f} GB of bf16", f"{harness.ratio(peer, mine):.2f} of `cp`'s speed",
                     f"{100 * took:.1f} % of its size; {harness.against(mine, peer)}"))
    for path in [plain, packed, sealed, folder / "back.apr", folder / "open.apr", password]:
        path.unlink()


if __name__ == "__main__":
    weights(sys.argv[1], int(sys.argv[2]), sys.argv[3])
