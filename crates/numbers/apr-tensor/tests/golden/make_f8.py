"""Writes f8_of_f16.bin: what ml_dtypes rounds every f16 to in float8_e4m3fn and float8_e5m2.

Rounding keeps the order and the sign, so that for each dtype it is enough to know the first f16, from zero up, that each
code from 0 to 127 comes from: 128 little-endian u16, 0xffff for codes that none comes from.
Needs numpy and ml_dtypes.
"""

from pathlib import Path

import ml_dtypes
import numpy as np

every = np.arange(2**16, dtype=np.uint16).view(np.float16)
content = b""
with np.errstate(all="ignore"):
    for dtype in [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]:
        codes = every.astype(dtype).view(np.uint8)
        positive, negative = codes[: 2**15], codes[2**15 :]
        assert np.array_equal(positive | 0x80, negative)
        assert np.all(np.diff(positive.astype(int)) >= 0)
        firsts = [np.argmax(positive == code) if code in positive else 0xFFFF for code in range(128)]
        content += np.array(firsts, dtype="<u2").tobytes()
Path(__file__).with_name("f8_of_f16.bin").write_bytes(content)
