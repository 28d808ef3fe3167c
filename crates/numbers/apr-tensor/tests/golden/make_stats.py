"""Writes stats.json: statistics of generated tensors by numpy, in f64.

The Rust test generates the same tensors: sums of twelve uniform numbers (nearly Gaussian), scaled and shifted, with some
elements replaced, then rounded to the dtype. Needs numpy and ml_dtypes.
"""

import json
from fractions import Fraction
from math import floor
from pathlib import Path

import ml_dtypes
import numpy as np


def gaussian(count):
    state, values = 1, np.empty(count)
    for i in range(count):
        total = 0.0
        for _ in range(12):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            total += (state >> 11) * 2.0**-53
        values[i] = total - 6.0
    return values


def bin_of(value, exponent):
    return floor(Fraction(value) / Fraction(2) ** exponent)


NUMPY = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64}
BASE = gaussian(10_007)


def case(name, dtype, count=len(BASE), scale=1.0, shift=0.0, patches=()):
    values = BASE[:count] * scale + shift
    for index, value in patches:
        values[index] = float(value)
    if dtype in NUMPY:
        # Twice rounded to bf16 is what the test does as well.
        stored = values.astype(np.float32) if dtype == "bf16" else values
        tensor = stored.astype(NUMPY[dtype]).astype(np.float64)
    else:
        bits = int(dtype[1:])
        tensor = np.trunc(values).astype(f"int{bits}" if dtype[0] == "i" else f"uint{bits}").astype(np.float64)
    finite = tensor[np.isfinite(tensor)]
    some = len(finite) > 0
    expected = {
        "count": len(tensor),
        "nan": int(np.isnan(tensor).sum()),
        "inf": int(np.isinf(tensor).sum()),
        "zeros": int((tensor == 0).sum()),
        "min": finite.min() if some else None,
        "max": finite.max() if some else None,
        "mean": finite.mean() if some else None,
        "std": finite.std() if some else None,
        "l2": np.linalg.norm(finite),
    }
    bins = None
    if some:
        # Our edges: multiples of a power of two, here of the smallest that covers the range in 64 bins.
        exponent = max(-1074, int(np.frexp(np.abs(finite).max())[1]) - 51)
        while bin_of(finite.max(), exponent) - bin_of(finite.min(), exponent) >= 64:
            exponent += 1
        first, last = bin_of(finite.min(), exponent), bin_of(finite.max(), exponent)
        edges = np.arange(first, last + 2) * 2.0**exponent
        counts, _ = np.histogram(finite, edges)
        bins = {"start": edges[0], "width": 2.0**exponent, "counts": counts.tolist()}
    return {
        "name": name,
        "dtype": dtype,
        "count": count,
        "scale": scale,
        "shift": shift,
        "patches": [list(patch) for patch in patches],
        "expected": expected,
        "bins": bins,
    }


ODD = [(3, "nan"), (17, "inf"), (18, "-inf"), (4095, "nan"), (9000, "0.0"), (9001, "-0.0")]
CASES = [
    *(case(f"gaussian {dtype}", dtype) for dtype in NUMPY),
    *(case(f"weights {dtype}", dtype, scale=0.02) for dtype in NUMPY),
    *(case(f"shifted {dtype}", dtype, shift=1e6) for dtype in ("f32", "f64")),
    *(case(f"outlier first {dtype}", dtype, patches=[(0, "1e9")]) for dtype in ("f32", "f64", "bf16")),
    case("outlier first f16", "f16", patches=[(0, "60000")]),
    *(case(f"not all finite {dtype}", dtype, patches=ODD) for dtype in NUMPY),
    case("nothing finite f32", "f32", count=5, patches=[(i, "nan") for i in range(4)] + [(4, "inf")]),
    case("one element f32", "f32", count=1),
    case("seventeen elements f64", "f64", count=17),
    case("subnormal f32", "f32", scale=1e-41),
    case("far apart f64", "f64", count=9, patches=[(0, "1e-300"), (1, "1e150"), (2, "-1e-300")]),
    case("i8", "i8", scale=20.0),
    case("u8", "u8", scale=20.0, shift=127.0),
    case("i16", "i16", scale=5000.0),
    case("u16", "u16", scale=5000.0, shift=32000.0),
    case("i32", "i32", scale=3e8),
    case("u32", "u32", scale=3e8, shift=2e9),
    case("i64", "i64", scale=1e15),
    case("u64", "u64", scale=1e15, shift=1e16),
]
Path(__file__).with_name("stats.json").write_text(json.dumps(CASES, indent=1) + "\n")
