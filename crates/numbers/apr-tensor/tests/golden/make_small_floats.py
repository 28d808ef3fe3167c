"""Writes small_floats.bin: the value of every code of each small float, as ml_dtypes decodes it.

Content: for each dtype of DTYPES, in order, one little-endian f32 for each code, from 0 up.
Needs numpy and ml_dtypes.
"""

from pathlib import Path

import ml_dtypes
import numpy as np

# Name and bits; the Rust test lists the same.
DTYPES = [
    ("float8_e4m3fn", 8),
    ("float8_e5m2", 8),
    ("float8_e4m3fnuz", 8),
    ("float8_e5m2fnuz", 8),
    ("float8_e8m0fnu", 8),
    ("float6_e2m3fn", 6),
    ("float6_e3m2fn", 6),
    ("float4_e2m1fn", 4),
]

tables = [
    np.arange(2**bits, dtype=np.uint8).view(getattr(ml_dtypes, name)).astype(np.float32) for name, bits in DTYPES
]
Path(__file__).with_name("small_floats.bin").write_bytes(np.concatenate(tables).astype("<f4").tobytes())
