"""The package for Python beside `safetensors` and torch: `python xtask/bench/python.py`, with a Python that has all three.

Files of 400 MB are made in a temporary folder. Each run is a process of its own, since a program loads a model once: what
an earlier load left of memory makes the next one faster. Runs are taken in turns, with a warm page cache; each row has the
least of several, and the ratio of the two: above 1, apr takes less time.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

RUNS = 7

#: What is timed: modules that are imported before, and the same expression for both.
ROWS = {
    "open, one slice": (
        "safetensors", "apr.safetensors", "m.safe_open(weights, 'np').get_slice('layers.3.weight')[5:9, 10:700]"
    ),
    "numpy: load_file": ("safetensors.numpy", "apr.safetensors.numpy", "m.load_file(weights)"),
    "torch: load_file": ("safetensors.torch", "apr.safetensors.torch", "m.load_file(weights)"),
    "torch.load": ("torch", "apr.torch", "m.load(pickle)"),
    "torch.load, mmap=True": ("torch", "apr.torch", "m.load(pickle, mmap=True)"),
    "save_file": ("safetensors.numpy", "apr.safetensors.numpy", "m.save_file(arrays, out)"),
}

PROGRAM = """
import importlib, sys, time
import torch
module, expression, weights, pickle, out = sys.argv[1:]
m = importlib.import_module(module)
arrays = importlib.import_module("safetensors.numpy").load_file(weights) if "arrays" in expression else None
started = time.perf_counter()
found = eval(expression)
if isinstance(found, dict):
    # A tensor that is read when it is used is there with its first element.
    sum(float(tensor.reshape(-1)[0]) for tensor in found.values())
print(time.perf_counter() - started)
"""


def make(folder):
    random = np.random.default_rng(0)
    made = {}
    for at in range(96):
        made[f"layers.{at}.weight"] = random.standard_normal((1024, 1024), dtype=np.float32)
        made[f"layers.{at}.bias"] = random.standard_normal((1024,), dtype=np.float32)
    weights, pickle = folder / "model.safetensors", folder / "model.pt"
    safetensors.numpy.save_file(made, weights)
    torch.save(safetensors.torch.load_file(weights), pickle)
    return [str(weights), str(pickle), str(folder / "out.safetensors")]


def main():
    with tempfile.TemporaryDirectory() as name:
        files = make(Path(name))
        print("| what | peer, ms | apr, ms | ratio |\n|---|---|---|---|")
        for what, (peer, own, expression) in ROWS.items():
            least = {peer: float("inf"), own: float("inf")}
            for _ in range(RUNS):
                for module in least:
                    command = [sys.executable, "-c", PROGRAM, module, expression, *files]
                    seconds = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                    least[module] = min(least[module], seconds)
            (theirs, ours) = (1000 * seconds for seconds in least.values())
            print(f"| {what} | {theirs:.2f} | {ours:.2f} | {theirs / ours:.2f} |")


if __name__ == "__main__":
    main()
