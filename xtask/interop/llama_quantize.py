"""`llama_quantize.py SOURCE FOLDER [--imatrix=FILE] NAME=NUMBER...`: llama.cpp quantizes a GGUF file to each of its file
types, with the importance matrix of a `.dat` file where one is named.

The results are `FOLDER/NAME.gguf`.
"""

import ctypes
import struct
import sys
from pathlib import Path

import llama_cpp


def read_imatrix(path):
    """Entries of llama.cpp's older format, as `llama_model_imatrix_data`, of values that were counted once."""
    data, offset, entries = path.read_bytes(), 4, []
    (count,) = struct.unpack_from("<i", data)
    for _ in range(count):
        (length,) = struct.unpack_from("<i", data, offset)
        name = data[offset + 4 : offset + 4 + length]
        _, values = struct.unpack_from("<ii", data, offset + 4 + length)
        offset += 12 + length
        floats = (ctypes.c_float * values).from_buffer_copy(data, offset)
        entries.append(llama_cpp.llama_model_imatrix_data(name, floats, values))
        offset += 4 * values
    return entries


def imatrix_keys(path, entries):
    """The pairs that llama-quantize writes about the matrix."""
    file = llama_cpp.llama_model_kv_override(3, b"quantize.imatrix.file")
    file.value.val_str = str(path).encode()
    count = llama_cpp.llama_model_kv_override(0, b"quantize.imatrix.entries_count")
    count.value.val_i64 = len(entries)
    return [file, count, llama_cpp.llama_model_kv_override()]


def quantize(source, target, file_type, imatrix=None):
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.nthread = 2
    parameters.ftype = file_type
    if imatrix is not None:
        entries = read_imatrix(imatrix)
        keys = imatrix_keys(imatrix, entries)
        entries.append(llama_cpp.llama_model_imatrix_data(None, None, 0))
        parameters.imatrix = (llama_cpp.llama_model_imatrix_data * len(entries))(*entries)
        parameters.kv_overrides = (llama_cpp.llama_model_kv_override * len(keys))(*keys)
    result = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(parameters))
    if result != 0:
        raise SystemExit(f"llama_model_quantize to {file_type} ended with {result}")


if __name__ == "__main__":
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, None)
    source, folder = sys.argv[1], Path(sys.argv[2])
    imatrix = None
    for argument in sys.argv[3:]:
        name, _, value = argument.partition("=")
        if name == "--imatrix":
            imatrix = Path(value)
        else:
            quantize(source, folder / f"{name}.gguf", int(value), imatrix)
