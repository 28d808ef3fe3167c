"""Prints the stored bytes and the products that tests/it/factors.rs expects, made by numpy.

    pip install numpy ml_dtypes; python tests/factors_expected.py
"""

import struct

import ml_dtypes
import numpy as np


def product(left, right, dtype):
    """The sum of outer products in single precision and in order, which numpy neither fuses nor reorders."""
    total = np.zeros((left.shape[0], right.shape[1]), "<f4")
    for k in range(left.shape[1]):
        total = total + np.outer(left[:, k].astype("<f4"), right[k].astype("<f4"))
    return total.astype(dtype)


rng = np.random.default_rng(3)
for name, dtype in [("F32", np.dtype("<f4")), ("F16", np.dtype("<f2")), ("BF16", np.dtype(ml_dtypes.bfloat16))]:
    left, right = rng.normal(size=(3, 2)).astype(dtype), rng.normal(size=(2, 4)).astype(dtype)
    stored = struct.pack("<II", 2, 0) + left.tobytes() + right.tobytes()
    print(f'const {name}: [&str; 2] = ["{stored.hex()}", "{product(left, right, dtype).tobytes().hex()}"];')
