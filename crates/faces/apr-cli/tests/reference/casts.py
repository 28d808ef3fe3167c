"""Casts by NumPy, and by integer rounding where it has no such type.

Reads f64, f32, f16 and bf16 (raw little-endian values) in the folder given, writes FROM.TO beside them.
"""

import pathlib
import sys

import numpy as np

folder = pathlib.Path(sys.argv[1])
f64, f32, f16 = (np.fromfile(folder / name, dtype=code) for name, code in [("f64", "<f8"), ("f32", "<f4"), ("f16", "<f2")])
bf16 = (np.fromfile(folder / "bf16", dtype="<u2").astype("<u4") << 16).view("<f4")


def to_bf16(values):
    """Rounds half to even. NaN comes out as something else, and is the caller's to skip."""
    bits = values.view("<u4").astype("<u8")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def to_odd_f32(values):
    """Cuts off, and sets the last bit where that lost something: a second rounding then is as good as the only one."""
    nearest = values.astype("<f4")
    away = np.abs(nearest.astype("<f8")) > np.abs(values)
    cut = np.where(away, np.nextafter(nearest, np.float32(0)), nearest)
    inexact = cut.astype("<f8") != values
    return (cut.view("<u4") | inexact.astype("<u4")).view("<f4")


with np.errstate(over="ignore", invalid="ignore", under="ignore"):
    results = {
        "f64.f32": f64.astype("<f4"),
        "f64.f16": f64.astype("<f2"),
        "f64.bf16": to_bf16(to_odd_f32(f64)),
        "f32.f16": f32.astype("<f2"),
        "f32.bf16": to_bf16(f32),
        "f16.f32": f16.astype("<f4"),
        "f16.bf16": to_bf16(f16.astype("<f4")),
        "bf16.f32": bf16,
        "bf16.f16": bf16.astype("<f2"),
    }
for name, values in results.items():
    values.tofile(folder / name)
