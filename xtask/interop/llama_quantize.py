"""`llama_quantize.py SOURCE FOLDER NAME=NUMBER...`: llama.cpp quantizes a GGUF file to each of its file types.

The results are `FOLDER/NAME.gguf`.
"""

import ctypes
import sys
from pathlib import Path

import llama_cpp


def quantize(source, target, file_type):
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.nthread = 2
    parameters.ftype = file_type
    result = llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(parameters))
    if result != 0:
        raise SystemExit(f"llama_model_quantize to {file_type} ended with {result}")


if __name__ == "__main__":
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, None)
    source, folder = sys.argv[1], Path(sys.argv[2])
    for argument in sys.argv[3:]:
        name, _, number = argument.partition("=")
        quantize(source, folder / f"{name}.gguf", int(number))
