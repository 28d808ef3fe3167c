#!/usr/bin/env python3
"""Compares what an ONNX file gives out with what NumPy says of the tensors that crates/faces/apr-cli/tests/cli/onnx_looks.rs made.

    looks.py MODEL.onnx

Values are equal to the last bit. Needs numpy, onnx and onnxruntime.
"""

import sys

import numpy as np
import onnx
import onnxruntime


def main():
    path = sys.argv[1]
    onnx.checker.check_model(path, full_check=True)
    a = (np.arange(24, dtype=np.float32) / 8).reshape(4, 6)
    b = (np.arange(24, 48, dtype=np.float32) / 8).reshape(4, 6)
    c = (np.arange(8, dtype=np.float32) / 8).reshape(4, 2)
    t = (np.arange(24, dtype=np.float32) / 8).reshape(2, 3, 4)
    norm = np.arange(6, dtype=np.float32) / 8
    # Scales of 0.5, 1 and 2, and quants from -16 on.
    q = np.float32([[0.5], [1], [2]]) * np.arange(-16, 16, dtype=np.float32)
    expected = {
        "joined_rows": np.concatenate([a, b], 0),
        "joined_columns": np.concatenate([a, c, b], 1),
        "joined_turned": np.concatenate([a, b], 0).T,
        "joined_halves": np.concatenate([a, a], 0),
        "stacked": np.stack([a, b, a]),
        "stacked_turned": np.stack([b, a]).transpose(2, 0, 1),
        "plus": norm + 1,
        "halves_turned": a.T,
        "sliced": t[:, 1:3].transpose(2, 1, 0).reshape(4, 4),
        "blocks": q,
        "blocks_joined": np.concatenate([q, q], 0).T,
        "blocks_stacked": np.stack([q, q]),
    }
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {})))
    wrong = [name for name, value in expected.items() if name not in found or not np.array_equal(found[name], value)]
    if wrong or len(found) != len(expected):
        sys.exit(f"not what NumPy says: {', '.join(wrong)}; outputs are {', '.join(names)}")


main()
