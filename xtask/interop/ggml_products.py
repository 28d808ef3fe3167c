"""Prints what ggml's kernels make of the rows in crates/graphs/apr-infer/src/matrix/blocks/tests.rs: for
each type of blocks a hash of the products, as `PRODUCTS_OF_GGML` has them.

Needs llama-cpp-python built for AVX2 (its kernels for other processors add up in other orders):
    python xtask/interop/ggml_products.py
"""

import ctypes
import pathlib

import llama_cpp
import numpy as np

LIBRARIES = pathlib.Path(llama_cpp.__file__).parent / "lib"
ROWS, BLOCKS = 3, 4
# Weights and bytes of a block, places of halves in it, the type of activations.
TYPES = {
    "Q4_0": (32, 18, [0], "q8_0"),
    "Q4_1": (32, 20, [0, 2], "q8_1"),
    "Q5_0": (32, 22, [0], "q8_0"),
    "Q5_1": (32, 24, [0, 2], "q8_1"),
    "Q8_0": (32, 34, [0], "q8_0"),
    "IQ4_NL": (32, 18, [0], "q8_0"),
    "MXFP4": (32, 17, [], "q8_0"),
    "NVFP4": (64, 36, [], "q8_0"),
    "Q1_0": (128, 18, [0], "q8_0"),
    "Q2_K": (256, 84, [80, 82], "q8_K"),
    "Q3_K": (256, 110, [108], "q8_K"),
    "Q4_K": (256, 144, [0, 2], "q8_K"),
    "Q5_K": (256, 176, [0, 2], "q8_K"),
    "Q6_K": (256, 210, [208], "q8_K"),
    "IQ4_XS": (256, 136, [0], "q8_K"),
    "IQ1_S": (256, 50, [0], "q8_K"),
    "IQ1_M": (256, 56, [], "q8_K"),
    "IQ2_XXS": (256, 66, [0], "q8_K"),
    "IQ2_XS": (256, 74, [0], "q8_K"),
    "IQ2_S": (256, 82, [0], "q8_K"),
    "IQ3_XXS": (256, 98, [0], "q8_K"),
    "IQ3_S": (256, 110, [0], "q8_K"),
    "TQ1_0": (256, 54, [52], "q8_K"),
    "TQ2_0": (256, 66, [64], "q8_K"),
}


class Noise:
    def __init__(self, state):
        self.state = state

    def byte(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return self.state >> 56

    def number(self):
        first, second = np.float32(self.byte()), np.float32(self.byte())
        return first / np.float32(127.5) - np.float32(1) + second / np.float32(65280)


def rows_of(name, size, halves, noise):
    rows = np.array([noise.byte() for _ in range(ROWS * BLOCKS * size)], np.uint8)
    for block in rows.reshape(-1, size):
        if name == "MXFP4":
            block[0] = 118 + block[0] % 8
        if name == "IQ1_M":
            half = int(np.float16(noise.number() * np.float32(0.01)).view(np.uint16))
            for at in range(4):
                block[49 + 2 * at] = block[49 + 2 * at] & 15 | (half >> 4 * at & 15) << 4
        for at in halves:
            half = np.float16(noise.number() * np.float32(0.01))
            block[at : at + 2] = np.frombuffer(half.tobytes(), np.uint8)
    return rows


def fnv(data):
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


def address(array):
    return ctypes.c_void_p(array.ctypes.data)


def main():
    ctypes.CDLL(str(LIBRARIES / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    ggml = ctypes.CDLL(str(LIBRARIES / "libggml-cpu.so"))
    ggml.ggml_cpu_init()
    for name, (weights, size, halves, activations) in TYPES.items():
        noise = Noise(5)
        rows, depth = rows_of(name, size, halves, noise), BLOCKS * weights
        x = np.array([noise.number() for _ in range(depth)], np.float32)
        quantized = np.zeros(2 * depth + 1024, np.uint8)
        quantize = getattr(ggml, f"quantize_row_{activations}")
        quantize(address(x), address(quantized), ctypes.c_int64(depth))
        ggml_name = name.lower() if not name.endswith("_K") else name[:-1].lower() + "K"
        product = getattr(ggml, f"ggml_vec_dot_{ggml_name}_{activations}")
        out, none = np.zeros(ROWS, np.float32), ctypes.c_size_t(0)
        for at, row in enumerate(rows.reshape(ROWS, -1)):
            row, place = row.copy(), ctypes.c_void_p(out.ctypes.data + 4 * at)
            product(
                depth, place, none, address(row), none, address(quantized), none, ctypes.c_int(1)
            )
        print(f"    (DType::{name}, 0x{fnv(out.tobytes()):016x}),")


main()
