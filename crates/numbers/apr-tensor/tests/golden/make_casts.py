"""Writes casts_f32.bin and casts_f64.bin: difficult values and what they round to.

Content, little-endian, array after array:
casts_f32.bin: n f32, n f16 and n bf16 of them.
casts_f64.bin: n f64, n f32, n f16 and n bf16 of them.

numpy rounds to f32 and f16, ml_dtypes rounds f32 to bf16. ml_dtypes rounds f64 to bf16 by way of f32, that is twice, so
bf16 from f64 is found by search among all bf16 values; the same search confirms the other results.
Needs numpy and ml_dtypes.
"""

from pathlib import Path

import ml_dtypes
import numpy as np

rng = np.random.default_rng(20240229)


def magnitudes(dtype, overflow):
    """All finite values of a 16-bit float from zero up, then the power of two that overflow rounds to."""
    with np.errstate(invalid="ignore"):
        values = np.arange(0x8000, dtype=np.uint16).view(dtype).astype(np.float64)
    return np.append(values[np.isfinite(values)], overflow)


F16 = magnitudes(np.float16, 2.0**16)
BF16 = magnitudes(ml_dtypes.bfloat16, 2.0**128)


def nearest(values, grid):
    """Codes of the nearest values in the grid, ties to the even code, by exact comparison with midpoints."""
    size = np.abs(values)
    above = np.clip(np.searchsorted(grid, size), 1, len(grid) - 1)
    middle = (grid[above - 1] + grid[above]) / 2
    up = (size > middle) | ((size == middle) & (above % 2 == 0))
    code = np.where(up, above, above - 1)
    code[size == 0] = 0
    return (code | np.where(np.signbit(values), 0x8000, 0)).astype(np.uint16)


def around(grid, count):
    """Values of the grid, midpoints between neighbours, and what lies just beside them."""
    edge = np.r_[0:40, len(grid) - 20 : len(grid) - 1, 1020:1030, 120:135]
    at = np.unique(np.concatenate([edge, rng.integers(0, len(grid) - 1, count)]))
    return np.concatenate([grid[at], (grid[at] + grid[at + 1]) / 2])


def difficult(dtype, count):
    points = np.concatenate([around(F16, count), around(BF16, count)]).astype(dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    limits = np.array([0, tiny, 2 * tiny, np.finfo(dtype).smallest_normal, np.finfo(dtype).max, np.inf], dtype)
    with np.errstate(over="ignore"):
        beside = [np.nextafter(points, dtype(0)), np.nextafter(points, dtype(np.inf))]
    values = np.concatenate([points, *beside, limits])
    if dtype is np.float64:
        # Close to a tie of the 16-bit floats in f64, equal to it in f32; and the boundaries of f32 itself.
        with np.errstate(over="ignore"):
            bounds = np.array([2.0**-149, 2.0**-150, 2.0**-151, 2.0**-126, 2.0**128 - 2.0**103, 2.0**128 - 2.0**104])
            values = np.concatenate([values, points * (1 + 2.0**-40), points * (1 - 2.0**-40), bounds])
            values = np.concatenate([values, np.nextafter(bounds, 0), np.nextafter(bounds, np.inf)])
    values = np.unique(values[values >= 0])
    return np.concatenate([values, -values[::2], [np.nan]]).astype(dtype)


def rounded(values):
    finite = ~np.isnan(values)
    with np.errstate(over="ignore"):
        f16 = values.astype(np.float16).view(np.uint16)
        by_ml_dtypes = values.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(nearest(values[finite], F16), f16[finite])
    bf16 = np.where(finite, nearest(values, BF16), by_ml_dtypes)
    if values.dtype == np.float32:
        assert np.array_equal(bf16, by_ml_dtypes)
    else:
        print(f"rounding twice to bf16 differs for {np.count_nonzero(bf16 != by_ml_dtypes)} of {len(values)} values")
    return [f16.astype("<u2"), bf16.astype("<u2")]


folder = Path(__file__).parent
f32 = difficult(np.float32, 250)
(folder / "casts_f32.bin").write_bytes(b"".join(a.tobytes() for a in [f32.astype("<f4"), *rounded(f32)]))
f64 = difficult(np.float64, 120)
with np.errstate(over="ignore"):
    narrow = f64.astype("<f4")
(folder / "casts_f64.bin").write_bytes(b"".join(a.tobytes() for a in [f64.astype("<f8"), narrow, *rounded(f64)]))
