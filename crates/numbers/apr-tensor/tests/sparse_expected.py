"""Prints the stored bytes that tests/sparse.rs expects, made by scipy.sparse.

    pip install numpy scipy; python tests/sparse_expected.py
"""

import struct

import numpy as np
import scipy.sparse as sp


def csr(dense):
    m = sp.csr_matrix(dense)
    m.sort_indices()
    return (struct.pack("<Q", m.nnz) + m.indptr.astype("<u8").tobytes()
            + m.indices.astype("<u4").tobytes() + m.data.astype(dense.dtype).tobytes())


def bsr(dense, b):
    rows, columns = (-(-n // b) * b for n in dense.shape)
    padded = np.zeros((rows, columns), dense.dtype)
    padded[: dense.shape[0], : dense.shape[1]] = dense
    m = sp.bsr_matrix(padded, blocksize=(b, b))
    m.sort_indices()
    return (struct.pack("<IIQ", b, 0, len(m.indices)) + m.indptr.astype("<u8").tobytes()
            + m.indices.astype("<u4").tobytes() + m.data.astype(dense.dtype).tobytes())


a = np.array([[0, 0, 3, 0, 5], [0, 0, 0, 0, 0], [1, 0, 0, 0, -2]], "<f4")
c = np.array([[1, 0, 0, 0, 2], [0, 0, 0, 0, 0], [0, 0, 0, 7, 0]], "u1")
for name, stored in [("CSR_F32", csr(a)), ("BSR_2_U8", bsr(c, 2)), ("BSR_3_U8", bsr(c, 3))]:
    print(f'const {name}: &str = "{stored.hex()}";')
